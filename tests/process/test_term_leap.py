"""One heartbeat with an absurd term, from anybody who can connect, changes nothing in a real group (SAFETY E10)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.client import LedgerError
from node.protocol.codes import FlushMode, RequestCode, ResponseCode, VoterState
from node.protocol.messages import HeartBeatRequest, Hello
from node.store.files.hard_state import read_hard_state
from node.transport.bodies import decode_response, encode_message
from tests.process.group import START_WITHIN_S, Group, append_surely
from tests.process.test_refusals import Wire, request
from tests.process.undisturbed import settled

pytestmark = pytest.mark.process
FAR = 1 << 62


def beat_as(group: Group, leader: str, member: str, state: dict[str, object]) -> bytes | None:
    """A forged HELLO of `leader` to `member`, then its heartbeat with that term; the answer's body, if there is one."""
    hello = Hello(
        1, "g", leader, "forged", VoterState.VOTER, 10_000, 0, "", 4194304, 1048576, FlushMode.SYNC, version_max=2,
        term=FAR,
    )  # fmt: skip
    with Wire(group, member) as wire:
        answer = wire.ask(request(RequestCode.HELLO, encode_message(hello, "g", leader, member)))
        reported = decode_response(RequestCode.HELLO, answer.body, 1)
        assert isinstance(reported, Hello) and reported.code is ResponseCode.SUCCESS
        wire.socket.settimeout(1.0)
        beat = HeartBeatRequest(2, leader, FAR, 10_000)
        try:
            return wire.ask(request(RequestCode.HEART_BEAT, encode_message(beat, "g", leader, member), 2)).body
        except (TimeoutError, AssertionError):
            return None


def test_a_heartbeat_with_term_2_to_the_62_changes_nothing(tmp_path: Path) -> None:
    async def story(group: Group) -> None:
        client = group.client()
        try:
            leader = await settled(group, client)
            states = {member: await client.state(member) for member in group.peers}
            victim, other = (member for member in group.peers if member != leader)
            for forged in (leader, other):
                assert await asyncio.to_thread(beat_as, group, forged, victim, states[victim]) is None
            alarms = {alarm["code"] for alarm in (await client.state(victim))["alarms"]}
            await append_surely(client, b"after")
            for member in group.peers:
                assert (await client.state(member))["term"] < 1000, alarms
            deadline = asyncio.get_running_loop().time() + START_WITHIN_S
            while any(one["code"] == "term_leap" for one in (await client.state(victim))["alarms"]):
                assert asyncio.get_running_loop().time() < deadline, "the alarm ends with the members' own words"
                await asyncio.sleep(0.1)
        finally:
            await client.close()

    group = Group(tmp_path)
    try:
        group.start_all()
        asyncio.run(story(group))
    except LedgerError as error:  # pragma: no cover - says which member did not answer
        raise AssertionError(str(error)) from error
    finally:
        group.close()
    for member in group.peers:
        state = read_hard_state(tmp_path / member / f"dledger-{member}")
        assert state is not None and state.term < 1000
