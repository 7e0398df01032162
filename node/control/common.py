"""Parts that the routers share: the objects of a control plane, and bounded parameters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Request, Response

from node.changing_keys import with_keys
from node.config import Settings
from node.control.data_look import DataLook
from node.control.engine_link import EngineLink
from node.control.log_files import LogFiles
from node.control.operations import Operations
from node.control.problems import Problem
from node.control.shared_work import SharedWork
from node.control.snapshots import LATE_S, Snapshots
from node.paging import page
from node.protocol.codes import ResponseCode
from node.rereading import Rereading
from node.views.base import View
from node.views.members import MembersView
from node.views.replication import DispatchersView
from node.views.state import StateView

if TYPE_CHECKING:
    from node.control.broker_alarms import BrokerAlarms
    from node.control.broker_link import BrokerLink

Json = dict[str, Any]
T = TypeVar("T")
INT64_MAX = (1 << 63) - 1
DIGESTS_MAX = 8  # different ranges at a time; however many ask for one, it is read once

Index = Annotated[int, Path(ge=0, le=INT64_MAX)]
From = Annotated[int | None, Query(alias="from", ge=0, le=INT64_MAX)]
IndexCursor = Annotated[int | None, Query(ge=0, le=INT64_MAX, description="`next` of the answer before this one")]
To = Annotated[int | None, Query(ge=0, le=INT64_MAX)]
Limit = Annotated[int, Query(ge=1, le=1000)]
Cursor = Annotated[str | None, Query(max_length=128)]


def begin_at(from_: From = None, cursor: IndexCursor = None) -> int | None:
    """Where a list of entries begins: whoever follows `next` names what it named before, and the cursor."""
    return from_ if cursor is None else cursor


Begin = Annotated[int | None, Depends(begin_at)]


@dataclass(slots=True)
class Parts:
    """One control plane."""

    settings: Settings
    link: EngineLink
    files: LogFiles
    bulk: LogFiles
    snapshots: Snapshots
    operations: Operations
    version: str
    stopping: asyncio.Event
    digests: SharedWork[list[Json]] = field(default_factory=lambda: SharedWork(DIGESTS_MAX))
    event_readers: Counter[str] = field(default_factory=Counter)  # open streams of events by the named token's id
    rereading: Rereading = field(default_factory=Rereading)
    started_with: str | None = None  # the command that starts this node again
    data_look: DataLook[bool] | None = None  # whether nothing may be written to the data directory
    unwritable_since: str | None = None  # since when
    broker: BrokerLink | None = None  # where the group has brokers
    broker_alarms: BrokerAlarms | None = None
    flush_changed: bool = False  # the configuration says another one by now: the engine knows which is in force

    def reread(self, settings: Settings) -> None:
        """The configuration was read again; what is in force, the engine says in its state."""
        if settings.node.flush is not self.settings.node.flush:
            self.flush_changed = True
            self.settings = self.snapshots.settings = with_keys(self.settings, settings, ["node.flush"])

    async def flush(self) -> str | None:
        """The one in force; None: nobody knows."""
        if not self.flush_changed:
            return self.settings.node.flush.value
        return (await self.snapshots.get(StateView)).flush


async def parts_of(request: Request) -> Parts:  # async: FastAPI sends a plain function through a thread, each time
    parts: Parts = request.app.state.parts
    return parts


PartsDep = Annotated[Parts, Depends(parts_of)]


def paged(
    items: Sequence[T], name: Callable[[T], str], limit: int, cursor: str | None
) -> tuple[Sequence[T], str | None]:
    """What is shown of a list that is whole in memory, and its `next`. Raises Problem."""
    try:
        return page(items, name, limit, cursor)
    except ValueError as error:
        raise Problem(422, "Invalid request", str(error)) from None


def page_answer(
    view: DispatchersView | MembersView, name: Callable[[Any], str], limit: int, cursor: str | None
) -> Response:
    """A page of the view's items. Raises Problem."""
    shown, then = paged(view.items or (), name, limit, cursor)
    items = None if view.items is None else tuple(shown)
    return answer(view.model_copy(update={"items": items, "next": then}))


def answer(view: View) -> Response:
    """A view as it stands: it is written as JSON once."""
    return Response(view.to_bytes(), media_type="application/json")


def not_leader(state: StateView, **extra: Any) -> Problem:
    """421 with where the call should go, as far as this node knows; 503 to try again while there is no leader."""
    code = int(ResponseCode.NOT_LEADER)
    if state.leader_id is None and any(one.code == "removed" for one in state.alarms or ()):
        others = [
            f"{one.id} at {one.control_url or one.address}" for one in state.peers or () if one.id != state.self_id
        ]
        named = f" (it knew {', '.join(others)})" if others else ""
        text = f"{state.self_id} was removed from the group, which goes on without it: send this to a member{named}."
        return Problem(421, "Not a member any more", text, code=code, **extra)
    if state.leader_id is None:
        text = "There is no leader at the moment; try again."
        return Problem(503, "No leader", text, headers={"retry-after": "1"}, code=code, **extra)
    leader = state.peer(state.leader_id)
    where: Json = {
        "leader_id": state.leader_id,
        "leader_address": None if leader is None else leader.address,
        "leader_api_url": None if leader is None else leader.control_url,
    }
    return Problem(421, "Not the leader", f"{state.leader_id} leads; send this to it.", code=code, **where, **extra)


async def state_to_act_on(parts: Parts, if_term: int | None, within_s: float = LATE_S) -> StateView:
    """For a call that changes something: an operator's action must not be refused for an engine that is late once, so
    it has up to LATE_S to answer, and less where the caller's own time ends sooner. Raises Problem: the engine does not
    answer, or is in another term than the caller looked at."""
    state = await parts.snapshots.get_late(StateView, min(LATE_S, within_s))
    if state.engine != "ok":
        raise engine_away(state)
    check_term(if_term, state)
    return state


def check_term(if_term: int | None, state: StateView) -> None:
    """Raises Problem: the caller looked at another term than this one, or nobody knows this one."""
    if if_term is not None and if_term != state.term:
        text = f"The term is {'not known' if state.term is None else state.term}, not {if_term}."
        raise Problem(412, "The term moved", text, code=int(ResponseCode.TERM_CHANGED))


def engine_away(state: StateView) -> Problem:
    """503: what was asked needs the engine."""
    text = f"The engine is {state.engine}: {state.engine_reason}"
    return Problem(503, "The engine does not answer", text, headers={"retry-after": "1"})


def below_begin(index: int, begin: int) -> Problem:
    """410: it was asked for what is gone from the front of the log."""
    code = int(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
    text = f"This log begins at {begin}; {index} was removed."
    action = f"read from {begin} on; another member may hold older entries"
    return Problem(410, "Trimmed", text, code=code, begin_index=begin, action=action)
