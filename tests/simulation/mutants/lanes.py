"""Planted bugs of lanes (`consensus/lanes.py`); hunted in the driver's world, with appenders that void each other."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.simulation.mutants.real_driver import QUIET

LANES = "node.consensus.lanes:Lanes."
RIVALS: dict[str, Any] = {**QUIET, "lanes": 3, "clients": 1, "bursts": 100.0, "sync_ms": 10.0}
# A wrong sequence would stop these, too: two walls, of which one is enough.
ANY_SEQUENCE = Edit(LANES + "take", "ticket.sequence != lane.next_sequence", "False")


def _lane(name: str, about: str, edit: Edit, cause: tuple[Edit, ...] = ()) -> Mutant:
    return Mutant(name, "lanes", about, (edit,), RIVALS, {}, "driver", cause)


LANE_RULES = (
    _lane(
        "lane_end_is_the_committed_one",
        "a lane is told the committed index for the log's end: what waits for its quorum comes behind it",
        swapped(LANES + "open", "store.end_index", "member.committed_index"),
    ),
    _lane(
        "lane_goes_on_when_voided",
        "an append over a lane that another one voided is taken as one over that other lane",
        ignored(LANES + "take", "not self._is_open(ticket, proposal.origin)"),
        (ANY_SEQUENCE,),
    ),
    _lane(
        "lane_goes_on_after_a_refusal",
        "an append that was refused does not end its lane",
        left_out(LANES + "watch", 'self.end(f"an append of it ended with {outcome.code.name}: {outcome.detail}")'),
        (ANY_SEQUENCE,),
    ),
)
