"""Who else has an account on a member's machine finds nothing on its disk to read, whatever the shell's umask was."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.rocketmq.codes import Answer, Request
from tests.attack.remoting_kit import WITHIN_S, AttackedBroker, Caller, drawn
from tests.process.broker_group import BrokerGroup
from tests.unit.broker_kit import send_fields

pytestmark = pytest.mark.process
UMASKS = (0o000, 0o002, 0o022, 0o070)


@contextmanager
def shell_of(umask: int) -> Iterator[None]:
    """Children inherit it."""
    before = os.umask(umask)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> dict[str, str]:
    """Modes of what another user may read, write or enter, by path. What is made and renamed meanwhile is looked at
    under either name."""
    found: dict[str, str] = {}
    for path in [folder, *folder.rglob("*")]:
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077:
            found[str(path.relative_to(folder))] = oct(mode)
    return found


def core_limits(pid: int) -> list[str]:
    """Of a process and its children, in bytes, as the kernel says it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    (line,) = [one for one in Path(f"/proc/{pid}/limits").read_text().splitlines() if one.startswith("Max core file")]
    return [line.split()[4], *(limit for child in children for limit in core_limits(int(child)))]


def until_there(folder: Path, *patterns: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while missing := [pattern for pattern in patterns if not any(folder.glob(pattern))]:
        assert time.monotonic() < deadline, f"{missing} are not in {sorted(map(str, folder.rglob('*')))}"
        time.sleep(0.05)


def test_a_pairs_files_are_their_owners(tmp_path: Path) -> None:
    with shell_of(drawn("pair's modes").choice(UMASKS)):
        attacked = AttackedBroker(tmp_path)
        try:
            attacked.unharmed()  # a message is stored
            assert set(core_limits(attacked.process.pid)) == {"0"}, "a core file has all that the memory has"
            data = tmp_path / "data"
            until_there(data, "commitlog/0*", "consumequeue/*/*/0*", "config/*.json")
        finally:
            attacked.close()
        assert open_to_others(data) == {}


def test_a_brokers_files_are_their_owners(tmp_path: Path) -> None:
    with shell_of(drawn("broker's modes").choice(UMASKS)):
        group = BrokerGroup(tmp_path)
        group.peers = {"n0": group.peers["n0"]}
        try:
            group.start_all()
            with Caller(group.ports["n0"]) as one:
                deadline = time.monotonic() + WITHIN_S
                while one.ask(Request.SEND_MESSAGE_V2, b"body", **send_fields()).code != Answer.SUCCESS:
                    assert time.monotonic() < deadline
            data = tmp_path / "n0"
            until_there(data, "consumequeue/*/*/0*", "config/*.json", "quorumscope/dispatched")
        finally:
            group.close()
        assert open_to_others(data) == {}
