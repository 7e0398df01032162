"""Planted bugs of the stream of committed positions, in the real driver's world."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant

STREAMS = "node.engine.committed_stream:CommittedStreams."
FOLLOWED: dict[str, Any] = {"followers": 2}

STREAMING = (
    Mutant(
        "stream_pushes_what_is_not_taken",
        "C5",
        "a stream's next position leaves although its client has not taken the last",
        (
            Edit(
                STREAMS + "_push", "stream.taken, stream.pushed_at", "MUTANT.left_out(); stream.sent, stream.pushed_at"
            ),
        ),
        FOLLOWED,
        world="driver",
    ),
    Mutant(
        "promised_lease_not_waited_for",
        "E7",
        "leadership is handed over while a lease that others were told lasts",
        (
            Edit(
                "node.consensus.handover:Handover.go_on",
                "now >= leadership.reads.promised_until",
                "MUTANT.instead(now >= leadership.reads.promised_until, True)",
            ),
        ),
        {**FOLLOWED, "lease_reads": True, "transfers": 3.0},
        world="driver",
    ),
    Mutant(
        "stream_says_the_end_is_committed",
        "R3",
        "a stream calls committed what is in the log",
        (
            Edit(
                STREAMS + "_now_standing",
                "replica.committed_index",
                "MUTANT.instead(replica.committed_index, replica.store.end_index)",
            ),
        ),
        {**FOLLOWED, "isolate_leader": 1.5},
        world="driver",
    ),
)
