"""The rows of `[access]`: which client may do what on the member port (SAFETY C11).

A row is `WHO = RIGHT + RIGHT …`, or `WHO = nothing`. WHO is `anonymous`, `certificate NAME` or `token FILE`. Without
any row, whoever connects may append and read, and whoever connects from this machine may observe and operate as long as
no token file is in force. With rows, who is in none may do nothing. The node's own token always has all rights.

Invariant: a row that cannot be read is an error that names it; nothing is granted by mistake.
"""

from __future__ import annotations

import re
from enum import IntFlag
from pathlib import Path
from typing import Final, NamedTuple


class Right(IntFlag):
    """What a client may do."""

    NOTHING = 0
    APPEND = 1
    READ = 2
    OBSERVE = 4
    OPERATE = 8


ALL: Final = Right.APPEND | Right.READ | Right.OBSERVE | Right.OPERATE
RIGHTS: Final = {right.name.lower(): right for right in Right if right.name is not None} | {"nothing": Right.NOTHING}
ROWS_MAX: Final = 256
_ROW: Final = re.compile(r"\s*(anonymous|(certificate|token)\s+(\S.*?))\s*=\s*(\S.*?)\s*", re.DOTALL)


class Row(NamedTuple):
    """One row; `kind` is "anonymous", "certificate" or "token"."""

    kind: str
    name: str
    rights: Right

    @property
    def path(self) -> Path:
        """The file that a token's row names."""
        return Path(self.name)


def row_of(text: str) -> Row:
    """Raises ValueError."""
    found = _ROW.fullmatch(text)
    if found is None:
        raise ValueError(
            f'"{text}" is no row: write "anonymous = append + read", "certificate NAME = …" or "token FILE = …"'
        )
    rights = Right.NOTHING
    for word in found[4].split("+"):
        if word.strip() not in RIGHTS:
            raise ValueError(f'"{text}": {word.strip()!r} is no right; there are {", ".join(RIGHTS)}')
        rights |= RIGHTS[word.strip()]
    return Row(found[2] or found[1], found[3] or "", rights)


def rows_of(texts: tuple[str, ...]) -> tuple[Row, ...]:
    """Raises ValueError, also for two rows about the same one."""
    if len(texts) > ROWS_MAX:
        raise ValueError(f"{len(texts)} rows; {ROWS_MAX} at most")
    rows = tuple(map(row_of, texts))
    seen: set[tuple[str, str]] = set()
    for row in rows:
        if row[:2] in seen:
            raise ValueError(f"two rows are about {' '.join(row[:2]).strip()}")
        seen.add(row[:2])
    return rows
