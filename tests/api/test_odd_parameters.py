"""Both OpenAPI documents, every operation, with parameters nobody sane would send: an answer, never a crash.

Unlike a page that shows a stack trace, 502 to 504 are answers: the console has nodes behind it that may refuse.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.group import Group, running_group
from tests.unit.console_kit import run, running

ODD_TEXTS = (
    "",
    "0",
    "-1",
    "1e9",
    str(1 << 63),
    str(1 << 64),
    "null",
    "ü☃",
    "%00",
    "..",
    "a" * 300,
    "n0",
    "demo",
    "true",
)
ODD_BODIES: tuple[bytes, ...] = (
    b"", b"{", b"null", b"[]", b'{"a":1}', b"\xff\xfe", b'{"entries":null}', b'{"to":1}', b'{"name":"\\u0000"}',
    b'{"if_term":-1}', b'{"deadline_ms":1e400}', b'{"control_url":"http://[::1"}', b'{"role":"root"}',
)  # fmt: skip
ROUNDS = 6
SEED = 20260101


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, reported in methods.items():
            yield path, method.upper(), reported


def fill(rng: random.Random, path: str, reported: dict[str, Any]) -> tuple[str, dict[str, str], dict[str, str]]:
    """(path, query, headers) with odd values; a path's own slashes stay."""
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for parameter in reported.get("parameters", []):
        value = rng.choice(ODD_TEXTS)
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", value.replace("%00", "\0").replace("..", "x") or "x")
        elif parameter["in"] == "query" and rng.random() < 0.6:
            query[parameter["name"]] = value
        elif parameter["in"] == "header" and rng.random() < 0.6 and value.isascii() and "%" not in value:
            headers[parameter["name"]] = value
    return path.replace("\0", "%00"), query, headers


def acceptable(status: int, text: str) -> bool:
    return status < 500 or (status in (500, 502, 503, 504) and '"detail"' in text)


@pytest.mark.process
def test_a_control_plane_answers_whatever_is_asked(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with running_group(tmp_path, 1) as group:
        control_plane_rounds(group, rng)
        assert group.state("n0")["engine"] == "ok"


def control_plane_rounds(group: Group, rng: random.Random) -> None:
    document = group.get("n0", "/api/v1/openapi.json").json()
    for _, (path, method, reported) in itertools.product(range(ROUNDS), operations(document)):
        url, query, headers = fill(rng, path, reported)
        body = rng.choice(ODD_BODIES) if method in ("POST", "PUT", "PATCH") else None
        if body is not None:
            headers["content-type"] = "application/json"
        answer = group.client.request(method, group.urls["n0"] + url, params=query, headers=headers, content=body)
        assert answer.status_code < 500 or answer.status_code == 503, (method, url, query, headers, body, answer.text)


@pytest.mark.long
def test_the_console_answers_whatever_is_asked(tmp_path: Path) -> None:
    async def work() -> None:
        rng = random.Random(SEED)
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            document = kit.app.openapi()
            for _, (path, method, reported) in itertools.product(range(ROUNDS), operations(document)):
                url, query, headers = fill(rng, path, reported)
                body = rng.choice(ODD_BODIES) if method in ("POST", "PUT", "PATCH") else None
                if body is not None:
                    headers["content-type"] = "application/json"
                if method == "DELETE" and "sessions" in path:
                    continue  # it may end the very session that asks
                answer = await ann.change(method, url, params=query, headers=headers, content=body)
                asked = (method, url, query, headers, body, answer.status_code, answer.text)
                assert acceptable(answer.status_code, answer.text), asked

    run(work())
