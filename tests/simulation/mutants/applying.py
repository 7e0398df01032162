"""Planted bugs of applying: what a state machine beside a log is given, and who gets its answers."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

APPLYING = "node.consensus.applying:Applying."
MACHINES: dict[str, Any] = {
    "applier": True, "apply_ms": 2.0, "apply_fail": 0.05, "apply_restart": 3.0, "at_apply": 0.7, "appends": 100.0,
}  # fmt: skip

APPLIED = (
    Mutant(
        "applied_before_committed",
        "R3",
        "entries are applied as soon as they are in the log",
        (swapped(APPLYING + "_feed", "member.committed_index", "member.store.end_index"),),
        {**MACHINES, "sync_ms": 6.0},
    ),
    Mutant(
        "batch_again_after_restart",
        "applied once",
        "a state machine that starts again gets the open batch again, whatever it says of it",
        (
            Edit(APPLYING + "ready", "self.life += 1", "self.life += 1; open_order = self._order"),
            Edit(
                APPLYING + "ready",
                "max(index, -1)",
                "MUTANT.instead(max(index, -1), index if open_order is None else open_order.first_index - 1)",
            ),
        ),
        {**MACHINES, "apply_restart": 8.0},
    ),
    Mutant(
        "fed_from_what_the_core_remembers",
        "applied once",
        "a state machine that starts again is fed from what it reported last",
        (
            Edit(
                APPLYING + "ready",
                "max(index, -1)",
                "MUTANT.instead(max(index, -1), max(index, -1) if self._at is None else self._at)",
            ),
        ),
        {**MACHINES, "apply_restart": 8.0},
    ),
    Mutant(
        "result_to_the_wrong_closure",
        "C2",
        "requests of one batch get its first results, and not their own",
        (
            Edit(
                APPLYING + "_answer",
                "results[begin:end]",
                "MUTANT.instead(results[begin:end], results[: max(0, end - begin)])",
            ),
        ),
        {**MACHINES, "apply_ms": 20.0, "batch_max": 3},
    ),
    Mutant(
        "report_of_an_earlier_life",
        "applied once",
        "what an earlier life of a state machine reports counts in this one",
        (ignored(APPLYING + "applied", "life != order.life"),),
        {**MACHINES, "apply_restart": 8.0},
    ),
    Mutant(
        "failed_entry_skipped",
        "in order",
        "an entry that could not be applied is left out",
        (
            Edit(
                APPLYING + "applied",
                "self._at = upto_index",
                "self._at = MUTANT.instead(upto_index, upto_index + bool(error))",
            ),
        ),
        {**MACHINES, "apply_fail": 0.2},
    ),
    Mutant(
        "two_batches_at_once",
        "in order",
        "the next batch leaves while one is being applied",
        (ignored(APPLYING + "_feed", "self._order is not None"),),
        {**MACHINES, "apply_ms": 20.0},
    ),
    Mutant(
        "committed_shown_as_applied",
        "S2",
        "state and checkpoint call applied what is committed",
        (
            swapped(
                APPLYING + "applied_index",
                "min(self._at, self._member.committed_index)",
                "self._member.committed_index",
            ),
        ),
        {**MACHINES, "apply_ms": 20.0},
    ),
)

CALLER = "node.state_machine.caller:Caller."
SNAPSHOTS: dict[str, Any] = {**MACHINES, "apply_restart": 8.0}

CALLED = (
    Mutant(
        "snapshot_counts_one_less",
        "applied once",
        "a state machine that starts from its snapshot is given the last entry of it again",
        (Edit(CALLER + "load", "= meta.index, meta.term", "= MUTANT.instead(meta.index, meta.index - 1), meta.term"),),
        SNAPSHOTS,
    ),
    Mutant(
        "snapshot_counts_one_more",
        "in order",
        "a state machine that starts from its snapshot misses the entry behind it",
        (Edit(CALLER + "load", "= meta.index, meta.term", "= MUTANT.instead(meta.index, meta.index + 1), -1"),),
        SNAPSHOTS,
    ),
    Mutant(
        "snapshot_goes_back",
        "M6",
        "a snapshot is loaded over a newer state",
        (ignored(CALLER + "load", "meta.index <= self.at"),),
        SNAPSHOTS,
    ),
    Mutant(
        "failed_state_saved",
        "poison",
        "a state in which a command failed half-way is saved, and loaded again",
        (Edit(CALLER + "meta", "self.stopped_by or self.at < 0", "MUTANT.ignored(self.stopped_by) or self.at < 0"),),
        {**SNAPSHOTS, "apply_fail": 0.2},
    ),
    Mutant(
        "failed_state_goes_on",
        "poison",
        "a command that failed is tried again on what it left behind",
        (Edit(CALLER + "apply", "if self.stopped_by:", "if MUTANT.ignored(self.stopped_by):"),),
        {**MACHINES, "apply_fail": 0.2},
    ),
    Mutant(
        "failed_state_served",
        "poison",
        "questions are answered from a state in which a command failed half-way",
        (Edit(CALLER + "_answered", "if self.stopped_by:", "if MUTANT.ignored(self.stopped_by):"),),
        {**MACHINES, "apply_fail": 0.2, "reads": 60.0},
    ),
    Mutant(
        "failed_command_counted",
        "in order",
        "a command that failed counts as applied",
        (swapped(CALLER + "apply", "places[applied]", "places[applied] + 1"),),
        {**MACHINES, "apply_fail": 0.2},
    ),
    Mutant(
        "read_before_applied",
        "C1",
        "a question is answered before what it asks for is applied",
        (ignored(CALLER + "_answered", "self.at < question.min_index"),),
        {**MACHINES, "apply_ms": 20.0, "reads": 60.0},
    ),
    Mutant(
        "result_at_the_wrong_entry",
        "C2",
        "results are counted from the batch's first entry, also where that is the leader's own",
        (
            Edit(
                CALLER + "_call",
                "results[places[applied]] = kept",
                "results[MUTANT.instead(places[applied], applied)] = kept",
            ),
        ),
        MACHINES,
    ),
)
