"""Planted bugs of logs that begin where their leader's begins: what is given and taken, and what a crash leaves."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.simulation.mutants.retention import TRIMS

GIVING = "node.consensus.base_giving:BaseGiving.send"
INSTALL = "node.consensus.base_install:BaseInstall.refusal"
REPLACEMENT = "node.store.replacement:Replacement.begin_behind"
DISPATCHER = "node.consensus.entry_dispatcher:EntryDispatcher."
BEHIND: dict[str, Any] = {
    **TRIMS, "applier": False, "left_behind": 0.7, "partition": 3.0, "partition_ms": 500.0, "pause": 2.0,
}  # fmt: skip
EMPTIED: dict[str, Any] = {**TRIMS, "applier": False, "left_behind": 0.3, "wipe": 1.5}
CRASHES: dict[str, Any] = {**BEHIND, "crash_at_io": 12.0, "power_loss": 2.0}
# A leader that gives its base also to whom it could compare with: the right code says that it holds it.
GIVEN_TO_ALL = (
    Edit(
        DISPATCHER + "_send_compare",
        "if meta is not None:",
        "if meta is not None and (self.giving.index >= 0 or self._member.store.begin_index == 0"
        " or meta.index <= self._member.store.base.index or self.giving.obstacle):",
    ),
)

BASES = (
    Mutant(
        "base_goes_back",
        "M6",
        "a member begins anew behind whatever its leader says, also below what is committed there",
        (
            ignored(INSTALL, "held is not None and held.term == request.base_term"),
            ignored(
                INSTALL, "index < member.committed_index or (index == member.committed_index and held is not None)"
            ),
        ),
        BEHIND,
        cause=GIVEN_TO_ALL,
    ),
    Mutant(
        "base_over_a_log_that_holds_it",
        "M6",
        "a member gives its log up for a base that lies in it",
        (ignored(INSTALL, "held is not None and held.term == request.base_term"),),
        {**BEHIND, "appends": 60.0},
        cause=GIVEN_TO_ALL,
    ),
    Mutant(
        "base_of_another_term",
        "M6",
        "a leader gives its base with the term before",
        (swapped(GIVING, "base.meta.term", "max(0, base.meta.term - 1)"),),
        BEHIND,
    ),
    Mutant(
        "base_of_another_chain",
        "R7",
        "a leader gives its base with the chain of nothing",
        (swapped(GIVING, "base.meta.chain", "0"),),
        BEHIND,
    ),
    Mutant(
        "base_shifted",
        "S5",
        "a leader says that its first entry lies in the file behind",
        (swapped(GIVING, "base.pos", "base.pos + member.store.data_file_size"),),
        BEHIND,
    ),
    Mutant(
        "base_not_committed",
        "M6",
        "a leader gives the end of its log for its base",
        (
            Edit(
                GIVING,
                "base.meta.index, base.meta.term, base.meta.chain",
                "MUTANT.instead(base.meta.index, member.store.end_index), member.store.end_term,"
                " member.store.end_chain",
            ),
        ),
        {**BEHIND, "isolate_leader": 3.0},
    ),
    Mutant(
        "base_without_archive",
        "S4",
        "a log begins anew, and what it held is nowhere",
        (left_out(REPLACEMENT, "files.archive.add_files(order, [segment.path for segment in files.data])"),),
        BEHIND,
    ),
    Mutant(
        "base_makes_a_voter",
        "E8",
        "a member that joins votes as soon as its log begins behind a base",
        (
            swapped(
                "node.consensus.membership:Membership.progress",
                "self._held_through() >= self.target_index",
                "(member.store.base.index >= 0 or self._held_through() >= self.target_index)",
            ),
        ),
        EMPTIED,
    ),
    Mutant(
        "base_without_order",
        "M6",
        "a log's files go before it is written down what it is to begin behind",
        (left_out(REPLACEMENT, "write_order(files.directory, base, files.platform)"),),
        CRASHES,
    ),
    Mutant(
        "base_order_not_carried_out",
        "M6",
        "a start forgets what it was to begin behind",
        (
            left_out(
                "node.store.recovery.base_switch:finish_switch",
                "carry_out_order(directory, base, checkpoint, platform.boot_id(), platform)",
            ),
        ),
        CRASHES,
    ),
    Mutant(
        "unsettled_entry_becomes_the_first",
        "S5",
        "files go up to an entry that may be cut yet: another one in its place lies elsewhere",
        (ignored("node.store.files.retention:whole_files_below", "first_index > settled_index"),),
        {**BEHIND, "isolate_leader": 3.0},
    ),
)
