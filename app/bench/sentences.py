"""`bench sentences`: break a real group in every way that the demo knows, and read what the console says, look by look.

A case breaks one member and says from when on that is *knowable*: when some process of the group can first tell, by
its own clock and time-outs, that something is wrong. The console asks twice a second, so what it says comes at least
that much later. A run takes from there to the first look whose problems name the broken member with the right cause.

Every look from the break until all is well again is judged: it is *false* when it says "in step" later than one sample
after the break was knowable, before it is mended; when it accuses another member; or when it names a cause that neither
is the break nor follows from it. An engine that says that it stood still meanwhile, for longer than ever, was broken
by the machine and may be accused; a run in which this process itself stood still is not counted.

knowable   after    because
pause      0.4 s    a control plane takes its engine for silent after this time-out (node.control.snapshots)
kill       0 s      the engine's connections close at once
partition  1 s      members take each other for lost after so long a silence (the election time-out)
slow       by poll  when the leader's own state says so: after two late answers to heartbeats, for one is no slow link
deaf, mute 1 s      as partition: one way carries nothing
flip       by poll  when the member's own state names the damage, after a scrub
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import httpx2

from app.bench.common import percentile, say
from app.bench.machine import machine
from app.bench.observer import LOOK_EVERY_S, STOOD_STILL_MS, WAIT_S, Observer, names, observed, says_in_step
from app.bench.running import measured
from app.demo.processes import engine_of
from app.demo.run import DemoOptions
from app.health.facts import INFO, SLOW_MS
from app.health.group_view import GroupView

SILENCE_S: Final = 1.0
ENGINE_ASKED_S: Final = 0.4
HELD_S: Final = 1.5  # what was said right stays right for so long before the break is mended
RATE_PER_S: Final = 50.0
POLL_S: Final = 0.05
NEVER_BY_ITSELF_S: Final = 3600.0

NO_ANSWER: Final = frozenset({"replica_silent", "engine_down"})
# True of the leader's own count, whatever the writes wait for: on a busy machine, for the machine.
WAITS: Final = frozenset({"closures_slow"})
# What follows from a member's being away, said of that member or of the group.
AWAY: Final = WAITS | frozenset({"cut_off", "not_connected", "not_append", "lagging", "catching_up", "not_catching_up"})
LATE: Final = WAITS | frozenset({"resends", "lagging"})
# What follows from a leader's being away.
NO_LEADER: Final = frozenset(
    {"no_leader", "leader_out_of_sight", "quorum_lost", "quorum_out_of_sight", "commit_stalled", "term_flapping"}
)


@dataclass(frozen=True, slots=True)
class Case:
    """`right`: the causes that are the break itself; `follows`: what else may truly be said meanwhile."""

    name: str
    break_: str
    leads: bool
    knowable_s: float | None
    right: frozenset[str]
    follows: frozenset[str]


CASES: Final = (
    Case("pause a follower", "pause", False, ENGINE_ASKED_S, NO_ANSWER, AWAY),
    Case("pause the leader", "pause", True, ENGINE_ASKED_S, NO_ANSWER, AWAY | NO_LEADER),
    Case("kill a follower", "kill", False, 0.0, NO_ANSWER, AWAY),
    Case("kill the leader", "kill", True, 0.0, NO_ANSWER, AWAY | NO_LEADER),
    Case("partition a follower", "partition", False, SILENCE_S, frozenset({"cut_off"}), AWAY),
    Case("partition the leader", "partition", True, SILENCE_S, frozenset({"cut_off"}), AWAY | NO_LEADER),
    Case("slow a follower", "slow", False, None, frozenset({"slow_link"}), LATE),
    Case("slow the leader", "slow", True, None, frozenset({"slow_link"}), LATE),
    Case("deafen a follower", "deafen", False, SILENCE_S, frozenset({"one_way"}), AWAY),
    Case("mute a follower", "mute", False, SILENCE_S, frozenset({"one_way"}), AWAY),
    Case("flip a bit", "flip", False, None, frozenset({"log_damaged"}), AWAY),
)  # fmt: skip


@dataclass(slots=True)
class Run:
    """One break: how long the right sentence took (None: over before it was seen), and what was said falsely.

    `disturbed`: this process itself was not given the processor for a while, so that what was said is of the machine.
    `late`: "in step", though the break was knowable, and before the right sentence; false as well, on a machine that
    comes to ask twice a second.
    """

    case: str
    node: str
    right_s: float | None = None
    false: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    disturbed: bool = False


async def run_case(observer: Observer, case: Case) -> Run:
    """Breaks, waits for the right sentence, mends, waits until all is well, and judges each look."""
    await observer.calm()
    leader = observer.view.leader_id
    node = next(one.id for one in reversed(observer.view.members) if (one.id == leader) is case.leads)
    looked, begun_s, gaps = len(observer.looks), time.monotonic(), observer.longest_gaps_ms()
    knowable_s = await do(observer, case, node)
    found = Run(case.name, node)

    def right(view: GroupView) -> bool:
        return names(view, node, case.right)

    if case.break_ == "kill":  # its supervisor mends it, perhaps before anybody looked
        mended_s = await started_again(observer, node)
        await observer.calm()
        seen = [at_s for at_s, view in observer.looks[looked:] if right(view)]
        found.right_s = seen[0] - knowable_s if seen else None
    else:
        seen_at = await observer.until(f"{case.name}: {case.right}", right)
        found.right_s = observer.looks[seen_at][0] - knowable_s
        await asyncio.sleep(HELD_S)
        mended_s = time.monotonic()
        await mend(observer, node)
    await observer.calm()
    may_be = observer.may_be_accused(node, gaps)
    at = [at_s for at_s, _ in observer.looks[looked:]]
    found.disturbed = any(after - before > LOOK_EVERY_S + STOOD_STILL_MS / 1000 for before, after in pairwise(at))
    right_at_s = next((at_s for at_s, view in observer.looks[looked:] if right(view)), mended_s)
    for at_s, view in observer.looks[looked:]:
        if says_in_step(view) and knowable_s + LOOK_EVERY_S < at_s < mended_s:
            which = found.late if at_s < right_at_s else found.false
            which.append(f'{at_s - begun_s:.1f} s: "{view.sentence.headline}"')
        found.false += [f"{at_s - begun_s:.1f} s: {one}" for one in accused(case, view, may_be)]
    return found


async def started_again(observer: Observer, node: str) -> float:
    """When a killed engine's supervisor had started another one. Raises TimeoutError."""
    deadline = time.monotonic() + WAIT_S
    while engine_of(observer.demo.members[node].pid) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{node} was not started again")
        await asyncio.sleep(0.02)
    return time.monotonic()


