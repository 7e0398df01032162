"""What the JSON body of a REST request may be, at control planes and the console alike.

Invariant: the named fields and no others, each of its own JSON type. A lenient reader takes `true` for the number 1 and
"no" for a switch that is off; where a body says `force` or `expected_index`, it must not guess.
"""

from __future__ import annotations

from typing import Final

from pydantic import ConfigDict

BODY: Final = ConfigDict(extra="forbid", strict=True)  # times, which JSON has as text, are named as not strict
