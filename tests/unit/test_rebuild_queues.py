"""`store rebuild-queues`: queues and index from the log alone, offline; next offsets of queues that hold nothing."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.message_store.checking.verify import verify
from node.message_store.dispatch import Dispatcher
from node.message_store.errors import MessageStoreError
from node.message_store.message_store import MessageStore
from node.message_store.rebuild import rebuild
from tests.unit.message_broker import Broker, filled
from tests.unit.test_dispatch import index_files, queue_files


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [("store/data", False), ("dledger-commitlog/single", False), ("dledger-commitlog/single", True)],
)
def test_a_recorded_brokers_files_come_back_from_its_log(
    name: str, is_ours: bool, vectors: Path, tmp_path: Path
) -> None:
    there = vectors / "rocketmq" / name
    root = Path(shutil.copytree(there, tmp_path / "store"))
    for path in (root / "consumequeue").rglob("[0-9]" * 20):
        path.write_bytes(bytes(path.stat().st_size))
    if is_ours:
        (root / "dledger-n0/data").mkdir(parents=True, exist_ok=True)
        (root / "dledger-n0/data/quorumscope-owns").write_bytes(b"\n")
    found = rebuild(MessageStore(root), 366, dry_run=False)
    assert (found.messages, found.index_entries, found.repeats) == (367, 486, 0)
    assert queue_files(root) == queue_files(there)
    assert index_files(root) == index_files(there)
    if is_ours:
        assert sorted(one.name for one in (root / "quorumscope").iterdir()) == ["dispatched"]
        assert Dispatcher(root).next_offsets == found.next_offsets
    else:
        assert not (root / "quorumscope").exists(), "nobody keeps a mark true where RocketMQ goes on"


def test_an_upgraded_stores_old_files_are_read_first(vectors: Path, tmp_path: Path) -> None:
    there = vectors / "rocketmq/dledger-commitlog/upgraded"
    root = Path(shutil.copytree(there, tmp_path / "store"))
    for path in (vectors / "rocketmq/store/data/commitlog").iterdir():
        if not (root / "commitlog" / path.name).exists():
            shutil.copy(path, root / "commitlog")
    before = queue_files(root)
    rebuild(MessageStore(root), 49, dry_run=False)
    assert queue_files(root) == before
    assert not verify(MessageStore(root)).findings


@pytest.fixture(params=[False, True], ids=["local", "ledger"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Broker:
    made = filled(tmp_path / "store", ledger=request.param, begin=8192)
    made.write()
    return made


def command(capsys: pytest.CaptureFixture[str], root: Path, *options: str, code: Exit = Exit.FINE) -> Any:
    assert run(["store", "rebuild-queues", str(root), *options, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_without_yes_nothing_is_changed_and_all_is_said(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(broker.root)
    sizes = ["--index-slots", "100", "--index-entries", "400"]
    said = command(capsys, broker.root, *sizes)
    assert tree(broker.root) == before and not said["done"]
    assert said == command(capsys, broker.root, "--dry-run", *sizes) | {"seconds": said["seconds"]}
    shutil.rmtree(broker.root / "consumequeue")
    done = command(capsys, broker.root, "--yes", "--queue-file-bytes", "320", *sizes)
    assert done["done"] and done["messages"] == said["messages"] == 60
    assert not verify(MessageStore(broker.root)).findings


def test_a_queue_that_holds_nothing_any_more_goes_on_where_it_was(broker: Broker) -> None:
    broker.write_queue("Expired", 2, 40, [])
    (broker.root / "consumequeue/Expired/2" / f"{32 * 20:020d}").write_bytes(
        b"".join((0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + bytes(8) for _ in range(8)).ljust(320, b"\0")
    )
    found = rebuild(MessageStore(broker.root), broker.entries - 1, dry_run=False)
    assert found.kept_places == 1 and found.next_offsets["Expired", 2] == 40
    assert not verify(MessageStore(broker.root)).findings


def test_what_is_made_is_its_owners_whatever_the_umask(broker: Broker) -> None:
    before = os.umask(0)
    try:
        rebuild(MessageStore(broker.root), broker.entries - 1, dry_run=False)
    finally:
        os.umask(before)
    made = [broker.root / "consumequeue", *(broker.root / "consumequeue").rglob("*")]
    assert {str(one): oct(mode) for one in made if (mode := one.stat().st_mode) & 0o077} == {}


def test_a_log_that_ends_too_early_changes_nothing(broker: Broker) -> None:
    path = sorted(broker.folder.iterdir())[1]
    data = bytearray(path.read_bytes())
    data[:64] = b"\x07" * 64
    path.write_bytes(bytes(data))
    before = tree(broker.root)
    with pytest.raises(MessageStoreError, match=r"no entry|but the log goes on behind it"):
        rebuild(MessageStore(broker.root), broker.entries - 1, dry_run=False)
    after = tree(broker.root)
    assert {name: one for name, one in after.items() if not name.startswith("quorumscope/rebuilt")} == before


def test_a_broker_that_runs_is_refused(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    from node.store.files.data_lock import DataLock

    lock = DataLock(broker.root)
    try:
        assert run(["store", "rebuild-queues", str(broker.root), "--yes"]) == Exit.FINDING
        assert "stop every member" in capsys.readouterr().err
    finally:
        lock.release()
