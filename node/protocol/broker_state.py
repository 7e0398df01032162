"""What a broker group's log says beside its messages: changes of metadata, and the state that a snapshot holds whole.

A *metadata* entry (channel 3) is a change of tables: for each table the keys that have another value from there on, and
null for those that are gone. A table is a name of the broker's (topics, groups, consumer offsets, ...) with keys and
values of JSON; whoever does not know a table keeps it, so that a snapshot by an older release loses nothing of it.

The *state* at an entry is all tables, and of each topic what nothing else may know any more once its messages have
expired: the next offset of each queue, and the incarnation: the entry with which it was deleted last. Messages of
that topic before it belong to the one that was deleted, whose offsets do not count.

Both are one byte of format, then JSON in UTF-8 with sorted names, so equal states have equal bytes.

Invariants: `decode(encode(x)) == x`; a decoder raises BodyInvalid and nothing else, whatever the bytes; numbers are
within int64, never negative, but for an incarnation of -1: it never was deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

FORMAT: Final = 1
INT64_MAX: Final = (1 << 63) - 1
SINCE_THE_BEGINNING: Final = -1
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
Tables = Mapping[str, Mapping[str, Any]]


class BodyInvalid(ValueError):
    """Bytes are no body of that kind; the text says why."""


@dataclass(slots=True, frozen=True)
class TopicOffsets:
    """Of one topic: the entry with which it was deleted last, and by queue the offset that its next message gets."""

    incarnation: int = SINCE_THE_BEGINNING
    next_offsets: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class BrokerState:
    """All that a broker cannot derive from the messages that are left, as of one entry."""

    as_of_index: int
    topics: Mapping[str, TopicOffsets] = field(default_factory=dict)
    tables: Tables = field(default_factory=dict)


# --- metadata ---------------------------------------------------------------------------------------------------------
def encode_metadata(change: Tables) -> bytes:
    """Raises BodyInvalid for what would not come back as it is."""
    _check_tables(change)
    return _packed(change)


def decode_metadata(body: bytes) -> dict[str, dict[str, Any]]:
    """The tables and keys that change; null: that key is gone. Raises BodyInvalid."""
    return _check_tables(_unpacked(body))


def apply_metadata(tables: dict[str, dict[str, Any]], change: Tables) -> None:
    """Carries a change out; a table without keys is none."""
    for name, keys in change.items():
        table = tables.setdefault(name, {})
        for key, value in keys.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        if not table:
            del tables[name]


# --- the whole state --------------------------------------------------------------------------------------------------
def encode_state(state: BrokerState) -> bytes:
    """What a snapshot's parts hold together. Raises BodyInvalid for what would not come back as it is."""
    _check_tables(state.tables)
    topics = {
        name: {"incarnation": one.incarnation, "next": {str(queue): at for queue, at in one.next_offsets.items()}}
        for name, one in state.topics.items()
    }
    value = {"as_of_index": state.as_of_index, "topics": topics, "tables": state.tables}
    _state_of(value)
    return _packed(value)


def decode_state(content: bytes) -> BrokerState:
    """Raises BodyInvalid."""
    return _state_of(_unpacked(content))


def _state_of(value: dict[str, Any]) -> BrokerState:
    if value.keys() != {"as_of_index", "topics", "tables"} or not isinstance(value["topics"], dict):
        raise BodyInvalid("a state has an index, topics and tables")
    topics = {name: _offsets_of(name, one) for name, one in value["topics"].items()}
    tables = _check_tables(value["tables"])
    if any(entry is None for table in tables.values() for entry in table.values()):
        raise BodyInvalid("a key of a state's table has no value")
    return BrokerState(_number(value["as_of_index"], "the index", least=-1), topics, tables)


def _offsets_of(name: Any, value: Any) -> TopicOffsets:
    if not isinstance(name, str) or not isinstance(value, dict) or value.keys() != {"incarnation", "next"}:
        raise BodyInvalid(f"topic {name!r} has an incarnation and next offsets")
    queues = value["next"]
    if not isinstance(queues, dict) or not all(_is_queue(queue) for queue in queues):
        raise BodyInvalid(f"the queues of topic {name!r} are no numbers")
    next_offsets = {int(queue): _number(at, f"an offset of topic {name!r}") for queue, at in queues.items()}
    incarnation = _number(value["incarnation"], f"the incarnation of topic {name!r}", least=SINCE_THE_BEGINNING)
    return TopicOffsets(incarnation, next_offsets)


def _is_queue(text: str) -> bool:
    """As `str` writes an int32 that is not negative."""
    return text.isascii() and text.isdigit() and len(text) <= 10 and text == str(int(text)) and int(text) < 1 << 31


def _number(value: Any, what: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= INT64_MAX:
        raise BodyInvalid(f"{what} is {value!r}")
    return value


def _check_tables(value: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping):
        raise BodyInvalid("tables are a JSON object")
    for name, table in value.items():
        if not isinstance(name, str) or not _TABLE.fullmatch(name):
            raise BodyInvalid(f"{name!r} is no name of a table")
        if not isinstance(table, Mapping) or not all(isinstance(key, str) for key in table):
            raise BodyInvalid(f"table {name} is no JSON object")
    return value  # type: ignore[return-value]


def _packed(value: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyInvalid(f"no JSON can hold this: {error}") from error
    return bytes([FORMAT]) + text.encode("ascii")


def _unpacked(body: bytes) -> dict[str, Any]:
    if body[:1] != bytes([FORMAT]):
        raise BodyInvalid(f"format {body[0] if body else 'none'}, this version knows {FORMAT}")
    try:
        value = json.loads(body[1:].decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(f"no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BodyInvalid("no JSON object")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")
