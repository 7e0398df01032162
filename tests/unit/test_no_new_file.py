"""Puts where no further file of the log can be begun: CREATE_MAPPED_FILE_FAILED by its real cause, over a socket."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from node.broker import put_lane
from node.rocketmq.codes import Answer
from node.rocketmq.header_fields import read_header
from node.rocketmq.headers import SendAnswer
from tests.ports import free_ports
from tests.unit.broker_kit import broker_of, client_of, engine_of, settings_of
from tests.unit.classic_kit import classic, classic_settings, pair_ports, pulled, story
from tests.unit.engine_kit import until

FILE_BYTES = 65_536


@story
async def test_a_commit_log_that_can_begin_no_file_refuses_and_takes_puts_once_it_can(tmp_path: Path) -> None:
    """The name is taken by a directory: no rights, links or limits of the test's user change that."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client:
        stored = await client.send(bytes(30_000), bytes(30_000))
        assert [one.code for one in stored] == [Answer.SUCCESS] * 2
        next_file = tmp_path / "m/commitlog" / f"{FILE_BYTES:020d}"
        (next_file / "somebody's").mkdir(parents=True)
        end = master.broker.store.log.max_offset
        for _ in range(2):
            [refused] = await client.send(bytes(30_000))
            assert refused.code == Answer.SYSTEM_ERROR
            assert (refused.remark or "").startswith("create mapped file failed, server is busy or broken")
        assert master.broker.store.log.max_offset == end, "nothing of it is stored, and no blank was written"
        assert (next_file / "somebody's").is_dir(), "what is there is not ours to remove"
        [small] = await client.send(b"fits the file that is there")
        assert small.code == Answer.SUCCESS
        (next_file / "somebody's").rmdir()
        next_file.rmdir()
        [taken] = await client.send(b"x" * 30_000)
        assert taken.code == Answer.SUCCESS
        assert read_header(SendAnswer, taken.fields).queue_offset == 3, "refused puts used no queue offset"
        assert (await pulled(client, 4))[2:] == [b"fits the file that is there", b"x" * 30_000]


def test_a_replicated_log_that_can_begin_no_file_ends_and_its_puts_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No CREATE_MAPPED_FILE_FAILED there: a member whose disk fails ends, and another one leads. What it was asked for
    is in no log, which only the next master can say."""
    monkeypatch.setattr(put_lane, "ANSWER_WITHIN_S", 0.5)
    settings = settings_of(tmp_path, free_ports(1))
    next_file = tmp_path / "n0/dledger-n0/data" / f"{FILE_BYTES:020d}"

    async def fails() -> None:
        async with engine_of(settings) as engine, broker_of(settings) as broker, client_of(broker) as client:
            assert [one.code for one in await client.send(bytes(30_000))] == [Answer.SUCCESS]
            (next_file / "somebody's").mkdir(parents=True)
            codes = [(await client.send(bytes(30_000)))[0] for _ in range(2)]
            unknown = next(one for one in codes if one.code != Answer.SUCCESS)
            assert unknown.code == Answer.SYSTEM_ERROR and "not known whether it is stored" in (unknown.remark or "")
            await until(lambda: engine.reason != "")
            assert (next_file / "somebody's").is_dir()

    async def goes_on() -> None:
        async with engine_of(settings), broker_of(settings) as broker, client_of(broker) as client:
            before = broker.log.next_offset("TopicTest", 0)
            [taken] = await client.send(b"x" * 30_000)
            assert taken.fields is not None and taken.fields["queueOffset"] == str(before)

    asyncio.run(fails())
    shutil.rmtree(next_file)
    asyncio.run(goes_on())
