"""Member connections: answers are always read, short frames pass long ones, and what waits is known (E6, C5)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from node.protocol.entry import SLAB_BYTES_MAX
from node.transport.connection import (
    MEMBER_BUFFER_BYTES,
    QUICK_BUFFER_BYTES,
    QUICK_TIMES,
    QUICK_WITHIN_S,
    Connection,
    dial,
)
from node.transport.remoting import FLAG_ONE_WAY, FLAG_RESPONSE, Frame, plain_frame

SLABS = 8


class Ends:
    """Both ends of one connection, and what each was given."""

    def __init__(self) -> None:
        self.here: list[Frame] = []
        self.there: list[Frame] = []
        self.parts: list[Connection] = []

    async def __aenter__(self) -> Ends:
        loop = asyncio.get_running_loop()
        accepted: list[Connection] = []

        def connection() -> Connection:
            return Connection(
                lambda _one, frame: self.there.append(frame),
                lambda _one: None,
                accepted.append,
                on_part=self.parts.append,
            )

        self.server = await loop.create_server(connection, "127.0.0.1", 0)
        self.near = Connection(lambda _one, frame: self.here.append(frame), lambda _one: None)
        await dial(self.near, "127.0.0.1", self.server.sockets[0].getsockname()[1])
        await until(lambda: accepted)
        self.far = accepted[0]
        return self

    def fill(self) -> None:
        """The far end reads nothing, and slabs wait at the near one, a member's."""
        self.near.carry_members()
        self.far.stop_reading("a test says so")
        for number in range(SLABS):
            self.near.send_long(slab(number))

    async def __aexit__(self, *_error: object) -> None:
        self.near.abort()
        self.far.abort()
        self.server.close()
        await asyncio.sleep(0)


def slab(number: int, size_bytes: int = SLAB_BYTES_MAX) -> list[Any]:
    return plain_frame(7, FLAG_ONE_WAY, number, [bytes(size_bytes)])


async def until(condition: Any) -> None:
    for _ in range(20_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def test_answers_are_read_however_much_waits_to_be_sent() -> None:
    async def main() -> None:
        async with Ends() as ends:
            ends.fill()
            for _ in range(3):
                await asyncio.sleep(0)  # whatever pauses writing has done so
            assert ends.near.waiting_bytes > (SLABS - 3) * SLAB_BYTES_MAX
            ends.far.send_body(200, FLAG_RESPONSE, 41, [b"an answer"])
            await until(lambda: ends.here)
            assert ends.here[0].opaque == 41
            assert ends.near.waiting_bytes > (SLABS - 3) * SLAB_BYTES_MAX  # it has gone nowhere

    asyncio.run(main())


def test_a_client_that_takes_no_answers_is_not_read_from() -> None:
    async def main() -> None:
        async with Ends() as ends:
            ends.far.stop_reading("a test says so")
            for number in range(16):
                ends.near.send_body(200, FLAG_RESPONSE, number, [bytes(SLAB_BYTES_MAX)])
            await asyncio.sleep(0.02)
            ends.far.send_body(7, 0, 41, [b"a request"])
            await asyncio.sleep(0.05)
            assert not ends.here
            ends.far.resume_reading("a test says so")
            await until(lambda: ends.here)

    asyncio.run(main())


def test_short_frames_pass_long_ones_which_keep_their_order() -> None:
    async def main() -> None:
        async with Ends() as ends:
            ends.fill()
            ends.near.send_body(7, FLAG_ONE_WAY, 100, [b"a heartbeat"])
            ends.near.send_long(slab(SLABS, 10))  # short, but of those that keep their order
            ends.far.resume_reading("a test says so")
            await until(lambda: len(ends.there) == SLABS + 2)
            order = [frame.opaque for frame in ends.there]
            assert [number for number in order if number != 100] == list(range(SLABS + 1))
            # Before it leaves what the transport had taken, and no more: a slab and what was left of one.
            assert order.index(100) <= 1 + (MEMBER_BUFFER_BYTES + 4 * SLAB_BYTES_MAX) // SLAB_BYTES_MAX // 2
            assert ends.near.waiting_bytes == 0

    asyncio.run(main())


def test_what_waits_can_be_withdrawn_but_for_what_has_begun_to_leave() -> None:
    async def main() -> None:
        async with Ends() as ends:
            ends.fill()
            ends.near.withdraw_long()
            assert ends.near.waiting_bytes == 0
            ends.near.send_long(slab(99, 10))
            ends.far.resume_reading("a test says so")
            await until(lambda: ends.there and ends.there[-1].opaque == 99)
            whole = [frame.opaque for frame in ends.there]
            assert whole[:-1] == list(range(len(whole) - 1))
            assert len(whole) < SLABS

    asyncio.run(main())


def test_bytes_of_a_frame_that_is_not_whole_yet_are_told_of() -> None:
    async def main() -> None:
        async with Ends() as ends:
            head, *rest = slab(1)
            ends.near.send([head])
            await until(lambda: ends.parts)
            assert ends.parts[0] is ends.far
            assert not ends.there
            reported = len(ends.parts)
            for piece in rest:
                ends.near.send([piece])
            await until(lambda: ends.there)
            assert len(ends.parts) > reported
            reported = len(ends.parts)
            ends.near.send_body(7, FLAG_ONE_WAY, 2, [b"whole"])
            await until(lambda: len(ends.there) == 2)
            assert len(ends.parts) == reported

    asyncio.run(main())


class TakesNothing:
    """A transport that only notes what it is told about its buffer."""

    def __init__(self) -> None:
        self.limits: list[int] = []

    def set_write_buffer_limits(self, high: int) -> None:
        self.limits.append(high)

    def get_extra_info(self, _name: str) -> None:
        return None


def test_much_may_be_ahead_of_a_short_frame_only_where_it_is_taken_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock_s = 0.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock_s)
        transport = TakesNothing()
        connection = Connection(lambda *_: None, lambda _: None)
        connection.connection_made(cast(asyncio.Transport, transport))
        connection.carry_members()
        assert transport.limits[1:] == [MEMBER_BUFFER_BYTES]
        quick, slow = QUICK_WITHIN_S / 2, QUICK_WITHIN_S * 2
        almost = [quick] * (QUICK_TIMES - 1)
        for took_s in (slow, *almost, slow, *almost, 0.0, quick, slow, 1.0, quick):
            connection.pause_writing()
            clock_s += took_s
            connection.resume_writing()
        assert transport.limits[2:] == [QUICK_BUFFER_BYTES, MEMBER_BUFFER_BYTES]

    asyncio.run(main())
