"""Operations of this node: started with 202, looked at until they end, kept for a while.

Invariants: the same Idempotency-Key finds the first operation; every operation gets exactly one end, and one whose
answer never came ends `unknown`. Bounded: the oldest that ended make room.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from node.background import Background
from node.control.problems import Problem

Json = dict[str, Any]
KEPT_MAX = 1000
RUNNING = "running"


class Operations:
    """In memory: a control plane that restarts has forgotten them, and says 404."""

    def __init__(self) -> None:
        self.kept: OrderedDict[str, Json] = OrderedDict()
        self.by_key: dict[str, str] = {}
        self.background = Background()

    def start(self, kind: str, key: str | None, progress: str, work: Callable[[], Awaitable[Json]]) -> Json:
        """`work` returns the end: {state, outcome} or {state, problem}."""
        if key is not None and (known := self.kept.get(self.by_key.get(key, ""))) is not None:
            return known
        operation: Json = {
            "id": str(uuid.uuid4()),
            "kind": kind,
            "state": RUNNING,
            "progress": progress,
            "outcome": None,
            "problem": None,
        }
        self.keep(operation, key)
        self.background.run(f"operation {kind} {operation['id']}", self.run(operation, work))
        return operation

    def keep(self, operation: Json, key: str | None) -> None:
        self.kept[operation["id"]] = operation
        if key is not None:
            self.by_key[key] = operation["id"]
        ended = [one for one, operation in self.kept.items() if operation["state"] != RUNNING]
        for one in ended[: max(0, len(self.kept) - KEPT_MAX)]:
            del self.kept[one]
            self.by_key = {name: value for name, value in self.by_key.items() if value != one}

    async def run(self, operation: Json, work: Callable[[], Awaitable[Json]]) -> None:
        try:
            operation |= await work()
        except asyncio.CancelledError:
            operation |= unknown("the control plane stopped")
            raise
        except Exception as error:
            operation |= unknown(f"{type(error).__name__}: {error}")

    def get(self, operation_id: str) -> Json:
        found = self.kept.get(operation_id)
        if found is None:
            raise Problem(404, "Unknown operation", f"There is no operation {operation_id} (any more).")
        return found

    async def close(self) -> None:
        await self.background.stop()


def unknown(why: str) -> Json:
    return {"state": "unknown", "problem": {"title": "Outcome unknown", "detail": why}}
