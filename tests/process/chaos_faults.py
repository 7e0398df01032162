"""Carries out the steps of a plan on real processes, links and disks, and says each one as an operator would read it.

Invariants: a step undoes what it did, whatever happens meanwhile, and nothing that another step did; `mend` undoes
everything. `done` counts what was really done: a step that found nobody to do it to is said and not counted.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from app.demo.breaks import CannotBreak, flip_one_bit
from node.client import LedgerClient, LedgerError
from node.store.errors import StoreError
from tests.process.chaos_disk import SmallDisk
from tests.process.chaos_nodes import Member, Part
from tests.process.chaos_plan import BROKER_KINDS, KINDS, Step
from tests.process.net import LinkState, Network

PATIENCE_S: Final = 30.0
FULL_WITHIN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.05
_ASK_EVERY_S: Final = 0.3
_LOOKS: Final = 60
_REFILL_EVERY_S: Final = 0.1
TRANSFER_WITHIN_MS: Final = 2000


def _byte(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(1)


class Faults:
    """One per run. `disk`: None where members have brokers. `full_answers` counts the appends that were answered
    DISK_FULL; `say` gets one line each time."""

    def __init__(
        self,
        members: Mapping[str, Member],
        network: Network,
        small: str,
        disk: SmallDisk | None,
        operator: LedgerClient,
        full_answers: Callable[[], int],
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._members, self._network, self._small, self._disk = members, network, small, disk
        self._operator, self._full_answers, self._say = operator, full_answers, say
        self._chance = random.Random(f"targets {seed}")
        self._links: list[LinkState] = []
        self._applying = asyncio.Lock()
        self._down: set[str] = set()
        self._paused: set[tuple[str, Part]] = set()
        self._filled = 0
        self._losing = asyncio.Lock()
        self.done: Counter[str] = Counter()
        self.ordered_ends: Counter[tuple[str, Part]] = Counter()
        self._steps: Mapping[str, Callable[[str, Step], Awaitable[None]]] = {
            "kill_engine": partial(self._kill_part, part="engine"),
            "kill_broker": partial(self._kill_part, part="broker"),
            "kill_node": partial(self._restart, kill=True),
            "kill_all": self._kill_all,
            "stop_node": partial(self._restart, kill=False),
            "wipe": self._wipe,
            "rot": self._rot,
            "pause": partial(self._pause, part="engine"),
            "pause_broker": partial(self._pause, part="broker"),
            "slow": self._slow,
            "reset": self._reset,
            "transfer": self._transfer,
            "disk_full": self._disk_full,
        }

    @property
    def kinds(self) -> tuple[str, ...]:
        """What can be done on this network, to these members."""
        impossible = set[str]() if self._network.resets else {"reset"}
        impossible |= {"disk_full"} if self._disk is None else BROKER_KINDS
        return tuple(kind for kind in KINDS if kind not in impossible)

    async def run(self, step: Step) -> None:
        """Does one step and, where it lasts, undoes it."""
        member = await self._whom(step)
        work = self._steps.get(step.kind)
        if work is not None:
            await work(member, step)
        else:
            await self._links_are(self._cut(step.kind, member), member, step)

    async def mend(self) -> None:
        """Everything runs, is linked and has space."""
        self._links.clear()
        await self._network.apply(LinkState())
        if self._disk is not None:
            self._disk.free()
        self._filled = 0
        for member in self._members.values():
            member.resume()
        self._paused.clear()
        await asyncio.gather(*(member.start() for member in self._members.values()))
        self._down.clear()

    # --- whom ---------------------------------------------------------------------------------------------------
    async def _leader(self) -> str | None:
        try:
            return await self._operator.leader()
        except LedgerError:
            return None

    async def _whom(self, step: Step) -> str:
        if step.target == "small":
            return self._small
        if step.target == "all":
            return "every member"
        leader = await self._leader()
        if step.target == "leader" and leader is not None and leader not in self._down:
            return leader
        others = [member for member in sorted(self._members) if member != leader]
        return self._chance.choice([member for member in others if member not in self._down] or others)

    async def _until(self, wanted: Callable[[], object]) -> bool:
        """Whether it came true within PATIENCE_S."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while not wanted():
            if loop.time() > end:
                return False
            await asyncio.sleep(_LOOK_EVERY_S)
        return True

    def _did(self, kind: str, member: str, line: str) -> None:
        self.done[kind] += 1
        self._say(f"{member}: {line}")

    # --- processes ----------------------------------------------------------------------------------------------
    async def _kill_part(self, member: str, step: Step, *, part: Part) -> None:
        # One that is just being started again is killed when it is there.
        if await self._until(partial(self._members[member].kill_part, part)):
            self.ordered_ends[member, part] += 1
            self._did(step.kind, member, f"{part} killed with SIGKILL; its supervisor starts it again")
        else:
            self._say(f"{member}: no {part} to kill, it is down already")

    async def _restart(self, member: str, step: Step, *, kill: bool) -> None:
        if not await self._until(lambda: member not in self._down):
            self._say(f"{member}: down already")
            return
        self._down.add(member)
        try:
            if kill:
                await self._members[member].kill()
                self._did(step.kind, member, f"all its processes killed with SIGKILL, down for {step.for_s:.1f} s")
            else:
                self._did(step.kind, member, f"stopped with SIGTERM, down for {step.for_s:.1f} s")
                await self._members[member].stop()
            await asyncio.sleep(step.for_s)
        finally:
            await self._members[member].start()
            self._down.discard(member)
        self._say(f"{member}: started again")

    async def _wipe(self, member: str, step: Step) -> None:
        """One at a time, and only when all are voters: what two of three have lost nobody can bring back."""
        if member == self._small:  # an empty directory on a full disk cannot become a store: nothing to learn
            member = self._chance.choice([one for one in sorted(self._members) if one != self._small])
        async with self._losing:
            if not await self._patiently(partial(self._all_vote, member)):
                self._say(f"{member}: not wiped, the group has no copy to spare")
                return
            self._down.add(member)
            try:
                await self._members[member].kill()
                self._members[member].wipe()
                self._did(step.kind, member, f"killed and its log removed, down for {step.for_s:.1f} s")
                await asyncio.sleep(step.for_s)
            finally:
                await self._members[member].start()
                self._down.discard(member)
            self._say(f"{member}: started again with an empty directory")
            # Until then no other member may lose its copy. What goes on for ever is for the verdict to say.
            if await self._patiently(self._all_vote):
                self._say(f"{member}: has its log again and votes")

    async def _rot(self, member: str, step: Step) -> None:
        """Its own scrub has to find it, and the group to mend it; until then nobody else loses anything."""
        async with self._losing:
            if not await self._patiently(self._all_vote):
                self._say(f"{member}: no bit flipped, the group has no copy to spare")
                return
            try:
                index, path, offset = await asyncio.to_thread(flip_one_bit, self._members[member].store)
            except (CannotBreak, StoreError, OSError) as error:
                self._say(f"{member}: no bit flipped, {error}")
                return
            rotten = _byte(path, offset)
            self._did(step.kind, member, f"one bit of entry {index} flipped (byte {offset} of {path.name})")

            async def mended() -> bool:
                if _byte(path, offset) != rotten:
                    return True
                with suppress(LedgerError):
                    await self._operator.scrub(member)
                return False

            if await self._patiently(mended):
                self._say(f"{member}: entry {index} is what it was, a scrub found it and a peer gave it")

    async def _patiently(self, wanted: Callable[[], Awaitable[bool]]) -> bool:
        for _ in range(_LOOKS):
            if await wanted():
                return True
            await asyncio.sleep(_ASK_EVERY_S)
        return False

    async def _all_vote(self, up: str = "") -> bool:
        """Whether every member says that it is a full member, and no other step has taken `up` down meanwhile."""
        try:
            states = [await self._operator.state(member) for member in self._members]
        except LedgerError:
            return False
        return all(state["voter_state"] == "VOTER" for state in states) and up not in self._down

    async def _kill_all(self, _member: str, step: Step) -> None:
        alive = [member for member in self._members if member not in self._down]
        self._down.update(alive)
        try:
            await asyncio.gather(*(self._members[member].kill() for member in alive))
            self._did(step.kind, ", ".join(alive), f"all killed with SIGKILL, down for {step.for_s:.1f} s")
            await asyncio.sleep(step.for_s)
        finally:
            await asyncio.gather(*(self._members[member].start() for member in alive))
            self._down.difference_update(alive)
        self._say(f"{', '.join(alive)}: started again")

    async def _pause(self, member: str, step: Step, *, part: Part) -> None:
        if (member, part) in self._paused or not await self._until(partial(self._members[member].pause, part)):
            self._say(f"{member}: no {part} to pause")
            return
        self._paused.add((member, part))
        self._did(step.kind, member, f"{part} paused with SIGSTOP for {step.for_s:.1f} s")
        try:
            await asyncio.sleep(step.for_s)
        finally:
            self._members[member].resume(part)
            self._paused.discard((member, part))
        self._say(f"{member}: {part} goes on (SIGCONT)")

    # --- links --------------------------------------------------------------------------------------------------
    def _cut(self, kind: str, member: str) -> tuple[LinkState, str]:
        others = [other for other in sorted(self._members) if other != member]
        out = frozenset((member, other) for other in others)
        back = frozenset((other, member) for other in others)
        if kind == "off":
            return LinkState(down=frozenset({member})), "off the network"
        if kind == "deposed":
            return LinkState(blocked=out | back), "cut off from the other members; clients still reach it"
        if kind == "mute":
            return LinkState(blocked=out), "what it sends to members is lost; it hears them"
        if kind == "deaf":
            return LinkState(blocked=back), "what members send to it is lost; they hear it"
        other = self._chance.choice(others)
        pair = frozenset({(member, other), (other, member)})
        return LinkState(blocked=pair), f"cannot reach {other} nor be reached by it; both reach the rest"

    async def _links_are(self, cut: tuple[LinkState, str], member: str, step: Step) -> None:
        state, line = cut
        with self._fault(state):
            await self._apply()
            self._did(step.kind, member, f"{line}, for {step.for_s:.1f} s")
            await asyncio.sleep(step.for_s)
        await self._apply()
        self._say(f"{member}: linked again ({step.kind})")

    async def _slow(self, member: str, step: Step) -> None:
        if not self._network.slow_by:
            self._say(f"{member}: not slowed, this machine has no traffic shaper")
            return
        line = f"on a slow line ({self._network.slow_by})"
        await self._links_are((LinkState(slow=frozenset({member})), line), member, step)

    async def _reset(self, member: str, step: Step) -> None:
        await self._network.reset(member)
        self._did(step.kind, member, "every connection reset")

    @contextmanager
    def _fault(self, state: LinkState) -> Iterator[None]:
        self._links.append(state)
        try:
            yield
        finally:
            if state in self._links:
                self._links.remove(state)

    async def _apply(self) -> None:
        async with self._applying:
            await self._network.apply(
                LinkState(
                    frozenset().union(*(one.blocked for one in self._links)),
                    frozenset().union(*(one.down for one in self._links)),
                    frozenset().union(*(one.slow for one in self._links)),
                )
            )

    # --- leadership and space -----------------------------------------------------------------------------------
    async def _transfer(self, member: str, step: Step) -> None:
        wanted = self._chance.choice([one for one in sorted(self._members) if one != member])
        await self._patiently(partial(self._asked_to_lead, wanted))

    async def _asked_to_lead(self, wanted: str) -> bool:
        """Whether anybody answered; between two leaders nobody does."""
        try:
            answer = await self._operator.transfer(wanted, deadline_ms=TRANSFER_WITHIN_MS)
        except LedgerError as error:
            self._say(f"transfer to {wanted}: no answer ({error})")
            return False
        self._did("transfer", wanted, f"asked to lead: answer {answer['code']}, leader {answer.get('leaderId')}")
        return True

    async def _leads(self, member: str) -> bool:
        with suppress(LedgerError):
            return str((await self._operator.state(member))["role"]) == "LEADER"
        return False

    async def _disk_full(self, member: str, step: Step) -> None:
        """Only a leader's full disk refuses an append: where leadership is lost before one met it, all over again."""
        disk = self._disk
        assert disk is not None, "no plan fills a disk that is not there"
        loop = asyncio.get_running_loop()
        met_before, give_up = self._full_answers(), loop.time() + FULL_WITHIN_S
        while True:
            while not await self._leads(member) and loop.time() < give_up:
                await self._asked_to_lead(member)
                await asyncio.sleep(_ASK_EVERY_S)
            await self._keep_full(disk, member, step, met_before)
            if self._full_answers() > met_before or loop.time() > give_up:
                break
            self._say(f"{member}: has space again; no append met the full disk, so it is filled once more")
        self._say(f"{member}: has space again; {self._full_answers() - met_before} appends were answered DISK_FULL")

    async def _keep_full(self, disk: SmallDisk, member: str, step: Step, met_before: int) -> None:
        """For as long as the step says, and while nobody has met it and the member leads."""
        self._filled += 1
        try:
            disk.fill()
            self._did(step.kind, member, f"its file system is full, for {step.for_s:.1f} s ({disk.about})")
            loop = asyncio.get_running_loop()
            end = loop.time() + step.for_s

            async def wanted() -> bool:
                waits = self._full_answers() == met_before and loop.time() < end + PATIENCE_S
                return loop.time() < end or (waits and await self._leads(member))

            while await wanted():
                await asyncio.sleep(_REFILL_EVERY_S)
                disk.fill()
        finally:
            self._filled -= 1
            if self._filled <= 0:
                disk.free()
