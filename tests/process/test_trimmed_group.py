"""In a group whose logs were trimmed, a member with an empty disk and a new one begin where the others begin.

With real processes and disks; what follows from losing messages, power or leaders is the simulator's to find
(`tests/simulation/invariants_bases.py`).
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError
from tests.full_disks import HOWEVER_FULL
from tests.ports import free_ports
from tests.process.group import Group, all_hold, all_vote, append_surely
from tests.process.test_members import command, until, voters_of

pytestmark = [pytest.mark.process, pytest.mark.long]
BODY_BYTES = 8192
ENTRIES = 60


class TrimmedGroup(Group):
    """Engines that keep some 128 KiB of their logs."""

    def arguments(self, node_id: str, *more: str) -> list[str]:
        settings = {
            "store.mapped_file_size_for_entry_data_bytes": 65536, "store.mapped_file_size_for_entry_index_bytes": 32768,
            "retention.enabled": "true", "retention.max_log_bytes": 131072, "retention.check_interval_s": 1,
            **HOWEVER_FULL,
        }  # fmt: skip
        words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
        return super().arguments(node_id, *words, *more)


async def begins_at(client: LedgerClient, member_id: str) -> int:
    try:
        return int((await client.state(member_id))["log"]["begin_index"])
    except LedgerError:
        return -1


def test_an_emptied_and_a_new_member_of_a_trimmed_group_become_voters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = TrimmedGroup(tmp_path)
    try:
        group.start_all()
        asyncio.run(work(group, capsys))
    finally:
        group.close()


async def work(group: Group, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    client = LedgerClient({**group.peers, "n3": address}, group=group.group, deadline_s=30.0)
    acknowledged: dict[int, bytes] = {}

    async def append() -> None:
        body = b"%d " % len(acknowledged) * (BODY_BYTES // 4)
        acknowledged[await append_surely(client, body)] = body

    async def trimmed() -> bool:
        return all([await begins_at(client, one) > 0 for one in ("n0", "n1", "n2")])

    try:
        for _ in range(ENTRIES):
            await append()
        await until(trimmed)
        group.kill("n2")
        shutil.rmtree(group.directory / "n2")
        group.start("n2")
        await append()
        await all_vote(client, ["n2"])
        await all_hold(client, ["n2"], max(acknowledged))
        assert await begins_at(client, "n2") > 0

        await asyncio.to_thread(group.join, "n3", address)
        code, text = await asyncio.to_thread(command, capsys, group, "add", "n3", address, "--yes", "--json")
        assert code == 0, text
        assert json.loads(text)["changed"]

        async def joined() -> bool:
            return await voters_of(client, "n3") == ["n0", "n1", "n2", "n3"]

        await until(joined)
        begin = await begins_at(client, "n3")
        assert begin > 0
        await append()
        await all_hold(client, ["n3"], max(acknowledged))
        for index, body in acknowledged.items():
            if index >= max([begin, *[await begins_at(client, one) for one in ("n0", "n1", "n2")]]):
                assert (await client.read(index, 1))[0].body == body, f"entry {index}"
    finally:
        await client.close()
