"""Planted bugs of the driver: duties of `node/engine`, as the simulator's member carries them out."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.election import UNREST
from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped

PROCESS = "tests.simulation.process:Process."
JOBS = "tests.simulation.jobs:Jobs."


HELD_BACK = "node.engine.held_back:HeldBack."
# Elections all the time, and disks that take their time over term and vote.
SAVING: dict[str, Any] = {**UNREST, "crash": 3.0, "power_loss": 3.0, "sync_ms": 6.0, "slow_disk": 0.2}

DRIVING = (
    Mutant(
        "hard_state_after_send",
        "E2",
        "messages leave before the term and the vote that they speak of are durable",
        (ignored(HELD_BACK + "closed", "self._needed > self._durable"),),
        SAVING,
    ),
    Mutant(
        "vote_overtakes_its_save",
        "E2",
        "a save of a vote alone holds no message back",
        (
            swapped(
                "node.consensus.member_state:MemberState.save",
                "not changes.keys() <= ABOUT_PEERS",
                "not changes.keys() <= ABOUT_PEERS | {'voted_for'}",
            ),
        ),
        SAVING,
    ),
    Mutant(
        "becomes_voter_before_it_is_saved",
        "E8",
        "a member says that it is a voter while that is being saved",
        (
            swapped(
                "node.consensus.member_state:MemberState.save",
                "not changes.keys() <= ABOUT_PEERS",
                'bool(changes.keys() & {"term", "voted_for"})',
            ),
        ),
        {**SAVING, "wipe": 2.0},
    ),
    Mutant(
        "first_save_frees_all",
        "E2",
        "whatever waits leaves with the first save that is done",
        (swapped(HELD_BACK + "durable", "self._waiting[0][0] <= self._durable", "True"),),
        SAVING,
    ),
    Mutant(
        "waits_for_the_save_before",
        "E2",
        "a message waits for the save before the one that it speaks of",
        (
            Edit(
                HELD_BACK + "ordered",
                "self._needed = self._ordered",
                "self._needed = MUTANT.instead(self._ordered, self._ordered - 1)",
            ),
        ),
        SAVING,
    ),
    Mutant(
        "hello_says_what_is_not_saved",
        "E2",
        "a HELLO on a new connection says a term that is being saved",
        (swapped("node.consensus.membership:Membership.hello", "member.durable_hard.term", "member.hard.term"),),
        {**SAVING, "reset": 12.0},
    ),
    Mutant(
        "counts_before_recorded",
        "E8",
        "a peer counts while the record about its store is being saved",
        (
            swapped(
                "node.consensus.membership:Membership.voter_state_seen",
                "self._on_record(peer_id)",
                "True",
            ),
        ),
        {**SAVING, "wipe": 2.0},
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
