"""Who may be connected to the member port, for how long, and with how much memory, before and after it has earned it.

A connection that others opened has a place from its accept on, before any TLS. It earns a client's place with its first
valid request and a member's with an accepted HELLO (SAFETY C10). Its address says nothing: members and attackers share
loopback and NAT.

Invariants: the places without proof are bounded, and so are all together but the members'; whoever is new gets one, and
time to speak: the unproven connection that was silent longest goes for it, none of the newest, then the client that was
idle longest (it sent nothing and took no answer), never a member. An unproven connection ends at its deadline, an
unfinished frame of a client's at its own. The memory of unfinished frames and of answers that nobody takes is bounded
in sums (`memory_share`), the latter at once where a server says `answers_wait`, else twice a second. Time spent asleep
(a paused machine) counts as one look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Final, Protocol

from node.engine.memory_share import MOST, MemoryShare
from node.views.state import ConnectionsView

MIB: Final = 1024 * 1024
LOOK_EVERY_S: Final = 0.5
UNPROVEN_WITHIN_S: Final = 10.0  # from the accept to the first valid request or the proof
FRAME_SILENT_S: Final = 10.0  # inside a client's frame without one more byte
FRAME_WITHIN_S: Final = 60.0  # a client's whole frame: 16 MiB at 280 kB/s
LATELY_S: Final = 2.0  # a client that was active within it is not idle
RANKED_AT_ONCE: Final = 32
UNTAKEN_S: Final = 60.0  # answers of which a client takes no byte
CLIENTS_MAX: Final = 1024  # unproven ones among them; members come on top
UNPROVEN_MAX: Final = 256
NEWEST_SHARE: Final = 4  # of the unproven, one in so many is too new to go: its first bytes are on their way
PLACES_MIN: Final = 16  # however few descriptors there are
UNPROVEN_FRAME_BYTES_MAX: Final = 8 * MIB  # the longest entry in base64 fits; who claims more goes at once
# In a frame for so long it may be given up for others' sake; younger ones only wait.
UNPROVEN_YIELDS_S: Final = 1.0
CLIENT_YIELDS_S: Final = 5.0
WHY: Final = "memory"


def _gone(_why: str) -> None:
    """The end of a connection that has ended."""


class Connected(Protocol):
    """A connection, as its place sees it."""

    whole_reads: int  # reads that completed a frame

    @property
    def unfinished_bytes(self) -> int: ...
    @property
    def frame_memory_bytes(self) -> int: ...
    @property
    def backlog_bytes(self) -> int: ...
    @property
    def reading_stopped(self) -> bool: ...
    def stop_reading(self, why: str) -> None: ...
    def resume_reading(self, why: str) -> None: ...
    def spare_memory(self) -> None: ...


@dataclass(slots=True, eq=False)
class Place:
    """One connection's. `end(why)` closes it at once, whatever state it is in."""

    end: Callable[[str], None]
    opened_at_s: float
    heard_at_s: float
    frame_since_s: float
    taken_at_s: float
    active_at_s: float  # when some of a request had come, or it had taken some of an answer, as last looked
    connection: Connected | None = None  # None: the TLS handshake is not done
    earned: bool = False
    seen: tuple[int, int] = (0, 0)  # whole reads, unfinished bytes, at the last look
    backlog_bytes: int = 0
    memory_bytes: int = 0

    @property
    def is_silent(self) -> bool:
        """Whether nothing has ever come."""
        return self.connection is None or not (self.connection.whole_reads or self.connection.unfinished_bytes)

    @property
    def is_stopped(self) -> bool:
        return self.connection is not None and self.connection.reading_stopped


@dataclass(slots=True)
class Counts:
    """What was done to connections, for people."""

    accepted: int = 0
    ended: Counter[str] = field(default_factory=Counter)  # by reason
    accept_errors: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # requests, by why


