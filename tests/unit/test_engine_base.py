"""Engines over real sockets and files: a member that needs what is gone begins its log where its leader's begins."""

from __future__ import annotations

import shutil
from pathlib import Path

from node.client import LedgerError
from node.protocol.codes import Role, VoterState
from tests.unit.test_engine_damage import operator_action
from tests.unit.test_engine_retention import BODY, IDS, Group, group, run, until


async def write(three: Group, count: int) -> int:
    """So many entries at least: elections may come between."""
    last = -1
    for _ in range(count):
        while True:
            try:
                last = (await three.client.append(BODY)).last_index
                break
            except LedgerError:
                continue
    return last


async def settled(three: Group, *names: str) -> str:
    """Somebody leads, and these members hold all that it has committed; the leader."""
    leading: list[str] = []

    def holds() -> bool:
        engines = three.engines
        leading[:] = [name for name in names if engines[name].replica.role is Role.LEADER]
        if len(leading) != 1:
            return False
        last = engines[leading[0]].replica.committed_index
        return last == three.stores[leading[0]].end_index and all(
            engines[name].replica.committed_index == last == three.stores[name].durable_index for name in names
        )

    await until(holds)
    return leading[0]


async def trim(three: Group, *names: str) -> int:
    """Most of these logs goes, whoever needs it; where the latest one begins."""
    for name in names:
        through = three.stores[name].end_index - 10
        asked = await operator_action(three.engines[name], what="trim", throughIndex=through, force=True)
        assert asked["beginIndex"] > 0
    return max(three.stores[name].begin_index for name in names)


def test_members_left_behind_and_emptied_catch_up_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, *IDS) as three:
            await write(three, 30)
            await settled(three, *IDS)
            held = three.stores["n2"].end_index
            await three.stop("n2")
            await write(three, 60)
            await settled(three, "n0", "n1")
            begin = await trim(three, "n0", "n1")
            assert begin > held + 1, "n2 needs what is gone"
            await three.start("n2")  # left behind
            await write(three, 10)
            await settled(three, *IDS)
            store = three.stores["n2"]
            assert store.begin_index > held + 1
            archived = store.files.archive.entries(1)
            assert [entry.index for entry in archived] == list(range(held + 1)), "what it held is kept"
            assert sum(entry.body == BODY for entry in archived) >= 30
            assert any(one.kind == "base_installed" for one in three.engines["n2"].events.since(None).items or ())

            await three.stop("n2")
            shutil.rmtree(tmp_path / "n2")
            await three.start("n2")  # emptied
            last = await write(three, 10)
            await settled(three, *IDS)
            await until(lambda: three.engines["n2"].replica.member.voter_state is VoterState.VOTER)
            assert three.stores["n2"].begin_index > held + 1
            leader = await settled(three, *IDS)
            begin = max(three.stores[name].begin_index for name in (leader, "n2"))
            for index in range(begin, last + 1):
                one, other = three.stores[leader].get(index), three.stores["n2"].get(index)
                assert one == other and one is not None, f"entry {index}"

    run(work)
