"""Planted bugs of the control plane: `node/control`, hunted beside the real engine (tests/simulation/driver)."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped
from tests.simulation.mutants.real_driver import UNREST

SNAPSHOTS = "node.control.snapshots:Snapshots."
ENTRIES = "node.control.entries:"
DOWN = {**UNREST, "crash": 2.0, "pause": 2.0, "pause_ms": 900.0, "looks": 30.0}


def _control(name: str, rule: str, about: str, *edits: Edit, profile: dict[str, Any]) -> Mutant:
    return Mutant(name, rule, about, edits, profile, {}, "driver")


CONTROL = (
    _control(
        "control_calls_stale_current",
        "S1",
        "what the engine said last is shown as what it is now",
        Edit(
            SNAPSHOTS + "without_engine",
            '"engine": engine, "engine_reason": reason, "unknown"',
            '"engine": MUTANT.instead(engine, "ok"), "engine_reason": reason, "unknown"',
        ),
        profile=DOWN,
    ),
    _control(
        "control_keeps_its_cache",
        "S1",
        "an answer of the engine stays current for ever",
        swapped(SNAPSHOTS + "get", "now_s() - known[0] < CACHE_S", "known[0] > 0"),
        profile=DOWN,
    ),
    _control(
        "control_shows_the_role_of_the_dead",
        "S1",
        "a process that is gone is shown in its role",
        ignored(SNAPSHOTS + "without_engine", 'engine == "down"'),
        profile=DOWN,
    ),
    _control(
        "control_shows_more_than_committed",
        "C1",
        "the committed view goes up to the log's end",
        Edit(
            ENTRIES + "top_of",
            'last = committed if view == "committed"',
            'last = MUTANT.instead(committed, marks.end_index) if view == "committed"',
        ),
        profile=DOWN,
    ),
    _control(
        "control_takes_durable_for_committed",
        "C1",
        "without its engine, what is durable is shown as committed",
        Edit(
            "node.control.log_files:LogFiles.marks",
            "committed_index=reader.committed_index",
            "committed_index=MUTANT.instead(reader.committed_index, reader.durable_index)",
        ),
        profile=DOWN,
    ),
    _control(
        "control_reads_unsafely",
        "C1",
        "a linearizable read is asked for as any other",
        Edit(
            ENTRIES + "linearizable",
            "1 << 20, mode)",
            "1 << 20, MUTANT.instead(mode, ReadMode.UNSAFE))",
        ),
        profile=DOWN,
    ),
)
