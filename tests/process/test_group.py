"""Three real engines: they elect, append, read, redirect, move leadership, and survive the loss of their leader."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Sequence

import pytest

from node.client import Denied, LedgerClient, LedgerClientSync, LedgerError, NotAppended, ReadMode, Unreachable
from node.protocol.codes import ResponseCode
from node.protocol.entry import Magic
from tests.process.group import START_WITHIN_S, Group, all_vote, append_surely
from tests.process.undisturbed import undisturbed

pytestmark = pytest.mark.process


def with_client(group: Group, work: Callable[[LedgerClient], Awaitable[None]], **options: object) -> None:
    async def run() -> None:
        client = group.client(**options)
        try:
            await work(client)
        finally:
            await client.close()

    asyncio.run(run())


def alone_at(group: Group, member: str) -> LedgerClient:
    """A client of one member that goes nowhere else; the caller closes it."""
    there = {member: group.peers[member]}
    return LedgerClient(there, group=group.group, deadline_s=START_WITHIN_S, follow_redirects=False)


def test_appends_get_consecutive_indexes_and_come_back(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        first = await append_surely(client, b"first")
        batch = await client.append_many([b"a", b"", b"c" * 5000])
        assert batch.last_index - batch.first_index == 2
        singles = await asyncio.gather(*(client.append(b"%d" % number) for number in range(500)))
        assert len({one.first_index for one in singles}) == 500
        entries = await client.read(first, 10_000)
        held = {entry.index: entry.body for entry in entries}
        assert held[first] == b"first"
        assert [held[batch.first_index + offset] for offset in range(3)] == [b"a", b"", b"c" * 5000]
        assert all(held[one.first_index] == b"%d" % number for number, one in enumerate(singles))
        everything = await client.read(0, 3, include_all=True)
        assert everything[0].magic == Magic.NOOP
        assert await client.read(entries[-1].index + 1, 10) == []

    undisturbed(running, work)


def test_every_member_serves_linearizable_reads(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        index = await append_surely(client, b"seen everywhere")
        for member in running.peers:
            alone = alone_at(running, member)
            try:
                for mode in (ReadMode.LINEARIZABLE, ReadMode.FOLLOWER):
                    assert (await alone.read(index, 1, mode=mode))[0].body == b"seen everywhere"
            finally:
                await alone.close()

    undisturbed(running, work)


def test_a_follower_names_the_leader_and_a_client_goes_there(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"x")
        leader = await client.leader()
        follower = next(member for member in running.peers if member != leader)
        alone = alone_at(running, follower)
        try:
            with pytest.raises(NotAppended) as caught:
                await alone.append(b"y")
        finally:
            await alone.close()
        assert caught.value.code is ResponseCode.NOT_LEADER
        assert (caught.value.leader_id, caught.value.leader_address) == (leader, running.peers[leader])

    undisturbed(running, work)


def test_an_expected_index_is_compared_and_swapped(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        index = await append_surely(client, b"x")
        assert (await client.append(b"next", expected_index=index + 1)).first_index == index + 1
        with pytest.raises(NotAppended) as caught:
            await client.append(b"late", expected_index=index + 1)
        assert caught.value.code is ResponseCode.INCONSISTENT_INDEX

    undisturbed(running, work)


def test_a_body_over_the_limit_is_refused_alone(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"x")
        bodies = [b"good", b"z" * (4 * 1024 * 1024), b"good too"]
        outcomes = await asyncio.gather(*map(client.append, bodies), return_exceptions=True)
        assert isinstance(outcomes[1], NotAppended)
        assert outcomes[1].code is ResponseCode.UNEXPECTED_ARGUMENT
        assert "limit" in str(outcomes[1])
        assert not isinstance(outcomes[0], BaseException)
        assert not isinstance(outcomes[2], BaseException)

    undisturbed(running, work)


def test_bodies_of_every_size_come_back_from_every_member(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"x")
        sizes = [100, 65_000, 70_000, 400_000, 1_000_000, 3_000_000]
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        one_by_one = [await client.append(body) for body in bodies]
        batches = [await client.append_many(bodies[:4]), await client.append_many([bytes(1000)] * 1500)]
        for member in running.peers:
            alone = alone_at(running, member)
            try:
                for body, at in zip(bodies, one_by_one, strict=True):
                    (entry,) = await alone.read(at.first_index, 1, mode=ReadMode.FOLLOWER)
                    assert (entry.index, entry.body) == (at.first_index, body)
                read = await alone.read(batches[0].first_index, 4 + 1500, mode=ReadMode.FOLLOWER)
                assert [entry.body for entry in read] == [*bodies[:4], *[bytes(1000)] * 1500]
            finally:
                await alone.close()

    undisturbed(running, work)


def test_the_wrong_group_is_denied(running: Group) -> None:
    async def work(_client: LedgerClient) -> None:
        stranger = LedgerClient(running.peers, group="another", deadline_s=START_WITHIN_S)
        try:
            with pytest.raises(Denied):
                await stranger.append(b"x")
        finally:
            await stranger.close()

    undisturbed(running, work)


def test_nobody_there_is_unreachable() -> None:
    async def work() -> None:
        client = LedgerClient("n0-127.0.0.1:1", deadline_s=0.3)
        try:
            with pytest.raises(Unreachable):
                await client.append(b"x")
        finally:
            await client.close()

    asyncio.run(work())


def test_leadership_moves_and_writes_go_on(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"before")
        leader = await client.leader()
        term = (await client.state(leader))["term"]
        to = next(member for member in sorted(running.peers) if member != leader)
        refused = await client.transfer(to, if_term=term + 7)
        assert refused["code"] == ResponseCode.INCONSISTENT_TERM
        moved = await client.transfer(to, if_term=term, deadline_ms=30_000)
        assert (moved["code"], moved["leaderId"]) == (200, to)
        assert await append_surely(client, b"after") > 0
        assert await client.leader() == to
        unknown = await client.transfer("n9")
        assert unknown["code"] == ResponseCode.UNKNOWN_MEMBER

    undisturbed(running, work)


def test_introspection_has_the_shape_that_others_rely_on(running: Group) -> None:
    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"x")
        leader = await client.leader()
        state = await client.state(leader)
        assert (state["role"], state["engine"], state["group"], state["self_id"]) == ("LEADER", "ok", "g", leader)
        assert state["log"]["committed_index"] >= 1
        assert {peer["id"] for peer in state["peers"]} == set(running.peers)
        marks = await client.introspect(leader, "watermarks")
        assert (marks["needed"], len(marks["peers"])) == (2, 3)
        dispatchers = await client.introspect(leader, "dispatchers")
        assert {item["state"] for item in dispatchers["items"]} == {"APPEND"}
        assert (await client.introspect(leader, "closures"))["pending"] == 0
        events = await client.introspect(leader, "events")
        assert any(item["kind"] == "role" for item in events["items"])
        later = await client.introspect(leader, "events", since=events["next"])
        assert all(item["id"] not in {one["id"] for one in events["items"]} for item in later["items"])
        gap = await client.introspect(leader, "events", since="gone-5")
        assert gap["items"][0]["kind"] == "gap"
        follower = next(member for member in running.peers if member != leader)
        empty = await client.introspect(follower, "watermarks")
        assert empty["peers"] == []
        assert empty["unknown"][0]["field"] == "peers"
        with pytest.raises(LedgerError, match="weather"):
            await client.introspect(leader, "weather")

    undisturbed(running, work)


def test_the_blocking_client_does_the_same(running: Group) -> None:
    with LedgerClientSync(running.peers, group=running.group, deadline_s=START_WITHIN_S) as client:
        result = client.append_many([b"one", b"two"])
        assert [entry.body for entry in client.read(result.first_index, 2)] == [b"one", b"two"]
        assert client.state(client.leader())["role"] == "LEADER"


KEPT = [b"kept %d" % number for number in range(50)]


def kept(bodies: Sequence[bytes]) -> list[bytes]:
    """In order; an append that an election cut short may be there twice."""
    return list(dict.fromkeys(body for body in bodies if body.startswith(b"kept")))


def test_the_log_outlives_its_engines_and_a_lost_leader(group: Group) -> None:
    group.start_all()

    async def before(client: LedgerClient) -> None:
        first = await append_surely(client, b"kept 0")
        await all_vote(client, group.peers)  # else the two that are left may be no quorum of voters (E8)
        for number in range(1, 50):
            await append_surely(client, b"kept %d" % number)
        group.kill(await client.leader())
        await append_surely(client, b"after the kill")
        assert kept([entry.body for entry in await client.read(first, 1000)]) == KEPT

    with_client(group, before)
    for member in list(group.processes):
        assert group.kill(member, signal.SIGTERM) == 0
    group.start_all()

    async def after(client: LedgerClient) -> None:
        await append_surely(client, b"after the restart")
        bodies = [entry.body for entry in await client.read(0, 1000)]
        assert kept(bodies) == KEPT
        assert b"after the kill" in bodies

    with_client(group, after)


def test_a_paused_leader_steps_down_and_cannot_commit(group: Group) -> None:
    group.start_all()

    async def work(client: LedgerClient) -> None:
        await append_surely(client, b"x")
        await all_vote(client, group.peers)
        old = await client.leader()
        group.signal(old, signal.SIGSTOP)
        others = {member: address for member, address in group.peers.items() if member != old}
        rest = LedgerClient(others, group=group.group, deadline_s=START_WITHIN_S)
        try:
            index = await append_surely(rest, b"without it")
            group.signal(old, signal.SIGCONT)
            assert (await rest.read(index, 1))[0].body == b"without it"
            async with asyncio.timeout(START_WITHIN_S):
                while True:
                    with contextlib.suppress(LedgerError):  # what was asked before it went on again may be given up
                        state = await client.state(old)
                        if state["role"] == "FOLLOWER" and state["log"]["committed_index"] >= index:
                            break
                    await asyncio.sleep(0.05)
        finally:
            await rest.close()

    with_client(group, work)


@pytest.mark.parametrize(
    ("flush", "kills"),
    [("sync", 3), *(pytest.param(flush, 20, marks=pytest.mark.long) for flush in ("sync", "async"))],
)
def test_nothing_acknowledged_is_lost_when_leaders_are_killed_under_load(
    flush: str, kills: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Leaders are killed with SIGKILL while appends go on; then every acknowledged entry is compared."""
    group = Group(tmp_path_factory.mktemp("kills"), flush=flush)
    promised: dict[int, bytes] = {}
    grown = asyncio.Event()

    async def load(client: LedgerClient, worker: int, stop: asyncio.Event) -> None:
        number = 0
        while not stop.is_set():
            body = b"%d:%d" % (worker, number)
            number += 1
            try:
                result = await client.append(body)
            except LedgerError:
                await asyncio.sleep(0.01)
                continue
            assert result.first_index not in promised
            promised[result.first_index] = body
            grown.set()

    async def work(client: LedgerClient) -> None:
        stop = asyncio.Event()
        await append_surely(client, b"ready")
        await all_vote(client, group.peers)  # else the two that are left may be no quorum of voters (E8)
        workers = [asyncio.create_task(load(client, worker, stop)) for worker in range(16)]
        for _ in range(kills):
            acknowledged = len(promised)
            while len(promised) < acknowledged + 50:
                grown.clear()
                await grown.wait()
            leader = await client.leader()
            group.kill(leader)
            await append_surely(client, b"the next leader")
            await asyncio.to_thread(group.start, leader)
        stop.set()
        await asyncio.gather(*workers)
        held = {entry.index: entry.body for entry in await client.read(0, 10_000_000)}
        assert {index: held.get(index) for index in promised} == promised
        assert len(promised) > 50 * kills

    try:
        group.start_all()
        with_client(group, work)
    finally:
        group.close()
