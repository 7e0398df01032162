"""Calls of one turn: each gets its own result or error, whichever way they come, and a cancelled one holds up none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from node.client.errors import LedgerError, WrongLoop
from node.client.gathered import UNDER_WAY_BYTES_MAX, Gathered


@pytest.mark.parametrize("lazily", [True, False])
def test_each_call_gets_its_own_result_and_a_cancelled_one_is_passed_over(lazily: bool) -> None:
    asked: list[Sequence[int]] = []

    async def carry_out(calls: Sequence[int]) -> list[str | LedgerError] | Iterator[str]:
        asked.append(calls)
        await asyncio.sleep(0)
        return map(str, calls) if lazily else [str(call) for call in calls]

    async def story() -> None:
        gathered: Gathered[int, str] = Gathered(4, carry_out)
        futures = [gathered.add(number, 1, 1) for number in range(6)]
        futures[1].cancel()
        futures[5].cancel()
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [one if isinstance(one, str) else type(one) for one in found] == [
            "0", asyncio.CancelledError, "2", "3", "4", asyncio.CancelledError,
        ]  # fmt: skip
        assert asked == [[0, 1, 2, 3], [4]], "5 had not left yet"

    asyncio.run(story())


def test_an_error_is_that_calls_own() -> None:
    async def carry_out(calls: Sequence[int]) -> list[int | LedgerError] | Iterator[int]:
        return [LedgerError(f"no {call}") if call % 2 else call for call in calls]

    async def story() -> None:
        gathered: Gathered[int, int] = Gathered(10, carry_out)
        futures = [gathered.add(number, 1, 1) for number in range(4)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [str(one) for one in found] == ["0", "no 1", "2", "no 3"]

    asyncio.run(story())


def test_what_is_raised_everybody_gets_and_bytes_are_bounded() -> None:
    sizes: list[int] = []

    async def carry_out(calls: Sequence[int]) -> list[int | LedgerError] | Iterator[int]:
        sizes.append(len(calls))
        raise LedgerError("not reached")

    async def story() -> None:
        gathered: Gathered[int, int] = Gathered(10, carry_out, 100)
        futures = [gathered.add(number, 1, 40) for number in range(5)]
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [str(one) for one in found] == ["not reached"] * 5
        assert sizes == [2, 2, 1]

    asyncio.run(story())


def test_large_calls_wait_for_room_and_leave_in_their_order() -> None:
    """All at once they are in a connection's buffer, and there their deadline ends them as unknown before they left."""
    asked: list[int] = []
    room = asyncio.Event()
    size_bytes = UNDER_WAY_BYTES_MAX // 4

    async def carry_out(calls: Sequence[int]) -> list[int | LedgerError] | Iterator[int]:
        asked.extend(calls)
        await room.wait()
        if 0 in calls:
            raise LedgerError("not reached")
        return [*calls]

    async def story() -> None:
        gathered: Gathered[int, int] = Gathered(10, carry_out, size_bytes)
        futures = [gathered.add(number, 1, size_bytes) for number in range(9)]
        small = gathered.add(9, 1, 1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert asked == [0, 1, 2, 3]
        for number in (3, 6, 8):  # 3 is under way; of the others nothing is carried out any more
            futures[number].cancel()
        room.set()
        found = await asyncio.gather(*futures, small, return_exceptions=True)
        assert asked == [0, 1, 2, 3, 4, 5, 7, 9] and str(found[0]) == "not reached"
        assert [one for one in found if isinstance(one, int)] == [1, 2, 4, 5, 7, 9]

    asyncio.run(story())


def test_a_call_of_another_loop_is_refused_and_not_carried_out() -> None:
    """It was carried out in the first loop, while its caller heard of a future of another loop."""
    asked: list[int] = []

    async def carry_out(calls: Sequence[int]) -> list[int | LedgerError] | Iterator[int]:
        asked.extend(calls)
        return [*calls]

    async def elsewhere() -> None:
        await gathered.add(2, 1, 1)

    async def story() -> None:
        first = gathered.add(1, 1, 1)
        with ThreadPoolExecutor(1) as other:  # while those of this turn have not left
            assert isinstance(other.submit(gathered.add, 2, 1, 1).exception(), WrongLoop)
        assert await first == 1
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(asyncio.run, elsewhere())
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(gathered.add, 3, 1, 1)
        assert await gathered.add(4, 1, 1) == 4

    gathered: Gathered[int, int] = Gathered(10, carry_out)
    asyncio.run(story())
    with pytest.raises(WrongLoop):
        asyncio.run(elsewhere())
    assert asked == [1, 4]