def accused(case: Case, view: GroupView, may_be: set[str | None]) -> list[str]:
    """What one look says of another member, or of another cause."""
    false = []
    for one in view.problems:
        if one.severity != INFO and one.member not in may_be:
            false.append(f"accuses {one.member}: {one.text}")
        elif one.severity != INFO and one.code not in case.right | case.follows:
            false.append(f"names another cause: {one.text}")
    return false


async def do(observer: Observer, case: Case, node: str) -> float:
    """Breaks; from when on that is knowable (monotonic)."""
    breaker, links = observer.demo.breaker, observer.demo.links
    assert breaker is not None
    match case.break_:
        case "deafen":
            links.cut_way(node, inward=True)
        case "mute":
            links.cut_way(node, inward=False)
        case "flip":
            await flip(observer, node)
            return await reported(observer, lambda: node, is_damaged)
        case "slow":
            await breaker.do("slow", node)
            return await reported(observer, lambda: observer.view.leader_id, has_slow_link)
        case _:
            await breaker.do(case.break_, node)
    assert case.knowable_s is not None
    return time.monotonic() + case.knowable_s


async def flip(observer: Observer, node: str) -> None:
    """A flipped bit that a scrub reads while no peer can give the entry: else it is mended before anybody looks."""
    breaker = observer.demo.breaker
    assert breaker is not None
    await breaker.do("flip", node)
    await breaker.do("partition", node)
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as client:
        url = f"{observer.demo.members[node].control_url}/api/v1/scrub"
        (await client.post(url, headers={"content-type": "application/json"})).raise_for_status()


