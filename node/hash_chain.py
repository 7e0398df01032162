"""A hash chain of trail entries: each has the SHA-256 over the one before and its own content.

Whoever changes, removes or slips in an entry breaks it from there on. It cannot show that the newest ones are missing,
or that somebody who writes all of it made it anew: for that, a hash is kept elsewhere and looked for (`head`).
The console keeps its chain in its database (app.security.trail_chain), a node in a file (node.operator_trail); an entry
of both is written as the same line of JSON (`line_of`), and both are checked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

BEGUN: Final = "begun"
ENDED: Final = "ended"
CUT: Final = "cut"
WRITTEN: Final = "written_at"  # of a content: when its entry was made, which the entry says beside it, too
ORIGIN: Final = "0" * 64
PROBLEMS_MAX: Final = 100
Json = dict[str, Any]


class Link(Protocol):
    """An entry of a chain."""

    @property
    def seq(self) -> int: ...
    @property
    def content(self) -> str: ...
    @property
    def previous_hash(self) -> str: ...
    @property
    def hash(self) -> str: ...


def hash_of(previous: str, content: str) -> str:
    return hashlib.sha256(f"{previous}\n{content}".encode()).hexdigest()


def canonical(content: Json) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def parse(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def line_of(one: Link, at: str) -> str:
    """An entry as a line: `hash` is the SHA-256 of `previous_hash`, a newline and `content`."""
    said = {
        "seq": one.seq, "at": at, "content": one.content, "previous_hash": one.previous_hash, "hash": one.hash,
    }  # fmt: skip
    return json.dumps(said) + "\n"


@dataclass(slots=True)
class Verified:
    """`head`: the newest entry's hash. `rows_without_end`: they run still, or a crash or somebody took their ends away.
    `problems`: what does not fit, the first PROBLEMS_MAX."""

    entries: int = 0
    rows: int = 0
    rows_without_end: int = 0
    older_rows: int = 0  # from before there was a chain
    head: str = ORIGIN
    head_found: bool | None = None
    problems: list[str] = field(default_factory=list)

    def found(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)

    def passed(self, one: Link, head: str | None) -> None:
        self.entries, self.head = self.entries + 1, one.hash
        if head is not None and one.hash == head:
            self.head_found = True

    def end(self, head: str | None) -> None:
        if self.head_found is False:
            self.found(f"no entry has the hash {head}: the chain was made anew, or its end was removed")


def check_time(done: Verified, one: Link, content: Json, at: str) -> None:
    """`at`: what stands beside the content. Entries of earlier releases have it there alone, and nothing vouches for
    it."""
    if WRITTEN in content and content[WRITTEN] != at:
        done.found(f"entry {one.seq} was changed: it was written at {content[WRITTEN]}, and says {at}")


def check_link(done: Verified, one: Link, previous: Link | None, cuts: Mapping[int, Json]) -> None:
    """`cuts`: what the chain says of removed beginnings, by the last entry that went."""
    if hash_of(one.previous_hash, one.content) != one.hash:
        done.found(f"entry {one.seq} was changed: its hash is not its content's")
    if previous is None:
        cut = cuts.get(one.seq - 1)
        if one.seq != 1 and (cut is None or cut["hash"] != one.previous_hash):
            done.found(f"the chain begins with entry {one.seq}, and nothing says that those before were removed")
        elif one.seq == 1 and one.previous_hash != ORIGIN:
            done.found("entry 1 does not begin the chain")
        return
    if one.seq <= previous.seq:
        done.found(f"entry {one.seq} stands behind entry {previous.seq}: it was moved, or slipped in")
    elif one.seq != previous.seq + 1:
        done.found(f"entries {previous.seq + 1} to {one.seq - 1} are missing")
    elif one.previous_hash != previous.hash:
        done.found(f"entry {one.seq} does not follow entry {previous.seq}")
