"""Planted bugs of admission: a leader that takes in more than its links carry (SAFETY C5)."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant
from tests.simulation.swarm import CALM

ADMISSION = "node.consensus.admission:Admission."
# More is asked for than the links carry while they are narrow, and nothing else is wrong.
NARROW: dict[str, Any] = CALM.as_json() | {
    "link_kb_per_s": 240.0, "narrow_link": 1.5, "narrow_kb_per_s": 60.0, "narrow_ms": 3000.0, "body_bytes": 3000,
    "appends": 150.0, "clients": 12, "reads": 2.0, "data_file_size": 64 * 1024,
}  # fmt: skip

SLOW_LINKS = (
    Mutant(
        "admission_off",
        "C5",
        "a leader takes in whatever comes, whatever its links carry",
        (
            Edit(
                ADMISSION + "judge",
                "if waiting_bytes + ahead_bytes < limit or waiting_bytes < limit // 4:",
                "if not MUTANT.ignored(waiting_bytes + ahead_bytes >= limit):",
            ),
        ),
        NARROW,
    ),
    Mutant(
        "rate_overrated",
        "C5",
        "a link is taken for a hundred times as fast as it was measured",
        (
            Edit(
                ADMISSION + "limit_bytes",
                "rate * self._share_ns // SECOND",
                "MUTANT.instead(rate * self._share_ns // SECOND, 100 * rate * self._share_ns // SECOND)",
            ),
        ),
        NARROW,
    ),
    Mutant(
        "slab_on_its_way_forgotten",
        "C5",
        "an append that waits behind a long slab on a narrow link is given up while that is on its way",
        (
            Edit(
                "node.consensus.closures:ClosureTable.expire",
                "+ slab_time_ns()",
                "+ MUTANT.instead(slab_time_ns(), 0)",
            ),
        ),
        NARROW,
    ),
)
