"""Base of all views: how a value is bounded, and how a view becomes JSON.

Invariants: a field that is absent or null is None, "unknown", never 0; a field that this version does not know is left
out; a value of another type or beyond its bounds is refused, whoever sent it.
"""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PlainValidator, Strict, StringConstraints
from pydantic_core import PydanticCustomError

# Fits 63 bits, as the history stores it.
INDEX_MAX: Final = 1 << 62
TEXT_MAX: Final = 20_000
ITEMS_MAX: Final = 20_000
FAULTS_MAX: Final = 3_000  # ranges of damaged entries
ALARMS_MAX: Final = 64  # each is a problem, which is judged beside all others, several times a second
PEERS_MAX: Final = 256  # far more than a group has members: who reads a view compares each with each

JsonObject = dict[str, JsonValue]


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PydanticCustomError("odd_number", "is no number")
    if not math.isfinite(value) or abs(value) > INDEX_MAX:
        raise PydanticCustomError("odd_number", "is out of range")
    return value


# An index, a term, a count.
Whole = Annotated[int, Strict(), Field(ge=-INDEX_MAX, le=INDEX_MAX)]
# Milliseconds, ratios, bytes: written as it was read, 20 as 20 and 20.0 as 20.0.
Number = Annotated[int | float, PlainValidator(_number, json_schema_input_type=float)]
Text = Annotated[str, StringConstraints(strict=True, max_length=TEXT_MAX)]
Flag = Annotated[bool, Strict()]
Bounded = Field(max_length=ITEMS_MAX)
OfMembers = Field(max_length=PEERS_MAX)


def writable(value: JsonObject) -> JsonObject:
    """pydantic looks into fields of text only: what stands deeper may be half of a character, or a number without end.
    Raises PydanticCustomError."""
    written_bytes(value)
    return value


def written_bytes(value: JsonObject) -> int:
    """How long it is as JSON. Raises PydanticCustomError."""
    try:
        return len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except UnicodeEncodeError:
        raise PydanticCustomError("string_unicode", "is no text that can be written") from None
    except ValueError:
        raise PydanticCustomError("odd_number", "holds a number that is none") from None


def first(most: int) -> BeforeValidator:
    """Of more than there can be, the rest says nothing new."""
    return BeforeValidator(lambda value: value[:most] if isinstance(value, list | tuple) else value)


FirstAlarms = first(ALARMS_MAX)
FirstFaults = first(FAULTS_MAX)


class View(BaseModel):
    """Something that a member said; never edited afterwards."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    def to_bytes(self) -> bytes:
        """As JSON: what was set, no spaces, in the order of declaration."""
        return self.model_dump_json(by_alias=True, exclude_unset=True).encode()

    def to_json(self) -> JsonObject:
        """The same as an object, to be put into a greater one."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class UnknownView(View):
    """A field of the answer that nobody could fill, why, and since when."""

    field: Text
    reason: Text | None = None
    since: Text | None = None


Unknowns = Annotated[tuple[UnknownView, ...], Bounded]


class AnswerView(View):
    """What every answer begins with: when it was true, and whether the engine itself said it.

    `engine`: ok; stale, it does not answer, this is what it said last; down, it does not run, and why.
    """

    as_of: Text | None = None
    engine: Text | None = None
    engine_reason: Text | None = None
    boot_id: Text | None = None
