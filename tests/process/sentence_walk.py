"""A walk of drawn faults over a real group, and all that says how it stands, looked at meanwhile: a console's view, a
console process's answer and its page in a browser, and `status --json` as a process.

A fault begins, lasts, and is mended; two may be there at once. What is said is judged in the end against what was done:
see `Walk.judge`. `python -m tests.process.sentence_walk [SEED [STEPS]]` prints all of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx2
from playwright.async_api import Error, Page, async_playwright

from app.bench.observer import LOOK_EVERY_S, Observer, observed, says_in_step
from app.bench.sentences import ENGINE_ASKED_S, SILENCE_S
from app.demo.breaks import CannotBreak
from app.demo.processes import children_of, command_of, descendants_of, engine_of
from app.demo.run import DemoOptions
from app.health.facts import INFO
from app.health.group_view import GroupView
from node.children import environment, python
from node.store.errors import StoreError
from node.store.reader import StoreReader
from tests.prepare import find_chromium
from tests.process.set_clocks import CONSOLE, Clocks, can_set

MENDS_NEVER_S: Final = 3600.0
RATE_PER_S: Final = 50.0
LATE_S: Final = 2.0  # from a fact being knowable to the last look that may not know it
AFTER_S: Final = 8.0  # what a mended member may still truly be said to do
STATUS_EVERY_S: Final = 1.0
CLOCK_STEPS_S: Final = (-90_000.0, -7_200.0, -45.0, -4.0, 4.0, 45.0, 7_200.0, 90_000.0)
CODES: Final = {"critical": 1, "attention": 1, "unknown": 2, "ok": 0}
# No write gets through, they say.
WRITES_STOPPED: Final = frozenset({"quorum_lost", "no_leader", "votes_lost", "writes_stopped", "commit_stalled"})
REMEMBERED: Final = frozenset({"term_flapping", "resends"})
LINKS: Final = frozenset({"partition", "deafen", "mute", "slow"})
PAUSES: Final = frozenset({"pause", "pause_control"})
PAGE_LATE_S: Final = 4.0  # a stream renders twice a second, and says nothing new for two seconds at most
GAP_S: Final = 1.5
CAME_LATE_MS, LATE_SHOWN_S = 300.0, 4.0


@dataclass(slots=True)
class Fault:
    """`knowable_s`: from when on some process of the group can tell (monotonic); None: by nothing that is sure."""

    kind: str
    node: str
    begun_s: float
    knowable_s: float | None
    mended_s: float = float("inf")

    def stands(self, at_s: float) -> bool:
        return self.knowable_s is not None and self.knowable_s + LATE_S < at_s < self.mended_s

    def may_show(self, at_s: float) -> bool:
        return self.begun_s <= at_s <= self.mended_s + AFTER_S


@dataclass(slots=True, frozen=True)
class Status:
    begun_s: float
    ended_s: float
    code: int
    said: dict[str, Any]


@dataclass(slots=True)
class Walk:
    observer: Observer
    rng: random.Random
    clocks: Clocks | None
    page: Page | None
    faults: list[Fault] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)
    views: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # of the console's process
    pages: list[tuple[float, str]] = field(default_factory=list)
    fed: list[tuple[float, int]] = field(default_factory=list)
    say: Callable[[str], None] = print
    told: str = ""

    @property
    def nodes(self) -> list[str]:
        return sorted(self.observer.demo.members)

    # --- faults -----------------------------------------------------------------------------------------------------
    async def pause(self, node: str) -> float:
        os.kill(self._engine(node), signal.SIGSTOP)
        return ENGINE_ASKED_S

    async def pause_control(self, node: str) -> float:
        """Its control plane alone: after three questions it is called silent."""
        for pid in children_of(self.observer.demo.members[node].pid):
            if "node.control" in command_of(pid):
                os.kill(pid, signal.SIGSTOP)
        return 4.0

    async def kill(self, node: str) -> None:
        os.kill(self._engine(node), signal.SIGKILL)
        self.end_with(frozenset({"pause"}), {node})  # another engine is started

    async def partition(self, node: str) -> float:
        self.observer.demo.links.isolate(node)
        return SILENCE_S

    async def deafen(self, node: str) -> float:
        self.observer.demo.links.cut_way(node, inward=True)
        return SILENCE_S

    async def mute(self, node: str) -> float:
        self.observer.demo.links.cut_way(node, inward=False)
        return SILENCE_S

    async def slow(self, node: str) -> float:
        self.observer.demo.links.slow(node, 0.25)
        return 2.0  # one late answer is no slow link

    async def flip(self, node: str) -> None:
        """Whoever leads has it flipped elsewhere; the member reads its log at once."""
        breaker = self.observer.demo.breaker
        assert breaker is not None
        with suppress(CannotBreak, httpx2.HTTPError):
            await breaker.do("flip", node)
            async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
                url = f"{self.observer.demo.members[node].control_url}/api/v1/scrub"
                await client.post(url, headers={"content-type": "application/json"})

    async def fill(self, node: str) -> None:
        """A quota that is used up at the end of the log: what comes next finds no room."""
        member = self.observer.demo.members[node]
        with suppress(StoreError, OSError, KeyError):
            reader = await asyncio.to_thread(StoreReader, Path(member.data) / f"dledger-{node}")
            entry = reader.entry(reader.end_index)
            if entry is not None and entry.pos > 0:
                self._limit(node, entry.pos)

    async def set_clock(self, node: str) -> None:
        assert self.clocks is not None
        self.clocks.set(node, self.rng.choice(CLOCK_STEPS_S))

    async def set_console_clock(self, _node: str) -> None:
        assert self.clocks is not None
        self.clocks.set(CONSOLE, self.rng.choice(CLOCK_STEPS_S))

    def kinds(self) -> dict[str, Callable[[str], Awaitable[float | None]]]:
        made: dict[str, Callable[[str], Awaitable[float | None]]] = {
            one.__name__: one
            for one in (
                self.pause, self.pause_control, self.kill, self.partition, self.deafen, self.mute, self.slow, self.flip,
                self.fill,
            )
        }  # fmt: skip
        clocks = (self.set_clock, self.set_console_clock) if self.clocks is not None else ()
        return made | {one.__name__: one for one in clocks}

    def _engine(self, node: str) -> int:
        pid = engine_of(self.observer.demo.members[node].pid)
        if pid is None:
            raise CannotBreak(f"{node} has no engine now")
        return pid

    def _limit(self, node: str, size_bytes: int) -> None:
        pid = self.observer.demo.members[node].pid
        for one in (pid, *descendants_of(pid)):
            with suppress(ProcessLookupError):
                _, hard = resource.prlimit(one, resource.RLIMIT_FSIZE)
                resource.prlimit(one, resource.RLIMIT_FSIZE, (size_bytes, hard))

    async def do(self, kind: str, node: str) -> Fault | None:
        """One begins; None: there is nobody to do it to."""
        fault = Fault(kind, node, time.monotonic(), None)
        try:
            after_s = await self.kinds()[kind](node)
        except (CannotBreak, ProcessLookupError):
            return None
        fault.knowable_s = None if after_s is None else time.monotonic() + after_s
        self.faults.append(fault)
        self.say(f"{fault.begun_s:.1f} {kind} {node}")
        return fault

    async def mend(self, fault: Fault) -> None:
        """All links are mended at once, and all processes of a member go on together."""
        fault.mended_s = min(fault.mended_s, time.monotonic())
        node, pid = fault.node, self.observer.demo.members[fault.node].pid
        if fault.kind in LINKS:
            self.end_with(LINKS, set(self.nodes))
            for one in self.nodes:
                self.observer.demo.links.mend(one)
        elif fault.kind == "fill":
            self._limit(node, resource.RLIM_INFINITY)
        elif self.clocks is not None and fault.kind in ("set_clock", "set_console_clock"):
            self.clocks.set(node if fault.kind == "set_clock" else CONSOLE, 0.0)
        elif fault.kind in PAUSES:
            self.end_with(PAUSES, {node})
            for one in descendants_of(pid):
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGCONT)
        self.say(f"{fault.mended_s:.1f} mended {fault.kind} {node}")

    def end_with(self, kinds: frozenset[str], nodes: set[str]) -> None:
        """Those faults are over with another one's end, or its beginning."""
        now_s = time.monotonic()
        for one in self.faults:
            if one.kind in kinds and one.node in nodes:
                one.mended_s = min(one.mended_s, now_s)

    async def step(self) -> None:
        """One fault, or two that overlap, and their end."""
        kinds, faults = list(self.kinds()), []
        for _ in range(1 if self.rng.random() < 0.6 else 2):
            faults.append(await self.do(self.rng.choice(kinds), self.rng.choice(self.nodes)))
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
        await asyncio.sleep(self.rng.uniform(2.0, 7.0))
        for one in faults:
            if one is not None:
                await self.mend(one)
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
        await asyncio.sleep(self.rng.uniform(0.0, 5.0))

    # --- who looks --------------------------------------------------------------------------------------------------
    async def ask_status(self) -> None:
        node = self.rng.choice(self.nodes)
        begun = time.monotonic()
        words = python("-m", "app.cli", "status", "--json", "--node", self.observer.demo.members[node].control_url)
        process = await asyncio.create_subprocess_exec(
            *words, env=environment(), stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        said = json.loads(out) if out.strip().startswith(b"{") else {}
        self.statuses.append(Status(begun, time.monotonic(), process.returncode or 0, said))

    async def look_at_page(self) -> None:
        assert self.page is not None
        with suppress(Error):
            answer = await self.page.request.get("/api/v1/clusters/demo/view", timeout=5_000)
            if answer.ok:
                self.views.append((time.monotonic(), await answer.json()))
            texts = await self.page.locator(".sentence").all_inner_texts()
            self.pages.append((time.monotonic(), " ".join(texts)))

    async def keep_looking(self, look: Callable[[], Awaitable[None]], every_s: float) -> None:
        while True:
            await look()
            await asyncio.sleep(every_s)

    async def count_fed(self) -> None:
        feeder = self.observer.demo.feeder
        self.fed.append((time.monotonic(), feeder.fed.appended if feeder is not None else 0))

    async def tell(self) -> None:
        headline = self.observer.view.sentence.headline
        if bare(headline) != self.told:
            self.told = bare(headline)
            self.say(f"{time.monotonic():.1f}     {headline}")

    async def run(self, steps: int) -> None:
        watching = [self.keep_looking(self.ask_status, STATUS_EVERY_S), self.keep_looking(self.count_fed, 0.25)]
        watching.append(self.keep_looking(self.tell, LOOK_EVERY_S))
        if self.page is not None:
            watching.append(self.keep_looking(self.look_at_page, LOOK_EVERY_S))
        tasks = [asyncio.ensure_future(one) for one in watching]
        try:
            for number in range(steps):
                await self.step()
                if number % 4 == 3 or number == steps - 1:
                    await self.observer.in_step()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- what was false ---------------------------------------------------------------------------------------------
    def judge(self) -> list[str]:
        """Every false sentence: "in step" while a break was knowable for LATE_S, or an alarm was told; a member
        accused that nobody broke; "no write gets through" while writes did; an exit code that its own output, or each
        look of that time, contradicts; a page that says what its console did not."""
        found = [one for at_s, view in self.observer.looks for one in self._false(at_s, view)]
        for at_s, raw in self.views:
            found += [f"the console's process at {one}" for one in self._false(at_s, GroupView.model_validate(raw))]
        found += [one for status in self.statuses for one in self._false_status(status)]
        return found + self._false_pages() + self._false_stops()

    def _false(self, at_s: float, view: GroupView) -> list[str]:
        found = []
        standing = [one for one in self.faults if one.stands(at_s)]
        told = [one.id for one in view.members if one.state is not None and (one.state.faults or one.state.alarms)]
        if says_in_step(view) and (standing or told):
            found.append(f'{at_s:.1f}: "{view.sentence.headline}" with {standing or told}')
        may_be = {one.node for one in self.faults if one.may_show(at_s)}
        # A slow or cut leader, seen from the other side, is its followers; nobody knows who of two is cut off.
        links = any(one.may_show(at_s) and one.kind in ("slow", "deafen", "mute", "partition") for one in self.faults)
        for one in view.problems:
            if one.severity != INFO and one.member not in may_be | self.observer.may_be_accused(""):
                pair = links and one.code in ("slow_link", "one_way", "cut_off", "not_connected")
                if not pair and not self._came_late(one.member, at_s):
                    found.append(f"{at_s:.1f}: accuses {one.member} ({one.code}): {one.text}")
        return found

    def _came_late(self, node: str | None, at_s: float) -> bool:
        """Whether that member's engine says, then or a little later, that its machine did not let it run."""
        looks = [
            view.member(node) for when_s, view in self.observer.looks if at_s - 1.0 <= when_s <= at_s + LATE_SHOWN_S
        ]
        return any((one.state.loop_late_ms or 0) > CAME_LATE_MS for one in looks if one and one.state)

    def _false_status(self, status: Status) -> list[str]:
        said = status.said
        if not said:
            return [] if status.code in (69, 75) else [f"{status.begun_s:.1f}: status ended with {status.code}"]
        pressing = any(one["severity"] != INFO for one in said["problems"])
        due = 1 if pressing else 2 if said["unknown"] else 0
        at = f"{status.begun_s:.1f} to {status.ended_s:.1f}"
        if status.code != due and said["quorum"]["answering"]:
            return [f"{at}: status ended with {status.code}, and says {said['problems'] or said['unknown']}"]
        if any(one.kind == "pause_control" and one.may_show(status.begun_s) for one in self.faults):
            return []  # it asks the engines, which are well
        near = [
            view for at_s, view in self.observer.looks
            if status.begun_s - 1.5 <= at_s <= status.ended_s + LATE_S
        ]  # fmt: skip
        if status.code in (0, 1, 2) and near and status.code not in {code for one in near for code in codes_of(one)}:
            words = [one["text"] for one in said["problems"] + said["unknown"] if "text" in one] or said.get("unknown")
            return [f"{at}: status ended with {status.code} ({words}), the console: {near[0].sentence.headline}"]
        return []

    def _false_pages(self) -> list[str]:
        """ "In step" while a break stands, and what no console said: both said one thing for as long as a page may be
        late, and it says another. What is not known may be so for one look, which nobody else had."""
        found = []
        others = [(at_s, view.sentence.headline) for at_s, view in self.observer.looks]
        said = sorted(others + [(at_s, str(view["sentence"]["headline"])) for at_s, view in self.views])
        for at_s, text in self.pages:
            standing = [one for one in self.faults if one.stands(at_s - GAP_S) and at_s < one.mended_s]
            standing = standing if "in step." in text else []
            from_s, to_s = at_s - PAGE_LATE_S, at_s + 1.0
            near = [one for one in said if from_s <= one[0] <= to_s]
            times = [from_s, *(one[0] for one in near), to_s]
            is_known = not any(after - before > GAP_S for before, after in pairwise(times))
            known = {bare(one) for _, one in near}
            claims = text and "is not known: " not in text
            late = claims and is_known and len(known) == 1 and not any(one in bare(text) for one in known)
            if late or (standing and "not known" not in text):
                found.append(f"{at_s:.1f}: the page says {text!r} with {standing}; its console {near}")
        return found

    def _false_stops(self) -> list[str]:
        """Said at each look of LATE_S, while messages were acknowledged between the first two."""
        found = []
        looks, width = self.observer.looks, int(LATE_S / LOOK_EVERY_S) + 1
        for window in (looks[at : at + width] for at in range(len(looks) - width + 1)):
            codes = {frozenset(one.code for one in view.problems) & WRITES_STOPPED for _, view in window}
            if len(codes) == 1 and (which := next(iter(codes))):
                before = max((count for at_s, count in self.fed if at_s <= window[0][0]), default=0)
                after = max((count for at_s, count in self.fed if at_s <= window[1][0]), default=0)
                if after - before > 3:
                    found.append(f"{window[-1][0]:.1f}: {set(which)} though {after - before} writes had got through")
        return found


def codes_of(view: GroupView) -> set[int]:
    """What `status` may end with at that moment: it remembers no last minute, so that some problems are not its own."""
    seen = {CODES[view.severity]}
    if all(one.code in REMEMBERED for one in view.problems if one.severity != INFO):
        seen |= {2 if view.unproven else 0}
    return seen


def bare(text: str) -> str:
    """Without what changes as time goes by."""
    return re.sub(r"\d[\d,.]*", "#", " ".join(text.split()))


@asynccontextmanager
async def page_of(url: str, login_link: str) -> AsyncIterator[Page | None]:
    """The group's page in a browser; None: there is no browser here."""
    if find_chromium() is None:
        yield None
        return
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox", "--disable-gpu"])
        try:
            page = await (await browser.new_context(base_url=url)).new_page()
            page.set_default_timeout(60_000)
            await page.goto(login_link)
            await page.get_by_role("main").get_by_role("button").click()
            await page.goto("/clusters/demo")
            yield page
        finally:
            await browser.close()


async def walk(directory: Path, seed: str, steps: int, say: Callable[[str], None] = print) -> list[str]:
    """All that was said falsely."""
    clocks = Clocks(directory) if can_set() else None
    if clocks is not None:
        os.environ.update(clocks.variables)
    try:
        (directory / "demo").mkdir()
        options = DemoOptions(
            directory=directory / "demo", mend_after_s=MENDS_NEVER_S, rate_per_s=RATE_PER_S, noted=False
        )
        async with observed(directory / "demo", options) as observer:
            demo = observer.demo
            forget_clocks(clocks)  # a browser does not live with them
            assert demo.console_url is not None and demo.login_link is not None
            async with page_of(demo.console_url, demo.login_link) as page:
                made = Walk(observer, random.Random(f"sentences {seed}"), clocks, page, say=say)
                observer.forget()
                await made.run(steps)
                say(
                    f"{len(observer.looks)} looks, {len(made.views)} of a console's process, {len(made.pages)} of its"
                    f" page, {len(made.statuses)} of status"
                )
                return made.judge()
    finally:
        forget_clocks(clocks)


def forget_clocks(clocks: Clocks | None) -> None:
    """What is started from now on has this machine's clock; what was started starts its own children as before."""
    for name in clocks.variables if clocks is not None else ():
        os.environ.pop(name, None)


def main(words: Sequence[str]) -> int:
    seed = words[0] if words else str(random.randrange(1 << 32))
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="quorumscope-walk-") as place:
        os.environ.setdefault("XDG_RUNTIME_DIR", place)
        found = asyncio.run(
            walk(Path(place), seed, int(words[1]) if len(words) > 1 else 12, lambda text: print(text, flush=True))
        )
    for one in found:
        print("FALSE", one)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
