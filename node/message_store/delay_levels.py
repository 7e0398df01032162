"""`messageDelayLevel`: for how long a message of each delay level waits.

Invariant: what `parse_delay_levels` returns is usable: at least one level, each with a time above 0.
"""

from __future__ import annotations

import re
from typing import Final

DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LEVELS_MAX: Final = 128
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])", re.ASCII)


def parse_delay_levels(text: str = DEFAULT_DELAY_LEVELS) -> tuple[int, ...]:
    """In milliseconds, level 1 first. Raises ValueError."""
    found = [_LEVEL.fullmatch(one) for one in text.split()]
    if not found or len(found) > LEVELS_MAX or None in found:
        raise ValueError(
            f"{text[:80]!r}: delay levels are 1 to {LEVELS_MAX} times a number and s, m, h or d, as 1s 5s 1m"
        )
    return tuple(int(one[1]) * _UNIT_MS[one[2]] for one in found if one is not None)
