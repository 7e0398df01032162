"""Examples in the OpenAPI document: answers that real nodes gave, kept as data beside this file.

`examples.json` maps "method path" to {"response": …, "request": …}. A test holds every JSON call to having one, and the
examples' fields to those of a running node's answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from node.openapi_statuses import add_examples, document_statuses

EXAMPLES_FILE: Final = Path(__file__).with_name("examples.json")
PUBLIC: Final = ("/healthz", "/readyz", "/leaderz")
# Raw bytes and text, not JSON.
WITHOUT_EXAMPLE: Final = frozenset(
    {
        "get /api/v1/segments/{kind}/{name}",
        "get /api/v1/snapshots/{index}/{name}",
        "get /api/v1/ha/log/{name}",
        "get /metrics",
    }
)  # fmt: skip


def more(method: str, path: str) -> Iterable[int]:
    yield 404  # `?group=` of another group
    if "/entries" in path or "/segments" in path or "/truncations" in path or "/digests" in path:
        yield from (404, 410, 412, 416, 421, 504)
    if "/pins/" in path:
        yield 410
    if "/ha/log/" in path:
        yield from (410, 412, 416)
    if "/snapshots/" in path:
        yield from (410, 416)
    if method == "delete":
        yield from (404, 409)
    if path.endswith(("/leadership-transfer", "/scrub", "/repairs", "/trim", "/snapshots", "/restart", "/ha/promote")):
        yield 412
    if ("/messages" in path or "/topics" in path or path.endswith("/reset")) and method != "get":
        yield from (412, 421, 504)
    if "/members" in path and method != "get":
        yield from (409, 412, 421)
    if path.endswith("/kv-events"):
        yield 410
    if ("/kv/" in path and method != "get") or path.endswith(("/machine/command", "/ha/promote")):
        yield 504


@cache
def examples() -> dict[str, dict[str, Any]]:
    """All examples, by "method path"."""
    loaded: dict[str, dict[str, Any]] = json.loads(EXAMPLES_FILE.read_text())
    return loaded


def complete(app: FastAPI) -> None:
    """From now on the app's document carries them; it is still made once, when somebody asks."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = plain()
            # A group without a state machine lacks those calls.
            add_examples(schema, {name: one for name, one in examples().items() if name.split()[1] in schema["paths"]})
            schemes = {
                "token": {"type": "http", "scheme": "bearer", "description": "the node's token, where it has one"}
            }
            document_statuses(schema, more=more, schemes=schemes, public=PUBLIC)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
