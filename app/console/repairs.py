"""Scrub and repair of one member, followed to the end: it reads its whole log, mends what it found, and is audited.

Invariants: an operation has exactly one end, and `done` means that the member itself said that nothing of its log is
damaged, and that the audit of that range, where one ran, found no difference. What no answer tells is `unknown`; an
audit that could not be started is said, and fails nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from app.console.errors import ConsoleError
from app.console.nodes import NodeRefused, Nodes
from app.console.remote_operations import POLL_S, followed
from app.console.transfers import problem_of
from app.db.audits import FINAL
from app.db.repositories import DONE, FAILED, UNKNOWN, Operations
from app.health.facts import entries_of, spelled_range
from node.background import Background, reason_of
from node.views.reading import Unreadable, read
from node.views.state import FaultView

Json = dict[str, Any]
KIND: Final = "scrub_and_repair"
# What starts an audit of a range, and what tells how it is: the audits' part of the console brings both.
Launch = Callable[[int | None, int | None], Awaitable[Json]]
Look = Callable[[str], Awaitable[Json | None]]
STEPS: Final = {"scrub": "Reading the whole log", "repairs": "Asking its peers for what is damaged",
                "audit": "Auditing those entries on all members"}  # fmt: skip


@dataclass(slots=True)
class Work:
    """One operation while it runs. `from_index` to `to_index`: what it is about, as far as that is known."""

    operation_id: str
    node_id: str
    url: str
    from_index: int | None
    to_index: int | None
    launch: Launch
    look: Look
    audit_cost: str = ""
    """How long the audit at the end may take: who waits for one has seen the other steps take a moment."""
    step: str = "scrub"
    skipped: set[str] = field(default_factory=set)
    detail: str | None = None
    outcome: Json = field(default_factory=dict)

    def progress(self) -> Json:
        at = list(STEPS).index(self.step)
        steps = []
        for n, (name, text) in enumerate(STEPS.items()):
            state = "done" if n < at else "now" if n == at else ""
            steps.append({"text": text, "state": "skipped" if name in self.skipped else state})
        return {"steps": steps, "detail": self.detail}

    def saw(self, faults: list[FaultView]) -> None:
        """The range that is audited afterwards covers everything that was damaged."""
        for one in faults:
            low, high = one.first_index, one.last_index
            self.from_index = low if self.from_index is None else min(low, self.from_index)
            self.to_index = high if self.to_index is None else max(high, self.to_index)


def faults_of(state: Json) -> list[FaultView]:
    """What is damaged by a member's own word. Raises Ended: who does not say it has not said that nothing is."""
    found = state.get("faults")
    try:
        if not isinstance(found, list):
            raise Unreadable("faults is no list")
        return [read(FaultView, one) for one in found]
    except Unreadable as error:
        text = f"{state.get('self_id')} does not say what of its log is damaged: {error}"
        raise Ended(UNKNOWN, "Damage unknown", text) from None


def mended_between(before: Json, after: Json) -> int:
    """How many entries a member repaired meanwhile; 0 also where it does not tell, or was started anew."""
    if before.get("boot_id") != after.get("boot_id"):
        return 0
    was, has = ((one.get("repair") or {}).get("repaired_entries") for one in (before, after))
    return max(0, has - was) if isinstance(was, int) and isinstance(has, int) else 0


class Ended(Exception):
    """The operation is over; `problem` says why it did not end well."""

    def __init__(self, state: str, title: str, detail: str) -> None:
        super().__init__(detail)
        self.state, self.problem = state, {"title": title, "detail": detail}


