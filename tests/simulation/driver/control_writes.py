"""Appends over the control planes' REST call, and whoever looks right behind them.

Each is an operation of the history like any client's: what its answer says of its outcome is held against the log (C2).
Invariant: after an answer that the entries are there, the same control plane shows what it calls the present state with
them in it, unless the engine is another one by then.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from node.control import entries
from node.control.common import Parts
from node.control.problems import Problem
from node.protocol.codes import ResponseCode
from node.views.state import StateView
from tests.simulation.driver.machine import Machine
from tests.simulation.observer import Violation

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld


def _request(parts: Parts, bodies: list[bytes]) -> Request:
    sent = json.dumps({"entries": [one.decode() for one in bodies]}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": sent, "more_body": False}

    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/entries", "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "app": SimpleNamespace(state=SimpleNamespace(parts=parts)),
    }  # fmt: skip
    return Request(scope, receive)


async def append_once(world: DriverWorld, member: Machine, parts: Parts, rng: random.Random, waiting: set[int]) -> None:
    """`waiting`: the operations that nobody completes if this process ends. Raises Violation."""
    work, name = world.workload, f"control-{member.id}"
    bodies = [work.body(name, rng) for _ in range(rng.randrange(1, 4))]
    before = _boot_id(member)
    number = work.invoke(name, "append", bodies)
    waiting.add(number)
    try:
        reported = json.loads(bytes((await entries.append(_request(parts, bodies))).body))
    except Problem as problem:
        waiting.discard(number)
        work.count(f"control append {problem.status}")
        extra = problem.extra
        indexes = {one: extra[one] for one in ("first_index", "last_index", "term") if one in extra}
        result: Any = "fail" if extra.get("outcome") == "not_appended" else "unknown"
        work.complete(number, result, code=int(extra.get("code", 0)), **(indexes if result == "unknown" else {}))
        return
    waiting.discard(number)
    first, last, term = reported["first_index"], reported["last_index"], reported["term"]
    after = _boot_id(member)
    work.complete(number, "ok", code=ResponseCode.SUCCESS, first_index=first, last_index=last, term=term)
    state = await parts.snapshots.get(StateView)
    same = state.engine == "ok" and before == after == state.boot_id
    if same and (state.marks.committed_index is None or state.marks.committed_index < last):
        text = f"the control plane of {member.id} says that {last} is appended, then that {state.log} is the state"
        raise Violation("own_write_seen", text)


def _boot_id(member: Machine) -> str | None:
    return member.engine.boot_id if member.engine is not None else None
