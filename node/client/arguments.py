"""What callers hand in, looked at before anything of it is kept or sent.

Invariant: what passes can be encoded; a number is no body (`bytes(5)` is five zero bytes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

from node.protocol.packed_bodies import PackedBodies
from node.protocol.peers import checked_address

INDEX_MAX: Final = (1 << 63) - 1
SECONDS_MAX: Final = 1_000_000_000
ENTRIES_MAX: Final = (1 << 31) - 1
NO_RUN: Final = (bytes, bytearray, memoryview, str, Set, Mapping)  # what can be gone through, and is not several bodies


def body_of_entry(body: Any) -> bytes:
    """Raises TypeError."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(f"a body is bytes, not {type(body).__name__}")
    return bytes(body)


def bodies_of_run(bodies: Iterable[Any]) -> Sequence[bytes]:
    """The bodies as they are now, whatever becomes of the caller's list; an iterator's, too. Raises TypeError."""
    if type(bodies) is PackedBodies:
        return bodies
    if type(bodies) is not list and (isinstance(bodies, NO_RUN) or not isinstance(bodies, Iterable)):
        raise TypeError(f"several bodies are a sequence of bytes, not {type(bodies).__name__}")
    held = list(bodies)
    if list(map(type, held)).count(bytes) == len(held):  # half the time of a set of them
        return held
    return [body_of_entry(body) for body in held]


def text_of(what: str, text: Any) -> str:
    """Raises TypeError."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {type(text).__name__}")
    return text


def checked_addresses(members: Mapping[str, Any]) -> dict[str, str]:
    """Raises TypeError, ValueError."""
    return {one: checked_address(text_of(f"the address of {one}", at)) for one, at in members.items()}


def index_of(index: Any) -> int:
    """One, or how many of them. Raises TypeError, ValueError."""
    return number_of("an index or a limit", index, INDEX_MAX)


def seconds_of(what: str, seconds: Any) -> float:
    """Raises TypeError, ValueError; also for what no clock reaches, and for what is no number of them (NaN)."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise TypeError(f"{what} is a number of seconds, not {type(seconds).__name__}")
    if not 0 <= seconds <= SECONDS_MAX:
        raise ValueError(f"{what} is from 0 to {SECONDS_MAX} seconds, not {seconds}")
    return seconds


def number_of(what: str, number: Any, most: int, least: int = 0) -> int:
    """Raises TypeError, ValueError."""
    if type(number) is not int:
        raise TypeError(f"{what} is a whole number, not {type(number).__name__}")
    if not least <= number <= most:
        raise ValueError(f"{what} is from {least} to {most}, not {number}")
    return number
