"""The simulated disk keeps what was synced, and loses what a real one may lose."""

from __future__ import annotations

import os
import random
from datetime import UTC
from pathlib import Path

import pytest

from tests.simulation.disk import SECTOR_BYTES, SimulatedCrash, SimulatedPlatform

FOLDER = Path("/store")
FILE = FOLDER / "data"


def machine(seed: int = 1) -> SimulatedPlatform:
    disk = SimulatedPlatform(random.Random(seed), lambda: 5_000_000_000, "m")
    disk.make_directory(FOLDER)
    disk.sync_directory(Path("/"))
    return disk


def make(disk: SimulatedPlatform, data: bytes, *, path: Path = FILE, synced: bool = True) -> int:
    fd = disk.open(path, os.O_RDWR | os.O_CREAT)
    disk.pwrite(fd, data, 0)
    if synced:
        disk.fdatasync(fd)
        disk.sync_directory(path.parent)
    return fd


def test_what_is_synced_survives_and_what_is_not_goes_sector_by_sector() -> None:
    old, new = b"o" * 8 * SECTOR_BYTES, b"n" * 8 * SECTOR_BYTES
    seen: set[bytes] = set()
    for seed in range(40):
        disk = machine(seed)
        fd = make(disk, old)
        disk.pwrite(fd, new, 0)
        assert disk.read_bytes(FILE) == new
        assert disk.durable_bytes(FILE) == old
        disk.lose_power()
        left = disk.read_bytes(FILE)
        sectors = [left[at : at + SECTOR_BYTES] for at in range(0, len(left), SECTOR_BYTES)]
        assert all(sector in (old[:SECTOR_BYTES], new[:SECTOR_BYTES]) for sector in sectors)
        seen.add(left)
    assert len(seen) > 20


def test_a_process_that_ends_leaves_the_page_cache_and_takes_its_descriptors_and_locks() -> None:
    disk = machine()
    fd = make(disk, b"synced")
    disk.pwrite(fd, b"cached", 0)
    disk.lock(fd)
    boot = disk.boot_id()
    disk.crash_process()
    assert disk.read_bytes(FILE) == b"cached"
    assert disk.boot_id() == boot
    for call in (lambda: disk.pread(fd, 1, 0), lambda: disk.pwrite(fd, b"x", 0), lambda: disk.fdatasync(fd)):
        with pytest.raises(OSError, match="descriptor"):
            call()
    disk.close(fd)  # whoever still holds it closes it without effect
    again = disk.open(FILE, os.O_RDWR)
    assert again != fd
    disk.lock(again)
    with pytest.raises(BlockingIOError):
        disk.lock(disk.open(FILE, os.O_RDWR))


def test_a_failed_sync_leaves_pages_that_read_well_until_power_is_lost() -> None:
    disk = machine()
    fd = make(disk, b"old")
    disk.pwrite(fd, b"new", 0)
    disk.faults.fsync_error_next = True
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.fdatasync(fd)  # succeeds, and promises nothing for what failed before
    assert disk.read_bytes(FILE) == b"new"
    disk.lose_power()
    assert disk.read_bytes(FILE) == b"old"


def test_a_cache_that_is_dropped_shows_what_the_disk_holds() -> None:
    disk = machine()
    fd = make(disk, b"old")
    disk.pwrite(fd, b"new", 0)
    disk.drop_cache(fd, 0, 3)
    assert disk.pread(fd, 3, 0) == b"new"  # dirty pages stay
    disk.faults.fsync_error_next = True
    with pytest.raises(OSError, match="Input/output"):
        disk.fdatasync(fd)
    disk.drop_cache(fd, 0, 3)
    assert disk.pread(fd, 3, 0) == b"old"


