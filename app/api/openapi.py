"""The console's OpenAPI document: what FastAPI derives, with every status, examples, and the ways to sign in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from node.openapi_statuses import add_examples, document_statuses

EXAMPLES_FILE: Final = Path(__file__).with_name("examples.json")
PUBLIC: Final = ("/api/v1",)
# What asks a node passes on what it says.
FROM_NODES: Final = (404, 409, 410, 412, 416, 421, 422, 502, 503, 504)
NODES: Final = (
    "/state", "/watermarks", "/dispatchers", "/closures", "/entries", "/truncations", "/segments", "/digests",
    "/leadership-transfer", "/repair", "/restart", "/members", "/scrub", "/snapshots",
)  # fmt: skip


def more(method: str, path: str) -> Iterable[int]:
    if path.startswith("/api/v1/clusters") and any(part in path for part in NODES):
        yield from FROM_NODES
    if path == "/api/v1/clusters" and method == "post":
        yield from (404, 502, 504)
    if path.endswith("/events"):
        yield 406
    if method == "delete":
        yield 409
    if path.startswith(("/api/v1/operations", "/api/v1/demo", "/api/v1/alerts")):
        yield from (404, 409, 502)
    if path in ("/api/v1/audits", "/api/v1/schedules"):
        yield from (404, 409)
    if path == "/api/v1/me/password" or path.startswith("/api/v1/me/second-factor"):
        yield 429


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Written by `python -m tests.unit.openapi_examples`, from what a console answered to each call."""
    loaded: dict[str, dict[str, Any]] = json.loads(EXAMPLES_FILE.read_text())
    return loaded


def complete(app: FastAPI, cookie_name: str = "__Host-qs") -> None:
    """From now on the app's document carries them; it is still made once, when somebody asks."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = plain()
            add_examples(made, examples())
            schemes = {
                "token": {"type": "http", "scheme": "bearer", "description": "an API token, `qsc_…`"},
                "session": {
                    "type": "apiKey", "in": "cookie", "name": cookie_name,
                    "description": "a browser's session; changes want its CSRF token in x-csrf-token as well",
                },
            }  # fmt: skip
            document_statuses(made, more=more, schemes=schemes, public=PUBLIC)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
