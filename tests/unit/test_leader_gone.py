"""A leader that is known to be gone, or to be another's voters' no more, is named no longer, nor is its quorum."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from app.console.nodes import Nodes
from app.console.sample import NodeSample
from app.console.sampler import Poller
from app.console.settings import ConsoleSettings
from tests.unit.test_cli_status import FRESH, NOW, codes, member, summary_of

Json = dict[str, Any]
NEW = "2026-05-04T12:00:29.900Z"  # a moment before the group is asked


def polled(answer: Callable[[httpx2.Request], httpx2.Response]) -> NodeSample:
    """One look at a member that answered before."""
    sample = NodeSample("n0", "127.0.0.1:1", "http://127.0.0.1:8431", last_seen=NOW)

    async def look() -> None:
        nodes = Nodes(ConsoleSettings(), httpx2.MockTransport(answer))
        try:
            await Poller(sample, nodes, 0.5, lambda *_: None).round()
        finally:
            await nodes.close()

    asyncio.run(look())
    return sample


def test_a_control_plane_that_is_gone_is_known_to_be_at_the_first_question() -> None:
    """For three questions, 1.5 s, a leader whose machine refused the connection led on, and its quorum stood."""

    def refused(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("All connection attempts failed") from ConnectionRefusedError(111, "refused")

    def late(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("")

    assert polled(refused).reach == "stale"
    assert polled(late).reach == "ok", "one that is late may be busy"


@pytest.mark.parametrize(("engine", "known"), [("ok", True), (None, True), ("stale", False), ("down", False)])
def test_what_a_leaders_engine_said_of_its_peers_before_says_nothing_of_now(engine: str | None, known: bool) -> None:
    """Its control plane gives what it said last, be it hours ago: a member that was cut off meanwhile had its fresh
    acknowledgement there, and stood with the quorum."""

    def busy(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/state"):
            return httpx2.Response(200, json={"engine": "ok", "self_id": "n0", "role": "LEADER", "term": 4})
        peers = [{"id": "n1", "match_index": 9, "last_ack_ms": 20}]
        said = {"engine": engine, "engine_reason": "no answer within 0.4 s", "term": 4, "peers": peers, "items": []}
        return httpx2.Response(200, json=said)

    sample = polled(busy)
    views = (sample.watermarks, sample.dispatchers, sample.closures, sample.configuration)
    assert sample.leads and {one is not None for one in views} == {known}
    said = set() if known else {f"its engine is {engine}: no answer within 0.4 s"}
    assert {sample.unanswered.get(name) for name in ("watermarks", "dispatchers", "closures")} == (said or {None})


@pytest.mark.parametrize(("gone_on", "leads"), [(("n1", "n2"), False), (("n2",), True)])
def test_a_leader_whose_voters_have_gone_on_is_not_named(gone_on: tuple[str, ...], leads: bool) -> None:
    """Right after a transfer, and while an election ran, the old leader was named, and its quorum said to stand."""
    followers = [
        member(one, term=5, leader=None, role="CANDIDATE") if one in gone_on else member(one) for one in ("n1", "n2")
    ]
    found = summary_of("g", [member("n0", acks=FRESH), *followers], NOW)
    assert (found.leader_id, bool(found.quorum.stands)) == (("n0", True) if leads else (None, False))


@pytest.mark.parametrize(("since", "stands"), [(NEW, True), ("2026-05-04T11:00:00.000Z", False)])
def test_one_that_has_just_been_elected_is_not_said_to_hear_nobody(since: str, stands: bool) -> None:
    """For one look after each election the quorum was said to be lost."""
    leader = member("n1", leader="n1", term=5, acks={"n1": 0, "n0": None, "n2": None}, role_since=since)
    leader["state"]["as_of"] = "2026-05-04T12:00:30.000Z"
    leader["state"]["links"] = [{"peer_id": "n2", "last_heard_ms": 9_000}]
    found = summary_of("g", [leader, member("n0", leader="n1", term=5), member("n2", leader="n1", term=5)], NOW)
    assert found.quorum.stands is stands
    assert (("quorum_lost", None) in codes(found)) is not stands


@pytest.mark.parametrize(("since", "said"), [(NEW, False), ("2026-05-04T11:00:00.000Z", True)])
def test_a_leader_that_was_asked_before_the_next_one_led_is_not_cut_off(since: str, said: bool) -> None:
    leader = member("n1", leader="n1", term=5, acks={"n1": 0, "n0": 20, "n2": 20}, role_since=since)
    leader["state"]["as_of"] = "2026-05-04T12:00:30.000Z"
    found = summary_of("g", [member("n0", acks=FRESH), leader, member("n2", leader="n1", term=5)], NOW)
    assert found.leader_id == "n1"
    assert (("cut_off", "n0") in codes(found)) is said
