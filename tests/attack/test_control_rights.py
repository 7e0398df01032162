"""Every call of every kind of node against every right: a plain log, a state machine (kv), brokers, and a classic pair.

`RIGHTS` says what each route of each kind takes, apart from the guard's own rules: a new route without a row fails.
The nodes have no engine: what passes the guard is answered 503, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
from fastapi import FastAPI

from node.access_rows import Right
from node.config import load
from node.control.app import create_app
from node.control_tokens import issue, revoke, write_tokens
from tests.api.test_control_guard import BASE, run
from tests.attack.disguises import disguises
from tests.attack.remoting_kit import drawn

KINDS: Final[Mapping[str, dict[str, str]]] = {
    "log": {},
    "kv": {"node.state_machine": "kv"},
    "broker": {"broker.address": "127.0.0.1:10911"},
    "pair": {"ha.role": "async_master", "ha.address": "127.0.0.1:10912", "broker.address": "127.0.0.1:10911"},
}
API: Final = "/api/v1"
ALWAYS: Final = f"""
    nothing GET {API} /healthz /readyz /leaderz
    observe GET /metrics {API}/openapi.json"""
REPLICATED: Final = f"""
    append POST {API}/entries
    read GET {API}/entries {API}/entries/{{index}} {API}/digests {API}/segments/{{kind}}/{{name}}
    read GET {API}/truncations/{{seq}}/entries
    observe GET {API}/closures {API}/dispatchers {API}/events {API}/members {API}/operations {API}/pins {API}/segments
    observe GET {API}/operations/{{operation_id}} {API}/state {API}/truncations {API}/truncations/{{seq}}
    observe GET {API}/watermarks
    operate POST {API}/leadership-transfer {API}/members {API}/members/{{member_id}}/promotion {API}/repairs
    operate POST {API}/restart {API}/scrub {API}/trim
    operate PUT {API}/members/{{member_id}}/address {API}/pins/{{owner}}
    operate DELETE {API}/members/{{member_id}} {API}/operations/{{operation_id}} {API}/pins/{{owner}}"""
KV: Final = f"""
    append POST {API}/machine/command
    append PUT {API}/kv/{{key:path}}
    append DELETE {API}/kv/{{key:path}}
    read GET {API}/kv {API}/kv-events {API}/kv/{{key:path}} {API}/snapshots/{{index}}/{{name}}
    read POST {API}/machine/query
    observe GET {API}/snapshots
    operate POST {API}/snapshots"""
BROKERS: Final = f"""
    append POST {API}/messages
    read GET {API}/messages
    observe GET {API}/broker {API}/consumer-groups {API}/consumer-groups/{{consumer_group}} {API}/topics
    observe GET {API}/topics/{{topic}} {API}/topics/{{topic}}/queues
    operate POST {API}/consumer-groups/{{consumer_group}}/reset
    operate PUT {API}/topics/{{topic}}
    operate DELETE {API}/topics/{{topic}}"""
PAIR: Final = f"""
    read GET {API}/ha/log/{{name}}
    observe GET {API}/ha {API}/ha/log
    operate POST {API}/ha/promote
    operate PUT {API}/ha/pins/{{owner}}
    operate DELETE {API}/ha/pins/{{owner}}"""
ROWS: Final[Mapping[str, str]] = {
    "log": ALWAYS + REPLICATED, "kv": ALWAYS + REPLICATED + KV, "broker": ALWAYS + REPLICATED + BROKERS,
    "pair": ALWAYS + BROKERS + PAIR,
}  # fmt: skip
OPEN: Final = ("/healthz", "/readyz", "/leaderz")  # without a token
RIGHTS: Final = {
    "nothing": Right.NOTHING, "append": Right.APPEND, "read": Right.READ, "observe": Right.OBSERVE,
    "operate": Right.OPERATE,
}  # fmt: skip
VALUES: Final = ("0", "n1", "%C3%A9", "9" * 25, "-1", "%20", "T%25", "a" * 300)  # of what a path is filled with
DRAWN: Final = 60  # disguises of each call
Route = tuple[str, str]


def rows(kind: str) -> dict[Route, str]:
    found: dict[Route, str] = {}
    for line in ROWS[kind].split("\n"):
        right, *words = line.split() or [""]
        if right:
            method, *paths = words
            found |= {(method, path): right for path in paths}
    return found


def app_of(tmp_path: Path, kind: str, **control: str) -> FastAPI:
    chosen = {"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}
    return create_app(load(chosen | KINDS[kind] | control, environ={}))


def routes_of(app: FastAPI) -> set[Route]:
    """The app's own."""

    def walk(routes: Iterable[Any], before: str) -> Iterator[Route]:
        for one in routes:
            if (inner := getattr(one, "original_router", None)) is not None:
                yield from walk(inner.routes, before + one.include_context.prefix)
            else:
                yield from ((method, before + one.path) for method in one.methods if method != "HEAD")

    return set(walk(app.routes, ""))


