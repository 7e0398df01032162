"""Operations of this node: started with 202, looked at until they end, kept for a while.

Invariants: a caller's Idempotency-Key with the same call finds the first operation, with another call nothing (422),
and never another caller's; every operation gets exactly one end, and one whose answer never came ends `unknown`.
Bounded: so many of one kind run at a time, and the oldest that ended make room.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from starlette.responses import Response

from node.background import Background
from node.control.engine_link import EngineAway, EngineDeclined, EngineLink, EngineRefused, EngineSilent
from node.control.problems import Problem
from node.protocol.codes import RequestCode, ResponseCode

Json = dict[str, Any]
T = TypeVar("T")
KEPT_MAX = 1000
RUNNING_MAX = 16  # of one kind: each asks the engine several times a second; no kind takes another one's places
RUNNING = "running"
DECLINES = range(400, 500)  # the response codes of requests that were refused before anything was done
IN_ROUNDS = frozenset({"trim"})  # kinds that ask the engine again and again, and can end between two of these requests


def located(response: Response, operation: Json) -> Json:
    """The operation, whether this call started it or one before with the same key, and where it is asked about."""
    response.headers["location"] = f"/api/v1/operations/{operation['id']}"
    return operation


class Operations:
    """In memory: a control plane that restarts has forgotten them, and says 404."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Json] = OrderedDict()
        self.by_key: dict[tuple[str, str], tuple[str, str]] = {}  # (caller, key) -> (operation, what was asked)
        self.unwanted: set[str] = set()  # those that run and are to end before their next round
        self.caller: Callable[[], str] = lambda: ""  # whose call is being carried out
        self.background = Background()
        # The trail's: `started(operation, asked)` gives the row under which `ended` notes how it was over.
        self.started: Callable[[Json, Json], int | None] = lambda _operation, _asked: None
        self.ended: Callable[[int, Json], Awaitable[None]] | None = None

    def earlier(self, kind: str, key: str | None, asked: Json) -> Json | None:
        """What this key has started; 422 where it stands for another call. Raises Problem."""
        known, said = ("", "") if key is None else self.by_key.get((self.caller(), key), ("", ""))
        if not known:
            return None
        if said != call_of(kind, asked):
            text = "This Idempotency-Key was used for another call; take a new key. Nothing was started."
            raise Problem(422, "Key used already", text)
        return self.kept.get(known)

    def start(
        self, kind: str, key: str | None, asked: Json, progress: str, work: Callable[[], Awaitable[Json]]
    ) -> Json:
        """`work` returns the end, {state, outcome} or {state, problem}; see `end_of`. Raises Problem: nothing began."""
        if (known := self.earlier(kind, key, asked)) is not None:
            return known
        self.check_room(kind)
        operation: Json = {
            "id": str(uuid.uuid4()),
            "kind": kind,
            "state": RUNNING,
            "progress": progress,
            "outcome": None,
            "problem": None,
        }
        self.keep(operation, key, call_of(kind, asked))
        row = self.started(operation, asked)
        self.background.run(name_of(operation), self.run(operation, work, row))
        return operation

    async def until_ended(self, operation: Json) -> None:
        """For a call that answers with what it came to. Whoever goes away leaves the operation as it is."""
        task = self.background.get(name_of(operation))
        if task is not None:
            await asyncio.wait([task])

    def forget(self, operation: Json) -> None:
        """It changed nothing, and its key may be used again."""
        self.kept.pop(operation["id"], None)
        self.by_key = {name: value for name, value in self.by_key.items() if value[0] != operation["id"]}

    def check_room(self, kind: str) -> None:
        """Raises Problem."""
        running = sum(one["state"] == RUNNING and one["kind"] == kind for one in self.kept.values())
        if running >= RUNNING_MAX:
            text = (
                f"{running} operations of this kind ({kind}) run at this node, as many as it takes: ask again when one"
                " has ended; GET operations lists them. Nothing was started."
            )
            raise Problem(503, "Too many operations", text, headers={"retry-after": "1"})

    def keep(self, operation: Json, key: str | None, said: str) -> None:
        self.kept[operation["id"]] = operation
        if key is not None:
            self.by_key[self.caller(), key] = operation["id"], said
        ended = [one for one, operation in self.kept.items() if operation["state"] != RUNNING]
        for one in ended[: max(0, len(self.kept) - KEPT_MAX)]:
            self.forget(self.kept[one])

    async def run(self, operation: Json, work: Callable[[], Awaitable[Json]], row: int | None = None) -> None:
        try:
            operation |= await end_of(work())
        except asyncio.CancelledError:
            operation |= unknown("the control plane stopped")
            raise
        except Exception as error:
            operation |= unknown(f"{type(error).__name__}: {error}")
        finally:
            self.unwanted.discard(operation["id"])
        if row is not None and self.ended is not None:
            await self.ended(row, operation)

    def get(self, operation_id: str) -> Json:
        found = self.kept.get(operation_id)
        if found is None:
            raise Problem(404, "Unknown operation", f"There is no operation {operation_id} (any more).")
        return found

    def cancel(self, operation_id: str) -> Json:
        """Has it end before its next round. Raises Problem, also where it has none."""
        found = self.get(operation_id)
        if found["state"] != RUNNING:
            raise Problem(409, "It has ended", f"The operation is {found['state']} already.")
        if found["kind"] not in IN_ROUNDS:
            text = f"What was asked for ({found['kind']}) is under way, and ends by itself: look again then."
            raise Problem(409, "Not cancellable", text)
        self.unwanted.add(operation_id)
        return found

    def is_unwanted(self, operation: Json) -> bool:
        return operation.get("id") in self.unwanted

    async def close(self) -> None:
        await self.background.stop()