async def reported(observer: Observer, who: Callable[[], str | None], what: Callable[[dict[str, Any]], bool]) -> float:
    """When that member's own state first says so (monotonic); on a busy machine it may come to be another one.

    Raises TimeoutError.
    """
    deadline = time.monotonic() + WAIT_S
    async with httpx2.AsyncClient(trust_env=False, timeout=10.0) as client:
        while time.monotonic() < deadline:
            node = who()
            if node is not None:
                url = f"{observer.demo.members[node].control_url}/api/v1/state"
                if what((await client.get(url)).json()):
                    return time.monotonic()
            await asyncio.sleep(POLL_S)
    raise TimeoutError(f"{who()} never said what it was broken for")


def is_damaged(state: dict[str, Any]) -> bool:
    return bool(state.get("faults"))


def has_slow_link(state: dict[str, Any]) -> bool:
    return any((link.get("rtt_ms") or 0) >= SLOW_MS for link in state.get("links") or ())


async def mend(observer: Observer, node: str) -> None:
    observer.demo.links.mend(node)
    pid = engine_of(observer.demo.members[node].pid)
    if pid is not None:
        os.kill(pid, signal.SIGCONT)


@dataclass(slots=True, frozen=True)
class SentencesOptions:
    """`cases`: parts of names; none: all of them."""

    runs: int = 20
    cases: tuple[str, ...] = ()
    directory: Path | None = None


def row_of(case: Case, all_runs: Sequence[Run]) -> dict[str, Any]:
    """One case's figures, of the runs that nothing else disturbed."""
    runs = [one for one in all_runs if not one.disturbed]
    took = sorted(one.right_s for one in runs if one.right_s is not None)
    return {
        "case": case.name, "runs": len(runs), "unseen": len(runs) - len(took),
        "disturbed": len(all_runs) - len(runs),
        "p50_s": rounded(percentile(took, 0.5)) if took else None,
        "p95_s": rounded(percentile(took, 0.95)) if took else None,
        "max_s": rounded(took[-1]) if took else None,
        "false": sum(len(one.false) + len(one.late) for one in runs),
        "false_sentences": [
            f"run {number}: after {text}" for number, one in enumerate(runs, 1) for text in (*one.false, *one.late)
        ],
    }  # fmt: skip


def rounded(seconds: float) -> float:
    """What was said before it had to be known took no time."""
    return round(max(0.0, seconds), 2)


async def _run(options: SentencesOptions) -> dict[str, Any]:
    cases = [one for one in CASES if not options.cases or any(part in one.name for part in options.cases)]
    with tempfile.TemporaryDirectory(prefix="quorumscope-bench-", dir=options.directory) as place:
        directory = Path(place) / "demo"
        directory.mkdir()
        on = machine(directory)
        runs: dict[str, list[Run]] = {one.name: [] for one in cases}
        demo = DemoOptions(
            console=False, directory=directory, mend_after_s=NEVER_BY_ITSELF_S, rate_per_s=RATE_PER_S, noted=False
        )
        async with observed(directory, demo) as observer:
            for number in range(options.runs):
                for case in cases:
                    one = await run_case(observer, case)
                    runs[case.name].append(one)
                    took = "over before it was seen" if one.right_s is None else f"{rounded(one.right_s):.2f} s"
                    took += ", disturbed: not counted" if one.disturbed else ""
                    say(f"run {number + 1}/{options.runs}, {case.name} ({one.node}): {took}")
                    for text in (*one.false, *one.late):
                        say(f"  FALSE after {text}")
                    observer.forget()
    rows = [row_of(one, runs[one.name]) for one in cases]
    all_took = sorted(
        one.right_s for those in runs.values() for one in those if one.right_s is not None and not one.disturbed
    )
    return {
        "results": rows, "runs": options.runs, "look_every_s": LOOK_EVERY_S,
        "p95_s": rounded(percentile(all_took, 0.95)), "max_s": rounded(max(all_took, default=0.0)),
        "false": sum(one["false"] for one in rows), "machine": on,
    }  # fmt: skip


def run(options: SentencesOptions) -> dict[str, Any]:
    """Starts a demo, breaks it again and again, and returns what `--json` prints."""
    return measured(_run(options))
