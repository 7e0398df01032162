"""HEAD, OPTIONS, 405, conditional requests, compression and pages of lists, on control plane and console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from node.config import load
from node.control.app import create_app
from node.http_methods import Head
from node.published import accepts_gzip, same_tag
from tests.openapi_kit import Document
from tests.unit.console_kit import running
from tests.unit.fake_control import FakeGroup

DOCUMENT = "/api/v1/openapi.json"
FILLED = {"cluster_id": "demo", "index": "3", "seq": "1", "node_id": "n1", "kind": "data", "name": "0" * 20}


def filled(template: str) -> str:
    for name, value in FILLED.items():
        template = template.replace("{" + name + "}", value)
    return template.replace("{operation_id}", "x").replace("{audit_id}", "x")


@asynccontextmanager
async def both(which: str, tmp_path: Path) -> AsyncIterator[tuple[FastAPI, httpx2.AsyncClient]]:
    """An app and a client who may do everything there."""
    if which == "console":
        async with running(tmp_path) as kit:
            await kit.watched()
            yield kit.app, (await kit.person()).client
        return
    app = create_app(load({"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}, environ={}))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1:1") as client:
        yield app, client


@pytest.fixture(params=["node", "console"])
def which(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_get_has_its_head_and_options(which: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with both(which, tmp_path) as (app, client):
            for method, template, _ in Document(app.openapi()).operations():
                path = filled(template)
                options = await client.options(path)
                assert options.status_code == 204 and not options.content, path
                assert method.upper() in options.headers["allow"].split(", "), path
                if method == "get":
                    await head_is_get(client, path)
                    assert "HEAD" in options.headers["allow"], path

    asyncio.run(work())


async def head_is_get(client: httpx2.AsyncClient, path: str) -> None:
    got, head = await client.get(path), await client.head(path)
    assert head.status_code == got.status_code, path
    assert head.content == b"", path
    assert set(head.headers) == set(got.headers), path
    assert head.headers["content-type"] == got.headers["content-type"], path
    assert head.headers["cache-control"] == got.headers["cache-control"], path


def test_pages_have_a_head_and_strangers_learn_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, nobody = await kit.person(), kit.client()
            for path in ("/", "/clusters/demo", "/healthz"):
                head = await ann.client.head(path, headers={"accept": "text/html"})
                assert head.status_code == 200 and head.content == b"", path
            for path in ("/api/v1/clusters", "/api/v1/nothing"):
                for method in ("HEAD", "OPTIONS"):
                    refused = await nobody.request(method, path)
                    assert refused.status_code == 401 and "allow" not in refused.headers, (method, path)

    asyncio.run(work())


def test_a_head_of_a_stream_ends_and_one_whose_handler_fails_says_so() -> None:
    closed = False

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        nonlocal closed
        assert scope["method"] == "GET"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        try:
            while True:
                await send({"type": "http.response.body", "body": b": beat\n\n", "more_body": True})
        finally:
            closed = True

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise OSError("the disk is gone")

    async def work() -> None:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=Head(endless)), base_url="http://x") as client:
            answer = await client.head("/events")
            assert answer.status_code == 200 and answer.content == b"" and closed
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=Head(broken)), base_url="http://x") as client:
            with pytest.raises(OSError, match="the disk is gone"):
                await client.head("/events")

    asyncio.run(work())


def test_a_method_that_is_not_allowed_names_those_that_are(which: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with both(which, tmp_path) as (_, client):
            for method, path in (("PUT", "/api/v1"), ("PATCH", "/api/v1/operations/x"), ("TRACE", "/api/v1")):
                headers = {"content-type": "application/json", "origin": str(client.base_url).rstrip("/")}
                answer = await client.request(method, path, headers=headers)
                assert answer.status_code in (403, 405), (method, path, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
                if answer.status_code == 405:
                    assert {"GET", "HEAD", "OPTIONS"} <= set(answer.headers["allow"].split(", ")), (method, path)

    asyncio.run(work())


def test_the_document_is_compressed_and_asked_for_again_only_when_it_changed(which: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with both(which, tmp_path) as (app, client):
            plain = await client.get(DOCUMENT, headers={"accept-encoding": "identity"})
            assert json.loads(plain.content) == app.openapi() and "content-encoding" not in plain.headers
            packed = await client.get(DOCUMENT, headers={"accept-encoding": "gzip"})
            assert packed.headers["content-encoding"] == "gzip" and packed.headers["vary"] == "accept-encoding"
            assert packed.content == plain.content
            assert int(packed.headers["content-length"]) * 4 < len(plain.content)
            assert plain.headers["cache-control"] == packed.headers["cache-control"] == "private, no-cache"
            assert plain.headers["etag"] != packed.headers["etag"], "two representations"
            known = {"accept-encoding": "gzip", "if-none-match": f'"old", W/{packed.headers["etag"]}'}
            again = await client.get(DOCUMENT, headers=known)
            assert again.status_code == 304 and not again.content and again.headers["etag"] == packed.headers["etag"]
            other = await client.get(DOCUMENT, headers={**known, "accept-encoding": "identity"})
            assert other.status_code == 200

    asyncio.run(work())


def test_what_is_secret_or_changes_is_neither_compressed_nor_stored(which: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with both(which, tmp_path) as (app, client):
            for method, template, _ in Document(app.openapi()).operations():
                if method == "get":
                    answer = await client.get(filled(template), headers={"accept-encoding": "gzip"})
                    assert answer.headers["cache-control"] == "no-store", template
                    assert "content-encoding" not in answer.headers, template

    asyncio.run(work())


def test_codings_and_tags_are_read_as_http_writes_them() -> None:
    for header in ("gzip", "br, gzip", "GZIP;q=0.5", "*"):
        assert accepts_gzip(header), header
    for header in ("", "identity", "br", "gzip;q=0", "gzip; q=0.0", "xgzip"):
        assert not accepts_gzip(header), header
    assert same_tag('"a", "b"', '"b"') and same_tag("*", '"b"') and same_tag('W/"b"', '"b"')
    assert not same_tag("", '"b"') and not same_tag('"a"', '"b"')


def test_operations_of_one_moment_are_all_listed_page_by_page(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            kept = kit.console.operations_kept
            made = [
                (await kept.open("demo", "scrub", "ann", node_id=f"n{n}", key=None, progress={}))[0] for n in range(7)
            ]
            async with kit.app.state.sessions() as db, db.begin():
                await db.execute(text("UPDATE operations SET created_at = (SELECT MIN(created_at) FROM operations)"))
            found: list[str] = []
            path = "/api/v1/operations?limit=2"
            page = (await ann.get(path)).json()
            found += [one["id"] for one in page["items"]]
            while page["next"] is not None:
                page = (await ann.get(f"{path}&cursor={page['next']}")).json()
                found += [one["id"] for one in page["items"]]
            assert sorted(found) == sorted(one["id"] for one in made) and len(found) == 7
            assert (await ann.get("/api/v1/operations?cursor=nothing")).status_code == 422

    asyncio.run(work())


def test_a_nodes_operations_come_in_pages(tmp_path: Path) -> None:
    async def work() -> None:
        async with both("node", tmp_path) as (app, client):
            operations = app.state.parts.operations

            async def done() -> dict[str, Any]:
                return {"state": "done", "outcome": {}}

            made = [operations.start("scrub", None, {}, "", done)["id"] for _ in range(5)]
            found: list[str] = []
            cursor = ""
            for _ in range(3):
                page = (await client.get(f"/api/v1/operations?limit=2{cursor}")).json()
                found += [one["id"] for one in page["items"]]
                cursor = f"&cursor={page['next']}"
            assert found == made[::-1] and page["next"] is None
            assert (await client.get("/api/v1/operations?cursor=gone")).status_code == 422
            assert (await client.get("/api/v1/truncations/1/entries?cursor=x")).status_code == 422
            assert (await client.get("/api/v1/operations?limit=1001")).status_code == 422

    asyncio.run(work())


def test_a_segment_through_the_console_is_bytes_and_a_refusal_a_problem(tmp_path: Path) -> None:
    """A member that calls them a page, or refuses with one, writes no page of the console."""

    class Odd(FakeGroup):
        status = 200

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if "/segments/data/" not in str(request.url):
                return await super().handle_async_request(request)
            headers = {"content-type": "text/html", "set-cookie": "a=b", "etag": '"boot-0"'}
            return httpx2.Response(self.status, content=b"<script>", headers=headers, request=request)

    async def work() -> None:
        group = Odd()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()
            path = f"/api/v1/clusters/demo/segments/data/{0:020}"
            answer = await ann.get(path)
            assert answer.content == b"<script>" and answer.headers["content-type"] == "application/octet-stream"
            assert "set-cookie" not in answer.headers and answer.headers["etag"] == '"boot-0"'
            for group.status, said in ((404, 404), (500, 500), (302, 502), (204, 502), (401, 502)):
                refused = await ann.get(path)
                problem = refused.headers["content-type"] == "application/problem+json"
                assert problem and refused.status_code == said, (group.status, refused.status_code, refused.text)

    asyncio.run(work())


def test_a_members_refusal_sets_nothing_but_its_own_words(tmp_path: Path) -> None:
    """Its problem document once went into the call that makes ours: `headers` in it became headers of the console's."""
    odd = {
        "title": "No",
        "detail": "no",
        "headers": {"set-cookie": "a=b", "x": "1\n2"},
        "scope": {},
        "self": 1,
        "more": 7,
    }

    class Hostile(FakeGroup):
        status = 404

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if "/digests" not in str(request.url):
                return await super().handle_async_request(request)
            return httpx2.Response(self.status, json=odd, request=request)

    async def work() -> None:
        group = Hostile()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()
            for group.status, said in ((404, 404), (422, 422), (401, 502), (418, 502), (400, 502)):
                refused = await ann.get("/api/v1/clusters/demo/digests")
                assert refused.status_code == said and "set-cookie" not in refused.headers, refused.text
                assert refused.json()["detail"] == "no" and refused.json()["more"] == 7

    asyncio.run(work())
