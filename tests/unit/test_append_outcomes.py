"""What a caller of the control plane may believe of an append whose answer did not come (SAFETY C2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.commands.ledger import Tally, append_where_there_is_room
from node.client import NotAppended
from node.control.engine_link import EngineAway, EngineDeclined, EngineForeign, EngineRefused, EngineSilent
from node.control.entries import asked_to_append
from node.control.problems import Problem
from node.protocol.codes import RequestCode, ResponseCode
from node.transport.slab_frames import BodyError


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (EngineAway("refused"), 503, "not_appended"),
        (EngineForeign("another group's"), 503, "not_appended"),
        (EngineSilent("no connection in time", sent=False), 503, "not_appended"),
        (EngineSilent("no answer within 10 s"), 504, "unknown"),
        (EngineSilent("the engine closed the connection", sent=True), 504, "unknown"),
        (EngineRefused("remoting code 1"), 504, "unknown"),
        (EngineDeclined("request type 52001 not supported"), 422, "not_appended"),
        (BodyError("it ends too early"), 504, "unknown"),
    ],
)
def test_only_what_was_not_sent_or_not_begun_is_said_to_be_not_appended(
    error: Exception, status: int, outcome: str
) -> None:
    class Link:
        async def request(self, *_: Any) -> bytes:
            if isinstance(error, BodyError):
                return b""
            raise error

    def decode(_body: Any) -> Any:
        raise error

    async def down_reason(away: EngineAway) -> str:
        return str(away)

    parts: Any = SimpleNamespace(link=Link(), snapshots=SimpleNamespace(down_reason=down_reason))
    with pytest.raises(Problem) as caught:
        asyncio.run(asked_to_append(parts, RequestCode.FAST_APPEND, [b""], 1.0, decode))
    assert (caught.value.status, caught.value.extra["outcome"]) == (status, outcome)
    assert ("retry-after" in (caught.value.headers or {})) == (status == 503)


class Filling:
    """A group whose leader's disk is full, and which another one leads after some tries."""

    def __init__(self, refusals: int, code: ResponseCode = ResponseCode.DISK_FULL) -> None:
        self.left, self.code, self.asked = refusals, code, 0

    async def append_many(self, bodies: list[bytes], *, expected_index: int | None = None) -> Any:
        if self.left:
            self.left -= 1
            raise NotAppended("n0 answers 415 DISK_FULL", code=self.code)
        return SimpleNamespace(first_index=7, last_index=6 + len(bodies))

    async def leader(self) -> str:
        self.asked += 1
        return "n1"


def test_what_a_full_leader_refused_goes_to_who_leads_a_moment_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """`append` ended with 1, though another member led by then."""
    client: Any = Filling(3)
    tally = Tally()
    assert asyncio.run(append_where_there_is_room(client, [b"a", b"b"], 7, tally)) == 9
    assert (tally.appended, tally.ranges, tally.unknown, client.asked) == (2, [[7, 8]], 0, 3)
    monkeypatch.setattr("app.commands.ledger.HANDS_OVER_WITHIN_S", 0.2)
    for refused in (Filling(1_000_000), Filling(1, ResponseCode.UNEXPECTED_ARGUMENT)):
        client, tally = refused, Tally()
        with pytest.raises(NotAppended):
            asyncio.run(append_where_there_is_room(client, [b"a"], None, tally))
        assert (tally.appended, tally.unknown) == (0, 0), "and that is known"
    assert client.asked == 0, "another refusal is one at once"
