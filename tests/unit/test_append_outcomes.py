"""What a caller of the control plane may believe of an append whose answer did not come (SAFETY C2)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from node.control.engine_link import EngineAway, EngineForeign, EngineRefused, EngineSilent
from node.control.entries import asked_to_append
from node.control.problems import Problem
from node.protocol.codes import RequestCode
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
        (BodyError("it ends too early"), 504, "unknown"),
    ],
)
def test_only_what_was_not_sent_is_said_to_be_not_appended(error: Exception, status: int, outcome: str) -> None:
    class Link:
        async def request(self, *_: Any) -> bytes:
            if isinstance(error, BodyError):
                return b""
            raise error

    def decode(_body: Any) -> Any:
        raise error

    parts: Any = SimpleNamespace(link=Link(), snapshots=SimpleNamespace(down_reason=str))
    with pytest.raises(Problem) as caught:
        asyncio.run(asked_to_append(parts, RequestCode.FAST_APPEND, [b""], 1.0, decode))
    assert (caught.value.status, caught.value.extra["outcome"]) == (status, outcome)
    assert ("retry-after" in (caught.value.headers or {})) == (outcome == "not_appended")
