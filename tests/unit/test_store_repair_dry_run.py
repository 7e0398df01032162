"""The platform of a dry run: a whole store lives on it, and the machine below is the same afterwards, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.store.errors import StoreRefused
from node.store.files.platform import OS, Platform
from node.store.log_store import HardState
from node.store.repair.dry_run import DryRun
from tests.simulation.disk import SimulatedPlatform
from tests.unit.store_fixtures import entries_of, fill, open_store, record
from tests.unit.store_repair_fixtures import everything


def test_a_store_that_lived_on_a_dry_run_left_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 20)
    store.close()
    before = everything(tmp_path)
    dry = DryRun()
    tried = open_store(tmp_path, platform=dry)
    held = [entry.body for entry in entries_of(tried)]
    fill(tried, 2, 30)
    tried.truncate(25, record(tried, 25))
    fill(tried, 1, 5)
    tried.save_hard_state(HardState(9, "n1", VoterState.REJOINING))
    bodies = [entry.body for entry in entries_of(tried)]
    tried.close()
    again = open_store(tmp_path, platform=dry)
    assert [entry.body for entry in entries_of(again)] == bodies
    assert (bodies[:25], len(bodies), again.truncation_count) == (held[:25], 30, 1)
    assert again.hard_state == HardState(9, "n1", VoterState.REJOINING)
    archived = again.files.archive.entries(1)
    assert [entry.index for entry in archived] == list(range(25, 120))
    again.close()
    assert everything(tmp_path) == before
    real = open_store(tmp_path)
    assert [entry.body for entry in entries_of(real)] == held
    real.close()


def test_a_lock_that_somebody_holds_is_seen_and_one_that_nobody_holds_is_left(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreRefused, match="another process"):
        open_store(tmp_path, platform=DryRun())
    store.close()
    tried = open_store(tmp_path, platform=DryRun())
    open_store(tmp_path).close()
    tried.close()


@pytest.mark.parametrize("seed", range(20))
def test_it_reads_as_the_machine_itself_would(tmp_path: Path, seed: int) -> None:
    """The same random calls here and on a real copy give the same answers; the machine below is a simulated one too."""
    chosen = random.Random(seed)
    simulated = SimulatedPlatform(random.Random(seed), lambda: 1_000_000_000, "m")
    root = tmp_path / "here"
    root.mkdir()
    simulated.make_directory(root)
    for name in ("a", "b", "c"):
        content = chosen.randbytes(chosen.randrange(3)) * 9000
        for platform in (simulated, OS):
            fd = platform.open(root / name, 0o102)
            platform.pwrite(fd, content or b"x", 0)
            platform.close(fd)
    dry, calls = DryRun(simulated), simulated.op_count
    for _ in range(200):
        what = chosen.choice(["write", "write", "zero", "cut", "rename", "remove", "read", "read", "data"])
        name, other = chosen.choice("abcd"), chosen.choice("abcd")
        offset, length, blob = chosen.randrange(30_000), chosen.randrange(9_000), chosen.randbytes(16)

        def call(
            platform: Platform,
            what: str = what, name: str = name, other: str = other, offset: int = offset, length: int = length,
            blob: bytes = blob,
        ) -> object:  # fmt: skip
            path = root / name
            if what == "rename":
                if name != other and platform.exists(path):
                    platform.replace(path, root / other)
                return platform.names(root)
            if what == "remove":
                platform.unlink(path)
                return platform.names(root)
            fd = platform.open(path, 0o102)
            try:
                if what == "write":
                    return platform.pwrite(fd, blob * (length // 16), offset)
                if what == "zero":
                    return platform.pwrite(fd, bytes(length), offset)
                if what == "cut":
                    return platform.ftruncate(fd, offset)
                size = platform.file_size(fd)
                if what == "data":  # where it looks for data, it finds the first byte that is not zero
                    try:
                        at = platform.seek_data(fd, 0)
                    except OSError:
                        at = size
                    return len(platform.pread(fd, at, 0).strip(b"\0"))
                return size, platform.pread(fd, length, offset), platform.read_bytes(path), platform.path_size(path)
            finally:
                platform.close(fd)

        assert call(dry) == call(OS), (what, name, other, offset, length)
    assert simulated.op_count == calls
