"""What a request's path and query string must be before they are read: by control plane and console alike.

Parameters are declared as whole numbers, and what reads them is lenient: `1.0`, `1_0`, `+1` and " 1" would pass for
one, and of a parameter that is there twice, or of a JSON body's key, the last one counts, while a proxy, or whoever
wrote it, may mean the first. And a name that a call does not know is overlooked: `dry_run` in the address of a POST
that reads it from its body would have the change made, and `expected_index` there would have it made without the
condition. All are refused with 422, as everything is that does not fit what a call declares; a read may carry names
that nobody knows.

Invariant: what is refused here changes nothing, for it is judged before the call begins.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, get_args

from fastapi import Depends, Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError

from node.views.request_body import Repeated, parsed

API: Final = "/api/"  # pages' forms may come with whatever the page's own address said
GROUP: Final = "group"  # which every call of a group takes; the guard looks at it
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOT_THERE: Final = "this call does not take it in the address; what it takes is in /api/v1/openapi.json"
NO_NUMBER: Final = "Input should be a whole number: digits, and nothing else"
NO_BODY: Final = "a DELETE takes no body: what this call takes goes into the address"
SAYS_NOTHING: Final = (b"", b"{}")  # some clients send an empty object with each change
WHOLE_NUMBER: Final = re.compile(r"-?[0-9]+", re.ASCII)


class Declared(NamedTuple):
    """What a call takes in its query string, `once` or at all, and which are whole numbers, there and in its path."""

    dependant: object
    query: frozenset[str]
    once: tuple[str, ...]
    numbers: tuple[tuple[str, str], ...]  # "query" or "path", and the name


_known: dict[int, Declared] = {}  # by the call's parameters, of which there are as many as calls


def declared_by(dependant: Any) -> Declared:
    known = _known.get(id(dependant))
    if known is not None and known.dependant is dependant:
        return known
    query, once, numbers = [GROUP], [], []
    for one in get_flat_params(dependant):
        if not isinstance(one.field_info, params.Query | params.Path):
            continue
        place, annotation = one.field_info.in_.value, one.field_info.annotation
        if place == "query":
            query.append(one.alias)
        if place == "query" and not any(each in (list, tuple, set) for each in _types_of(annotation)):
            once.append(one.alias)
        if int in _types_of(annotation):
            numbers.append((place, one.alias))
    found = _known[id(dependant)] = Declared(dependant, frozenset(query), tuple(once), tuple(numbers))
    return found


def _types_of(annotation: Any) -> tuple[Any, ...]:
    """The type itself, or each of a union; of `list[int]` just the list."""
    origin = getattr(annotation, "__origin__", None)
    if origin is not None and isinstance(origin, type):
        return (origin,)
    return get_args(annotation) or (annotation,)


async def check_parameters(request: Request) -> None:
    """Raises RequestValidationError."""
    declared = declared_by(request.scope["route"].dependant)
    asked, errors = request.query_params, []
    if request.scope["query_string"]:
        errors = [
            _error("query", name, "is there more than once") for name in declared.once if len(asked.getlist(name)) > 1
        ]
    for place, name in declared.numbers:
        value = asked.get(name) if place == "query" else request.path_params.get(name)
        if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value) is None:
            errors.append(_error(place, name, NO_NUMBER))
    if request.method not in SAFE_METHODS and request.scope["path"].startswith(API):
        errors += [_error("query", name, NOT_THERE) for name in asked if name not in declared.query]
        body = await request.body()
        if request.method == "DELETE" and body not in SAYS_NOTHING:
            errors.append({**_error("body", "", NO_BODY), "loc": ("body",)})
        try:
            if body and "json" in request.headers.get("content-type", "json"):
                parsed(body)
        except Repeated as error:
            errors.append({**_error("body", "", str(error)), "loc": ("body",)})
        except ValueError:
            pass  # whoever reads it says so
    if errors:
        raise RequestValidationError(errors)


def _error(place: str, name: str, text: str) -> dict[str, Any]:
    return {"type": "value_error", "loc": (place, name), "msg": text, "input": None}


STRICT: Final = [Depends(check_parameters)]
