"""Reads a view from what somebody else sent: an older or a newer member, a stranger, a broken one.

Invariant: whatever was sent, the answer is a view or `Unreadable`, which names the first field that is not as it should
be; no other error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from node.views.base import View

V = TypeVar("V", bound=View)

# What pydantic calls it -> what an operator reads behind the field's name.
_SAID: Final[Mapping[str, str]] = {
    "missing": "is missing",
    "int_type": "is no whole number",
    "int_from_float": "is no whole number",
    "finite_number": "is no whole number",
    "greater_than_equal": "is out of range",
    "less_than_equal": "is out of range",
    "string_type": "is no text",
    "string_unicode": "is no text that can be written",
    "bool_type": "is neither true nor false",
    "model_type": "is no object",
    "model_attributes_type": "is no object",
    "dict_type": "is no object",
    "tuple_type": "is no list",
}


class Unreadable(ValueError):
    """The text names the field and what is wrong with it."""


def read(view: type[V], sent: Any) -> V:
    """`sent` is a JSON value. Raises Unreadable."""
    try:
        return view.model_validate(sent)
    except ValidationError as error:
        raise Unreadable(_said(error.errors(include_url=False, include_context=False)[0])) from None
    except RecursionError:
        raise Unreadable("the answer is nested too deeply") from None


def _said(error: ErrorDetails) -> str:
    kind, value = error["type"], error.get("input")
    where = ""
    for step in error["loc"]:
        where += f"[{step}]" if isinstance(step, int) else f".{step}" if where else step
    if kind == "string_too_long":
        why = f"is a text of {len(str(value))} characters"
    elif kind == "too_long":
        why = f"holds {len(value) if isinstance(value, list | tuple) else 'too many'} items"
    elif value is None and kind != "missing" and where and not where.endswith("]"):
        why = "is missing"
    else:
        why = _SAID.get(kind, error["msg"])
    return f"{where or 'the answer'} {why}"
