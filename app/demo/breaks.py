"""`demo break`: one thing goes wrong on purpose, and one reads what it was and what to watch.

Invariants: each break does exactly one thing to exactly one member; those that a machine would not mend by itself
(`flip`) touch a follower only, so that a good copy is left; `pause`, `partition` and `slow` end by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.demo.processes import broker_of, engine_of
from app.demo.relay import Links
from app.demo.state import DemoMember
from node.background import Background, reason_of
from node.protocol.entry import HEAD_BYTES, Magic
from node.store.errors import StoreError
from node.store.reader import StoreReader

MEND_AFTER_S: Final = 30.0
SLOW_BY_S: Final = 0.25
SEARCH_BACK_MAX: Final = 1000


class CannotBreak(Exception):
    """The break was not done; the message says why and what to do instead."""


@dataclass(frozen=True, slots=True)
class Broken:
    """What was done. `index` and `file` for a flip; `mends_in_s` where the demo undoes it by itself."""

    what: str
    node: str
    did: str
    watch: str
    index: int | None = None
    file: str | None = None
    mends_in_s: float | None = None


class Breaker:
    """Carries out breaks in a running demo. `leader` tells who leads now, None if nobody does."""

    def __init__(
        self,
        members: Mapping[str, DemoMember],
        links: Links,
        leader: Callable[[], Awaitable[str | None]],
        remark: Callable[[str], None],
        mend_after_s: float = MEND_AFTER_S,
    ) -> None:
        self.members = members
        self.links = links
        self.leader = leader
        self.remark = remark
        self.mend_after_s = mend_after_s
        self._menders = Background(lambda name, error: remark(f"{name}: {reason_of(error)}"))
        self.kinds: Mapping[str, Callable[[str | None], Awaitable[Broken]]] = {
            "flip": self.flip,
            "pause": self.pause,
            "kill": self.kill,
            "partition": self.partition,
            "slow": self.slow,
        }

    async def do(self, what: str, node: str | None) -> Broken:
        """Does one break; `node` None: the member that shows it best. Raises CannotBreak."""
        if what not in self.kinds:
            raise CannotBreak(f'"{what}" is no break: {", ".join(self.kinds)}')
        if node is not None and node not in self.members:
            raise CannotBreak(f'"{node}" is no member: {", ".join(self.members)}')
        broken = await self.kinds[what](node)
        self.remark(f"break {what}: {broken.did}")
        return broken

    async def heal(self, node: str | None) -> Broken:
        """Ends every break that lasts, of one member or of all, at once. What was killed starts again by itself.

        Raises CannotBreak.
        """
        if node is not None and node not in self.members:
            raise CannotBreak(f'"{node}" is no member: {", ".join(self.members)}')
        for one in self.members if node is None else (node,):
            self.links.mend(one)
            pid = engine_of(self.members[one].pid)
            if pid is not None:
                os.kill(pid, signal.SIGCONT)
        which = node or "every member"
        self.remark(f"heal: {which}")
        did = f"the links of {which} are whole and fast again, and what was paused goes on"
        return Broken("heal", which, did, "it catches up in a moment; a flipped bit stays: scrub that member")

    async def stop(self) -> None:
        """Forgets what is still to be mended; the demo ends."""
        await self._menders.stop()

    async def flip(self, node: str | None) -> Broken:
        """One bit of one committed entry's body, in a follower's data file. Raises CannotBreak."""
        leader = await self.leader()
        if node is None:
            node = next((member for member in sorted(self.members, reverse=True) if member != leader), None)
        if node is None or node == leader:
            raise CannotBreak(f"{node} leads: name a follower, so that the damage stays with one replica")
        member = self.members[node]
        index, file, at = await asyncio.to_thread(flip_one_bit, Path(member.data) / f"dledger-{node}")
        others = " ".join(f"--node {other.control_url}" for other in self.members.values())
        return Broken(
            "flip", node,
            f"one bit of entry {index} is flipped in {node}'s data file (byte {at} of {file})",
            "nothing notices yet: the group goes on, the disk lies (a demo's members do not scrub by themselves)."
            f" Run an audit, in the console or with `quorumscope audit {others}`: it names {node} and index {index}."
            f" Then `curl -X POST {member.control_url}/api/v1/scrub`: {node} reads its log and fetches it from a peer",
            index=index, file=str(file),
        )  # fmt: skip

    async def pause(self, node: str | None) -> Broken:
        """SIGSTOP of the engine: it hangs, its connections stay open."""
        leader = await self.leader()
        node = node or next((member for member in sorted(self.members, reverse=True) if member != leader), leader)
        assert node is not None
        pid = self._engine(node)
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            if engine_of(self.members[node].pid) == pid:
                os.kill(pid, signal.SIGCONT)

        self._mend_later(go_on, f"{node} goes on")
        rest = "the others elect a new leader within about a second" if node == leader else f"{node} falls behind"
        return Broken(
            "pause", node, f"{node}'s engine (pid {pid}) hangs: SIGSTOP", f"{rest}; {node} catches up when it goes on",
            mends_in_s=self.mend_after_s,
        )  # fmt: skip

    async def kill(self, node: str | None) -> Broken:
        """SIGKILL of the engine, and of the broker beside it; their supervisor starts them again."""
        leader = await self.leader()
        node = node or leader or next(iter(self.members))
        pid = self._engine(node)
        os.kill(pid, signal.SIGKILL)
        killed = f"{node}'s engine (pid {pid})"
        broker = broker_of(self.members[node].pid)
        if broker is not None:
            with contextlib.suppress(ProcessLookupError):  # without its engine it may end by itself
                os.kill(broker, signal.SIGKILL)
            killed += f" and its broker (pid {broker})"
        rest = "another member leads within a second" if node == leader else "the quorum stands without it"
        return Broken(
            "kill", node, f"{killed} {'is' if broker is None else 'are'} killed: SIGKILL",
            f"{rest}; the supervisor starts {node} again, and it catches up. No acknowledged message is lost",
        )  # fmt: skip

    async def partition(self, node: str | None) -> Broken:
        """Nothing passes between one member and the others."""
        leader = await self.leader()
        node = node or leader or next(iter(self.members))
        self.links.isolate(node)
        self._mend_later(lambda: self.links.mend(node), f"{node} is connected again")
        rest = (
            "without a quorum it steps down, the others elect a leader, and its unacknowledged writes end as unknown"
            if node == leader
            else "the leader shows it further and further behind; with pre-vote it does not disturb when it is back"
        )
        return Broken(
            "partition", node, f"{node} is cut off from the other members", rest, mends_in_s=self.mend_after_s
        )

    async def slow(self, node: str | None) -> Broken:
        """Everything between one member and the others takes longer."""
        leader = await self.leader()
        node = node or next((member for member in sorted(self.members, reverse=True) if member != leader), leader)
        assert node is not None
        self.links.slow(node, SLOW_BY_S)
        self._mend_later(lambda: self.links.mend(node), f"{node}'s links are fast again")
        return Broken(
            "slow", node, f"every frame from and to {node} takes {SLOW_BY_S * 1000:.0f} ms longer",
            f"{node} lags by what is on its way; appends are as fast as the faster follower",
            mends_in_s=self.mend_after_s,
        )  # fmt: skip

    def _engine(self, node: str) -> int:
        pid = engine_of(self.members[node].pid)
        if pid is None:
            raise CannotBreak(f"{node}'s engine is not running now; it is started again in a moment")
        return pid

    def _mend_later(self, mend: Callable[[], None], text: str) -> None:
        async def wait() -> None:
            await asyncio.sleep(self.mend_after_s)
            mend()
            self.remark(text)

        self._menders.run(f"mending ({text})", wait())


def flip_one_bit(store: Path) -> tuple[int, Path, int]:
    """Flips the lowest bit of a body's middle byte; returns the entry's index, the file and the byte's offset in it.

    The entry is committed, durable and well below the end: a truncation could not explain the damage away.
    Raises CannotBreak.
    """
    reader = StoreReader(store)
    known = [index for index in (reader.committed_index, reader.durable_index) if index is not None and index >= 0]
    end = min(known, default=-1)
    first = max(reader.begin_index, 0)
    start = first + (end - first) * 2 // 3
    for index in range(start, max(first, start - SEARCH_BACK_MAX) - 1, -1):
        try:
            entry = reader.entry(index) if end >= first else None
        except StoreError:
            continue  # flipped before
        if entry is None or entry.magic != Magic.NORMAL or not entry.body:
            continue
        segment = next(
            found for found in reader.segments()
            if found.kind == "data" and found.start <= entry.pos < found.start + found.size_bytes
        )  # fmt: skip
        path = store / "data" / segment.name
        offset = entry.pos - segment.start + HEAD_BYTES + len(entry.body) // 2
        descriptor = os.open(path, os.O_RDWR)
        try:
            (byte,) = os.pread(descriptor, 1, offset)
            os.pwrite(descriptor, bytes([byte ^ 1]), offset)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return index, path, offset
    raise CannotBreak("there is no committed message to flip yet; try again in a few seconds")


def as_json(broken: Broken) -> dict[str, Any]:
    """What the demo's HTTP server and `demo break --json` say."""
    from dataclasses import asdict

    return asdict(broken)
