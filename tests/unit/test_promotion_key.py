"""A promotion over REST stands under its key, and its dry run changes nothing whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.broker.classic.control_key import make_key
from node.broker.introspection import PROMOTE
from node.control.app import create_app
from node.message_client.errors import Unavailable
from node.rocketmq.codes import Answer
from node.rocketmq.command import Command
from tests.unit.classic_kit import classic_settings, pair_ports

PROMOTED = {"promoted": True, "role": "ASYNC_MASTER", "epoch": 9, "findings": []}
FINDING = {"code": "lacks_bytes", "text": "it lacks 3 bytes", "stops": True, "can_be_accepted": True}
REFUSED = PROMOTED | {"promoted": False, "epoch": None, "findings": [FINDING]}
MOVED = REFUSED | {"findings": [FINDING | {"code": "epoch_moved", "text": "The epoch is 8", "can_be_accepted": False}]}
KEY = {"idempotency-key": "one"}
Work = Callable[[list[Any], list[Any], httpx2.AsyncClient], Awaitable[None]]


def said(answer: dict[str, Any]) -> Command:
    return Command(Answer.SUCCESS, 1, 1, {}, None, json.dumps(answer).encode(), "JAVA")


FAILED = said({})._replace(code=Answer.SYSTEM_ERROR, remark="it is not known whether it is promoted: OSError", body=b"")


def with_broker(place: Path, work: Work) -> None:
    """`answers` are the broker's, in their order; what it was asked is kept."""
    answers: list[Any] = []
    asked: list[Any] = []

    async def command(code: int, _fields: object, body: bytes, _within_s: float) -> Command:
        if code != PROMOTE:  # the trail's look at who leads
            raise Unavailable("it does not say", sent=False)
        asked.append(json.loads(body))
        await asyncio.sleep(0)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    async def both() -> None:
        settings = classic_settings(place, "s", "slave", pair_ports("m", "s"))
        (settings.node.data / "quorumscope").mkdir(parents=True)
        make_key(settings.node.data)
        app = create_app(settings)
        app.state.parts.broker.command = command
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1/api/v1/ha") as client:
            await work(answers, asked, client)
            await app.state.parts.operations.close()

    asyncio.run(both())


@pytest.mark.parametrize(
    ("answer", "status"), [(said(PROMOTED), 200), (FAILED, 504), (Unavailable("", sent=True), 504)]
)
def test_a_repeated_call_promotes_no_second_time(tmp_path: Path, answer: Any, status: int) -> None:
    """Whoever lost the answer asks again: a master that was promoted twice was "the master already" (409)."""

    async def work(answers: list[Any], asked: list[Any], client: httpx2.AsyncClient) -> None:
        answers.append(answer)
        both = await asyncio.gather(*(client.post("/promote", json={}, headers=KEY) for _ in range(2)))
        again = await client.post("/promote", json={}, headers=KEY)
        assert {one.status_code for one in (*both, again)} == {status} and len(asked) == 1
        assert both[0].json() == both[1].json() == again.json()
        other = await client.post("/promote", json={"accept": ["lacks_bytes"]}, headers=KEY)
        assert other.status_code == 422 and other.json()["title"] == "Key used already"

    with_broker(tmp_path, work)


@pytest.mark.parametrize(
    ("answer", "status"), [(said(REFUSED), 409), (said(MOVED), 412), (Unavailable("refused", sent=False), 503)]
)
def test_what_changed_nothing_takes_no_key(tmp_path: Path, answer: Any, status: int) -> None:
    async def work(answers: list[Any], asked: list[Any], client: httpx2.AsyncClient) -> None:
        answers += [answer, said(PROMOTED)]
        refused = await client.post("/promote", json={}, headers=KEY)
        assert refused.status_code == status, refused.text
        assert (await client.post("/promote", json={}, headers=KEY)).json() == PROMOTED and len(asked) == 2

    with_broker(tmp_path, work)


@pytest.mark.parametrize("answer", [FAILED, Unavailable("no answer", sent=True), said(REFUSED)])
def test_a_dry_run_never_says_that_something_may_have_been_done(tmp_path: Path, answer: Any) -> None:
    """It was 504, "it may have been done", where the broker failed at its look."""

    async def work(answers: list[Any], asked: list[Any], client: httpx2.AsyncClient) -> None:
        answers.append(answer)
        looked = await client.post("/promote", json={"dry_run": True}, headers=KEY)
        assert looked.status_code == (200 if answer == said(REFUSED) else 503), looked.text
        assert "outcome" not in looked.json() and asked[0]["dry_run"] is True
        answers.append(said(PROMOTED))
        assert (await client.post("/promote", json={}, headers=KEY)).json() == PROMOTED, "it takes no key"

    with_broker(tmp_path, work)
