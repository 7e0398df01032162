"""An engine looks once more at what waited for a save when it may leave: a vote given up meanwhile is not cast."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.config import load
from node.consensus.effects import Send
from node.engine.engine import Engine
from node.protocol.codes import VoterState
from node.protocol.messages import Message, VoteResponse, VoteResult
from node.store.memory_store import MemoryStore
from tests.ports import free_ports


@pytest.mark.parametrize("state", [VoterState.VOTER, VoterState.REJOINING])
def test_a_vote_that_waited_for_a_save_leaves_only_while_it_is_a_voters(state: VoterState, tmp_path: Path) -> None:
    peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3)))
    settings = load({"node.id": "n0", "peers": peers, "node.data": str(tmp_path)}, None, {})

    async def story() -> list[tuple[str, Message]]:
        engine = Engine(settings, MemoryStore(store_id="n0"))
        sent: list[tuple[str, Message]] = []
        engine.links.send = lambda to, message: sent.append((to, message))  # type: ignore[method-assign,assignment]
        duties, member = engine.duties, engine.replica.member
        asks, vote = VoteResponse(1, 4, VoteResult.UNKNOWN), VoteResponse(1, 4, VoteResult.ACCEPT)
        number = duties.held.ordered(spoken_of=True)
        duties.held.hold(Send("n1", vote))
        duties.held.hold(Send("n2", asks))
        assert duties.held.closed
        member.save(voter_state=state)
        duties.saved(number, member.hard)
        engine.process.close()
        return sent

    sent = asyncio.run(story())
    votes = [to for to, message in sent if isinstance(message, VoteResponse) and message.result is VoteResult.ACCEPT]
    assert votes == (["n1"] if state is VoterState.VOTER else [])
    assert [to for to, _message in sent][-1:] == ["n2"]
