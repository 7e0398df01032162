"""Alarms about this member's broker, in the state that its control plane gives: consoles and `status` read them there.

The broker is asked beside the calls, at most once a second: no state waits for a broker that hangs. Invariants: an
alarm stands once what is wrong has lasted for GRACE_S; `since` is when it was first seen.
"""

from __future__ import annotations

import time
from typing import Any, Final

from node.background import Background
from node.control.broker_link import BrokerLink
from node.control.problems import Problem
from node.control.snapshots import now_text
from node.views.base import TEXT_MAX
from node.views.state import AlarmView

EVERY_S: Final = 1.0
GRACE_S: Final = 3.0
WITHIN_S: Final = 1.0
BEHIND_MS: Final = 1000  # then a master takes no more messages
Json = dict[str, Any]


class BrokerAlarms:
    """`now` gives those that stand, and has the broker asked again where the last look is old."""

    def __init__(self, link: BrokerLink) -> None:
        self._link = link
        self._background = Background()
        self._looked_at_s = float("-inf")
        self._found: dict[str, tuple[float, str, str]] = {}  # by code: since when twice, and the text

    def now(self, *, leads: bool) -> tuple[AlarmView, ...]:
        now_s = time.monotonic()
        if now_s - self._looked_at_s >= EVERY_S and not len(self._background):
            self._looked_at_s = now_s
            self._background.run("a look at the broker", self._look(leads))
        return tuple(
            AlarmView(code=code, severity="warning", peer_id=None, text=text[:TEXT_MAX], since=since)
            for code, (began_s, since, text) in self._found.items()
            if now_s - began_s >= GRACE_S
        )

    async def _look(self, leads: bool) -> None:
        try:
            wrong = troubles(await self._link.json("broker", within_s=WITHIN_S), leads=leads)
        except Problem as problem:
            wrong = {"broker_down": problem.detail}
        now_s, before = time.monotonic(), self._found
        self._found = {}
        for code, text in wrong.items():
            began_s, since, _ = before.get(code, (now_s, now_text(), ""))
            self._found[code] = began_s, since, text

    async def close(self) -> None:
        await self._background.stop()


def troubles(said: Json, *, leads: bool) -> dict[str, str]:
    """By code, what is wrong with a broker that says this of itself. `leads`: its engine does."""
    found: dict[str, str] = {}
    dispatch = said["dispatch"]
    if dispatch["stopped_by"]:
        found["broker_dispatch_stopped"] = f"entry {dispatch['dispatched_index'] + 1:,}: {dispatch['stopped_by']}"
    elif dispatch["behind_ms"] > BEHIND_MS:
        entries, seconds = dispatch["behind_entries"], dispatch["behind_ms"] / 1000
        found["broker_dispatch_behind"] = f"{entries:,} committed entries are not in its queues, for {seconds:.0f} s"
    if leads and said["role"] != "MASTER":
        last = said["role_changes"][-1] if said["role_changes"] else None
        step = f": it is at the step {last['steps'][-1]['step']!r}" if last is not None and last["steps"] else ""
        found["broker_not_master"] = f"its engine leads, and no messages are taken{step}"
    silent = [one["address"] for one in said["name_servers"] if one["registered_ms"] is None]
    if silent and said["role"] is not None:
        found["broker_not_registered"] = f"clients that ask {', '.join(silent)} do not learn of it"
    return found
