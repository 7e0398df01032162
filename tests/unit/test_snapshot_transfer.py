"""A snapshot put together beside a log: resumed where it ends, checked as a whole, installed at once or not at all."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from node.protocol.entry import crc32
from node.snapshots import directory as snapshots
from node.snapshots import transfer
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.snapshots.transfer import SnapshotReceiver, Taken, open_newest, take_received
from node.store.errors import StoreCorrupt, StoreFull, StoreIOError
from node.store.file_store import FileStore
from node.store.files.identity import Base
from node.store.files.platform import OS, OsPlatform, Platform
from node.store.log_store import EntryMeta, TruncationRecord
from tests.simulation.disk import SimulatedCrash, SimulatedPlatform

DATA = bytes(range(200)) * 3
META = SnapshotMeta(9, 2, 0x1234, 1000, len(DATA), crc32(DATA), {"log_time_ms": 7})
PIECE = 128


def send(receiver: SnapshotReceiver, meta: SnapshotMeta = META, data: bytes = DATA, upto: int | None = None) -> Taken:
    """As a leader does: from where the receiver says that it ends."""
    taken = receiver.take(meta, 0, b"")
    while not taken.is_whole and not taken.error and (upto is None or taken.held_bytes < upto):
        at = taken.held_bytes
        taken = receiver.take(meta, at, data[at : at + PIECE])
    return taken


class Disk(OsPlatform):
    """Notes what is synced and what is only written out, by the file's name."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.breaks = False

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.calls.append(f"{Path(os.readlink(f'/proc/self/fd/{fd}')).name} synced")
        super().fsync(fd)

    def write_out(self, fd: int, offset: int, length: int) -> None:  # type: ignore[override]
        self.calls.append(f"{offset} to {offset + length} written out")
        if self.breaks:
            raise OSError(errno.EIO, "Input/output error")
        super().write_out(fd, offset, length)


def long_one() -> tuple[SnapshotMeta, bytes]:
    """A snapshot of two and a half pieces."""
    data = random.Random(3).randbytes(snapshots.OUT_BYTES * 5 // 2)
    return replace(META, data_bytes=len(data), data_crc=crc32(data)), data


def test_a_long_one_is_written_out_as_it_comes_and_synced_once(tmp_path: Path) -> None:
    disk = Disk()
    receiver = SnapshotReceiver(tmp_path, disk)
    meta, data = long_one()
    receiver.take(meta, 0, b"")
    disk.calls.clear()
    step = snapshots.OUT_BYTES * 3 // 4
    for at in range(0, len(data), step):
        receiver.take(meta, at, data[at : at + step])
    written = [call for call in disk.calls if call.endswith("written out")]
    assert written == ["0 to 1572864 written out", "1048576 to 2359296 written out"]
    assert disk.calls.count("data synced") == 1 and disk.calls.index("data synced") == 2
    take_received(tmp_path, 9, disk)
    assert newest(tmp_path) == (9, data)


def test_what_could_not_be_written_out_is_begun_anew(tmp_path: Path) -> None:
    disk = Disk()
    receiver = SnapshotReceiver(tmp_path, disk)
    meta, data = long_one()
    receiver.take(meta, 0, b"")
    disk.breaks = True
    with pytest.raises(StoreIOError, match="Input/output error"):
        receiver.take(meta, 0, data[: snapshots.OUT_BYTES])
    disk.breaks = False
    assert receiver.take(meta, 0, b"") == Taken(0)


def test_what_an_earlier_process_left_is_written_out_again_piece_by_piece(tmp_path: Path) -> None:
    meta, data = long_one()
    first = SnapshotReceiver(tmp_path)
    first.take(meta, 0, b"")
    first.take(meta, 0, data[:-1])
    disk = Disk()
    assert SnapshotReceiver(tmp_path, disk).take(meta, 0, b"") == Taken(len(data) - 1)
    assert [call for call in disk.calls if call.endswith("written out")] == [
        "0 to 1048576 written out", "1048576 to 2097152 written out", "2097152 to 2621439 written out",
    ]  # fmt: skip


def newest(directory: Path, platform: Platform = OS) -> tuple[int, bytes]:
    found, _ = snapshots.newest_sound(directory, platform)
    return (-1, b"") if found is None else (found.meta.index, b"".join(snapshots.pieces_of(found, platform=platform)))


def test_what_came_over_whole_becomes_the_newest_and_what_is_kept_with_it_comes_along(tmp_path: Path) -> None:
    assert send(SnapshotReceiver(tmp_path)) == Taken(len(DATA), is_whole=True)
    assert newest(tmp_path) == (-1, b""), "not before the log begins there"
    take_received(tmp_path, 9)
    take_received(tmp_path, 9)
    assert newest(tmp_path) == (9, DATA)
    [found] = snapshots.snapshots_in(tmp_path)
    assert found.meta == META and sorted(path.name for path in found.path.iterdir()) == [
        "data", "quorumscope-meta", "snapshot_meta",
    ]  # fmt: skip
    assert SnapshotReceiver(tmp_path).take(META, 0, b"").is_whole, "nor twice"


def test_a_receiver_that_starts_again_goes_on_where_its_file_ends(tmp_path: Path) -> None:
    assert send(SnapshotReceiver(tmp_path), upto=300).held_bytes == 384
    again = SnapshotReceiver(tmp_path)
    assert again.take(META, 0, b"") == Taken(384)
    assert send(again).is_whole


def test_a_piece_that_does_not_continue_it_changes_nothing(tmp_path: Path) -> None:
    receiver = SnapshotReceiver(tmp_path)
    send(receiver, upto=128)
    for at in (0, 64, 129, 500):
        assert receiver.take(META, at, DATA[at : at + 50]) == Taken(128)
    assert receiver.take(META, 128, DATA) == Taken(128), "more than there is"
    assert send(receiver).is_whole


def test_another_snapshot_begins_anew(tmp_path: Path) -> None:
    receiver = SnapshotReceiver(tmp_path)
    send(receiver, upto=256)
    other = DATA[::-1]
    for meta in (
        replace(META, index=12, data_crc=crc32(other)),
        replace(META, data_crc=crc32(other)),  # the same entry, saved by another member
    ):
        assert receiver.take(meta, 0, b"") == Taken(0)
        send(receiver, meta, other, upto=128)
        assert receiver.take(META, 0, b"") == Taken(0)
        send(receiver, upto=128)


def test_what_differs_from_its_checksum_is_thrown_away(tmp_path: Path) -> None:
    receiver = SnapshotReceiver(tmp_path)
    taken = send(receiver, data=DATA[:-1] + b"x")
    assert taken.held_bytes == 0 and not taken.is_whole and "checksum" in taken.error
    assert send(receiver).is_whole
    (tmp_path / "snapshot" / "install_tmp" / "quorumscope-meta").unlink()
    with (tmp_path / "snapshot" / "install_tmp" / "data").open("r+b") as data:  # rotted before it was checked
        data.write(b"rot")
    assert "checksum" in SnapshotReceiver(tmp_path).take(META, 0, b"").error


def test_only_a_whole_one_is_installed_and_never_below_a_newer_one(tmp_path: Path) -> None:
    send(SnapshotReceiver(tmp_path), upto=256)
    take_received(tmp_path, 9)
    assert newest(tmp_path) == (-1, b"")
    send(SnapshotReceiver(tmp_path))
    writer = SnapshotWriter(tmp_path)
    writer.write(b"newer")
    writer.commit(SnapshotMeta(20, 2))
    take_received(tmp_path, 9)
    assert [one.meta.index for one in snapshots.snapshots_in(tmp_path)] == [20]
    assert SnapshotReceiver(tmp_path).take(META, 0, b"") == Taken(len(DATA), is_whole=True)


def test_a_disk_without_room_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "ROOM_BYTES", 1 << 60)
    with pytest.raises(StoreFull, match="make room"):
        SnapshotReceiver(tmp_path).take(META, 0, b"")
    assert not (tmp_path / "snapshot").exists()


