"""Real engines with a key-value store beside them: writes with results, linearizable reads, time, what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node.client import LedgerClient, LedgerError, NotAppended, OutcomeUnknown, Unsupported
from node.client.kv import KvClient, WatchGone
from node.client.machine import MachineClient
from node.engine.applier import Batch
from node.engine.engine import Engine
from node.protocol.kv import ABSENT, EventType, KvCommand, KvError, Op, Status, encode_command
from node.state_machine.kv import KeyValue
from tests.unit.engine_kit import running, until
from tests.unit.machine_kit import Inside, group

Members = list[tuple[Engine, Inside]]
Work = Callable[[Members, LedgerClient], Awaitable[None]]


def run(tmp_path: Path, count: int, work: Work) -> None:
    async def both() -> None:
        members = group(tmp_path, count, "kv", KeyValue)
        engines = [engine for engine, _ in members]
        async with running(engines) as codes:
            client = LedgerClient(dict(engines[0].settings.peers), deadline_s=30.0)
            try:
                await work(members, client)
            finally:
                await client.close()
        assert codes == [0] * count, [engine.reason for engine in engines]

    asyncio.run(both())


def test_what_is_put_is_read_from_every_member(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        kv = KvClient(client, deadline_s=30.0)
        index = await kv.put(b"a", b"1")
        for engine, _ in members:
            member_id = engine.replica.config.self_id
            item = await KvClient(client, deadline_s=30.0, member_id=member_id).get(b"a")
            assert item is not None and (item.value, item.index) == (b"1", index)
        assert await kv.get(b"b") is None
        await asyncio.gather(*(kv.put(b"k%02d" % number, b"v") for number in range(20)))
        items, more = await kv.range(b"k05", b"k10", limit=3)
        assert ([one.key for one in items], more) == ([b"k05", b"k06", b"k07"], True)
        items, more = await kv.range(b"k18")
        assert ([one.key for one in items], more) == ([b"k18", b"k19"], False)
        assert (await kv.delete(b"a"), await kv.delete(b"a"), await kv.get(b"a")) == (True, False, None)

    run(tmp_path, 3, work)


def test_the_first_read_of_a_client_may_be_at_a_member_that_it_was_not_told_of(tmp_path: Path) -> None:
    """Members come later than the addresses that clients are given."""

    async def work(members: Members, client: LedgerClient) -> None:
        await KvClient(client, deadline_s=30.0).put(b"a", b"1")
        for number in range(3):
            told = {one: at for one, at in members[0][0].settings.peers.items() if one != f"n{number}"}
            other = LedgerClient(told, deadline_s=30.0)
            try:
                item = await KvClient(other, deadline_s=30.0, member_id=f"n{number}").get(b"a")
                assert item is not None and item.value == b"1"
                with pytest.raises(LedgerError, match="n7 is not one of"):
                    await KvClient(other, deadline_s=30.0, member_id="n7").get(b"a")
                positions = other.committed(f"n{number}")
                assert (await anext(positions)).committed_index >= item.index
                await positions.aclose()
            finally:
                await other.close()

    run(tmp_path, 3, work)


def test_a_command_is_refused_until_the_state_machine_is_there(tmp_path: Path) -> None:
    """A process that starts slowly, or again, leaves no outcome unknown: nothing is appended meanwhile."""

    async def work(members: Members, client: LedgerClient) -> None:
        [(engine, machine)] = members
        await until(lambda: engine.replica.applied_index not in (None, -1))  # its term's first entry
        assert machine.reports is not None
        machine.reports.ended(machine.life, "it was killed")
        impatient = MachineClient(client, deadline_s=1.0)
        with pytest.raises(NotAppended, match="LEADER_NOT_READY: the state machine is not there: it was killed"):
            await impatient.command(encode_command(KvCommand(Op.PUT, b"a", b"1")))
        patient = asyncio.ensure_future(KvClient(client, deadline_s=60.0).put(b"b", b"2"))
        await asyncio.sleep(0)
        machine.stand()
        await patient
        items, _ = await KvClient(client, deadline_s=60.0).range(b"a")
        assert [one.key for one in items] == [b"b"]

    run(tmp_path, 1, work)


def test_commands_are_refused_while_an_entry_cannot_be_applied(tmp_path: Path) -> None:
    """Each would be in the log for good, and its result unknown; nor is the log filled with what time it is."""

    async def work(members: Members, client: LedgerClient) -> None:
        [(engine, machine)] = members
        replica = engine.replica
        await KvClient(client, deadline_s=30.0).put(b"a", b"1")
        await until(lambda: replica.member.hard.group_id is not None)  # an entry of the log's, too

        def poisoned(batch: Batch) -> None:
            assert machine.reports is not None
            machine.reports.applied(batch.life, batch.first_index - 1, [], f"entry {batch.first_index}: no such thing")

        machine.take = poisoned  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await KvClient(client, deadline_s=30.0).put(b"a", b"2")
        end = replica.store.end_index
        with pytest.raises(
            NotAppended, match=f"LEADER_NOT_READY: the state machine applies nothing more: entry {end}: no"
        ):
            await MachineClient(client, deadline_s=1.0).command(encode_command(KvCommand(Op.PUT, b"a", b"3")))
        assert engine.machine_requests is not None
        engine.machine_requests._tick(lambda: None)
        assert replica.store.end_index == end and not engine.proposals.waiting
        del machine.take  # it can apply that now
        index = await KvClient(client, deadline_s=60.0).put(b"a", b"4")
        assert index == end + 1 and not replica.applying.failing

    run(tmp_path, 1, work)


def test_a_snapshot_beyond_what_is_committed_waits_for_no_client(tmp_path: Path) -> None:
    """The newest one of a leader may be damaged, and who needs another one cannot wait until somebody writes."""

    async def work(members: Members, client: LedgerClient) -> None:
        [(engine, machine)] = members
        index = await KvClient(client, deadline_s=30.0).put(b"a", b"1")
        saved: list[int] = []
        machine.save = lambda done: saved.append(machine.caller.at)  # type: ignore[method-assign]
        engine.duties._save_snapshot(index)
        assert saved == [index]
        engine.duties._save_snapshot(index + 1)
        await until(lambda: len(saved) == 2)
        assert saved[1] == index + 1

    run(tmp_path, 1, work)


def test_compare_and_set_takes_place_once(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        kv = KvClient(client, deadline_s=30.0)
        assert (await kv.compare_and_set(b"n", None, b"0")).status is Status.DONE
        won = await asyncio.gather(*(kv.compare_and_set(b"n", b"0", b"%d" % one) for one in range(1, 9)))
        assert [one.status for one in won].count(Status.DONE) == 1
        lost = next(one for one in won if one.status is Status.CONDITION_FAILED)
        item = await kv.get(b"n")
        assert item is not None and lost.found and lost.value == item.value and lost.index == item.index
        assert (await kv.compare_index_and_set(b"n", item.index, None)).status is Status.DONE
        assert (await kv.compare_and_set(b"n", b"0", None)).found is False

    run(tmp_path, 1, work)


def test_only_the_entry_that_wrote_a_key_shows_that_nobody_wrote_it_since(tmp_path: Path) -> None:
    """What comes a second time, after an unknown outcome, finds its value back where others set it back meanwhile."""

    async def work(members: Members, client: LedgerClient) -> None:
        kv = KvClient(client, deadline_s=30.0)
        read = await kv.put(b"n", b"A")
        assert (await kv.compare_index_and_set(b"n", read, b"B")).status is Status.DONE
        await kv.put(b"n", b"A")
        again = await kv.compare_index_and_set(b"n", read, b"B")
        assert (again.status, again.value) == (Status.CONDITION_FAILED, b"A")
        assert (await kv.compare_and_set(b"n", b"A", b"B")).status is Status.DONE
        assert (await kv.compare_index_and_set(b"m", ABSENT, b"C")).status is Status.DONE
        assert (await kv.compare_index_and_set(b"m", ABSENT, b"C")).status is Status.CONDITION_FAILED
        for beyond in (-2, 2**63):
            with pytest.raises(KvError, match="expected_index"):
                await kv.compare_index_and_set(b"n", beyond, b"B")

    run(tmp_path, 1, work)


def test_a_key_goes_when_its_time_is_over_although_nobody_writes(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        kv = KvClient(client, deadline_s=30.0)
        watching = kv.watch(b"s", from_index=0)
        await kv.put(b"stays", b"1")
        await kv.put(b"short", b"2", ttl_ms=1)
        events = [await anext(watching) for _ in range(3)]
        assert [(one.type, one.key) for one in events] == [
            (EventType.PUT, b"stays"), (EventType.PUT, b"short"), (EventType.EXPIRE, b"short"),
        ]  # fmt: skip
        await watching.aclose()
        assert await kv.get(b"short") is None and await kv.get(b"stays") is not None
        for _, machine in members:
            await until(lambda machine=machine: machine.caller.at >= events[2].index)  # type: ignore[misc]

    run(tmp_path, 3, work)


def test_a_watch_waits_and_one_from_too_far_back_says_so(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        kv = KvClient(client, deadline_s=30.0)
        await kv.put(b"before", b"0")
        watching = kv.watch(b"w")
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        index = await kv.put(b"x", b"other")
        put = asyncio.ensure_future(kv.put(b"w1", b"here"))
        while not first.done():  # it may begin behind the first put of a key that it asks for
            await asyncio.wait({first}, timeout=0.05)
            put = asyncio.ensure_future(kv.put(b"w1", b"here"))
        await put
        assert first.result().key == b"w1" and first.result().index > index
        await watching.aclose()
        machine = members[0][1].caller._machine
        assert isinstance(machine, KeyValue)
        machine._events.from_index = index
        with pytest.raises(WatchGone) as caught:
            await anext(kv.watch(b"", from_index=0))
        assert caught.value.next_index > index

    run(tmp_path, 1, work)


def test_nothing_but_commands_enters(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        for append in (client.append(b"plain"), client.append_many([b"a", b"b"])):
            with pytest.raises(NotAppended, match="commands of its state machine only"):
                await append
        kv = KvClient(client)
        for bad in (b"", b"k" * 1025):
            with pytest.raises(KvError, match="1 to 1024"):
                await kv.put(bad, b"")
        with pytest.raises(KvError, match="up to 1048576"):
            await kv.put(b"k", bytes(1024 * 1024 + 1))

    run(tmp_path, 1, work)


def test_a_read_waits_until_what_it_asks_for_is_applied(tmp_path: Path) -> None:
    async def work(members: Members, client: LedgerClient) -> None:
        [(engine, machine)] = members
        kv = KvClient(client, deadline_s=30.0)
        await kv.put(b"a", b"old")
        machine.held = True
        writing = asyncio.ensure_future(kv.put(b"a", b"new"))
        await until(lambda: engine.replica.committed_index > machine.caller.at)
        reading = asyncio.ensure_future(kv.get(b"a"))
        await asyncio.sleep(0.05)
        assert not reading.done()
        machine.held = False
        machine.stand()  # it starts again: what it had not taken comes anew
        item = await reading
        assert item is not None and item.value == b"new"
        await asyncio.gather(writing, return_exceptions=True)

    run(tmp_path, 1, work)


def test_a_group_with_another_state_machine_gets_no_command_of_the_stores(tmp_path: Path) -> None:
    """It was in the log for good, and might have stopped that state machine on every member."""

    async def both() -> None:
        members = group(tmp_path, 1, "elsewhere.counting:Counter", KeyValue)
        engine = members[0][0]
        async with running([engine]):
            client = LedgerClient(dict(engine.settings.peers), deadline_s=30.0)
            try:
                before = await client.committed_index()
                store = KvClient(client, deadline_s=30.0)
                for asked in (store.put(b"a", b"1"), store.delete(b"a"), store.get(b"a"), store.range()):
                    with pytest.raises(Unsupported, match="state machine is 'counter', not 'kv'"):
                        await asked
                assert await client.committed_index() == before
                own = KvClient(client, deadline_s=30.0, kind="counter")
                assert await own.put(b"a", b"1") > before
                assert await KvClient(client, deadline_s=30.0, kind=None).get(b"a") is not None
            finally:
                await client.close()

    asyncio.run(both())
