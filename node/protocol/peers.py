"""Members as DLedger writes them: "n0-127.0.0.1:20911;n1-…". Invariant: format_peers(parse_peers(text)) == text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

# DLedger splits "n0-host:port" at the first "-" and the list at ";": an id may hold neither.
HOST_BYTES_MAX: Final = 253
# A name, an IPv4 or an IPv6 address with its zone; labels of a name are checked by IDNA's own rules.
HOST: Final = re.compile(r"[A-Za-z0-9_.-]+|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")
MORE_THAN_A_HOST: Final = frozenset("/?#@\\")
MEMBER_ID: Final = re.compile(r"[A-Za-z0-9_.]{1,64}")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port". Raises ValueError with what is wrong."""
    host, colon, port_text = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f'"{address}" is not host:port')
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f'"{address}": write an IPv6 address in brackets, as [::1]:20911')
    check_host(host)
    if not port_text.isascii() or not port_text.isdigit() or not 1 <= int(port_text) <= 65535:
        raise ValueError(f'"{address}": the port must be a number from 1 to 65535')
    return host, int(port_text)


def dialled(host: str) -> str:
    """Where this machine reaches what listens on that host: on all addresses of IPv4, or of IPv6 alone, on loopback."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def is_address(address: str | None) -> bool:
    """Whether it is "host:port", as somebody else says it."""
    try:
        split_address(address or "")
    except ValueError:
        return False
    return True


def check_host(host: str) -> None:
    """Raises ValueError for what can be no host's name: resolvers refuse it with errors of all kinds, or ask for it."""
    try:
        encoded = host.encode("idna")
    except UnicodeError as error:
        raise ValueError(f'"{host}" is no host name: {error.__cause__ or error}') from error
    if not encoded or len(encoded) > HOST_BYTES_MAX or not HOST.fullmatch(encoded.decode("ascii", "replace")):
        raise ValueError(f'"{host}" is no host name')


def is_everywhere(host: str) -> bool:
    """Whether who listens on that host listens on all addresses of the machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


@lru_cache(maxsize=64)
def name_in(host: str) -> str:
    """The name in a request's Host, without the port; empty where there is none, or more than that."""
    try:
        return "" if MORE_THAN_A_HOST & set(host) else urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def parse_peers(text: str) -> dict[str, str]:
    """Id -> "host:port"; empty for an empty text. Raises ValueError with what is wrong."""
    peers: dict[str, str] = {}
    for part in (part.strip() for part in text.split(";")):
        if not part:
            continue
        member_id, dash, address = part.partition("-")
        if not dash:
            raise ValueError(f'"{part}" is not id-host:port (as in n0-127.0.0.1:20911)')
        if member_id in peers:
            raise ValueError(f'"{member_id}" is named twice')
        peers[member_id] = address
    return check_peers(peers)


def checked_address(address: str) -> str:
    """The same text. Raises ValueError for what is no host:port."""
    split_address(address)
    return address


def checked_id(member_id: str) -> str:
    """The same text. Raises ValueError for what can be no member's id."""
    if not MEMBER_ID.fullmatch(member_id):
        raise ValueError(f'"{member_id}" is no member id: letters, digits, "_" and "." only')
    return member_id


def check_peers(peers: dict[str, str]) -> dict[str, str]:
    """The same mapping; raises ValueError for an id or address that no member can have."""
    for member_id, address in peers.items():
        checked_id(member_id)
        split_address(address)
    if len(set(peers.values())) != len(peers):
        raise ValueError("two members have the same address")
    return peers


def format_peers(peers: Mapping[str, str]) -> str:
    """The reverse of `parse_peers`."""
    return ";".join(f"{member_id}-{address}" for member_id, address in peers.items())