def test_an_empty_state_is_a_snapshot_too(tmp_path: Path) -> None:
    assert SnapshotReceiver(tmp_path).take(replace(META, data_bytes=0, data_crc=0), 0, b"").is_whole


def test_what_is_sent_stays_readable_although_it_was_removed(tmp_path: Path) -> None:
    assert open_newest(tmp_path, 0) is None
    for index in (3, 9):
        writer = SnapshotWriter(tmp_path)
        writer.write(DATA)
        writer.commit(replace(META, index=index))
    assert open_newest(tmp_path, 10) is None
    opened = open_newest(tmp_path, 4)
    assert opened is not None and opened.meta == META
    writer = SnapshotWriter(tmp_path)
    writer.write(b"newer")
    writer.commit(SnapshotMeta(20, 2))  # its chain is not known: no log can begin behind it
    snapshots.keep_newest(tmp_path, 1)
    assert opened.read(100, 50) == DATA[100:150] and opened.read(590, 50) == DATA[590:]
    opened.close()
    assert open_newest(tmp_path, 4) is None


def test_one_that_ends_early_cannot_be_sent(tmp_path: Path) -> None:
    writer = SnapshotWriter(tmp_path)
    writer.write(DATA)
    saved = writer.commit(META)
    opened = open_newest(tmp_path, 4)
    assert opened is not None
    (saved.path / "data").write_bytes(DATA[:100])
    with pytest.raises(StoreCorrupt, match="ends before"):
        opened.read(90, 50)
    opened.close()


# --- every I/O call ---------------------------------------------------------------------------------------------------
ROOT = Path("/machine/dledger-n0")
RECORD = TruncationRecord("n0", "n1", 2, 0, 4, "left behind", -1)


def opened(disk: SimulatedPlatform) -> FileStore:
    return FileStore.open(
        ROOT, group="g", node_id="n0", data_file_size=4096, index_file_size=512, init=True, platform=disk, kind="kv"
    )


