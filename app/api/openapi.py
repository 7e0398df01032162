"""The console's OpenAPI document: what FastAPI derives, with every status that occurs and the ways to sign in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fastapi import FastAPI

from node.openapi_statuses import document_statuses

PUBLIC: Final = ("/api/v1",)
# What asks a node passes on what it says.
FROM_NODES: Final = (404, 409, 410, 412, 416, 421, 422, 502, 503, 504)
NODES: Final = (
    "/state", "/watermarks", "/dispatchers", "/closures", "/entries", "/truncations", "/segments", "/digests",
    "/leadership-transfer", "/repair",
)  # fmt: skip


def more(method: str, path: str) -> Iterable[int]:
    if path.startswith("/api/v1/clusters") and any(part in path for part in NODES):
        yield from FROM_NODES
    if path == "/api/v1/clusters" and method == "post":
        yield from (404, 502, 504)
    if method == "delete":
        yield 409
    if path.startswith(("/api/v1/operations", "/api/v1/demo", "/api/v1/alerts")):
        yield from (404, 409, 502)
    if path == "/api/v1/audits":
        yield from (404, 409)
    if path == "/api/v1/me/password":
        yield 429


def complete(app: FastAPI, cookie_name: str = "__Host-qs") -> None:
    """From now on the app's document carries them; it is still made once, when somebody asks."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = plain()
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
