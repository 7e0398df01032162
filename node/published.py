"""A document that stays the same while a process lives: made once, with an ETag, and compressed once.

Nothing in it is secret or comes from a caller, so its length tells nothing when it is compressed (BREACH); answers that
hold state, bodies or tokens are never compressed and never stored.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable
from functools import cached_property

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from node.openapi_statuses import Json


class PublishedJson:
    """`make` is called when somebody asks for the first time."""

    def __init__(self, make: Callable[[], Json]) -> None:
        self.make = make

    @cached_property
    def plain(self) -> bytes:
        return bytes(JSONResponse(self.make()).body)

    @cached_property
    def packed(self) -> bytes:
        return gzip.compress(self.plain, 9, mtime=0)

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.plain).hexdigest()[:32]

    async def answer(self, request: Request) -> Response:
        pack = accepts_gzip(request.headers.get("accept-encoding", ""))
        tag = f'"{self.digest}{"-gzip" if pack else ""}"'
        headers = {"etag": tag, "vary": "accept-encoding", "cache-control": "private, no-cache"}
        if same_tag(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        if pack:
            headers["content-encoding"] = "gzip"
        return Response(self.packed if pack else self.plain, headers=headers, media_type="application/json")


def same_tag(asked: str, tag: str) -> bool:
    """If-None-Match compares weakly."""
    return asked.strip() == "*" or tag in (one.strip().removeprefix("W/") for one in asked.split(","))


def accepts_gzip(header: str) -> bool:
    for one in header.lower().split(","):
        coding, _, weight = one.partition(";")
        if coding.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
