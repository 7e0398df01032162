"""Where others reach a member's control plane.

One that listens on all addresses of its machine (0.0.0.0, ::) says the host at which the other members know it: whoever
asked 0.0.0.0 on another machine would ask that one's own member.
"""

from __future__ import annotations

import ipaddress

from node.config import Settings, split_address


def control_host(settings: Settings) -> str:
    """The host alone, an IPv6 address without brackets."""
    host, _ = split_address(settings.control.address)
    known = settings.ha.address if settings.ha.is_classic else settings.peers.get(settings.node.id)
    return split_address(known)[0] if known and is_every_address(host) else host


def control_url(settings: Settings) -> str:
    scheme = "https" if settings.control.tls_cert_file is not None else "http"
    host, port = control_host(settings), split_address(settings.control.address)[1]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
