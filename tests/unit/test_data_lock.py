"""A RocketMQ broker and ours keep each other out of one data directory: Java's lock of `DATA/lock`, byte 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from node.__main__ import hold_data
from node.store.errors import StoreRefused
from node.store.files.data_lock import DATA_LOCK, DataLock
from node.store.files.platform import Platform
from node.store.repair.command import main, perform
from node.store.repair.report import Report
from tests.unit.store_repair_fixtures import everything, stopped_member

# What FileChannel.tryLock(0, 1, false) asks of the system.
JAVA = (
    "import fcntl, os, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
    "try:\n"
    "    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)\n"
    "except OSError:\n"
    "    sys.exit(1)\n"
    "print('held', flush=True)\n"
    "sys.stdin.read()\n"
)


def java_gets_it(data: Path) -> bool:
    done = subprocess.run(
        [sys.executable, "-c", JAVA, str(data / DATA_LOCK)], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    return done.returncode == 0


def test_it_keeps_a_broker_out_whatever_else_opens_and_closes_the_file(tmp_path: Path) -> None:
    assert java_gets_it(tmp_path)
    first, second = DataLock(tmp_path), DataLock(tmp_path)  # engine and supervisor
    (tmp_path / DATA_LOCK).read_bytes()  # opened and closed in this process: a lock of the process would be gone
    assert not java_gets_it(tmp_path)
    first.release()
    assert not java_gets_it(tmp_path)
    second.release()
    second.release()
    assert java_gets_it(tmp_path)
    assert (tmp_path / DATA_LOCK).read_bytes() == b""


def test_a_broker_that_runs_is_named(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", JAVA, str(tmp_path / DATA_LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None and broker.stdout.readline() == b"held\n"
        with pytest.raises(StoreRefused, match=f"process {broker.pid} holds .*as a RocketMQ broker does"):
            DataLock(tmp_path)
        assert hold_data(tmp_path) is None
        assert broker.stdin is not None
        broker.stdin.close()
        broker.wait()
    lock = hold_data(tmp_path)
    assert lock is not None and not java_gets_it(tmp_path)
    lock.release()
    assert hold_data(tmp_path / "not there yet") is None


@pytest.mark.parametrize("command", (["--set-term", "9"], ["--discard-from", "55"], ["--set-term", "9", "--dry-run"]))
def test_a_repair_is_refused_while_a_supervisor_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    directory = stopped_member(tmp_path)
    before = everything(directory)
    supervisor = hold_data(tmp_path)
    assert supervisor is not None
    assert main([str(directory), *command]) == 1
    said = capsys.readouterr()
    assert said.out == "" and "supervisor (`quorumscope node`) or another repair holds" in said.err
    assert f"holds {tmp_path / DATA_LOCK}; stop every member that keeps its store there" in said.err
    assert everything(directory) == before
    supervisor.release()
    assert main([str(directory), *command]) == 0


def test_a_repair_is_refused_while_a_broker_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = stopped_member(tmp_path)
    before = everything(directory)
    with subprocess.Popen(
        [sys.executable, "-c", JAVA, str(tmp_path / DATA_LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        assert broker.stdout is not None and broker.stdout.readline() == b"held\n"
        assert main([str(directory), "--set-term", "9"]) == 1
        assert f"process {broker.pid} holds" in capsys.readouterr().err
        assert broker.stdin is not None
        broker.stdin.close()
        broker.wait()
    assert everything(directory) == before


def test_nobody_starts_while_a_repair_writes(tmp_path: Path) -> None:
    """A trial on the dry run gives its lock up at once; the action itself keeps everybody out."""
    refusals: list[str] = []

    def action(directory: Path, platform: Platform) -> Report:
        try:
            DataLock(tmp_path).release()  # as an engine does
        except StoreRefused as error:
            refusals.append(str(error))
            assert not java_gets_it(tmp_path) and hold_data(tmp_path) is None
        return Report(directory, "nothing")

    directory = stopped_member(tmp_path)
    perform(action, directory, dry_run=True)
    assert refusals == []
    perform(action, directory, dry_run=False)
    assert len(refusals) == 1 and "`store repair` or `store adopt` holds" in refusals[0]
    assert java_gets_it(tmp_path)
