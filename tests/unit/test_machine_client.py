"""Commands that travel together: of an outcome that nobody knows, each call is told of its own entries (SAFETY C2)."""

from __future__ import annotations

import asyncio

import pytest

from node.client import LedgerClient, OutcomeUnknown
from node.client.machine import CommandResult, MachineClient, unknown_each
from node.protocol.codes import ResponseCode

CODE = ResponseCode.WAIT_QUORUM_ACK_TIMEOUT


@pytest.mark.parametrize(
    ("counts", "first", "last", "each"),
    [
        ([1, 2, 3], 5, 10, [(5, 5), (6, 7), (8, 10)]),
        ([4], 0, 3, [(0, 3)]),
        ([1, 1], -1, -1, [(-1, -1)] * 2),
        # What a member named is not as many entries as were sent: then it cannot be shared out.
        ([1, 2], 5, 5, [(-1, -1)] * 2),
        ([1, 2], 5, 9, [(-1, -1)] * 2),
    ],
)
def test_each_call_is_told_of_its_own_entries(
    counts: list[int], first: int, last: int, each: list[tuple[int, int]]
) -> None:
    whole = OutcomeUnknown("no quorum", code=CODE, first_index=first, last_index=last, term=3)
    found = unknown_each(whole, counts)
    assert [(one.first_index, one.last_index) for one in found] == each
    assert [one.term for one in found] == [3 if one[0] >= 0 else -1 for one in each]
    assert {one.code for one in found} == {CODE} and len({id(one) for one in found}) == len(counts)


def test_commands_of_one_turn_that_end_unknown_name_their_own_entries() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1"})
        machine = MachineClient(client)

        async def run(bodies: list[bytes]) -> CommandResult:
            assert bodies == [b"a", b"b", b"c"]
            raise OutcomeUnknown("no quorum", code=CODE, first_index=7, last_index=9, term=2)

        machine.run = run  # type: ignore[method-assign, assignment]
        ended = await asyncio.gather(machine.command(b"a"), machine.command(b"b", b"c"), return_exceptions=True)
        assert all(isinstance(one, OutcomeUnknown) for one in ended)
        assert [(one.first_index, one.last_index, one.term) for one in ended] == [(7, 7, 2), (8, 9, 2)]  # type: ignore[union-attr]
        await client.close()

    asyncio.run(story())
