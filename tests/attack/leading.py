"""Whether the leader stayed, and the term, while a group was attacked.

An attack that costs the leader does so again; a busy machine may do so now and then. So an attack under which an
election fell is tried again, and fails where it fell every time, but for tries in which another engine than the
attacked leader stood still itself: no attack aims at that one, so that the machine explains the election.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from node.client import LedgerClient, LedgerError
from tests.process.group import Group
from tests.process.undisturbed import Work, in_client, settled

TRIES: Final = 3
LOOK_S: Final = 1.0  # an engine says how late it was within the last 3 s


async def led(group: Group, client: LedgerClient) -> tuple[str, int]:
    leader = await settled(group, client)
    return leader, (await client.state(leader))["term"]


class Latest:
    """How late each engine was at most, while this runs."""

    def __init__(self, group: Group) -> None:
        self.group, self.late_ms = group, dict.fromkeys(group.peers, 0.0)

    async def watch(self) -> None:
        client = self.group.client(deadline_s=LOOK_S)
        try:
            while True:
                for member in self.group.peers:
                    with contextlib.suppress(LedgerError):  # it is away, or too busy: then others say enough
                        late_ms = (await client.state(member))["loop_late_ms"] or 0.0
                        self.late_ms[member] = max(self.late_ms[member], late_ms)
                await asyncio.sleep(LOOK_S)
        finally:
            await client.close()


def keeping_the_leader(group: Group, attack: Work) -> None:
    """Attacks, and looks who leads before and after."""

    async def tries(client: LedgerClient) -> None:
        moved = []
        for _ in range(TRIES):
            before = await led(group, client)
            election_ms = (await client.state(before[0]))["timing"]["election_timeout_min_ms"]
            latest = Latest(group)
            watching = asyncio.create_task(latest.watch())
            try:
                await attack(client)
                after = await led(group, client)
            finally:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            if after == before:
                return
            others = {one: late for one, late in latest.late_ms.items() if one != before[0]}
            moved.append(max(others.values()) >= election_ms / 4)
            print(f"{before} became {after}; late by (ms) {latest.late_ms}")
        assert any(moved), f"the leader moved under each of {TRIES} attacks, and no engine but it stood still"

    in_client(group, tries)