def story(disk: SimulatedPlatform, made: list[FileStore]) -> None:
    store = opened(disk)
    made.append(store)
    store.append_as_leader([b"x" * 100] * 5, 1)
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    taken = send(SnapshotReceiver(ROOT, disk), upto=300)
    taken = send(SnapshotReceiver(ROOT, disk))
    assert taken.is_whole
    store.begin_behind(Base(EntryMeta(9, 2, 0x1234), 1000), RECORD)
    store.append_as_leader([b"y" * 100] * 3, 2)


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_m6_a_crash_at_any_call_leaves_the_old_log_or_the_new_one_with_its_state(power: bool) -> None:
    at, installed = 0, 0
    while True:
        disk = SimulatedPlatform(random.Random(at), lambda: 1_000_000_000, "m")
        disk.faults.crash_at_op = at
        with suppress(SimulatedCrash):
            story(disk, [])
            break
        (disk.lose_power if power else disk.crash_process)()
        disk.faults.crash_at_op = None
        store = opened(disk)
        index, data = newest(ROOT, disk)
        if store.base.index == 9:
            assert (index, data) == (9, DATA), f"call {at}: the log begins behind a snapshot that is not there"
            assert store.begin_index == 10 and len(store.files.archive.entries(1)) == 5
            installed += 1
        else:
            assert index == -1, f"call {at}: a snapshot was installed, and the log was not replaced"
            receiver = SnapshotReceiver(ROOT, disk)
            assert send(receiver).is_whole or (power and send(receiver).is_whole), "a torn file is begun anew"
            if store.end_index >= 4:
                store.begin_behind(Base(EntryMeta(9, 2, 0x1234), 1000), RECORD)
                assert newest(ROOT, disk) == (9, DATA) and store.begin_index == 10
        at += 1
    assert at > 60 and installed > 5


def installed_at_last(disk: SimulatedPlatform) -> None:
    """The next process of that machine: it starts, is sent the same snapshot, and its log begins behind it."""
    store = opened(disk)
    if store.base.index == 9:
        return
    receiver = SnapshotReceiver(ROOT, disk)
    assert send(receiver).is_whole or send(receiver).is_whole, "what was torn is begun anew"
    store.begin_behind(Base(EntryMeta(9, 2, 0x1234), 1000), RECORD)


def test_s1_a_sync_that_failed_before_a_start_is_not_believed_after_it() -> None:
    """The pages read well until power is lost: whoever starts again under the same boot has to write them again."""
    at, failed = 0, 0
    while failed == at:
        for seed in range(4):
            disk = SimulatedPlatform(random.Random(seed), lambda: 1_000_000_000, "m")
            syncs = 0

            def fail(what: str, path: str, _size: int, disk: SimulatedPlatform = disk, at: int = at) -> None:
                nonlocal syncs
                if what == "fdatasync" and "/snapshot/" in path:
                    disk.faults.fsync_error_next = syncs == at
                    syncs += 1

            disk.on_op = fail
            error = None
            try:
                story(disk, [])
            except StoreIOError as caught:
                error = caught
            if error is None:
                break
            disk.on_op = None
            disk.crash_process()
            installed_at_last(disk)
            disk.lose_power()
            assert opened(disk).base.index == 9
            assert newest(ROOT, disk) == (9, DATA), f"sync {at}: the log is gone, and the state that replaced it too"
        failed += error is not None
        at += 1
    assert failed >= 5


def test_s1_a_sync_without_room_begins_the_snapshot_anew() -> None:
    """The process goes on after that one, and its pages are clean although they are not on the disk."""
    disk = SimulatedPlatform(random.Random(1), lambda: 1_000_000_000, "m")
    opened(disk)
    receiver = SnapshotReceiver(ROOT, disk)
    send(receiver, upto=300)
    sync, raised = disk.fsync, 0

    def full(fd: int) -> None:
        nonlocal raised
        raised += 1
        disk.faults.fsync_error_next = True
        with suppress(OSError):
            sync(fd)
        raise OSError(errno.ENOSPC, "No space left on device")

    disk.fsync = full  # type: ignore[method-assign]
    with pytest.raises(StoreFull):
        send(receiver)
    disk.fsync = sync  # type: ignore[method-assign]
    assert raised == 1 and receiver.take(META, 0, b"") == Taken(0)
    assert send(receiver).is_whole
    disk.lose_power()
    assert SnapshotReceiver(ROOT, disk).take(META, 0, b"").is_whole


def test_m6_the_name_of_an_installed_snapshot_is_durable_before_the_log_is_gone() -> None:
    """Also where the process ended between the rename and the sync, and power is lost after the next start."""
    at, crashed = 0, 0
    while crashed == at:
        for seed in range(4):
            disk = SimulatedPlatform(random.Random(seed), lambda: 1_000_000_000, "m")
            disk.faults.crash_at_op = at
            finished = False
            with suppress(SimulatedCrash):
                story(disk, [])
                finished = True
            if finished:
                break
            disk.crash_process()
            disk.faults.crash_at_op = None
            installed_at_last(disk)
            disk.lose_power()
            assert opened(disk).base.index == 9
            assert newest(ROOT, disk) == (9, DATA), f"call {at}"
        crashed += not finished
        at += 1
    assert crashed > 60
