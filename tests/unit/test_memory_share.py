"""What clients and strangers may make a process hold, by what that process may have at all."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node.engine import memory_share
from node.engine.memory_share import KEPT_BYTES, LEAST, MIB, MOST, limit_bytes, share_of
from node.engine.places import LOOK_EVERY_S, Places
from node.engine.quota import Quota
from node.transport.remoting import FRAME_BYTES_MAX
from tests.unit.test_places import Peer


class Small:
    """A port of a process that has little memory."""

    def __init__(self, limit: int) -> None:
        self.places = Places(share_of(limit))


def test_what_others_hold_stays_below_what_is_left_beside_store_and_members() -> None:
    rng = random.Random(12)
    for _ in range(500):
        limit = rng.randrange(0, 4096) * MIB
        share = share_of(limit)
        assert share.whole <= MOST.whole and all(
            least <= one <= most for least, one, most in zip(LEAST, share, MOST, strict=True)
        )
        assert share.whole <= max(LEAST.whole, (limit - KEPT_BYTES) / 2 + LEAST.whole)
        assert limit < KEPT_BYTES + 2 * LEAST.whole or share.whole < limit - KEPT_BYTES
    assert share_of(None) == share_of(24 << 30) == MOST and share_of(0) == LEAST
    assert LEAST.unfinished >= FRAME_BYTES_MAX, "one frame at a time gets through"


def test_strangers_of_a_small_process_hold_little_and_its_members_what_they_need() -> None:
    small: Any = Small(256 * MIB)
    share = share_of(256 * MIB)
    rng, part = random.Random(13), 256 * 1024
    member = Peer(small)
    member.earn(member=True)
    peers = [Peer(small) for _ in range(30)]
    for one in peers[:15]:
        one.earn()
    for turn in range(2000):
        one = rng.choice(peers)
        if not one.ended and not one.reading_stopped:
            one.part(part)
        if turn % 10 == 0:
            member.part(part)
            small.places.look(LOOK_EVERY_S)
        held = sum(place.memory_bytes for place in (*small.places.unproven, *small.places.clients))
        assert held <= share.unfinished + len(peers) * part
    assert member.unfinished_bytes > MOST.unfinished and not member.ended and not member.reading_stopped
    for number, one in enumerate(one for one in peers[:15] if not one.ended):
        one.backlog_bytes = share.untaken // 3 + number
    small.places.look(LOOK_EVERY_S)
    assert sum(one.backlog_bytes for one in peers[:15] if not one.ended) <= share.untaken


def test_requests_of_a_small_process_are_stopped_sooner() -> None:
    small, most = Quota(LEAST.requests), Quota()
    stopped = []
    for quota in (small, most):
        peers: list[Any] = [type("Peer", (), {"stop_reading": lambda _self, _why: None})() for _ in range(64)]
        taken = 0
        while not quota._stopped:
            quota.take(peers[taken % 64], 1, MIB)
            taken += 1
        stopped.append(taken * MIB)
    assert stopped[0] <= LEAST.requests + MIB and MOST.requests <= stopped[1] <= MOST.requests + MIB


@pytest.mark.parametrize("which", ["v2", "v1", "none"])
def test_the_least_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Also one of a group that this process's own lies in."""
    inner = tmp_path / "memory" / "a" / "b" if which == "v1" else tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    name = "memory.limit_in_bytes" if which == "v1" else "memory.max"
    if which != "none":
        (inner / name).write_text("max\n" if which == "v2" else str(1 << 62))
        (inner.parent / name).write_text(f"{200 * MIB}\n")
    ours, meminfo = tmp_path / "ours", tmp_path / "meminfo"
    ours.write_text("8:memory:/a/b\n7:cpu:/x\n" if which == "v1" else "0::/a/b\n")
    meminfo.write_text("MemFree: 1 kB\nMemTotal:     1048576 kB\n")
    monkeypatch.setattr(memory_share, "CGROUPS", tmp_path)
    monkeypatch.setattr(memory_share, "OURS", ours)
    monkeypatch.setattr(memory_share, "MEMINFO", meminfo)
    assert limit_bytes() == (1024 if which == "none" else 200) * MIB


def test_a_process_with_a_limit_of_its_own_knows_it() -> None:
    limit = 1 << 30
    words = [sys.executable, "-c", "from node.engine.memory_share import limit_bytes; print(limit_bytes())"]
    said = subprocess.run(
        words, capture_output=True, text=True, check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )  # fmt: skip
    assert int(said.stdout) <= limit
