"""The control plane of every member beside its engine: the product's own, asked as its REST calls ask it.

It outlives its engine, not its machine. Every answer is held against what the member was, moment by moment, and against
the one committed log: what is called current was so while it was asked, what is shown as committed is.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import random
from base64 import b64decode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.consensus.api import MS
from node.consensus.effects import Event
from node.control import entries
from node.control.common import Parts
from node.control.engine_link import EngineLink
from node.control.log_files import LogFiles
from node.control.operations import Operations
from node.control.problems import Problem
from node.control.snapshots import CACHE_S, Snapshots
from node.protocol.codes import Role
from node.views.state import StateView
from tests.simulation.broker_records import words_shown
from tests.simulation.driver.control_writes import append_once
from tests.simulation.driver.loop import SimulatedLoop
from tests.simulation.driver.machine import Machine
from tests.simulation.invariants_log import Logs
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.driver.world import DriverWorld

SHOWN = 20  # entries an answer has at most
WINDOW_NS = int(CACHE_S * 1e9) + 30 * MS  # what is called current may be so old; and the loop may have been busy


class OtherProcess:
    """The same disk for a process that does not die with the engine: its descriptors are its own."""

    def __init__(self, machine: Machine) -> None:
        self._platform = machine.platform
        self._opened: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    def open(self, path: Path, flags: int) -> int:
        assert not flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC), "the control plane only reads"
        fd = self._platform.open(path, flags)
        self._opened[fd] = self._platform._files[fd]
        return fd

    def close(self, fd: int) -> None:
        self._opened.pop(fd, None)
        self._platform.close(fd)

    def _own(self, fd: int) -> int:
        self._platform._files.setdefault(fd, self._opened[fd])
        return fd

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        return self._platform.pread(self._own(fd), length, offset)

    def seek_data(self, fd: int, offset: int) -> int:
        return self._platform.seek_data(self._own(fd), offset)

    def file_key(self, fd: int) -> tuple[int, int]:
        return self._platform.file_key(self._own(fd))

    def file_size(self, fd: int) -> int:
        return self._platform.file_size(self._own(fd))

    def drop_cache(self, fd: int, offset: int, length: int) -> None:
        """Another process's advice changes nothing here."""


class Moments(Observer):
    """What each member was, since when: (boot id or "", term, role, committed).

    Roles that begin and end within one turn of its loop count too: who asked in that turn was answered with them.
    """

    def __init__(self) -> None:
        self._at: dict[str, list[int]] = {}
        self._was: dict[str, list[tuple[str, int, str, int]]] = {}

    def started(self, world: Any) -> None:
        for one in world.ids:
            self._at[one], self._was[one] = [0], [("", -1, "", -1)]

    def stepped(self, world: Any) -> None:
        for member in world.touched:
            replica, engine = member.replica, member.engine
            now = ("", -1, "", -1)
            if replica is not None and engine is not None:
                now = (engine.boot_id, replica.term, replica.role.value, replica.committed_index)
            self._note(member.id, world.now, now)

    def event(self, member: Any, event: Event) -> None:
        replica, engine = member.replica, member.engine
        if event.kind == "role" and replica is not None and engine is not None:
            was = engine.boot_id, int(event.detail["term"]), str(event.detail["role"]), replica.committed_index
            self._note(member.id, member.world.now, was)

    def _note(self, member_id: str, at_ns: int, was: tuple[str, int, str, int]) -> None:
        if self._was[member_id][-1] != was:
            self._at[member_id].append(at_ns)
            self._was[member_id].append(was)

    def between(self, member_id: str, first_ns: int, last_ns: int) -> list[tuple[str, int, str, int]]:
        """All that it was in this span of time."""
        begin = max(0, bisect.bisect_right(self._at[member_id], first_ns) - 1)
        return self._was[member_id][begin : bisect.bisect_right(self._at[member_id], last_ns)]


