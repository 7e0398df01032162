"""The check of TLS files, made before anything listens, and a server's context that can be exchanged later."""

from __future__ import annotations

import ssl
from pathlib import Path

from node.measured_tls import server_context
from node.regular_file import open_regular


def tls_trouble(certificate: Path | None, key: Path | None, authority: Path | None) -> str | None:
    """What is wrong with them, in one line that names the file; None where nothing is, or none is named."""
    for path in (certificate, key, authority):
        if path is None:
            continue
        try:
            open_regular(path).close()
        except FileNotFoundError:
            return f"{path}: there is no such file"
        except OSError as error:
            return f"{path}: {error.strerror}"
    if key is not None and key.stat().st_mode & 0o007:
        return f"{key}: others may read this key; chmod o-rwx {key}"
    if certificate is not None and key is not None:
        try:  # a key that is protected gets no pass phrase: nobody may be there to type one
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(str(certificate), str(key), password=lambda: b"")
        except (OSError, ValueError) as error:
            return f"{certificate} and {key} are no certificate and its key ({_reason(error)})"
    if authority is not None:
        try:
            ssl.create_default_context(cafile=str(authority))
        except (OSError, ValueError) as error:
            return f"{authority} holds no certificate of an authority ({_reason(error)})"
    return None


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()


class ServerTls:
    """Of an HTTP server: whoever connects after `use` is shown the newer certificate. Raises OSError, ValueError."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._certificate, self._key = certificate, key
        self._newest = self.context = self.read()
        self.context.sni_callback = self._choose  # asked at each handshake, also where no name is sent

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _given: ssl.SSLContext) -> None:
        connection.context = self._newest

    def read(self) -> ssl.SSLContext:
        trouble = tls_trouble(self._certificate, self._key, None)
        if trouble is not None:
            raise ValueError(trouble)
        context = server_context()
        context.load_cert_chain(str(self._certificate), str(self._key), password=lambda: b"")
        return context

    def use(self, context: ssl.SSLContext) -> None:
        self._newest = context
