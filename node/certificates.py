"""Until when the certificates of a PEM file are valid, read from their DER: the standard library offers no such thing.

Only what is needed is read: Certificate, tbsCertificate, validity, notAfter (RFC 5280, 4.1). Invariant: whatever the
file holds, the answer is a time or ValueError.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from node.regular_file import open_regular

PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
FILE_BYTES_MAX: Final = 4 << 20
SEQUENCE, VERSION, UTC_TIME, GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def ends_of(path: Path) -> list[datetime]:
    """The end of each certificate in the file. Raises OSError, ValueError."""
    with open_regular(path) as file:
        text = file.read(FILE_BYTES_MAX).decode("ascii", "replace")
    found = [not_after(ssl.PEM_cert_to_DER_cert(one)) for one in PEM.findall(text)]
    if not found:
        raise ValueError("holds no certificate")
    return found


def not_after(der: bytes) -> datetime:
    try:
        return read_not_after(der)
    except (IndexError, UnicodeDecodeError) as error:
        raise ValueError(f"no certificate can be read: {error}") from None


def read_not_after(der: bytes) -> datetime:
    at, _ = inside(der, 0, SEQUENCE)  # Certificate
    at, _ = inside(der, at, SEQUENCE)  # tbsCertificate
    if der[at] == VERSION:
        at = behind(der, at)
    for _ in range(3):  # serial number, signature algorithm, issuer
        at = behind(der, at)
    at, _ = inside(der, at, SEQUENCE)  # validity
    at = behind(der, at)  # notBefore
    begin, end = inside(der, at, der[at])
    return time_of(der[at], der[begin:end].decode("ascii"))


def time_of(kind: int, text: str) -> datetime:
    if kind == UTC_TIME:  # two digits of the year: 50 to 99 are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif kind != GENERALIZED_TIME:
        raise ValueError("no certificate can be read: its validity is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def inside(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """(begin, end) of what the element at `at` holds. Raises ValueError."""
    if der[at] != tag:
        raise ValueError(f"no certificate can be read: {der[at]:#x} at byte {at}")
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        if not 1 <= octets <= 4:
            raise ValueError(f"no certificate can be read: a length of {octets} octets")
        begin, length = at + 2 + octets, int.from_bytes(der[at + 2 : at + 2 + octets], "big")
    if begin + length > len(der):
        raise ValueError("no certificate can be read: it ends too soon")
    return begin, begin + length


def behind(der: bytes, at: int) -> int:
    return inside(der, at, der[at])[1]
