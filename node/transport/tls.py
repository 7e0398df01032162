"""TLS contexts of the member port: mutual, so that a certificate's name says which member it is (SAFETY C7)."""

from __future__ import annotations

import ssl
from pathlib import Path

from node import measured_tls


def server_context(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Clients and members must show a certificate of that authority."""
    context = measured_tls.server_context()
    context.load_verify_locations(str(authority))
    context.load_cert_chain(str(certificate), str(key))
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    """Who answers is checked by its certificate's name (the member's id), not by its host."""
    context = measured_tls.client_context(authority)
    context.load_cert_chain(str(certificate), str(key))
    context.check_hostname = False
    return context
