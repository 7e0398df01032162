"""A broker of ours on a directory that was RocketMQ's: it goes on where the queues end, and serves what was there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

from node.config import load
from node.hand_over.adopt import adopt_broker
from node.hand_over.hand_over import hand_over
from node.message_store.adopted import adopted_path
from node.message_store.put_result import PutStatus
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.message_store.rebuild import known_next_offsets
from node.message_store.record import decode_record
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, engine_of, message
from tests.unit.engine_kit import until
from tests.unit.java_rocketmq.broker import LEDGER_INDEX_BYTES, V4, V5, JavaBroker


def test_it_goes_on_behind_the_border_and_java_takes_it_back(vectors: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(vectors / "rocketmq/dledger-commitlog/single", tmp_path / "data"))
    os.truncate(root / "dledger-n0/index" / f"{0:020d}", LEDGER_INDEX_BYTES)
    (root / "config").mkdir(exist_ok=True)
    waiting = {queue: at for (topic, queue), at in known_next_offsets(root).items() if topic == SCHEDULE_TOPIC}
    delays = {str(queue + 1): at for queue, at in waiting.items()}  # all are delivered
    (root / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": delays}))
    adopt_broker(root, "g", dry_run=False)
    given = {
        "node.id": "n0", "node.group": "g", "peers": f"n0-127.0.0.1:{free_ports(1)[0]}", "node.data": str(root),
        "broker.address": "127.0.0.1:10911", "store.mapped_file_size_for_entry_data_bytes": "65536",
    }  # fmt: skip
    settings = load(given, None, {})

    async def goes_on() -> None:
        async with engine_of(settings), broker_of(settings) as broker:
            results = await asyncio.gather(*(broker.lane.put(message(b"ours %d" % n)) for n in range(20)))
            assert {one.status for one in results} == {PutStatus.PUT_OK}
            assert [one.queue_offset for one in results] == list(range(36, 56))
            old = broker.reads.get("TopicTest", 0, 0)
            assert [decode_record(one).queue_offset for one in old.records] == list(range(16))
            await until(lambda: broker.snapshots.written == 1)  # what the directory knew is in the log now
            assert broker.log.state is not None and broker.log.state.is_whole
            assert broker.metadata.table("delay_offsets") == delays != {}
            adopted_path(root).unlink()
        async with engine_of(settings), broker_of(settings) as broker:  # so this is not needed any more
            assert broker.metadata.table("delay_offsets") == delays != {}
            assert broker.log.next_offset("TopicTest", 0) == 56

    asyncio.run(goes_on())
    report = hand_over(root, dry_run=False)
    assert report.messages == 387
    for version in (V4, V5):
        java = JavaBroker(root, version, file_bytes=65536, queue_bytes=320, slots=100, index_entries=400)
        assert sorted(java.units()["TopicTest", 0]) == list(range(56))
