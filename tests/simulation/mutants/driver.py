"""Planted bugs of the driver: duties of `node/engine`, as the simulator's member carries them out."""

from __future__ import annotations

from typing import Any

from node.consensus.api import MS
from tests.simulation.mutants.election import UNREST
from tests.simulation.mutants.planting import Edit, Mutant

PROCESS = "tests.simulation.process:Process."
JOBS = "tests.simulation.jobs:Jobs."


def save_later(process: Any, effects: Any) -> int:
    """Term and vote are written by and by, while what depends on them leaves; 1 where something does."""

    def save() -> None:
        process.store.save_hard_state(effects.hard_state)
        process.member.note_voter_state(effects.hard_state)
        process.world.tell.persisted(process.member, effects.hard_state)

    process.later(3 * MS, save)
    return int(bool(effects.sends))


DRIVING = (
    Mutant(
        "hard_state_after_send",
        "E2",
        "messages leave before the term and the vote that they speak of are durable",
        (
            Edit(
                PROCESS + "_carry_out",
                "if effects.hard_state is not None:",
                "if effects.hard_state is not None:\n"
                "        MUTANT.differed += save_later(self, effects)\n"
                "    if False:",
            ),
        ),
        {**UNREST, "crash": 3.0, "power_loss": 3.0},
        {"save_later": save_later},
    ),
    Mutant(
        "failed_sync_finished",
        "S1",
        "the loop takes a sync that failed for one that did not",
        (Edit(JOBS + "_synced", "if error is not None:", "if MUTANT.ignored(error is not None):"),),
        {"fsync_error": 3.0, "power_loss": 2.0},
    ),
    Mutant(
        "ordered_not_held",
        "C4",
        "an ordered append goes through although an earlier one of its connection was not appended",
        (
            Edit(
                "node.engine.proposals:Proposals.propose",
                "elif ordered and origin.order_broken:",
                "elif MUTANT.ignored(ordered and origin.order_broken):",
            ),
        ),
        {**UNREST, "ordered": 1.0, "clients": 2, "appends": 200.0},
    ),
)
