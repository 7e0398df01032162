"""Real engines whose syncs are slow, or do not come: nothing is promised before a quorum's disks hold it.

Beside the driver's simulated world (tests/simulation/driver): there the threads are simulated, here they are real.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError, NotAppended, OutcomeUnknown, Unreachable
from node.protocol.entry import Entry, Magic
from tests.process.group import Group, all_vote, append_surely
from tests.process.undisturbed import undisturbed
from tests.simulation.history import History
from tests.simulation.linearizability import LogChecker

pytestmark = pytest.mark.process

HELD_S = 1.0  # longer than every election time-out
PRODUCERS = 3
OWN_WORDS = (b"begin", b"last")


class SlowGroup(Group):
    """Its engines run on slow disks; `hold` stops their syncs."""

    def hold_file(self, member: str) -> Path:
        return self.directory / f"hold-{member}"

    def hold(self, *members: str) -> None:
        for member in members:
            self.hold_file(member).touch()

    def release(self) -> None:
        for member in self.peers:
            self.hold_file(member).unlink(missing_ok=True)

    def start(self, *node_ids: str) -> None:
        for node_id in node_ids:
            self.environment = {
                "SLOW_SYNC_MS": "60", "SLOW_SYNC_SEED": node_id, "SLOW_SYNC_HOLD": str(self.hold_file(node_id)),
            }  # fmt: skip
            super().start(node_id)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[SlowGroup]:
    made = SlowGroup(tmp_path, module="tests.process.slow_server")
    try:
        yield made
    finally:
        made.close()


async def _begin(group: SlowGroup, client: LedgerClient) -> str:
    """A group of voters; who leads it."""
    await append_surely(client, b"begin")
    await all_vote(client, group.peers)
    return await client.leader()


def test_nothing_is_acknowledged_while_no_quorum_can_sync(slow: SlowGroup) -> None:
    """With one disk stuck the others are a quorum; with two there is none, and the leader leads on all the same."""

    async def work(client: LedgerClient) -> None:
        slow.release()  # what an earlier try left
        leader = await _begin(slow, client)
        followers = [member for member in slow.peers if member != leader]
        slow.hold(followers[0])
        await append_surely(client, b"a quorum is left")
        slow.hold(leader)
        waiting = client.submit(b"no quorum")
        try:
            await asyncio.sleep(HELD_S)
            assert not waiting.done() or isinstance(waiting.exception(), OutcomeUnknown)
            state = await client.state(leader)
            assert state["role"] == "LEADER"
            assert state["log"]["durable_index"] < state["log"]["end_index"]
            assert state["log"]["committed_index"] < state["log"]["end_index"]
        finally:
            slow.release()
            await asyncio.wait([waiting])
        last = await append_surely(client, b"after it")
        assert [entry.body for entry in await client.read(last, 1)] == [b"after it"]

    slow.start_all()
    undisturbed(slow, work)


def test_nobody_leads_on_a_vote_that_no_disk_holds(slow: SlowGroup) -> None:
    """Term and vote wait for the disk, and what speaks of them waits with them (E2)."""

    async def work() -> None:
        client = slow.client()
        try:
            leader = await _begin(slow, client)
            term = (await client.state(leader))["term"]
            left = [member for member in slow.peers if member != leader]
            slow.hold(*left)
            slow.kill(leader, signal.SIGKILL)
            await asyncio.sleep(2 * HELD_S)
            states = [await client.state(member) for member in left]
            assert [state["role"] for state in states if state["role"] == "LEADER"] == []
            slow.release()
            await append_surely(client, b"after it")
            assert (await client.state(await client.leader()))["term"] > term
        finally:
            await client.close()

    slow.start_all()
    asyncio.run(work())


def seen_as(entry: Entry) -> tuple[int, bytes | None]:
    """For the history; the test's own words, of which there may be more than one each, are nobody's."""
    theirs = entry.magic == Magic.NORMAL and bytes(entry.body) not in OWN_WORDS
    return entry.index, bytes(entry.body) if theirs else None


class _Recorder:
    """Producers and a reader, every call of theirs in one history."""

    def __init__(self, group: SlowGroup) -> None:
        self.history = History()
        self.checker = LogChecker(self.history)
        self.anomalies: list[object] = []
        self.history.watchers.append(lambda one: self.anomalies.extend(self.checker.completed(one)))
        self._group = group
        self.running = True

    async def acknowledged(self, index: int) -> None:
        """Returns once an append at this index or a later one was acknowledged."""
        there = asyncio.Event()
        self.history.watchers.append(lambda _one: there.set() if self.history.acknowledged_index >= index else None)
        await there.wait()
        self.history.watchers.pop()

    async def produce(self, name: str) -> None:
        client = self._group.client(deadline_s=2.0)
        number = 0
        try:
            while self.running:
                calls = []
                for count in (1, 3, 1):  # they travel together
                    bodies = [f"{name}-{(number := number + 1)}".encode() for _ in range(count)]
                    called = self.history.invoke(name, "append", "group", bodies)
                    calls.append(self._append(called, client._appends.submit_run(bodies)))
                await asyncio.gather(*calls)
        finally:
            await client.close()

    async def _append(self, called: int, answer: asyncio.Future[object]) -> None:
        try:
            first, last, term = await answer  # type: ignore[misc]
        except OutcomeUnknown as error:
            named = {"first_index": error.first_index, "last_index": error.last_index, "term": error.term}
            self.history.complete(called, "unknown", **named)
        except (NotAppended, Unreachable):
            self.history.complete(called, "fail")
        else:
            self.history.complete(called, "ok", first_index=first, last_index=last, term=term)

    async def read(self) -> None:
        client = self._group.client(deadline_s=2.0)
        try:
            while self.running:
                begin = max(0, self.history.reported_index - 5)
                called = self.history.invoke("reader", "read", "group", from_index=begin)
                floor = self.history.operations[called].floor
                try:
                    found = await client.read(begin, 100_000, include_all=True)
                except LedgerError:
                    self.history.complete(called, "fail")
                    continue
                seen = [seen_as(one) for one in found]
                end = begin + len(seen) - 1
                self.history.complete(called, "ok", read_index=end if seen or end < floor else floor, seen=seen)
                await asyncio.sleep(0.01)
        finally:
            await client.close()


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_history_under_slow_syncs_and_kills_is_that_of_one_log(slow: SlowGroup, rounds: int) -> None:
    async def work() -> None:
        client = slow.client()
        recorder = _Recorder(slow)
        try:
            await _begin(slow, client)
            tasks = [asyncio.create_task(recorder.produce(f"p{number}")) for number in range(PRODUCERS)]
            tasks.append(asyncio.create_task(recorder.read()))
            for _ in range(rounds):
                acknowledged = recorder.history.acknowledged_index
                await recorder.acknowledged(acknowledged + 10)
                leader = await client.leader()
                slow.hold(*(member for member in slow.peers if member != leader))  # what it takes in stays its own
                await asyncio.sleep(0.2)
                slow.kill(leader, signal.SIGKILL)
                slow.release()
                slow.start(leader)
            recorder.running = False
            await asyncio.gather(*tasks)
            await append_surely(client, b"last")
            log = await client.read(0, 1_000_000, include_all=True)
        finally:
            recorder.running = False
            await client.close()
        left = dict(map(seen_as, log))
        assert recorder.anomalies == []
        assert recorder.checker.finish(left) == []
        assert recorder.history.acknowledged_index >= 10 * rounds

    slow.start_all()
    asyncio.run(work())
