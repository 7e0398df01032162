"""Worlds in which snapshots go from member to member, over links that lose, resend and break: what they must meet."""

from __future__ import annotations

from collections import Counter

from tests.simulation.campaign import run_seed
from tests.simulation.mutants.snapshots import LOSSY, MOVED

MET = ("part", "part_again", "resumed", "installed", "newer_meanwhile")


def test_snapshots_are_lost_resumed_overtaken_and_installed() -> None:
    counts: Counter[str] = Counter()
    for seed, world in ((10, LOSSY), (14, LOSSY), (23, LOSSY), (0, MOVED)):
        result = run_seed(seed, 2000, world)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts.update(result.coverage)
    assert not [one for one in MET if not counts[f"snapshot.{one}"]], counts
    assert counts["base.archived"] > 0, "one was left behind, and what it held is kept"
