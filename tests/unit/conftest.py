"""What the unit tests share: patience with a busy machine, where a time-out is not what a test is about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from pwdlib.hashers import HasherProtocol
from pwdlib.hashers.argon2 import Argon2Hasher

from app.security.secrets import passwords
from node.message_store.write_files import OsDisk

BUSY_S = 60.0
STALE_S = 3600.0
MEMORY = Path("/dev/shm")
MEMORY_FREE_BYTES_MIN = 1 << 30
# They make thousands of logs durable: three quarters of their time is a real disk's.
MANY_SYNCS = (
    "test_backup_crash_points", "test_backup_cut_short", "test_old_log", "test_recovery",
    "test_store_repair_crash_points",
)  # fmt: skip


@pytest.fixture
def samples_stay_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test has to wait, what the console sampled of its group is not old."""
    monkeypatch.setattr("app.console.aggregate.STALE_S", STALE_S)


@pytest.fixture(scope="session", autouse=True)
def no_demo_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands without an address take the demo that runs: one beside the tests is none of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


@pytest.fixture(autouse=True)
def patient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database's writers wait long for their turn; tests of that time-out set one of their own."""
    monkeypatch.setattr("app.db.engine.BUSY_S", BUSY_S)


@pytest.fixture(scope="session", autouse=True)
def costly_hasher() -> Iterator[HasherProtocol]:
    """The product's own, which takes 0.1 s of a core for each password on purpose; the tests hash with a cheap one."""
    own = passwords.current_hasher
    passwords.current_hasher = Argon2Hasher(time_cost=1, memory_cost=64, parallelism=1)
    yield own
    passwords.current_hasher = own


@pytest.fixture(autouse=True)
def no_files_left_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many a test leaves its message store as a crash would: a run of them all held a thousand descriptors."""
    opened: list[OsDisk] = []
    make = OsDisk.__init__

    def made(disk: OsDisk) -> None:
        make(disk)
        opened.append(disk)

    monkeypatch.setattr(OsDisk, "__init__", made)
    yield
    for disk in opened:
        disk.close()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """For modules of `MANY_SYNCS` a folder in memory, where this machine has one with room.

    What they ask is which bytes lie where after an end that the test itself brings about, never what a disk keeps.
    """
    many = request.module.__name__.rpartition(".")[2] in MANY_SYNCS
    if many and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_FREE_BYTES_MIN:
        with TemporaryDirectory(prefix="quorumscope-test-", dir=MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path
