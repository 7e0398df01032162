"""What a page shows of a body: its beginning, as pictures and escapes where that is no plain text, and how long it is.

Invariant: however long a body is and whatever it holds, a page makes BEGINNING_CHARS_MAX of it fit to be shown. It is
made on the console's loop; of 4 MiB that cannot be printed it took 3.5 s, and nobody else had an answer meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from node.printable import pictured

BEGINNING_CHARS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Beginning:
    """`characters`: of all of it, as it was before anything was escaped."""

    text: str
    characters: int

    @classmethod
    def of(cls, body: Any) -> Beginning:
        """The beginning of a text, or of a JSON value as text."""
        whole = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
        return cls(pictured(whole[:BEGINNING_CHARS_MAX]), len(whole))

    @property
    def is_all(self) -> bool:
        return self.characters <= BEGINNING_CHARS_MAX
