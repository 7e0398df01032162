"""Bodies that fit what a call declares but for one field: an answer of the document, at both planes, and never a crash.

A body that is wrong as a whole is refused before a handler's own checks are reached. So all fields but one are right
here, and that one is drawn of what JSON can say: nothing, numbers beyond all bounds, half a surrogate pair, control
characters, deep nesting, a name that is there twice. Which fields there are says the OpenAPI document.
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI

from node.config import load
from node.control.app import create_app
from tests.attack.remoting_kit import drawn
from tests.openapi_kit import Document
from tests.unit.console_kit import run, running
from tests.unit.fake_control import FakeGroup

DRAWS: Final = 2  # of each field, beside null
ODD: Final = (
    "true", "-1", "-0", "0.5", "1e400", "-1e400", "NaN", "9" * 400, "-" + "9" * 5000, str(1 << 63), '""',
    r'"\u0000"', r'"a\ud800"', r'"\u001b[31m\n"', '"' + "k" * 70_000 + '"', "[]", "{}", "[null]", "[[]]", r'["\ud800"]',
    "[" * 200 + "]" * 200, "[" * 90_000 + "]" * 90_000, r'{"\ud800":1}', '{"a":1,"a":2}', '"0001-01-01T00:00:00Z"',
    '"9999-12-31T23:59:59-23:59"', '"http://[::1"', '"127.0.0.1:99999"', '"../../x"', '"\\u202ex"',
)  # fmt: skip
Json = dict[str, Any]
Ask = Callable[[str, str, str], Coroutine[Any, Any, httpx2.Response]]
Served = AbstractAsyncContextManager[tuple[FastAPI, Ask]]
TYPE: Final = {"content-type": "application/json"}
# They end what the attacker asks with.
NOT_ASKED: Final = ("/api/v1/me/password", "/api/v1/demo/break")


@asynccontextmanager
async def console(place: Path) -> AsyncIterator[tuple[FastAPI, Ask]]:
    async with running(place, FakeGroup()) as kit:
        await kit.watched()
        boss = await kit.person("boss", "admin")

        async def ask(method: str, path: str, body: str) -> httpx2.Response:
            return await boss.change(method, path, content=sent(body), headers=TYPE)

        yield kit.app, ask


@asynccontextmanager
async def control(place: Path) -> AsyncIterator[tuple[FastAPI, Ask]]:
    """Without an engine: what is right is answered 503."""
    settings = load({"node.id": "n0", "node.data": str(place), "peers": "n0-127.0.0.1:1"}, environ={})
    app = create_app(settings)
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431") as client,
    ):

        async def ask(method: str, path: str, body: str) -> httpx2.Response:
            return await client.request(method, path, content=sent(body), headers=TYPE)

        yield app, ask


def sent(body: str) -> bytes:
    return body.encode("utf-8", "surrogatepass")


class Bodies:
    """Of one document."""

    def __init__(self, document: Json, rng: random.Random) -> None:
        self.document, self.rng = document, rng

    def found(self, schema: Json) -> Json:
        """Behind references, and of several the first that is not null."""
        while "$ref" in schema or "anyOf" in schema:
            if "$ref" in schema:
                schema = self.document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
            else:
                schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
        return schema

    def right(self, schema: Json) -> Any:
        if schema.get("examples"):
            return schema["examples"][0]
        schema = self.found(schema)
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        match schema.get("type"):
            case "object":
                needed = schema.get("required", ())
                return {name: self.right(one) for name, one in schema.get("properties", {}).items() if name in needed}
            case "array":
                return [self.right(schema.get("items", {}))]
            case "integer" | "number":
                return schema.get("minimum", 1)
            case "boolean":
                return False
        return "n1"

    def odd(self, schema: Json) -> list[str]:
        """Some for each field of the body, which alone is odd."""
        schema = self.found(schema)
        right = {name: json.dumps(value) for name, value in self.right(schema).items()}
        bodies = [self.rng.choice(ODD)]
        for name in schema.get("properties", {}):
            for value in ("null", *self.rng.sample(ODD, DRAWS)):
                fields = {**right, name: value}
                bodies.append("{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in fields.items()) + "}")
        return bodies


@pytest.mark.parametrize("served", [console, control])
def test_one_odd_field_is_refused_or_taken_and_never_a_crash(served: Callable[[Path], Served], tmp_path: Path) -> None:
    rng = drawn(f"odd bodies {served.__name__}")

    async def attack() -> None:
        async with served(tmp_path) as (app, ask):
            described = Document(app.openapi())
            bodies, asked = Bodies(described.document, rng), 0
            for method, path, call in described.operations():
                content = call.get("requestBody", {}).get("content", {})
                if "application/json" not in content or path in NOT_ASKED:
                    continue
                filled = path.format_map(Names())
                for body in bodies.odd(content["application/json"]["schema"]):
                    print(method, filled, body[:300])
                    answer = await ask(method.upper(), filled, body)
                    described.check(method.upper(), filled, answer.status_code, answer.headers, answer.content)
                    asked += 1
            assert asked > 50

    run(attack())


class Names(dict[str, str]):
    """What paths are filled with."""

    def __missing__(self, name: str) -> str:
        return {"cluster_id": "demo", "scope": "demo", "node_id": "n0", "member_id": "n1"}.get(name, "1")