def asking(app: FastAPI, token: str = "") -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE, headers=headers)


async def ask(client: httpx2.AsyncClient, method: str, path: str, value: str = "0") -> httpx2.Response:
    body: dict[str, Any] = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
    return await client.request(method, re.sub(r"\{[^}]+\}", value, path), **body)


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_has_a_row_and_every_row_a_call(tmp_path: Path, kind: str) -> None:
    assert set(rows(kind)) ^ routes_of(app_of(tmp_path, kind)) == set()


@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("kind", KINDS)
def test_who_has_the_right_gets_through_and_nobody_else(tmp_path: Path, kind: str, right: str) -> None:
    """All rights but one open what does not take that one, and the one alone what takes it."""
    rng = drawn(f"rights at a {kind}: {right}")

    async def work() -> None:
        file = tmp_path / "tokens"
        others = Right.NOTHING
        for one in RIGHTS.values():
            others |= one if one != RIGHTS[right] else Right.NOTHING
        tokens = {True: issue(file, "only", RIGHTS[right], 1)[1], False: issue(file, "others", others, 1)[1]}
        app = app_of(tmp_path, kind, **{"control.tokens_file": str(file)})
        async with asking(app, tokens[True]) as only, asking(app, tokens[False]) as rest:
            for (method, path), needed in rng.sample(list(rows(kind).items()), len(rows(kind))):
                for client in (only, rest):
                    may = needed == "nothing" or (needed == right) == (client is only)
                    answer = await ask(client, method, path, rng.choice(VALUES))
                    said = f"{method} {path} ({needed}): {answer.status_code} {answer.text[:200]}"
                    if may:
                        assert answer.status_code not in (401, 403, 405), said
                    else:
                        assert answer.status_code == 403, said

    run(work())


@pytest.mark.parametrize("what", ["none", "another", "over", "revoked", "of fewer rights now", "in the query", "Basic"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_count_opens_nothing(
    tmp_path: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        file = tmp_path / "tokens"
        row, token = issue(file, "ann", Right.APPEND | Right.READ | Right.OBSERVE | Right.OPERATE, 1)
        app = app_of(tmp_path, kind, **{"control.tokens_file": str(file)})
        status = 401
        async with asking(app, token) as ann:
            assert (await ask(ann, "GET", API)).status_code == 200
            if what == "none":
                del ann.headers["authorization"]
            elif what == "another":
                ann.headers["authorization"] += "x"
            elif what == "over":
                write_tokens(file, [row._replace(ends_at=datetime.now(UTC) - timedelta(seconds=1))])
            elif what == "revoked":
                revoke(file, row.id)
            elif what == "of fewer rights now":
                write_tokens(file, [row._replace(rights=Right.NOTHING)])
                status = 403
            elif what == "in the query":
                del ann.headers["authorization"]
            else:
                ann.headers["authorization"] = f"Basic {token}"
            monkeypatch.setattr("node.control.guard.LOOK_EVERY_S", 0.0)
            for (method, path), needed in rows(kind).items():
                if path in OPEN or (needed == "nothing" and status == 403):
                    continue
                query = f"?token={token}&access_token={token}" if what == "in the query" else ""
                answer = await ask(ann, method, path + query)
                assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text[:200]}"

    run(work())


@pytest.mark.parametrize("right", ["read", "operate"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_disguise_of_a_call_gives_what_its_right_is_for(tmp_path: Path, kind: str, right: str) -> None:
    """To whoever has the right to observe and to append. A router may take `entries` and a line break for `entries`."""
    rng = drawn(f"disguises at a {kind}: {right}")

    async def work() -> None:
        file = tmp_path / "tokens"
        _, token = issue(file, "bea", Right.OBSERVE | Right.APPEND, 1)
        app = app_of(tmp_path, kind, **{"control.tokens_file": str(file)})
        async with asking(app, token) as bea:
            for (method, path), needed in rows(kind).items():
                if needed != right:
                    continue
                filled = re.sub(r"\{[^}]+\}", rng.choice(VALUES[:2]), path.removeprefix(f"{API}/"))
                for one in disguises(rng, filled, DRAWN):
                    answer = await ask(bea, method, one)
                    # 307: to the same path without its last slash, which is judged again.
                    said = f"{method} {one}: {answer.status_code} {answer.text[:200]}"
                    assert answer.status_code in (307, 403, 404, 405, 422), said

    run(work())