class ControlPlanes(Observer):
    """One control plane a machine, and somebody who asks it things all the time. Comes after `Logs`."""

    def __init__(self, mirrors: Mirrors, logs: Logs, moments: Moments) -> None:
        self._mirrors, self._logs, self._moments = mirrors, logs, moments
        self._world: DriverWorld | None = None
        self._running: dict[str, SimulatedLoop] = {}
        self._waiting: dict[str, set[int]] = {}  # member -> its control plane's operations that are under way

    # --- life -----------------------------------------------------------------------------------------------------
    def started(self, world: Any) -> None:
        self._world = world

    def booted(self, member: Any) -> None:
        assert self._world is not None
        if member.id not in self._running and self._world.config.looks:
            rng = random.Random(f"control {member.id} {self._world.seed} {member.incarnation}")
            loop = SimulatedLoop(
                self._world.timeline, member.id, member.clock, self._world.network, rng, self._loop_error
            )
            self._running[member.id] = loop
            loop.run_here(self._begin, loop, member, rng)

    def _begin(self, loop: SimulatedLoop, member: Machine, rng: random.Random) -> None:
        disk: Any = OtherProcess(member)
        link, files = EngineLink(member.settings, disk), LogFiles(member.settings, disk)
        snapshots = Snapshots(member.settings, link, files)
        parts = Parts(member.settings, link, files, files, snapshots, Operations(), "0", asyncio.Event())
        self._waiting[member.id] = set()
        loop.create_task(self._ask(member, parts, rng))
        loop.create_task(self._append(member, parts, random.Random(rng.getrandbits(64))))

    def crashed(self, member: Any, how: str) -> None:
        if how == "power_loss" and member.id in self._running:
            self._running.pop(member.id).kill()
            for number in self._waiting.pop(member.id):  # nobody is left to hear how it went
                assert self._world is not None
                reads = self._world.history.operations[number].kind == "read"
                self._world.workload.complete(number, "fail" if reads else "unknown")

    def _loop_error(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        assert self._world is not None
        if loop.alive:
            text = f"control plane of {loop.machine}: {context.get('message')}: {context.get('exception')!r}"
            self._world.violate(Violation("no_exception", text))

    # --- questions ------------------------------------------------------------------------------------------------
    async def _append(self, member: Machine, parts: Parts, rng: random.Random) -> None:
        assert self._world is not None
        while self._world.workload.running:
            await asyncio.sleep(rng.expovariate(self._world.config.looks / 3))
            try:
                if self._world.workload.running:
                    await append_once(self._world, member, parts, rng, self._waiting[member.id])
            except Violation as violation:
                self._world.violate(violation)

    async def _ask(self, member: Machine, parts: Parts, rng: random.Random) -> None:
        """Every question is a task of its own, as every REST call is: none waits for the one before."""
        assert self._world is not None
        while self._world.workload.running:
            await asyncio.sleep(rng.expovariate(self._world.config.looks))
            if self._world.workload.running:
                work = self._question(member, parts, random.Random(rng.getrandbits(64)))
                self._running[member.id].create_task(work)

    async def _question(self, member: Machine, parts: Parts, rng: random.Random) -> None:
        assert self._world is not None
        first, what, began = self._world.base.index + 1, rng.random(), self._world.now
        reported = max(self._world.history.reported_index, first - 1)
        begin = None if rng.random() < 0.7 else rng.randrange(first, reported + 2)
        try:
            if what < 0.4:
                self._state(member, await parts.snapshots.get(StateView), began)
            elif what < 0.7:
                self._committed(member, await entries.entries(parts, begin, 1 + rng.randrange(SHOWN), "base64"))
            elif what < 0.85:
                held = self._held(member)
                self._raw(member, await entries.entries(parts, begin, SHOWN, "base64", "raw"), held)
            else:
                await self._linearizable(member, parts, rng)
        except Problem as problem:
            self._world.workload.count(f"control {problem.status}")
            if problem.status == 500:
                self._violates("control_reads", member, f"answers 500: {problem.detail}")
        except Violation as violation:
            self._world.violate(violation)

    def _violates(self, invariant: str, member: Machine, text: str) -> None:
        assert self._world is not None
        self._world.violate(Violation(invariant, f"the control plane of {member.id} {text}"))

    # --- answers --------------------------------------------------------------------------------------------------
    def _state(self, member: Machine, state: StateView, began: int) -> None:
        """`engine: ok` is said only of what the engine was while it was asked."""
        assert self._world is not None
        engine = state.engine
        self._world.workload.count(f"control {engine}")
        if engine == "down" and (state.role is not None or state.leader_id is not None):
            self._violates("current_is_current", member, f"says that its engine is down and is {state.role}")
        if engine != "ok":
            return
        was = self._moments.between(member.id, began - WINDOW_NS, self._world.now)
        alive = [one for one in was if one[0] == state.boot_id]
        said = (state.term or 0, state.role, state.marks.committed_index or 0)
        if not alive:
            self._violates("current_is_current", member, f"says that its engine is {said}; there was none: {was[:4]}")
            return
        terms, marks = [one[1] for one in alive], [one[3] for one in alive]
        leads = state.role == Role.LEADER.value
        true = min(terms) <= said[0] <= max(terms) and min(marks) <= said[2] <= max(marks)
        if not true or (leads and all(one[1:3] != (said[0], said[1]) for one in alive)):
            self._violates("current_is_current", member, f"says that its engine is {said}; it was {alive[:4]}")

    def _committed(self, member: Machine, answer: dict[str, Any]) -> None:
        """Nothing is shown as committed that is not, and what is shown is what is committed there."""
        assert self._world is not None
        self._world.workload.count("control entries")
        self._goes_on(member, answer, answer["last_index"])
        committed = self._logs.committed
        top = max(committed.reported, committed.index, self._newest())
        if answer["last_index"] > top:
            self._violates("committed_is_committed", member, f"shows {answer['last_index']}, committed is {top}")
        for item in answer["items"]:
            index, problem = item["index"], item.get("problem")
            if index > top or problem is not None:
                text = f"shows entry {index} as committed, of {top}: {problem or 'it is not'}"
                self._violates("committed_is_committed", member, text)
            elif index <= committed.index:
                held = committed.entries[index]
                if item["term"] != held.term or (held.raw is not None and b64decode(item["body"]) != held.raw):
                    text = (
                        f"shows another entry {index} than the committed one: of term {item['term']}, not {held.term}"
                    )
                    self._violates("committed_is_committed", member, text)

    def _goes_on(self, member: Machine, answer: dict[str, Any], last: int) -> None:
        """An answer that holds less than there is says where to go on."""
        items = answer["items"]
        following = items[-1]["index"] + 1 if items else last + 1
        if items and answer["next"] != (str(following) if following <= last else None):
            text = f"shows up to {following - 1} of {last}, and says next: {answer['next']}"
            self._violates("pages_go_on", member, text)

    def _held(self, member: Machine) -> tuple[str, int] | None:
        """Whose log it is now, if nothing of it is being cut."""
        replica, engine = member.replica, member.engine
        if replica is None or engine is None or replica.member.truncating_from is not None:
            return None
        return engine.boot_id, replica.log_epoch

    def _raw(self, member: Machine, answer: dict[str, Any], held: tuple[str, int] | None) -> None:
        """What is shown of the local log lies there, where nothing was cut while it was asked for."""
        if held is None or answer["engine"] != "ok" or self._held(member) != held:
            return
        for item in answer["items"]:
            there = self._mirrors.of[member.id].at(item["index"])
            if there is None:
                continue
            problem = item.get("problem")
            shown = () if problem else (item["term"], item["chain_crc"], there.raw and b64decode(item["body"]))
            if shown != (*there.key, there.raw):
                text = f"shows entry {item['index']} as {problem or shown}; there it is of term {there.term}"
                self._violates("local_is_local", member, text)

    def _newest(self) -> int:
        """In the middle of a step: what any member says that it has committed."""
        assert self._world is not None
        members = self._world.members.values()
        return max((one.replica.committed_index for one in members if one.replica is not None), default=-1)

    async def _linearizable(self, member: Machine, parts: Parts, rng: random.Random) -> None:
        assert self._world is not None
        work, name = self._world.workload, f"control-{member.id}"
        begin = max(self._world.base.index + 1, work.history.reported_index - rng.randrange(10))
        number = work.invoke(name, "read", from_index=begin)
        self._waiting[member.id].add(number)
        try:
            answer = await entries.linearizable(parts, begin, SHOWN, "base64")
        except Problem:
            self._waiting[member.id].discard(number)
            work.complete(number, "fail")
            return
        self._waiting[member.id].discard(number)
        items = answer["items"]
        self._goes_on(member, answer, answer["committed_index"])
        shown = [(one["index"], b64decode(one["body"]) if one["magic"] == "NORMAL" else None) for one in items]
        seen = [(index, words_shown(body)) for index, body in shown] if self._world.config.broker else shown
        work.complete(number, "ok", read_index=answer["committed_index"], seen=seen)
