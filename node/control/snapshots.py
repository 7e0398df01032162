"""Snapshots: relays the engine's copied state to HTTP clients; costs the engine no work per client.

Invariants: many callers within CACHE_S cost the engine one question; an answer says how true it is (`engine: ok`;
`stale`: it does not answer, this is what it said last; `down`: it does not run, and why). What nobody knows is null and
listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Final, TypeVar, cast

from node.config import Settings
from node.control.data_look import DataLook
from node.control.engine_link import EngineAway, EngineForeign, EngineLink, EngineRefused, EngineSilent
from node.control.log_files import LogFiles
from node.control.shared_work import SharedWork
from node.control_url import control_url
from node.protocol.codes import RequestCode
from node.views.base import AnswerView, UnknownView
from node.views.closures import ClosuresView
from node.views.events import EventsView
from node.views.kinds import VIEWS
from node.views.members import MembersView
from node.views.reading import Unreadable, read
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import DiskView, LogView, PeerView, StateView

V = TypeVar("V", bound=AnswerView)
CACHE_S = 0.05
TIMEOUT_S = 0.4
LATE_S = 5.0  # before an operator's action is refused
LATE_PAUSE_S = 0.1  # between two questions to one that closes its connections
EVENTS_KEPT = 16
NAMES: Final[Mapping[type[AnswerView], str]] = {view: name for name, view in VIEWS.items()}
# What a leader's views say where no engine runs.
EMPTY: Final[Mapping[type[AnswerView], AnswerView]] = {
    WatermarksView: WatermarksView(
        term=None, leader_id=None, quorum_index=None, needed=None, end_index=None, committed_index=None,
        applied_index=None, peers=(),
    ),
    DispatchersView: DispatchersView(items=(), next=None),
    MembersView: MembersView(term=None, leader_id=None, index=None, needed=None, items=(), pending=None, removed=()),
    ClosuresView: ClosuresView(pending=None, limit=None, oldest_age_ms=None, groups=(), items=()),
}  # fmt: skip


def now_s() -> float:
    """For ages only; the loop's own clock."""
    return asyncio.get_running_loop().time()


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Snapshots:
    """One per control plane. `without_log` answers instead of an engine where none is to run (classic mode)."""

    def __init__(self, settings: Settings, link: EngineLink, files: LogFiles) -> None:
        self.settings, self.link, self.files = settings, link, files
        self.last: dict[str, tuple[float, AnswerView]] = {}
        self.missed: dict[str, tuple[float, AnswerView]] = {}  # what stood in for an answer
        self.locks: dict[str, asyncio.Lock] = {}
        self.late: SharedWork[AnswerView] = SharedWork(len(VIEWS))  # what is asked of an engine that is late
        self.unheard_since: str | None = None
        self.events_after: dict[str | None, tuple[float, asyncio.Future[EventsView]]] = {}
        self.data_look: DataLook[str | None] | None = None  # why no engine runs
        self.without_log: Callable[[type[AnswerView]], Awaitable[AnswerView]] | None = None

    async def get(self, view: type[V]) -> V:
        """State, watermarks, dispatchers or closures, at most CACHE_S old while the engine answers."""
        if self.without_log is not None:
            return cast(V, await self.without_log(view))
        what, came_s = NAMES[view], now_s()
        async with self.locks.setdefault(what, asyncio.Lock()):
            known, missed = self.last.get(what), self.missed.get(what)
            if known is not None and now_s() - known[0] < CACHE_S:
                return cast(V, known[1])
            if missed is not None and missed[0] > came_s:  # it was found out while this caller waited
                return cast(V, missed[1])
            try:
                return await self.heard(view, TIMEOUT_S)
            except (EngineAway, EngineSilent, EngineRefused) as error:
                instead = await self.stand_in(view, error)
            self.missed[what] = (now_s(), instead)
            return instead

    async def get_late(self, view: type[V], within_s: float) -> V:
        """The same for whoever is about to change something: an engine that is late (a busy disk, a busy machine) has
        so long to answer, LATE_S at most. However many wait, it is asked once for all of them."""
        said = await self.get(view)
        if said.engine != "stale":
            return said
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return cast(V, await self.late.get(view, lambda: self.heard(view, LATE_S)))
                    except EngineSilent:
                        await asyncio.sleep(LATE_PAUSE_S)
                    except (EngineAway, EngineRefused) as error:
                        return await self.stand_in(view, error)
        except TimeoutError:
            return said.model_copy(update={"engine_reason": f"no answer within {within_s:g} s"})

    async def heard(self, view: type[V], timeout_s: float) -> V:
        """The engine's own answer, which is kept. Raises EngineAway, EngineSilent, EngineRefused."""
        answer = await self.ask(view, timeout_s=timeout_s)
        self.unheard_since = None
        self.last[NAMES[view]] = (now_s(), answer)
        return answer

    async def stand_in(self, view: type[V], error: Exception) -> V:
        """What there is in place of the engine's answer."""
        if isinstance(error, EngineAway):
            return await self.without_engine(view, "down", await self.down_reason(error))
        return await self.without_engine(view, "stale", str(error))

    def outdate(self) -> None:
        """After a write through this control plane: whoever asks next sees it."""
        self.last = {what: (0.0, answer) for what, (_, answer) in self.last.items()}

    def last_boot_id(self) -> str | None:
        """Of the engine that answered last."""
        known = self.last.get(NAMES[StateView])
        return None if known is None else known[1].boot_id

    async def ask(self, view: type[V], since: str | None = None, timeout_s: float = TIMEOUT_S) -> V:
        """The engine's own words. Raises EngineAway, EngineSilent, EngineRefused."""
        what = NAMES[view]
        fields = {"what": what} | ({"since": since} if since is not None else {})
        answer = await self.link.json(RequestCode.INTROSPECT, fields, timeout_s)
        if "as_of" not in answer:
            raise EngineRefused(str(answer.get("detail") or f"the engine refused: {answer.get('code')}"))
        try:
            return read(view, answer)
        except Unreadable as error:
            raise EngineRefused(f"its {what} cannot be read: {error}") from None

    async def events(self, since: str | None, age_s: float = 0.0) -> EventsView:
        """What came after `since`. Streams that have come equally far share one answer of `age_s`."""
        known = self.events_after.get(since)
        if known is not None and now_s() - known[0] < age_s:
            return await asyncio.shield(known[1])
        asked = asyncio.ensure_future(self.ask_events(since))
        if age_s > 0:
            self.events_after.pop(since, None)
            while len(self.events_after) >= EVENTS_KEPT:
                del self.events_after[next(iter(self.events_after))]
            self.events_after[since] = now_s(), asked
        return await asyncio.shield(asked)

    async def ask_events(self, since: str | None) -> EventsView:
        try:
            return await self.ask(EventsView, since)
        except (EngineAway, EngineSilent, EngineRefused) as error:
            engine = "down" if isinstance(error, EngineAway) else "stale"
            return self.marked(EventsView(items=(), next=since), engine, str(error))

    def marked(self, view: V, engine: str, reason: str) -> V:
        """An answer that is not the engine's own."""
        self.unheard_since = self.unheard_since or now_text()
        common = {"as_of": now_text(), "engine": engine, "engine_reason": reason, "boot_id": None}
        return view.model_copy(update=common)

    async def without_engine(self, view: type[V], engine: str, reason: str) -> V:
        """The last answer, marked as what it is; without one, what the files tell."""
        what = NAMES[view]
        known = self.last.get(what)
        self.unheard_since = self.unheard_since or now_text()
        missing = UnknownView(field=what, reason=f"the engine is {engine}: {reason}", since=self.unheard_since)
        if known is not None:
            answer = cast(V, known[1])
            unknown = (*(getattr(answer, "unknown", None) or ()), missing)
            changed: dict[str, object] = {"engine": engine, "engine_reason": reason, "unknown": unknown}
            if engine == "down":
                changed |= self.ended(view)
            return answer.model_copy(update=changed)
        found = await self.state_from_files() if what == "state" else EMPTY[view]
        return cast(V, self.marked(found, engine, reason).model_copy(update={"unknown": (missing,)}))

    def ended(self, view: type[AnswerView]) -> dict[str, object]:
        """What a process that is gone cannot be any more."""
        if view is StateView:
            return {"role": None, "leader_id": None, "transferee": None}
        return {name: getattr(EMPTY[view], name) for name in EMPTY[view].model_fields_set}

    async def state_from_files(self) -> StateView:
        settings = self.settings
        node = settings.node
        # What lies in a file that is not read is not known to be nothing.
        marks = await self.files.marks() if await self.files.are_all_read() else None
        return StateView(
            engine="down",
            group=node.group,
            self_id=node.id,
            role=None,
            term=None,
            leader_id=None,
            voted_for=None,
            transferee=None,
            flush=node.flush.value,
            voter_state=None,
            data_dir=str(settings.store_directory),
            log=LogView(
                begin_index=None if marks is None else marks.begin_index,
                end_index=None if marks is None else marks.end_index,
                end_term=None,
                durable_index=None if marks is None else marks.durable_index,
                committed_index=None if marks is None else marks.committed_index,
                applied_index=None,
                size_bytes=None,
                committed_chain_crc=None,
            ),
            peers=tuple(
                PeerView(id=key, address=address, control_url=control_url(settings) if key == node.id else None)
                for key, address in settings.peers.items()
            ),
            disk=DiskView(),
            alarms=(),
            version=None,
        )

    async def down_reason(self, tried: EngineAway) -> str:
        """Who listens there instead; what the data directory tells of the engine's end; else that nobody listens."""
        if isinstance(tried, EngineForeign):
            return str(tried)
        nobody = f"nothing answers at its port ({tried})"
        if self.data_look is None:
            return nobody
        if not await self.data_look.ask():
            return f"{nobody}, nor does the disk of {self.data_look.data}: see whether it hangs"
        return self.data_look.known or nobody
