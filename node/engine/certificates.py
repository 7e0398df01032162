"""Until when the member port's certificates are valid: its own, the authority's, and those that clients have shown.

Invariants: bounded, whoever connects; what cannot be read is not reported (a file that does not fit is refused before);
nothing here decides who is let in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from node.certificates import ends_of
from node.engine.clock import text_of
from node.transport.connection import Connection
from node.views.state import CertificateView

CLIENTS_MAX: Final = 128
SHOWN_MAX: Final = 32
SOON: Final = timedelta(days=30)  # of clients, those that end within so long are reported
NAME_CHARS_MAX: Final = 128


class PortCertificates:
    """One per member port."""

    def __init__(self, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._own: list[CertificateView] = []
        self._clients: dict[str, float] = {}  # name -> when the newest that it showed ends; last seen last

    def read(self, certificate: Path, _key: Path, authority: Path) -> None:
        """What the port serves with from now on."""
        self._own = [
            CertificateView(what=what, ends_at=text_of(of_all(ends).timestamp()))
            for what, path, of_all in (("member_port", certificate, min), ("authority", authority, max))
            if (ends := _ends_of(path))
        ]

    def note(self, connection: Connection) -> None:
        """Somebody has connected."""
        name, ends_s = connection.certificate_name, connection.certificate_ends_s
        if name is None or ends_s is None:
            return
        name = name[:NAME_CHARS_MAX]
        self._clients[name] = max(ends_s, self._clients.pop(name, ends_s))
        if len(self._clients) > CLIENTS_MAX:
            del self._clients[next(iter(self._clients))]

    def view(self, members: Collection[str]) -> tuple[CertificateView, ...]:
        """Clients are those who are no members, the ones that end first."""
        until_s = self._wall_s() + SOON.total_seconds()
        soon = sorted((ends, name) for name, ends in self._clients.items() if ends <= until_s and name not in members)
        clients = (CertificateView(what="client", name=name, ends_at=text_of(ends)) for ends, name in soon[:SHOWN_MAX])
        return (*self._own, *clients)


def _ends_of(path: Path) -> list[datetime]:
    try:
        return ends_of(path)
    except (OSError, ValueError):
        return []
