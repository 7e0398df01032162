"""A client's lane against a real engine: one connection, one sequence, and no second try of anything."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.client import LaneEnded, LedgerClient, NotAppended, OutcomeUnknown
from node.engine.engine import Engine
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import HEAD_BYTES
from node.store.memory_store import MemoryStore
from node.transport.lane_frames import LaneAppend, encode_lane_append
from node.transport.slab_frames import AppendedByte, decode_append_answer
from tests.unit.engine_kit import until
from tests.unit.test_engine import run


def test_what_goes_over_a_lane_is_in_the_log_in_its_sequence(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        assert (lane.end_index, lane.leader_id, lane.last_time_ms) == (0, "n0", -1)
        answers = [lane.append([b"%d" % number, b"x" * 40], patch_at=-1) for number in range(50)]
        assert lane.waits
        results = await asyncio.gather(*answers)
        assert [one.first_index for one in results] == list(range(1, 101, 2)) and not lane.waits
        (patched,) = await client.read((await lane.append([b"p" * 40], patch_at=28)).first_index, 1)
        assert patched.body == b"p" * 28 + (patched.pos + HEAD_BYTES).to_bytes(8, "big") + b"p" * 4
        assert [one.body for one in await client.read(1, 4)] == [b"0", b"x" * 40, b"1", b"x" * 40]

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_second_lane_ends_the_first_and_says_where_the_log_ends(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        first = await client.open_lane()
        await first.append([b"a"])
        other = LedgerClient(client.peers)
        try:
            second = await other.open_lane()
            assert second.number > first.number and second.end_index == 1
            with pytest.raises(LaneEnded, match="591 LANE_ENDED") as caught:
                await first.append([b"late"])
            assert caught.value.code is ResponseCode.LANE_ENDED
            with pytest.raises(LaneEnded, match="has ended"):  # nothing is sent any more
                first.append([b"later"])
            assert (await second.append([b"b"])).first_index == 2
        finally:
            await other.close()

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_full_window_refuses_here_and_the_lane_goes_on(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        lane.window_entries = 2
        under_way = lane.append([b"a", b"b"])
        assert not lane.has_room(1, 1)
        with pytest.raises(NotAppended, match="window is full"):
            lane.append([b"c"])
        await under_way
        assert not lane.ended and (await lane.append([b"c", b"d", b"e"])).last_index == 5  # alone, whatever its size

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_lost_connection_ends_the_lane_at_both_ends(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        lanes = engine.replica.lanes
        assert lanes.current is not None
        link = client._links["n0"]
        under_way = lane.append([b"a"])
        link.give_up("a test")
        with pytest.raises(OutcomeUnknown):
            await under_way
        assert lane.ended  # here, and not only because the member says so: nothing may follow what nobody knows
        with pytest.raises(LaneEnded):
            lane.append([b"b"])
        for _ in range(100):
            if lanes.current is None:
                break
            await asyncio.sleep(0.01)
        assert lanes.current is None
        again = await client.open_lane()
        assert again.number == 2 and not again.ended

    assert run(tmp_path, MemoryStore(), work) == 0


def test_an_append_of_another_connection_or_that_cannot_be_read(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        other = LedgerClient(client.peers)
        try:
            link = other._links["n0"]
            pieces = encode_lane_append(LaneAppend(lane.term, lane.number, 0, [b"stolen"]))
            answer = decode_append_answer(await link.request(RequestCode.LANE_APPEND, pieces, 5.0))
            assert (answer.code, answer.appended) == (ResponseCode.LANE_ENDED, AppendedByte.NOT_APPENDED)
            assert (await lane.append([b"a"])).first_index == 1
        finally:
            await other.close()
        link = client._links["n0"]
        broken = decode_append_answer(await link.request(RequestCode.LANE_APPEND, [b"nonsense"], 5.0))
        assert (broken.code, broken.appended) == (ResponseCode.UNEXPECTED_ARGUMENT, AppendedByte.NOT_APPENDED)
        with pytest.raises(LaneEnded, match="connection was lost"):
            await lane.append([b"b"])

    assert run(tmp_path, MemoryStore(), work) == 0


def test_no_answer_in_time_ends_the_lane_as_unknown(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        client._links["n0"]._on_frame = lambda *_: None  # type: ignore[method-assign]
        lane._deadline_s = 0.05
        connection = client._links["n0"]._connection
        assert connection is not None
        connection.stop_reading("a test")
        with pytest.raises(OutcomeUnknown):
            await lane.append([b"a"])
        assert lane.ended
        connection.resume_reading("a test")

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_cancelled_append_ends_the_lane(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        lane.append([b"a"]).cancel()
        await client.append(b"behind it")  # on the same connection: its answer comes later
        assert "cancelled" in lane.ended

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_cancelled_append_that_gets_no_answer_ends_the_lane_at_its_deadline(tmp_path: Path) -> None:
    """Its place in the window was taken for good, and the lane went on behind what nobody knows."""

    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        lane._deadline_s = 0.05
        link = client._links["n0"]
        connection = link._connection
        assert connection is not None
        connection.stop_reading("a test")
        lane.append([b"a"]).cancel()
        await until(lambda: bool(lane.ended))
        assert "cancelled" in lane.ended and not lane.waits and not lane._open
        connection.resume_reading("a test")

    assert run(tmp_path, MemoryStore(), work) == 0


def test_a_closed_lane_sends_nothing_more(tmp_path: Path) -> None:
    async def work(engine: Engine, client: LedgerClient) -> None:
        lane = await client.open_lane()
        under_way = lane.append([b"a"])
        lane.close()
        assert (await under_way).first_index == 1
        with pytest.raises(LaneEnded, match="closed here"):
            lane.append([b"b"])

    assert run(tmp_path, MemoryStore(), work) == 0
