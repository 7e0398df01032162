"""A RocketMQ broker and ours keep each other out of one data directory: Java's lock of `DATA/lock`, byte 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from node.__main__ import hold_data
from node.store.errors import StoreRefused
from node.store.files.data_lock import DATA_LOCK, DataLock

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
