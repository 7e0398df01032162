"""The entries of one append frame, and whose they are: what the frame's answer means for each call in it.

Invariant: a group has as many results, or errors, as calls; what an unknown outcome names is that call's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import NamedTuple

from node.client.errors import OutcomeUnknown
from node.client.link import MemberLink
from node.transport.slab_frames import AppendRequest, encode_append


class AppendResult(NamedTuple):
    """Where the entries are: inclusive indexes, and the term they were written in."""

    first_index: int
    last_index: int
    term: int


class Group:
    """The entries of one frame: of one call or of several, which have a future each. Calls are of one entry, except
    where `runs` says otherwise: (which call, how many entries)."""

    __slots__ = ("answers", "bodies", "due_s", "expected_index", "link", "opaque", "runs", "settled", "size_bytes")

    def __init__(
        self,
        bodies: Sequence[bytes],
        answers: list[asyncio.Future[AppendResult]],
        runs: Sequence[tuple[int, int]] = (),
        expected: int = -1,
    ) -> None:
        self.bodies, self.answers, self.runs, self.expected_index = bodies, answers, runs, expected
        self.size_bytes = sum(map(len, bodies))
        self.settled = False
        # While it waits for its answer the usual way: where, as which request, and until when by the loop's clock.
        self.link: MemberLink | None = None
        self.opaque, self.due_s = 0, 0.0

    def firsts(self, first: int) -> Sequence[int]:
        """Where each call begins in a log where the group begins at `first`, and where the group ends."""
        if not self.runs:
            return range(first, first + len(self.answers) + 1)
        counts = [1] * len(self.answers)
        for number, count in self.runs:
            counts[number] = count
        return list(accumulate(counts, initial=first))

    def results(self, first_index: int, term: int) -> Iterator[AppendResult]:
        """One a call. A named tuple's own constructor is Python and takes twice as long."""
        firsts = self.firsts(first_index)
        lasts = firsts if not self.runs else [stop - 1 for stop in islice(firsts, 1, None)]
        return map(tuple.__new__, repeat(AppendResult), zip(firsts, lasts, repeat(term)))

    def errors(self, error: Exception) -> Iterator[Exception]:
        """One a call. What an unknown outcome names is that call's own (SAFETY C2); nothing where the indexes that the
        member named are not as many as the entries."""
        if not isinstance(error, OutcomeUnknown) or len(self.answers) == 1:
            return repeat(error)
        firsts = self.firsts(error.first_index)
        shared = error.first_index >= 0 and firsts[-1] == error.last_index + 1
        return (_own(error, firsts[n], firsts[n + 1] - 1) if shared else _own(error) for n in range(len(self.answers)))

    def apart(self) -> list[Group]:
        """The same calls, each in a group, and so in a frame, of its own."""
        at = self.firsts(0)
        return [
            Group(self.bodies[at[number] : at[number + 1]], [answer], [(0, at[number + 1] - at[number])])
            for number, answer in enumerate(self.answers)
        ]

    def pieces(self) -> list[bytes]:
        """The body of its frame."""
        return encode_append(AppendRequest(self.bodies, self.expected_index))


def _own(error: OutcomeUnknown, first_index: int = -1, last_index: int = -1) -> OutcomeUnknown:
    term = error.term if first_index >= 0 else -1
    own = OutcomeUnknown(str(error), code=error.code, first_index=first_index, last_index=last_index, term=term)
    own.__cause__ = error.__cause__
    return own
