"""A rule about wall clocks: a member's that is far from the others'.

The log does not go by them. The times that a leader stamps on commands and messages do, and delays, the age of files
that retention removes, and the end of tokens. Invariant: a clock is called wrong only where most of the
others, this machine's among them, are far from it; where this machine's is the odd one, no member's is.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from app.health.facts import ATTENTION, Facts, Finding, spell

FAR_S: Final = 60.0  # a look takes seconds where machines are busy
OTHERS_MIN: Final = 2  # of two clocks that differ nobody can tell which is wrong


def clock_differs(facts: Facts) -> Iterator[Finding]:
    """Whose clock is far ahead of the others', or behind them."""
    clocks = {one.id: one.clock_ahead_s for one in facts.members if one.reach == "ok" and one.clock_ahead_s is not None}
    for node_id, ahead_s in clocks.items():
        others = [0.0, *(other_s for other, other_s in clocks.items() if other != node_id)]
        far = [other_s for other_s in others if abs(ahead_s - other_s) > FAR_S]
        if len(others) < OTHERS_MIN or 2 * len(far) <= len(others):
            continue
        by_s = ahead_s - median(far)
        which = "ahead of" if by_s > 0 else "behind"
        text = f"{node_id}'s clock is {spell(round(abs(by_s), -1))} {which} the others', for {{age}}"
        yield Finding("clock_differs", ATTENTION, text, node_id)
