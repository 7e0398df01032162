"""An engine of a group that is not plain: lane appends enter, nothing else does, in whatever form it comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from node.client import LaneEnded, LedgerClient, NotAppended
from node.config import load
from node.engine.engine import Engine
from node.protocol.codes import FlushMode, RequestCode, ResponseCode
from node.protocol.entry import HEAD_BYTES
from node.protocol.group_kind import Channel
from node.store.memory_store import MemoryStore
from tests.ports import free_ports
from tests.unit.group_kind_kit import FIRST_MS, STAMPED, body_of, place_in

AT = STAMPED.position_at


def test_only_lane_appends_of_valid_bodies_enter(tmp_path: Path) -> None:
    store = MemoryStore(kind="stamped")

    async def work(client: LedgerClient) -> None:
        for append in (client.append(b"plain"), client.append_many([body_of(b"valid", 2)] * 3)):
            with pytest.raises(NotAppended, match="over a lane only") as caught:
                await append
            assert caught.value.code is ResponseCode.UNEXPECTED_ARGUMENT
        link = client._links["n0"]
        fields = {"body": "aGVsbG8=", "channel": 3}
        answer = await link.ask(RequestCode.APPEND, fields, 5.0)
        assert answer.code() is ResponseCode.UNEXPECTED_ARGUMENT
        assert "over a lane only" in (answer.optional_text("detail") or "")
        lane = await client.open_lane()
        assert (lane.end_index, lane.last_time_ms) == (0, FIRST_MS)
        first, metadata = lane.append([body_of(b"a", 2_000_000)] * 30, patch_at=AT), [body_of(b"m", 2_000_001)]
        assert (await lane.append(metadata, patch_at=AT, channel=Channel.METADATA)).first_index == 31
        assert (await first).last_index == 30
        with pytest.raises(LaneEnded, match="no stamped record"):
            await lane.append([b"no record, but long enough"], patch_at=AT)
        again = await client.open_lane()
        assert (again.end_index, again.last_time_ms) == (31, 2_000_001)
        entries = await client.read(0, 32, include_all=True)
        assert [entry.channel for entry in entries] == [1] + [0] * 30 + [3]
        assert all(entry.magic == 1 and place_in(entry) == entry.pos + HEAD_BYTES for entry in entries)
        assert len(await client.read(0, 30)) == 30  # messages alone, unless all is asked for

    async def both() -> int:
        (port,) = free_ports(1)
        peers = f"n0-127.0.0.1:{port}"
        values = {"node.id": "n0", "peers": peers, "node.data": str(tmp_path), "node.flush": FlushMode.SYNC}
        engine = Engine(load(values, None, {}), store, kind=STAMPED)
        ready = asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        client = LedgerClient(peers, deadline_s=5.0)
        try:
            await work(client)
        finally:
            await client.close()
            engine.stop()
        return await running

    assert asyncio.run(both()) == 0
