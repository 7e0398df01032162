"""A disk that has room for a part of a trail's row only: what is not recorded whole is refused, and leaves nothing.

How much room there is comes from a seed (ATTACK_SEED has others drawn); a limit of the process stands for the disk.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from node.operator_trail import NAME, OperatorTrail, verify
from tests.attack.remoting_kit import drawn


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_row_that_is_recorded_in_part_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """`write` takes what fits and says no more: an operator's call was carried out, and its row was half a line."""
    rng = drawn("a full trail")
    path = tmp_path / NAME
    trail = OperatorTrail(path)
    recorded = [trail.begin(user_name="ann", action="POST first")]
    refused = 0
    for _ in range(200):
        room_bytes = rng.randrange(900)
        kind = rng.choice(["begin", "end", "outcome"])
        with files_up_to(path.stat().st_size + room_bytes):
            try:
                if kind == "begin":
                    recorded.append(trail.begin(user_name="ann", action="POST " + "x" * rng.randrange(100)))
                elif kind == "end":
                    trail.end(rng.choice(recorded), 202, {"asked": {"to": "n" * rng.randrange(100)}})
                else:
                    trail.outcome(rng.choice(recorded), {"after": {"state": "done"}})
            except OSError:
                refused += 1
        assert path.read_bytes().endswith(b"\n")
    assert refused and len(recorded) > 1
    done = verify(path)
    said = [one for one in done.problems if "twice" not in one and "ended" not in one]
    assert not said, said
    assert path.read_text().count("begun") == len(recorded)


@pytest.mark.parametrize("room_bytes", [0, 1, 150])
def test_the_next_row_follows_as_if_nothing_had_been(tmp_path: Path, room_bytes: int) -> None:
    path = tmp_path / NAME
    trail = OperatorTrail(path)
    trail.begin(user_name="ann", action="POST first")
    before = path.read_bytes()
    with files_up_to(len(before) + room_bytes), pytest.raises(OSError):
        trail.begin(user_name="ann", action="POST second")
    assert path.read_bytes() == before
    assert trail.begin(user_name="ann", action="POST third") == 2
