"""How commands speak TLS: `--ca`, and with it `--cert` and `--key` to show themselves to members.

A control plane is checked against the authority and by its host's name; a member by the authority and by its
certificate's name, which is its id. Invariant: what is given and cannot be used is an error before anything is asked.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from node.config import Settings
from node.measured_tls import client_context
from node.tls_files import tls_trouble

CaOption = Annotated[
    Path | None, typer.Option("--ca", metavar="FILE", help="The CA of members and control planes (PEM).")
]
CertOption = Annotated[
    Path | None, typer.Option("--cert", metavar="FILE", help="The certificate to show to members, with --ca and --key.")
]
KeyOption = Annotated[Path | None, typer.Option("--key", metavar="FILE", help="Its key.")]


class TlsFilesError(ValueError):
    """The files that were named cannot be used."""


@dataclass(frozen=True, slots=True)
class TlsFlags:
    """What a command was given."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def over(self, settings: Settings) -> TlsFlags:
        """These, and what [node] says where there are none."""
        node = settings.node
        if self.cert is not None or self.key is not None or node.tls_cert_file is None:
            return self
        return TlsFlags(self.ca or node.tls_ca_file, node.tls_cert_file, node.tls_key_file)

    def check(self) -> None:
        """Raises TlsFilesError."""
        if (self.cert is None) != (self.key is None) or (self.cert is not None and self.ca is None):
            raise TlsFilesError("members are shown a certificate with --ca, --cert and --key together")
        trouble = tls_trouble(self.cert, self.key, self.ca)
        if trouble is not None:
            raise TlsFilesError(f"TLS: {trouble}")

    def for_members(self) -> ssl.SSLContext | None:
        """None: they are spoken to without TLS. Raises TlsFilesError."""
        self.check()
        if self.cert is None or self.key is None or self.ca is None:
            return None
        context = client_context(self.ca)
        context.load_cert_chain(str(self.cert), str(self.key))
        context.check_hostname = False  # a member is known by its certificate's name, which is its id
        return context

    def for_control_planes(self) -> ssl.SSLContext | None:
        """None: the authorities that this machine knows. Raises TlsFilesError."""
        self.check()
        return None if self.ca is None else ssl.create_default_context(cafile=str(self.ca))
