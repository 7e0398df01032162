"""A member of a group whose log goes on from another one's: its engine, its files' verdict, and an audit's reader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from app.audit.blocks import Party, compare_block
from app.audit.classify import classify
from app.audit.fence import Fence
from app.audit.fencing import fix_fence, open_holders
from app.audit.replicas import ReplicaSpec
from node.client import LedgerClient
from node.config import Settings, load
from node.engine.engine import Engine
from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import INDEX_UNIT_BYTES
from node.server import open_store
from node.store.file_store import FileStore
from node.store.files.identity import Base
from node.store.log_store import EntryMeta
from node.store.reader import StoreReader
from tests.ports import free_ports
from tests.unit.store_fixtures import fill, kill, sync
from tests.unit.store_fixtures import open_store as open_small_store
from tests.unit.store_layout import DATA_BYTES

META = EntryMeta(999, 7, 0x1234_5678)
INSIDE = Base(META, 5 * DATA_BYTES + 1000)
BORN = [Base(META, 5 * DATA_BYTES), INSIDE]


def run(settings: Settings, store: FileStore, bodies: list[bytes]) -> tuple[list[int], list[bytes]]:
    """An engine over that store until these are appended: where they lie, and what a read from the begin on shows."""

    async def both() -> tuple[list[int], list[bytes]]:
        engine, ready = Engine(settings, store), asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        peers = ";".join(f"{one}-{address}" for one, address in settings.peers.items())
        client = LedgerClient(peers, deadline_s=20.0)
        try:
            places = [(await client.append(body)).first_index for body in bodies]
            return places, [entry.body for entry in await client.read(store.begin_index, 10)]
        finally:
            await client.close()
            engine.stop()
            assert await running == 0
            store.close()

    return asyncio.run(both())


def test_an_engine_goes_on_behind_the_base(tmp_path: Path) -> None:
    peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
    settings = load({"node.id": "n0", "peers": peers, "node.data": str(tmp_path), "node.init": True}, None, {})
    base = Base(META, 12_345)
    store = open_store(settings, born_at=base)
    assert (store.base, store.begin_index) == (META, 1000)
    places, bodies = run(settings, store, [b"one", b"two"])
    assert places[0] > 999 and places[1] == places[0] + 1 and bodies[-2:] == [b"one", b"two"]
    again = open_store(settings, born_at=base)
    assert (again.base, again.end_index, again.hard_state.voter_state) == (META, places[1], VoterState.VOTER)
    assert again.hard_state.term > META.term
    places, bodies = run(settings, again, [b"three"])
    assert bodies[-1] == b"three" and StoreReader(settings.store_directory).verify().problems == []


@pytest.mark.parametrize("base", BORN, ids=["file start", "inside a file"])
def test_a_member_that_never_wrote_lost_nothing(tmp_path: Path, base: Base) -> None:
    """With async flush a start after a power loss costs the vote only where there was something to lose (E8)."""
    for boot, after in (("boot-1", VoterState.FORMING), ("boot-2", VoterState.FORMING)):
        store = open_small_store(tmp_path, born_at=base, flush=FlushMode.ASYNC, boot_id=boot)
        assert store.hard_state.voter_state is after, store.alarms
        sync(store)
        kill(store)


def fenced(paths: list[Path]) -> tuple[Fence, list[Party]]:
    specs = [ReplicaSpec("directory", str(path)) for path in paths]
    fence = fix_fence(specs)
    return fence, open_holders(specs, fence)


def audited(paths: list[Path]) -> list[tuple[str, tuple[str, ...], int]]:
    fence, parties = fenced(paths)
    assert fence.from_index == 1000
    found, unaudited = classify(compare_block(parties, fence.from_index, fence.to_index).facts, fence)
    assert unaudited == []
    return [(one.cls, one.replicas, one.from_index) for one in found]


@pytest.mark.parametrize("base", BORN, ids=["file start", "inside a file"])
def test_an_audit_reads_it_from_its_first_entry_on(tmp_path: Path, base: Base) -> None:
    paths = [tmp_path / name for name in ("n0", "n1", "n2")]
    for path in paths:
        store = open_small_store(path, born_at=base, node_id=path.name)
        fill(store, 2, 60)
        sync(store)
        store.note_progress(store.end_index, store.end_index)
        store.close()
        report = StoreReader(path).verify()
        assert (report.begin_index, report.end_index, report.entries, report.problems) == (1000, 1119, 120, [])
    assert audited(paths) == []
    reader = StoreReader(paths[1])
    first = next(one for one in reader.segments() if one.kind == "data")
    with (paths[1] / "data" / first.name).open("r+b") as file:
        file.seek(base.pos - first.start + 60)
        file.write(b"\xff\xff")
    index = min((paths[2] / "index").glob("[0-9]*"))
    with index.open("r+b") as file:  # its first unit says nothing any more; the record is there
        file.seek(1000 * INDEX_UNIT_BYTES - int(index.name))
        file.write(bytes(INDEX_UNIT_BYTES))
    assert sorted(audited(paths)) == [("crc_invalid", ("n1",), 1000), ("index_record_mismatch", ("n2",), 1000)]
