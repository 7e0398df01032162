"""What the JSON body of a REST request may be, at control planes and the console alike.

Invariant: the named fields and no others, each once and of its own JSON type. A lenient reader takes `true` for the
number 1 and "no" for a switch that is off, and of a key that is there twice the last one; where a body says `force` or
`expected_index`, it must not guess. JSON has one kind of number, so 4.0 is the whole number 4.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, model_validator

BODY: Final = ConfigDict(extra="forbid", strict=True)  # times, which JSON has as text, are named as not strict
NO_KEY: Final = (
    "An append keeps no Idempotency-Key: the next leader would not know it, and a retry would append twice. Send it"
    " without one, with expected_index where that can be named; after an unknown outcome read that index first."
)


KEY_CHARS_SHOWN: Final = 100


class Repeated(ValueError):
    """A key is there more than once, and nobody can say which one was meant."""


def parsed(raw: bytes) -> Any:
    """A JSON body. Raises ValueError for what is none, Repeated."""
    try:
        return json.loads(raw.decode(), object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _each_key_once(pairs: Sequence[tuple[str, Any]]) -> Any:
    found = dict(pairs)
    if len(found) < len(pairs):
        count = Counter(name for name, _ in pairs)
        twice = count.most_common(1)[0][0]
        raise Repeated(f"{twice[:KEY_CHARS_SHOWN]!r} is there more than once")
    return found


def whole(value: Any) -> Any:
    """A number without a fraction as an int; everything else as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


class RequestBody(BaseModel):
    model_config = BODY

    @model_validator(mode="before")
    @classmethod
    def whole_numbers(cls, given: Any) -> Any:
        return {name: whole(value) for name, value in given.items()} if isinstance(given, dict) else given