class Repairs:
    """Starts operations and follows them in tasks; what still runs when these are stopped is left to
    `Operations.orphaned` at the next start."""

    def __init__(self, nodes: Nodes, operations: Operations, background: Background) -> None:
        self.nodes, self.operations, self.background = nodes, operations, background

    def start(self, work: Work) -> None:
        self.background.run(f"{KIND} {work.operation_id}", self.follow(work))

    async def follow(self, work: Work) -> None:
        try:
            await self.through(work)
        except Ended as ended:
            await self.end(work, ended.state, ended.problem)
        except NodeRefused as refusal:
            await self.end(work, FAILED, problem_of(refusal))
        except ConsoleError as error:
            await self.end(work, UNKNOWN, {"title": "Outcome unknown", "detail": error.detail})
        except Exception as error:  # an answer that is none: whoever asked must not wait for ever
            await self.end(work, UNKNOWN, {"title": "Outcome unknown", "detail": reason_of(error)})
            raise
        else:
            await self.end(work, DONE, None)

    async def through(self, work: Work) -> None:
        """The three steps, one after the other. Raises Ended."""
        before = await self.state(work)
        work.saw(faults_of(before))
        read = await self.remote(work, "scrub")
        found = int((read or {}).get("faults") or 0)
        work.outcome["damaged ranges found"] = found
        after = await self.state(work)
        if faults_of(after):
            work.saw(faults_of(after))
            work.step = "repairs"
            await self.remote(work, "repairs")
            after = await self.state(work)
        elif not found and not faults_of(before):
            work.skipped.add("repairs")
        damaged, mended = faults_of(after), mended_between(before, after)
        if mended:  # a member that finds damage asks its peers by itself, perhaps before anybody looked again
            work.outcome["mended"] = f"{entries_of(mended)}, from its peers"
        if damaged:
            raise Ended(FAILED, "Not repaired", f"{len(damaged)} damaged ranges are left on {work.node_id}")
        if found == 0 and work.from_index is None:
            work.skipped.add("audit")
            work.outcome["audited"] = "nothing: nothing was damaged"
            return
        await self.audit(work)

    async def state(self, work: Work) -> Json:
        """What the member says of itself. Raises Ended."""
        state = await self.nodes.get(work.url, "state")
        if state.get("engine") != "ok":
            raise Ended(UNKNOWN, "The engine is away", f"{work.node_id} does not say what of its log is damaged")
        return state

    async def remote(self, work: Work, what: str) -> Json | None:
        """One operation of the member's own, to its end; its outcome. Raises Ended."""

        async def saw(remote: Json) -> None:
            work.detail = str(remote.get("progress") or "")
            await self.operations.set(work.operation_id, progress=work.progress())

        remote = await followed(self.nodes, work.url, what, {}, f"{work.operation_id}-{what}", saw)
        if remote.get("state") != DONE:
            problem = remote.get("problem") or {}
            state = FAILED if remote.get("state") == FAILED else UNKNOWN
            raise Ended(state, str(problem.get("title") or "It did not end well"), str(problem.get("detail") or ""))
        return remote.get("outcome")

    async def audit(self, work: Work) -> None:
        """The same range again, on all members. Raises Ended."""
        low, high = work.from_index, work.to_index
        which = "the whole log" if low is None or high is None else spelled_range(low, high)
        work.step, work.detail = "audit", f"{which}. {work.audit_cost}".strip()
        await self.operations.set(work.operation_id, progress=work.progress())
        try:
            audit = await work.launch(low, high)
        except Exception as error:  # such as a machine without Java: the repair stands all the same
            work.detail = which
            work.outcome["audited"] = f"not yet: {reason_of(error)}"
            return
        work.outcome |= {"audit_id": audit["id"], "audited": which}
        while audit["state"] not in FINAL:
            await self.operations.set(work.operation_id, progress=work.progress(), outcome=work.outcome)
            await asyncio.sleep(POLL_S)
            audit = await work.look(audit["id"]) or {**audit, "state": "failed"}
        work.detail = which
        work.outcome["verdict"] = audit.get("verdict") or audit["state"]
        if audit.get("verdict") == "divergent":
            text = f"the audit of {which} still finds replicas that differ: read on its page which one is wrong"
            raise Ended(FAILED, "The replicas still differ", text)

    async def end(self, work: Work, state: str, problem: Json | None) -> None:
        values = {"state": state, "progress": work.progress(), "outcome": work.outcome, "problem": problem}
        await self.operations.set(work.operation_id, **values)
