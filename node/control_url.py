"""Where others reach a member's control plane.

One that listens on all addresses of its machine (0.0.0.0, ::) says the host at which the other members know it: whoever
asked 0.0.0.0 on another machine would ask that one's own member.
"""

from __future__ import annotations

from node.config import Settings, split_address
from node.protocol.peers import is_everywhere


def control_host(settings: Settings) -> str:
    """The host alone, an IPv6 address without brackets."""
    host = split_address(settings.control.address)[0]
    others = (
        (settings.ha.address, settings.broker.address)
        if settings.ha.is_classic
        else (settings.peers.get(settings.node.id),)
    )
    hosts = (host, *(split_address(one)[0] for one in others if one))
    return next((one for one in hosts if not is_everywhere(one)), host)


def control_url(settings: Settings) -> str:
    scheme = "https" if settings.control.tls_cert_file is not None else "http"
    host, port = control_host(settings), split_address(settings.control.address)[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