def name_of(operation: Json) -> str:
    """Of its task."""
    return f"operation {operation['kind']} {operation['id']}"


def call_of(kind: str, asked: Json) -> str:
    return json.dumps([kind, asked], sort_keys=True)


async def act(link: EngineLink, what: str, timeout_s: float, **fields: object) -> Json:
    """An operator action: the answer to one that was begun. Raises EngineAway, EngineSilent, EngineRefused,
    EngineDeclined."""
    answer = await link.json(RequestCode.OPERATOR_ACTION, {"what": what, **fields}, timeout_s)
    code = answer.get("code")
    if code == ResponseCode.SUCCESS:
        return answer
    reason = str(answer.get("detail") or f"the engine answers {code}")
    if isinstance(code, int) and code in DECLINES:
        raise EngineDeclined(reason, code)
    raise EngineRefused(reason)


async def end_of(work: Awaitable[Json]) -> Json:
    """What asking the engine came to: its own answer, failed where nothing was sent to it or it refused, or unknown."""
    try:
        return await work
    except EngineAway as error:
        return {"state": "failed", "problem": {"title": "The engine is down", "detail": str(error)}}
    except EngineSilent as error:
        if error.sent:
            return unknown(str(error))
        return {"state": "failed", "problem": {"title": "The engine does not answer", "detail": str(error)}}
    except EngineDeclined as error:
        return {"state": "failed", "problem": refusal(error)}
    except EngineRefused as error:
        return unknown(str(error))


async def once_begun(asking: Awaitable[T]) -> T:
    """A further question of an operation: that it was not sent says nothing of what the first one began."""
    try:
        return await asking
    except (EngineAway, EngineSilent) as error:
        raise EngineSilent(str(error)) from error


def refusal(error: EngineDeclined) -> Json:
    """The engine's own reason, and its code."""
    return {"title": "The engine refused", "detail": str(error), "code": error.code}


def unknown(why: str) -> Json:
    return {"state": "unknown", "problem": {"title": "Outcome unknown", "detail": why}}
