"""What goes wrong, when, for how long and to whom: a plan made from a seed before anything starts.

Invariants: the same seed, length and kinds give the same plan; every kind comes once before any comes twice; faults may
overlap. Whom a step means ("leader") is decided when it is due, because nobody can know it before.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

KINDS: Final[Mapping[str, str]] = {
    "wipe": "a member's log is lost while it is down; it starts again with an empty directory",
    "rot": "one bit of a committed entry flips in a member's data file, under the running engine",
    "kill_engine": "SIGKILL of the engine; its supervisor starts it again",
    "kill_broker": "SIGKILL of the broker; its supervisor starts it again",
    "kill_node": "SIGKILL of a node's processes; started again afterwards",
    "kill_all": "SIGKILL of every process of every node at once; all started again",
    "stop_node": "SIGTERM; started again afterwards",
    "transfer": "leadership handed over",
    "pause": "SIGSTOP of the engine, then SIGCONT",
    "pause_broker": "SIGSTOP of the broker, then SIGCONT",
    "off": "a member off the network, for the clients too",
    "deposed": "a member cut off from the others while clients still reach it",
    "mute": "a member's packets reach no other member, theirs reach it",
    "deaf": "no other member's packets reach a member, its own reach them",
    "bridge": "two members that cannot reach each other, both reach the rest",
    "slow": "a member on a slow line",
    "reset": "every connection of a member reset",
    "disk_full": "the file system of the member with the small disk is full",
}
BROKER_KINDS: Final = frozenset({"kill_broker", "pause_broker"})
"""Where members have brokers. Theirs is no small disk: a quota would hold for queues and index, too."""
_LEADER_FIRST: Final = frozenset({"pause", "deposed", "mute", "deaf", "kill_engine", "kill_broker", "pause_broker"})
"""Done to the leader twice out of three times: there they hurt most."""
_GAP_S: Final = (0.4, 2.2)
_LENGTH_S: Final = (0.6, 4.0)
_INSTANT: Final = frozenset({"rot", "kill_engine", "kill_broker", "reset", "transfer"})
QUIET_START_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """`target`: "leader", "follower", "small" (the member with the small disk) or "all"."""

    at_s: float
    kind: str
    target: str
    for_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def make_plan(seed: int, seconds: float, kinds: Collection[str]) -> tuple[Step, ...]:
    """Steps in order of time; all of them begin, and those that last end, within `seconds`."""
    chance = random.Random(f"chaos {seed}")
    known = [kind for kind in KINDS if kind in kinds]
    steps: list[Step] = []
    deck: list[str] = []
    at_s = QUIET_START_S
    while at_s < seconds - 1.0:
        if not deck:
            deck = chance.sample(known, len(known))
        kind = deck.pop()
        length_s = 0.0 if kind in _INSTANT else min(chance.uniform(*_LENGTH_S), seconds - at_s)
        steps.append(Step(round(at_s, 1), kind, _target(kind, chance), round(length_s, 1)))
        at_s += chance.uniform(*_GAP_S)
    return tuple(steps)


def _target(kind: str, chance: random.Random) -> str:
    if kind == "disk_full":
        return "small"
    if kind == "kill_all":
        return "all"
    share = 0.67 if kind in _LEADER_FIRST else 0.5
    return "leader" if kind == "transfer" or chance.random() < share else "follower"


def one_of_each(kinds: Collection[str], seconds: float) -> tuple[Step, ...]:
    """Every kind once, evenly spread, the leader's troubles first: the plan of `make test`."""
    known = [kind for kind in KINDS if kind in kinds]
    gap_s = (seconds - QUIET_START_S) / max(1, len(known))
    steps: list[Step] = []
    for number, kind in enumerate(known):
        at_s = round(QUIET_START_S + number * gap_s, 1)
        target = {"disk_full": "small", "kill_all": "all"}.get(kind, "leader" if number % 3 else "follower")
        if kind in _LEADER_FIRST or kind == "transfer":
            target = "leader"
        steps.append(Step(at_s, kind, target, 0.0 if kind in _INSTANT else round(gap_s * 1.1, 1)))
    return tuple(steps)


def summary(steps: Sequence[Step]) -> dict[str, int]:
    """How often each kind is planned, kinds in the order of KINDS."""
    return {kind: count for kind in KINDS if (count := sum(step.kind == kind for step in steps))}
