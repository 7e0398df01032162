"""The member's files that the engine reads again on SIGHUP (node/rereading.py), and the alarm about those it cannot."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from node.config import Settings
from node.engine.client_requests import ClientRequests
from node.engine.member_port import MemberPort
from node.engine.options import client_access, member_trust, tls_files
from node.engine.peer_links import PeerLinks
from node.rereading import Note, Rereading
from node.tls_files import tls_trouble
from node.transport.tls import client_context, server_context

CERTIFICATE: Final = "the member port's certificate"
SECRET: Final = "the members' secret"
TOKENS: Final = "the clients' tokens"


def member_files(
    in_force: Callable[[], Settings], port: MemberPort, links: PeerLinks, requests: ClientRequests, note: Note
) -> Rereading:
    """Of one engine. `in_force`: its settings as they are by then, for a row or a key may have changed since."""
    settings, found = in_force(), Rereading(note)
    files = tls_files(settings)
    if files is not None:
        port.certificates.read(*files)

        def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
            trouble = tls_trouble(*files)
            if trouble is not None:
                raise ValueError(trouble)
            return server_context(*files), client_context(*files)

        def renew(both: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
            port.renew(both[0])
            links.renew_tls(both[1])
            port.certificates.read(*files)

        found.add(CERTIFICATE, contexts, renew)
    if settings.node.secret_file is not None:
        found.add(SECRET, lambda: member_trust(in_force()), links.renew_trust)
    if settings.node.token_file is not None:  # rows with tokens need one too
        found.add(TOKENS, lambda: client_access(in_force()), requests.renew_access)
    return found