class Places:
    """One per member port. `members` are only counted: nothing here ends them."""

    def __init__(self, share: MemoryShare = MOST) -> None:
        self._share = share
        # How many more connections there may be, given how many there are; None: no matter.
        self.descriptors_left: Callable[[int], int] | None = None
        self.unproven: dict[Place, None] = {}  # in the order of their arrival
        self.clients: dict[Place, None] = {}
        self.members: dict[Place, None] = {}
        self._now_s = 0.0  # grows by what passed between looks, by two looks at most
        self._memory_bytes = 0  # of unfinished frames, as last counted
        self._untaken_bytes = 0  # of answers, as last counted
        self._idlest: list[Place] = []  # clients, the first to go last; some may have gone
        self._stopped: dict[Place, None] = {}  # what is not read from until there is memory
        self.counts = Counts()
        self.limit = CLIENTS_MAX

    # --- coming and going ---------------------------------------------------------------------------------------
    def take(self, end: Callable[[str], None]) -> Place:
        """A place for a connection that was accepted; others go for it."""
        self.counts.accepted += 1
        self._look_at_limit()
        if len(self.unproven) >= self.unproven_limit:
            self._free(self.unproven, "a place")
        self._free_down_to(self.limit - 1)
        now = self._now_s
        place = Place(end, now, now, now, now, now)
        self.unproven[place] = None
        return place

    def _free_down_to(self, limit: int) -> None:
        while len(self.unproven) + len(self.clients) > limit:
            if not self._free(self.unproven, "a place") and not self._free(self.clients, "a place"):
                break

    @property
    def unproven_limit(self) -> int:
        return min(UNPROVEN_MAX, max(PLACES_MIN // 2, self.limit // 2))

    def _look_at_limit(self) -> None:
        if self.descriptors_left is not None:
            here = len(self.unproven) + len(self.clients)
            left = self.descriptors_left(here + len(self.members))
            self.limit = max(PLACES_MIN, min(CLIENTS_MAX, here + left))

    def give_way(self) -> bool:
        """The system has nothing left for another one: somebody goes; False: there is nobody."""
        self.counts.accept_errors += 1
        return self._free(self.unproven, "descriptors") or self._free(self.clients, "descriptors")

    def _free(self, among: dict[Place, None], why: str) -> bool:
        if not among:
            return False
        if among is self.clients:
            last = self._idlest_client()
        else:  # the order of arrival decides between equals
            older = islice(among, len(among) - len(among) // NEWEST_SHARE)
            last = min(older, key=lambda one: (not one.is_silent, one.heard_at_s))
        self._end(last, why)
        return True

    def _idlest_client(self) -> Place:
        """There is one. Several are ranked at once: among a thousand that takes as long as the accept itself."""
        while True:
            while self._idlest:
                place = self._idlest.pop()
                if place in self.clients:
                    return place
            self._idlest = nsmallest(RANKED_AT_ONCE, reversed(self.clients), self._idleness)[::-1]

    def _idleness(self, client: Place) -> tuple[float, bool]:
        """The lower, the sooner it goes. Who waits for answers of a busy loop is not idle. Among those who were active
        lately, who is not read from has more open than it takes answers for; else the newest goes (the first of equals
        in the order that they are ranked in): a flood comes later than those who work."""
        return min(client.active_at_s, self._now_s - LATELY_S), not client.is_stopped

    def _end(self, place: Place, why: str) -> None:
        end = place.end
        self.leave(place)
        self.counts.ended[why] += 1
        end(why)

    def earned(self, place: Place, *, member: bool) -> None:
        """Its HELLO was accepted, or its first valid request came."""
        for group in (self.unproven, self.clients):
            if group.pop(place, self) is None:
                place.earned = True
                (self.members if member else self.clients)[place] = None
                if member:
                    self._memory_bytes -= place.memory_bytes
                    self._untaken_bytes -= place.backlog_bytes
                    place.memory_bytes = place.backlog_bytes = 0
                return

    def leave(self, place: Place) -> None:
        """It is gone."""
        for group in (self.unproven, self.clients, self.members, self._stopped):
            group.pop(place, None)
        self._memory_bytes -= place.memory_bytes
        self._untaken_bytes -= place.backlog_bytes
        place.memory_bytes = place.backlog_bytes = 0
        # No cycle is left for the collector: what a flood leaves would make it look at everything again and again.
        place.connection, place.end = None, _gone

    # --- memory -------------------------------------------------------------------------------------------------
    def part_came(self, place: Place) -> None:
        """Bytes of a frame that is not whole; its memory may have grown."""
        connection = place.connection
        if connection is None or place in self.members:
            return
        now_bytes = connection.frame_memory_bytes
        if not place.earned and now_bytes > UNPROVEN_FRAME_BYTES_MAX:
            self._end(place, "a long first frame")
            return
        self._count(place, now_bytes)
        if self._memory_bytes > (self._share.unfinished if place.earned else self._share.unproven):
            self._bound_memory(place, connection)

    def _count(self, place: Place, now_bytes: int) -> None:
        self._memory_bytes += now_bytes - place.memory_bytes
        place.memory_bytes = now_bytes

    def _recount(self, places: Iterable[Place]) -> int:
        for place in places:
            if place.connection is not None:
                self._count(place, place.connection.frame_memory_bytes)
        return sum(one.memory_bytes for one in places)

    def _bound_memory(self, place: Place, connection: Connected) -> None:
        """Who has been in its frame longest goes; where nobody has been for long, this one waits."""
        if self._is_over(earned=place.earned) and not self._one_yields():
            connection.stop_reading(WHY)
            self._stopped[place] = None

    def _is_over(self, *, earned: bool) -> bool:
        unproven_bytes, clients_bytes = self._recount(self.unproven), self._recount(self.clients)
        return unproven_bytes + clients_bytes > self._share.unfinished or (
            not earned and unproven_bytes > self._share.unproven
        )

    def _one_yields(self) -> bool:
        oldest = self._oldest_frame(self.unproven, UNPROVEN_YIELDS_S)
        if oldest is None and self._is_over(earned=True):
            oldest = self._oldest_frame(self.clients, CLIENT_YIELDS_S)
        if oldest is not None:
            self._end(oldest, "memory")
        return oldest is not None

    def _let_go_on(self) -> None:
        """Those that wait for memory, once there is some."""
        for earned in (True, False):
            while self._is_over(earned=earned) and self._one_yields():
                pass
            if self._is_over(earned=earned):
                continue
            for place in [one for one in self._stopped if one.earned is earned]:
                del self._stopped[place]
                if place.connection is not None:
                    place.connection.resume_reading(WHY)

    def _oldest_frame(self, among: Iterable[Place], yields_s: float) -> Place | None:
        holding = [one for one in among if one.memory_bytes and self._now_s - one.frame_since_s >= yields_s]
        return min(holding, key=lambda one: one.frame_since_s, default=None)

    # --- answers that wait to be taken --------------------------------------------------------------------------
    def answers_wait(self, place: Place) -> None:
        """More was sent there than was taken at once. At their sum's bound who has most to take goes, at once: what a
        flood asks for within LOOK_EVERY_S is more than memory has room for."""
        if place.connection is None or place in self.members:
            return
        self._note_backlog(place, place.connection.backlog_bytes)
        if self._untaken_bytes > self._share.untaken:
            for one in [*self.unproven, *self.clients]:  # others may have taken much since they were looked at
                if one.connection is not None:
                    self._note_backlog(one, one.connection.backlog_bytes)
            self._bound_untaken()

    def _note_backlog(self, place: Place, backlog_bytes: int) -> None:
        if backlog_bytes < place.backlog_bytes:
            place.active_at_s = place.taken_at_s = self._now_s
        elif not backlog_bytes:
            place.taken_at_s = self._now_s
        self._untaken_bytes += backlog_bytes - place.backlog_bytes
        place.backlog_bytes = backlog_bytes

    def _bound_untaken(self) -> None:
        while self._untaken_bytes > self._share.untaken:
            largest = max(self.clients, key=lambda one: one.backlog_bytes, default=None)
            if largest is None or not largest.backlog_bytes:
                break
            self._end(largest, "untaken answers")

    # --- deadlines ----------------------------------------------------------------------------------------------
    @property
    def need_looks(self) -> bool:
        return bool(self.unproven or self.clients)

    def look(self, passed_s: float) -> None:
        """Every LOOK_EVERY_S: ends what is over its deadlines."""
        self._now_s += min(passed_s, 2 * LOOK_EVERY_S)
        self._idlest.clear()
        self._look_at_limit()  # the store's files may have become more
        self._free_down_to(self.limit)
        for place in [*self.unproven, *self.clients]:
            why = self._look_at(place)
            if why:
                self._end(place, why)
        if self._stopped:
            self._let_go_on()
        self._bound_untaken()

    def _look_at(self, place: Place) -> str:
        """Why it has to go; empty: it may stay."""
        now, connection = self._now_s, place.connection
        if not place.earned and now - place.opened_at_s > UNPROVEN_WITHIN_S:
            return "no handshake" if connection is None else "nothing valid in time"
        if connection is None:
            return ""
        unfinished, whole_reads = connection.unfinished_bytes, connection.whole_reads
        self._note_backlog(place, connection.backlog_bytes)
        if (whole_reads, unfinished) != place.seen:
            place.active_at_s = now
        if (whole_reads, unfinished) != place.seen or connection.reading_stopped:
            place.heard_at_s = now
            if whole_reads != place.seen[0] or not place.seen[1] or self._is_stopped_by_others(place, connection):
                place.frame_since_s = now
            place.seen = whole_reads, unfinished
        elif not unfinished:
            place.frame_since_s = now
            connection.spare_memory()
        if unfinished and now - place.heard_at_s > FRAME_SILENT_S:
            return "silence in a frame"
        if unfinished and now - place.frame_since_s > FRAME_WITHIN_S:
            return "a slow frame"
        return "untaken answers" if now - place.taken_at_s > UNTAKEN_S else ""

    def _is_stopped_by_others(self, place: Place, connection: Connected) -> bool:
        return connection.reading_stopped and place not in self._stopped

    def view(self) -> ConnectionsView:
        """For people."""
        counts = self.counts
        return ConnectionsView(
            members=len(self.members), clients=len(self.clients), unproven=len(self.unproven), limit=self.limit,
            accepted=counts.accepted, accept_errors=counts.accept_errors, ended=dict(counts.ended),
            refused=dict(counts.refused),
        )  # fmt: skip