def test_pages_that_are_only_partly_in_a_dropped_range_stay() -> None:
    """As Linux has it; the file's last page ends where the file does."""
    size = 3 * SECTOR_BYTES + 10
    for offset, length, dropped in (
        (0, size, {0, 1, 2, 3}), (1, size - 1, {1, 2, 3}), (0, size - 1, {0, 1, 2}), (0, 2 * SECTOR_BYTES, {0, 1}),
        (10, SECTOR_BYTES, set()), (SECTOR_BYTES, 10 * size, {1, 2, 3}),
    ):  # fmt: skip
        disk = machine()
        fd = make(disk, b"o" * size)
        disk.pwrite(fd, b"n" * size, 0)
        disk.faults.fsync_error_next = True
        with pytest.raises(OSError, match="Input/output"):
            disk.fdatasync(fd)
        disk.drop_cache(fd, offset, length)
        read = disk.pread(fd, size, 0)
        assert {at // SECTOR_BYTES for at, byte in enumerate(read) if byte == ord("o")} == dropped, (offset, length)


def test_names_are_durable_with_their_directory_only_and_in_their_order() -> None:
    found: set[tuple[str, ...]] = set()
    for seed in range(30):
        disk = machine(seed)
        for name in ("a", "b", "c"):
            make(disk, b"x", path=FOLDER / name, synced=False)
        with pytest.raises(FileNotFoundError):
            disk.durable_bytes(FOLDER / "a")
        disk.lose_power()
        found.add(tuple(disk.names(FOLDER)))
    assert found == {(), ("a",), ("a", "b"), ("a", "b", "c")}
    disk = machine()
    make(disk, b"x", path=FOLDER / "a")
    disk.lose_power()
    assert disk.names(FOLDER) == ["a"]


def test_a_rename_happens_or_does_not() -> None:
    contents = set()
    for seed in range(20):
        disk = machine(seed)
        make(disk, b"old", path=FOLDER / "state")
        fd = disk.open(FOLDER / "state.tmp", os.O_RDWR | os.O_CREAT)
        disk.pwrite(fd, b"new", 0)
        disk.fsync(fd)
        disk.replace(FOLDER / "state.tmp", FOLDER / "state")
        disk.lose_power()
        contents.add(disk.read_bytes(FOLDER / "state"))
        assert disk.names(FOLDER) in (["state"], ["state", "state.tmp"])
    assert contents == {b"old", b"new"}


def test_a_tree_is_moved_and_removed_whole() -> None:
    disk = machine()
    disk.make_directory(FOLDER / "tmp" / "deep")
    make(disk, b"x", path=FOLDER / "tmp" / "deep" / "file")
    disk.replace(FOLDER / "tmp", FOLDER / "kept")
    assert disk.read_bytes(FOLDER / "kept" / "deep" / "file") == b"x"
    disk.remove_tree(FOLDER / "kept")
    disk.remove_tree(FOLDER / "never was")
    assert disk.names(FOLDER) == []


def test_a_full_disk_takes_what_it_has_room_for() -> None:
    disk = machine()
    fd = make(disk, b"x" * SECTOR_BYTES)
    disk.faults.enospc = True
    assert disk.pwrite(fd, b"y" * 3 * SECTOR_BYTES, 0) == SECTOR_BYTES  # a short write
    with pytest.raises(OSError, match="No space"):
        disk.pwrite(fd, b"y", SECTOR_BYTES)
    with pytest.raises(OSError, match="No space"):
        disk.posix_fallocate(fd, 0, 10 * SECTOR_BYTES)
    with pytest.raises(OSError, match="No space"):
        disk.open(FOLDER / "more", os.O_RDWR | os.O_CREAT)
    disk.faults.clear()
    disk.posix_fallocate(fd, 0, 10 * SECTOR_BYTES)
    disk.faults.enospc = True
    assert disk.pwrite(fd, b"y" * SECTOR_BYTES, 5 * SECTOR_BYTES) == SECTOR_BYTES


def test_holes_are_known_and_read_as_zeros() -> None:
    disk = machine()
    fd = disk.open(FILE, os.O_RDWR | os.O_CREAT)
    disk.ftruncate(fd, 100 * SECTOR_BYTES)
    disk.pwrite(fd, b"x", 50 * SECTOR_BYTES)
    assert disk.seek_data(fd, 0) == 50 * SECTOR_BYTES
    assert disk.pread(fd, 4, 0) == bytes(4)
    with pytest.raises(OSError, match="No such device"):
        disk.seek_data(fd, 51 * SECTOR_BYTES)


def test_rot_and_misdirected_writes_stay() -> None:
    disk = machine()
    fd = make(disk, bytes(4 * SECTOR_BYTES))
    disk.flip(FILE, 700, 0x10)
    disk.lose_power()
    assert disk.read_bytes(FILE)[700] == 0x10
    fd = disk.open(FILE, os.O_RDWR)
    disk.faults.misdirect_next = True
    for _ in range(2):
        disk.pwrite(fd, b"z" * 10, 3 * SECTOR_BYTES + 7)
    data = disk.read_bytes(FILE)
    assert len(data) == 4 * SECTOR_BYTES
    assert data.count(b"z") in (10, 20)


@pytest.mark.parametrize("what", ["pwrite", "fdatasync", "create", "rename", "unlink"])
def test_a_crash_comes_before_after_or_in_the_middle_of_a_call(what: str) -> None:
    outcomes = set()
    for seed in range(60):
        disk = machine(seed)
        fd = make(disk, b"o" * 1000)
        disk.pwrite(fd, b"d" * 1000, 0)
        disk.faults.crash_at_op = disk.op_count + 1
        calls = {
            "pwrite": lambda disk=disk, fd=fd: disk.pwrite(fd, b"n" * 1000, 0),
            "fdatasync": lambda disk=disk, fd=fd: disk.fdatasync(fd),
            "create": lambda disk=disk: disk.open(FOLDER / "other", os.O_RDWR | os.O_CREAT),
            "rename": lambda disk=disk: disk.replace(FILE, FOLDER / "other"),
            "unlink": lambda disk=disk: disk.unlink(FILE),
        }
        with pytest.raises(SimulatedCrash):
            calls[what]()
        durable = disk.durable_bytes(FILE) if what == "fdatasync" else b""
        cached = disk.read_bytes(FILE) if disk.exists(FILE) else b"gone"
        outcomes.add((cached.count(b"n") > 0, cached.count(b"n") == 1000, durable[:1], tuple(disk.names(FOLDER))))
    assert len(outcomes) == (3 if what == "pwrite" else 2)


def test_the_same_seed_gives_the_same_disk() -> None:
    def run(seed: int) -> tuple[bytes, str, str]:
        disk = machine(seed)
        fd = make(disk, b"a" * 5000)
        disk.pwrite(fd, b"b" * 5000, 0)
        disk.lose_power()
        return disk.read_bytes(FILE), disk.new_id(), disk.boot_id()

    assert run(7) == run(7)
    assert run(7) != run(8)
    disk = machine()
    assert disk.monotonic_ns() == 5_000_000_000
    assert disk.wall_time().tzinfo is UTC


def test_calls_are_counted_and_told() -> None:
    disk = machine()
    reported: list[tuple[str, str, int]] = []
    disk.on_op = lambda what, path, size: reported.append((what, path, size))
    before = disk.op_count
    fd = make(disk, b"x" * 10)
    disk.pread(fd, 10, 0)
    assert reported == [
        ("create", str(FILE), 0),
        ("pwrite", str(FILE), 10),
        ("fdatasync", str(FILE), SECTOR_BYTES),
        ("sync_directory", str(FOLDER), 0),
    ]
    assert disk.op_count == before + 4


@pytest.mark.parametrize("how", ["before", "middle", "after"])
def test_where_in_a_call_the_process_ends_can_be_chosen(how: str) -> None:
    """The middle is a sector's border: a kernel copies whole pages."""
    disk = machine()
    fd = make(disk, b"o" * 1600)
    disk.faults.crash_at_op, disk.faults.crash_how = disk.op_count + 1, how
    with pytest.raises(SimulatedCrash):
        disk.pwrite(fd, b"n" * 1500, 100)
    written = disk.read_bytes(FILE).count(b"n")
    assert {"before": written == 0, "middle": written in (412, 924, 1436), "after": written == 1500}[how]


def test_free_space_is_counted_in_sectors_and_comes_back_with_the_last_name() -> None:
    disk = machine()
    disk.faults.free_bytes = 4 * SECTOR_BYTES
    fd = make(disk, b"x" * 700)  # two sectors
    assert disk.faults.free_bytes == 2 * SECTOR_BYTES
    with pytest.raises(OSError, match="No space"):
        disk.posix_fallocate(fd, 0, 5 * SECTOR_BYTES)
    assert disk.faults.free_bytes == 2 * SECTOR_BYTES  # all of it or nothing
    assert disk.pwrite(fd, b"y" * 5 * SECTOR_BYTES, 0) == 4 * SECTOR_BYTES
    with pytest.raises(OSError, match="No space"):
        disk.open(FOLDER / "more", os.O_RDWR | os.O_CREAT)
    disk.unlink(FILE)
    assert disk.faults.free_bytes == 4 * SECTOR_BYTES


def test_a_short_write_says_how_much_it_took() -> None:
    disk = machine()
    fd = make(disk, b"o" * 100)
    disk.faults.short_write_next = True
    done = disk.pwrite(fd, b"n" * 100, 0)
    assert 0 < done < 100
    assert disk.read_bytes(FILE) == b"n" * done + b"o" * (100 - done)
    assert disk.pwrite(fd, b"n" * 100, 0) == 100


def test_a_write_may_land_in_another_file() -> None:
    disk = machine()
    fd = make(disk, b"o" * 100)
    make(disk, bytes(2 * SECTOR_BYTES), path=FOLDER / "other")
    disk.faults.misdirect_to_other_file_next = True
    assert disk.pwrite(fd, b"z" * 10, 0) == 10
    assert disk.read_bytes(FILE) == b"o" * 100
    assert disk.read_bytes(FOLDER / "other").count(b"z") == 10
    disk.pwrite(fd, b"z" * 10, 0)
    assert disk.read_bytes(FILE) == b"z" * 10 + b"o" * 90


def test_a_length_that_no_sync_covered_may_go() -> None:
    lengths = set()
    for seed in range(20):
        disk = machine(seed)
        fd = make(disk, b"", path=FILE)
        disk.ftruncate(fd, 4096)
        disk.sync_directory(FOLDER)
        disk.lose_power()
        lengths.add(disk.path_size(FILE))
    assert lengths == {0, 4096}


def test_noise_stays_and_a_slow_disk_says_so() -> None:
    disk = machine()
    make(disk, bytes(2000))
    disk.scramble(FILE, 500, 300)
    disk.lose_power()
    data = disk.read_bytes(FILE)
    assert data.count(0, 500, 800) < 30
    assert data.count(0) >= 1700
    quick = disk.duration_ns("pwrite", 100)
    disk.faults.slow_ns = 5_000_000
    assert disk.duration_ns("pwrite", 100) == quick + 5_000_000
    assert disk.duration_ns("fdatasync", 0) > disk.duration_ns("pwrite", 0)


def test_a_file_that_was_cut_and_grew_has_zeros_there_only_once_they_are_synced() -> None:
    old = b"o" * 4 * SECTOR_BYTES
    seen: set[bytes] = set()
    for seed in range(40):
        disk = machine(seed)
        fd = make(disk, old)
        disk.ftruncate(fd, 2 * SECTOR_BYTES + 100)
        disk.ftruncate(fd, len(old))
        disk.lose_power()
        seen.add(disk.pread(disk.open(FILE, os.O_RDWR), len(old), 0))
    half, zeros = old[: 2 * SECTOR_BYTES], bytes(SECTOR_BYTES)
    cut = b"o" * 100 + zeros[100:]
    assert seen == {half + a + b for a in (cut, old[:SECTOR_BYTES]) for b in (zeros, old[:SECTOR_BYTES])}

    disk = machine()
    fd = make(disk, old)
    disk.ftruncate(fd, 2 * SECTOR_BYTES + 100)
    disk.pwrite(fd, b"n" * SECTOR_BYTES, 3 * SECTOR_BYTES)
    disk.fdatasync(fd)
    disk.lose_power()
    assert disk.pread(disk.open(FILE, os.O_RDWR), len(old), 0) == half + cut + b"n" * SECTOR_BYTES
