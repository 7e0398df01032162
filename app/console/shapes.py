"""What a control plane's answers must look like before the console takes them in.

Fields that are missing, null or not known here are fine; what a page or a rule counts with has the right type and a
sane size. Invariants: `misfit` never raises, whatever was sent; lists are bounded. Notation: a dict is an object ("!"
before a field: it has to be there), a list of one is a list of such, a function judges a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

INDEX_MAX: Final = 1 << 62
TEXT_MAX: Final = 20_000
ITEMS_MAX: Final = 20_000

Check = Callable[[Any], str | None]


def whole(value: Any) -> str | None:
    """An index, a term, a count: fits 63 bits, as the history stores it."""
    if isinstance(value, bool) or not isinstance(value, int):
        return "is no whole number"
    return None if -INDEX_MAX <= value <= INDEX_MAX else "is out of range"


def number(value: Any) -> str | None:
    """Milliseconds, ratios, bytes."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "is no number"
    return None if math.isfinite(value) and abs(value) <= INDEX_MAX else "is out of range"


def text(value: Any) -> str | None:
    if not isinstance(value, str):
        return "is no text"
    return None if len(value) <= TEXT_MAX else f"is a text of {len(value)} characters"


def flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "is neither true nor false"


def anything(_value: Any) -> str | None:
    return None


def alarm(value: Any) -> str | None:
    """A name alone, or an object."""
    return misfit(value, ALARM) if isinstance(value, dict) else text(value)


ALARM: Final = {
    "kind": text, "code": text, "name": text, "severity": text, "since": text, "at": text, "text": text,
    "message": text,
}  # fmt: skip
UNKNOWN: Final = [{"!field": text, "reason": text, "since": text}]
STATE: Final[dict[str, Any]] = {
    "!engine": text, "engine_reason": text, "boot_id": text, "group": text, "group_id": text, "!self_id": text,
    "role": text,
    "role_since": text, "term": whole, "leader_id": text, "flush": text, "voter_state": text, "is_java": flag,
    "log": {
        "begin_index": whole, "end_index": whole, "end_term": whole, "durable_index": whole, "committed_index": whole,
        "applied_index": whole, "size_bytes": whole,
    },
    "peers": [{"!id": text, "address": text, "control_url": text, "connected": flag}],
    "links": [
        {"!peer_id": text, "in_since": text, "out_since": text, "last_heard_ms": number, "rtt_ms": number}
    ],
    "timing": {"heart_beat_time_interval_ms": whole, "election_timeout_max_ms": whole},
    "disk": {},
    "alarms": [alarm],
    "faults": [{"!first_index": whole, "!last_index": whole}],
    "repair": {"hopeless": whole, "peer_id": text},
    "unknown": UNKNOWN,
}  # fmt: skip
WATERMARKS: Final[dict[str, Any]] = {
    "term": whole, "leader_id": text, "quorum_index": whole, "needed": whole, "unknown": UNKNOWN,
    "end_index": whole, "committed_index": whole, "applied_index": whole,
    "peers": [
        {
            "!id": text, "match_index": whole, "write_index": whole, "durable_index": whole, "lag_entries": whole,
            "lag_bytes": number, "lag_ms": number, "last_ack_ms": number,
        }
    ],
}  # fmt: skip
DISPATCHERS: Final[dict[str, Any]] = {
    "items": [
        {
            "!peer_id": text, "!state": text, "since": text, "in_flight": whole, "in_flight_bytes": whole,
            "write_index": whole, "match_index": whole, "resends": whole, "last_error": text,
            "transitions": [{"!at": text, "!from": text, "!to": text, "reason": text}],
        }
    ],
}  # fmt: skip
CLOSURES: Final[dict[str, Any]] = {
    "pending": whole, "limit": whole, "oldest_age_ms": number,
    "last_completed": {"at": text, "took_ms": number},
    "groups": [
        {
            "!waits_for": [text], "!needed": whole, "count": whole, "first_index": whole, "last_index": whole,
            "oldest_age_ms": number, "times_out_in_ms": number, "bytes": number,
        }
    ],
    "items": [
        {
            "!first_index": whole, "last_index": whole, "term": whole, "waits_for": [text], "age_ms": number,
            "times_out_in_ms": number,
        }
    ],
}  # fmt: skip
EVENTS: Final[dict[str, Any]] = {"items": [{"at": text, "kind": text, "severity": text}], "next": text}
SHAPES: Final[dict[str, Any]] = {
    "state": STATE, "watermarks": WATERMARKS, "dispatchers": DISPATCHERS, "closures": CLOSURES, "events": EVENTS,
}  # fmt: skip


def misfit(value: Any, shape: Any, path: str = "") -> str | None:
    """The first thing that is not as it should be, with its place; None where all is."""
    where = path or "the answer"
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{where} is no object"
        for name, inner in shape.items():
            key = name.removeprefix("!")
            here = f"{path}.{key}" if path else key
            if value.get(key) is None:
                if name != key:
                    return f"{here} is missing"
            elif (found := misfit(value[key], inner, here)) is not None:
                return found
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        if len(value) > ITEMS_MAX:
            return f"{where} holds {len(value)} items"
        judged = (misfit(item, shape[0], f"{path}[{place}]") for place, item in enumerate(value))
        return next((one for one in judged if one is not None), None)
    wrong: str | None = shape(value)
    return None if wrong is None else f"{where} {wrong}"
