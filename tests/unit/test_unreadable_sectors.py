"""Pages that the disk cannot read any more: damage of the entries there, healed from a peer; no end of the engine."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreCorrupt, StoreIOError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.platform import OsPlatform
from node.store.reader import StoreReader
from node.store.repair.tools import scrub_all
from tests.unit.store_fixtures import fill, kill, open_store, sync

SIZES = {"data_file_size": 65536, "index_file_size": 32 * 1024}
PAGE = 4096
FILE = "0" * 20


class LostPages(OsPlatform):
    """Reading a lost page is EIO; so is writing a part of it, for which it is read first. Written whole it is well."""

    def __init__(self) -> None:
        self.lost: set[tuple[str, int]] = set()
        self._paths: dict[int, str] = {}

    def open(self, path: Path, flags: int) -> int:
        fd = super().open(path, flags)
        self._paths[fd] = f"{path.parent.name}/{path.name}"
        return fd

    def _hit(self, fd: int, low: int, high: int) -> list[tuple[str, int]]:
        pages = range(low // PAGE, -(-high // PAGE))
        return [one for one in self.lost if one[0] == self._paths.get(fd) and one[1] in pages]

    def read_bytes(self, path: Path) -> bytes:
        if any(one[0] == f"{path.parent.name}/{path.name}" for one in self.lost):
            raise OSError(errno.EIO, "Input/output error")
        return super().read_bytes(path)

    def replace(self, source: Path, target: Path) -> None:
        super().replace(source, target)
        self.lost = {one for one in self.lost if one[0] != f"{target.parent.name}/{target.name}"}

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        if self._hit(fd, offset, offset + length):
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, length, offset)

    def pwrite(self, fd: int, data: bytes | memoryview, offset: int) -> int:  # type: ignore[override]
        for one in self._hit(fd, offset, offset + len(data)):
            if one[1] * PAGE < offset or (one[1] + 1) * PAGE > offset + len(data):
                raise OSError(errno.EIO, "Input/output error")
            self.lost.discard(one)
        return os.pwrite(fd, data, offset)


def stored(directory: Path, platform: LostPages) -> FileStore:
    store = open_store(directory, platform=platform, **SIZES)
    if store.end_index < 0:
        fill(store, 2, 150)
        sync(store)
    return store


@pytest.mark.parametrize("folder", ["data", "index"])
def test_only_the_entries_on_a_lost_page_are_damaged_and_a_peer_heals_them(tmp_path: Path, folder: str) -> None:
    """The scrub, and each read for a peer, ended the engine: over and over, for one bad sector among gigabytes."""
    platform = LostPages()
    store, peer = stored(tmp_path / "dledger-n0", platform), stored(tmp_path / "peer", LostPages())
    platform.lost.add((f"{folder}/{FILE}", 1))
    scrub_all(store)
    (fault,) = store.faults
    assert 0 < fault.first_index <= fault.last_index < 299
    assert "the disk cannot read 4096 bytes at 4096 of" in fault.detail
    first, last = fault.first_index, fault.last_index
    assert store.read_slab(0, 1 << 20).last_index == first - 1
    assert store.read_slab(last + 1, 1 << 20).first_index == last + 1
    with pytest.raises(StoreCorrupt):
        store.read_slab(first, 1 << 20)
    heal(store, peer)
    assert platform.lost == set()
    assert [store.get(index) for index in range(300)] == [peer.get(index) for index in range(300)]
    store.close()
    peer.close()


def heal(store: FileStore, peer: FileStore) -> None:
    """Every fault, with the peer's entries."""
    while store.faults:
        at, last = store.faults[0].first_index, store.faults[0].last_index
        while at <= last:
            slab = peer.read_slab(at, 1 << 20)
            done = store.mend(slab if slab.last_index <= last else cut_to(peer, at, last))
            assert done.mended_through >= at, done.detail
            at = done.mended_through + 1
            last = max(last, done.wanted_through or last)


