"""A slave that is far behind, and killed again and again while it gets its master's log: nothing is lost or twice."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from node.message_store.batch import BatchedMessage, encode_batch
from node.rocketmq.codes import Answer, Request
from tests.process.classic_brokers import ClassicBrokers
from tests.unit.broker_kit import send_fields
from tests.unit.test_dispatch import index_files, queue_files

pytestmark = pytest.mark.process
BATCHES, BATCH, BODY_BYTES = 160, 300, 1000  # 48,000 messages, 53 MB
KILLS = 4
FILE_BYTES = 4 << 20
BYTES_PER_S = 10 << 20  # or a quick machine would have all of it before the first kill


async def fill(brokers: ClassicBrokers, name: str) -> int:
    """Its log's end."""
    rng = random.Random(5)
    for number in range(BATCHES):
        keyed = (
            BatchedMessage(0, rng.randbytes(rng.randrange(BODY_BYTES * 2)), b"KEYS\x01k%d-%d\x02" % (number, one))
            for one in range(BATCH)
        )
        fields = send_fields(e=str(number % 4), m="true")
        answer = await brokers.ask(name, Request.SEND_BATCH_MESSAGE, fields, encode_batch(keyed), 60.0)
        assert answer.code == Answer.SUCCESS, answer.remark
    return int((await brokers.view(name))["end_offset"])


@pytest.mark.long
def test_a_slave_that_is_killed_while_it_catches_up_goes_on_exactly(tmp_path: Path) -> None:
    async def story() -> None:
        settings = {
            "store.mapped_file_size_for_entry_data_bytes": str(FILE_BYTES), "ha.in_sync_replicas": "1",
            "ha.flow_control_bytes_per_s": str(BYTES_PER_S),
        }  # fmt: skip
        async with ClassicBrokers(tmp_path, "a", "b", **settings) as brokers:
            await brokers.start("a", "async_master")
            end = await fill(brokers, "a")
            seen = 0
            for number in range(1, KILLS + 1):
                await brokers.start("b", "slave")
                said = await brokers.until("b", lambda said, n=number: said["end_offset"] >= end * n // (KILLS + 1))
                seen += said["end_offset"] < end
                await brokers.kill("b")
            assert seen, "it was never killed while it got the log"
            await brokers.start("b", "slave")
            await brokers.until("b", lambda said: said["dispatched_offset"] == end == said["end_offset"])
            await brokers.kill("b", signal.SIGTERM)
            await brokers.kill("a", signal.SIGTERM)
            assert brokers.log_of("b") == brokers.log_of("a")
            assert queue_files(tmp_path / "b") == queue_files(tmp_path / "a") != {}
            assert index_files(tmp_path / "b") == index_files(tmp_path / "a")

    asyncio.run(story())