def pages_of(directory: Path) -> list[tuple[str, int]]:
    """Every page of the log's files that holds bytes."""
    found = []
    for path in sorted([*directory.glob("data/0*"), *directory.glob("index/0*")]):
        content = path.read_bytes()
        used = [at // PAGE for at in range(0, len(content), PAGE) if any(content[at : at + PAGE])]
        found += [(f"{path.parent.name}/{path.name}", page) for page in used]
    return found


@pytest.mark.parametrize(("boot_id", "clean"), [("boot-1", False), ("boot-2", True)])
def test_a_start_takes_a_lost_page_for_damage(tmp_path: Path, boot_id: str, clean: bool) -> None:
    """The engine ended there at each start, for good: nothing healed one sector that recovery reads."""
    peer = stored(tmp_path / "peer", LostPages())
    stored(tmp_path / "whole" / "dledger-n0", LostPages()).close()
    whole = tmp_path / "whole" / "dledger-n0"
    if not clean:
        kill(stored(whole, LostPages()))
    lost_pages = pages_of(whole)
    assert {name.partition("/")[0] for name, _ in lost_pages} == {"data", "index"} and len(lost_pages) > 10
    for name, page in lost_pages:
        directory = tmp_path / "copy" / "dledger-n0"
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(whole, directory)
        platform = LostPages()
        platform.lost.add((name, page))
        store = open_store(directory, platform=platform, boot_id=boot_id, **SIZES)
        assert store.end_index == 299, (name, page)
        assert any("the disk cannot read" in alarm for alarm in store.alarms), (name, page)
        assert bool(store.faults) == name.startswith("data/")
        for index in range(300):
            if not any(fault.first_index <= index <= fault.last_index for fault in store.faults):
                assert store.get(index) == peer.get(index)
        heal(store, peer)
        store.append_as_leader([b"goes on"], 3)
        sync(store)
        store.close()
        again = open_store(directory, platform=platform, boot_id=boot_id, **SIZES)
        assert (again.end_index, again.faults) == (300, ())
        assert [again.get(index) for index in range(300)] == [peer.get(index) for index in range(300)]
        assert not any("the disk cannot read" in alarm for alarm in again.alarms)
        again.close()
    peer.close()


def test_a_tail_that_cannot_be_read_costs_the_vote_and_nothing_else(tmp_path: Path) -> None:
    """What the checkpoint does not know of may have been acknowledged: it is fetched again, by a member without a vote
    (SAFETY S6, E8)."""
    platform = LostPages()
    store = stored(tmp_path / "dledger-n0", platform)
    store.save_hard_state(replace(store.hard_state, term=2, voter_state=VoterState.VOTER))
    at_pos = store.durable_position
    store.append_as_leader([bytes([65]) * 3000] * 5, 2)
    kill(store)
    platform.lost.add((f"data/{at_pos // SIZES['data_file_size'] * SIZES['data_file_size']:020d}",
                       at_pos % SIZES["data_file_size"] // PAGE + 1))  # fmt: skip
    again = open_store(tmp_path / "dledger-n0", platform=platform, **SIZES)
    assert again.end_index >= 299
    known = again.end_index == 304 and again.faults != ()
    assert known or again.hard_state.voter_state is VoterState.REJOINING
    again.append_as_leader([b"goes on"], 3)
    sync(again)
    again.close()


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
@pytest.mark.parametrize("behind", [1, 2, 3, 4, 100, 600])
@pytest.mark.parametrize("body", [b"A" * 3000, b"A" * 900 + bytes(5000) + b"A", b"A" * 100 + bytes(6000)])
def test_a_lost_page_is_never_taken_for_one_that_was_not_written(
    tmp_path: Path, body: bytes, behind: int, boot_id: str
) -> None:
    """A record may have been synced, and acknowledged, before its page was lost: zeros beside it, of its body or the
    three with which it begins, do not say that a power cut came first. It went, and the member voted on without it."""
    platform = LostPages()
    store = stored(tmp_path / "dledger-n0", platform)
    store.save_hard_state(replace(store.hard_state, term=2, voter_state=VoterState.VOTER))
    head = 48
    room = -(store.durable_position + head + behind) % PAGE
    store.append_as_leader([b"B" * room], 2)
    at_pos = store.files.end.end_pos
    assert (at_pos + behind) % PAGE == 0
    sync(store)  # the slot knows of everything up to here
    slot = (tmp_path / "dledger-n0" / "quorumscope.checkpoint").read_bytes()
    store.append_as_leader([body], 2)
    end_index = store.end_index
    sync(store)
    kill(store)
    (tmp_path / "dledger-n0" / "quorumscope.checkpoint").write_bytes(slot)
    size = SIZES["data_file_size"]
    platform.lost.add((f"data/{at_pos // size * size:020d}", at_pos % size // PAGE + 1))
    again = open_store(tmp_path / "dledger-n0", platform=platform, boot_id=boot_id, **SIZES)
    known = again.end_index == end_index and again.faults != ()
    assert known or again.hard_state.voter_state is VoterState.REJOINING, again.alarms
    again.close()


@pytest.mark.parametrize("page", [0, 1])
def test_a_slot_that_cannot_be_read_is_a_damaged_one(tmp_path: Path, page: int) -> None:
    platform = LostPages()
    store = stored(tmp_path / "dledger-n0", platform)
    kill(store)
    platform.lost.add(("dledger-n0/quorumscope.checkpoint", page))
    again = open_store(tmp_path / "dledger-n0", platform=platform, **SIZES)
    assert (again.end_index, again.faults) == (299, ())
    again.close()
    assert platform.lost == set(), "both slots have been written"


@pytest.mark.parametrize("name", ["hardstate", "quorumscope.json", "base"])
def test_what_must_not_be_guessed_is_refused(tmp_path: Path, name: str) -> None:
    """It was an error that the supervisor started again for ever, and it said nothing of what to do."""
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    if name == "base":
        (tmp_path / "dledger-n0" / name).write_bytes(b"anything")
    platform.lost.add((f"dledger-n0/{name}", 0))
    with pytest.raises(StoreRefused, match=name):
        open_store(tmp_path / "dledger-n0", platform=platform, **SIZES)


@pytest.mark.parametrize("name", ["currterm", "faults", "layout"])
def test_what_can_be_made_again_is_no_obstacle(tmp_path: Path, name: str) -> None:
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    (tmp_path / "dledger-n0" / name).write_bytes(b"anything")
    platform.lost.add((f"dledger-n0/{name}", 0))
    again = open_store(tmp_path / "dledger-n0", platform=platform, **SIZES)
    assert (again.end_index, again.faults) == (299, ())
    again.close()


def cut_to(store: FileStore, first: int, last: int) -> object:
    """A slab that ends at `last`."""
    low, high = 1, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if store.read_slab(first, middle).last_index <= last else (low, middle - 1)
    return store.read_slab(first, low)


def test_verify_names_the_entries_that_cannot_be_read(tmp_path: Path) -> None:
    """It ended at the first bad sector, and said nothing of any entry."""
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    platform.lost.add((f"data/{FILE}", 1))
    problems = StoreReader(tmp_path / "dledger-n0", platform=platform).verify().problems
    assert problems and all(one.index is not None and 0 < one.index < 299 for one in problems)


def test_raw_bytes_are_never_made_up(tmp_path: Path) -> None:
    """What stands for a lost page inside the store must not leave it as if the disk had said it."""
    platform = LostPages()
    stored(tmp_path / "dledger-n0", platform).close()
    platform.lost.add((f"data/{FILE}", 1))
    reader = StoreReader(tmp_path / "dledger-n0", platform=platform)
    with pytest.raises(StoreIOError, match="Input/output error"):
        reader.read_segment("data", FILE, 0, 3 * PAGE)
