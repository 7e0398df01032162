"""`state.links`: who is connected to whom and since when, who was heard when, and how long a heartbeat takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from app.demo.relay import Relay
from node.config import load
from node.consensus.configuration import Configuration
from node.consensus.member_changes import ChangeOutcome, Kind, MemberChange
from node.engine.engine import Engine
from node.engine.link_health import LOST_AFTER_NS, LinkHealth, link_view
from node.lateness import Lateness
from node.protocol.codes import ResponseCode, Role, VoterState
from node.store.memory_store import MemoryStore
from node.views.state import LinkView, StateView
from tests.ports import free_ports

MS = 1_000_000


def asked_and_answered(health: LinkHealth, opaque: int, at_ms: int, took_ms: int) -> float | None:
    health.asked(opaque, at_ms * MS)
    health.answered(opaque, (at_ms + took_ms) * MS)
    return link_view("n1", health, 0).rtt_ms


def test_a_round_trip_belongs_to_the_question_that_was_asked() -> None:
    health = LinkHealth()
    assert link_view("n1", health, 5).rtt_ms is None
    health.asked(1, 0)
    health.asked(2, 10 * MS)  # another one is out: not timed
    health.answered(2, 20 * MS)
    assert health.rtt_ns is None
    health.answered(1, 100 * MS)
    assert link_view("n1", health, 0).rtt_ms == 100
    assert asked_and_answered(health, 3, 200, 80) == 80
    health.out_lost()
    assert link_view("n1", health, 0).rtt_ms is None, "of a connection that is gone nothing is known"


def test_it_is_said_for_how_long_a_heartbeat_has_not_been_answered() -> None:
    health = LinkHealth()
    assert link_view("n1", health, 5 * MS).unanswered_ms is None
    health.asked(1, 10 * MS)
    health.asked(2, 60 * MS)
    assert link_view("n1", health, 310 * MS).unanswered_ms == 300
    health.answered(1, 311 * MS)
    assert link_view("n1", health, 400 * MS).unanswered_ms is None
    health.asked(3, 500 * MS)
    health.out_lost()
    assert link_view("n1", health, 900 * MS).unanswered_ms is None, "it cannot be answered any more"


def test_one_late_answer_is_no_slow_link_and_two_are() -> None:
    """A heartbeat that waited for a cut to be mended says how long the cut lasted, and nothing of the link."""
    health = LinkHealth()
    asked_and_answered(health, 1, 0, 2)
    assert asked_and_answered(health, 2, 100, 4_000) == 2
    assert asked_and_answered(health, 3, 4_200, 3) == 3
    assert asked_and_answered(health, 4, 4_300, 500) == 3
    assert asked_and_answered(health, 5, 4_900, 510) == 500


def test_a_question_that_nobody_answers_does_not_stop_the_timing() -> None:
    health = LinkHealth()
    health.asked(1, 0)
    health.asked(2, LOST_AFTER_NS + 1)
    health.answered(2, LOST_AFTER_NS + 1 + 3 * MS)
    assert link_view("n1", health, 0).rtt_ms == 3


def test_what_this_process_came_late_itself_is_taken_off_and_may_leave_nothing_timed() -> None:
    health = LinkHealth()
    asked_and_answered(health, 1, 0, 240)
    for opaque, (took_ms, late_ms, rtt_ms) in enumerate([(260, 40, 220), (150, 149, 220), (151, 2, 149)], 2):
        begun = opaque * 1_000 * MS
        health.asked(opaque, begun)
        health.answered(opaque, begun + took_ms * MS, lambda since, now, late=late_ms: late * MS)  # type: ignore[misc]
        assert link_view("n1", health, 0).rtt_ms == rtt_ms, took_ms


def test_lateness_is_of_the_time_that_was_asked_for_and_of_no_other() -> None:
    late = Lateness()
    late.came(100 * MS, 102 * MS)  # as loops do all the time
    assert late.longest_ns(0, 200 * MS) == 0
    late.came(200 * MS, 290 * MS)
    late.came(300 * MS, 340 * MS)
    assert late.longest_ns(0, 400 * MS) == 90 * MS
    assert late.longest_ns(240 * MS, 400 * MS) == 50 * MS, "the part of it that lies within"
    assert late.longest_ns(290 * MS, 400 * MS) == 40 * MS
    assert late.longest_ns(340 * MS, 400 * MS) == 0
    assert late.longest_ns(340 * MS, 400 * MS, overdue_ns=350 * MS) == 50 * MS, "what is due has not come yet"
    assert late.longest_ns(380 * MS, 400 * MS, overdue_ns=350 * MS) == 20 * MS
    assert late.longest_ns(340 * MS, 400 * MS, overdue_ns=500 * MS) == 0
    assert late.total_ns(0, 400 * MS, overdue_ns=350 * MS) == 180 * MS


@asynccontextmanager
async def pair(tmp_path: Path) -> AsyncIterator[tuple[dict[str, Engine], list[Relay]]]:
    """Two members of one group; what n0 dials passes a relay, and so does what n1 dials."""
    ports = free_ports(2)
    relays = [Relay(("127.0.0.1", ports[1])), Relay(("127.0.0.1", ports[0]))]
    for relay in relays:
        await relay.start()
    engines: dict[str, Engine] = {}
    running, ready = [], []
    for number, name in enumerate(("n0", "n1")):
        seen = [f"n{one}-127.0.0.1:{ports[one] if one == number else relays[number].port}" for one in (0, 1)]
        settings = load({"node.id": name, "peers": ";".join(seen), "node.data": str(tmp_path / name)}, None, {})
        engines[name] = Engine(settings, MemoryStore(store_id=name))
        up = asyncio.Event()
        running.append(asyncio.create_task(engines[name].run(lambda _port, up=up: up.set())))  # type: ignore[misc]
        ready.append(up.wait())
    await asyncio.gather(*ready)
    try:
        yield engines, relays
    finally:
        for engine in engines.values():
            engine.stop()
        await asyncio.gather(*running)
        for relay in relays:
            await relay.stop()


def link_of(engine: Engine) -> LinkView:
    state = engine.introspection.view("state", None, lambda: engine.replica.status(engine.now_ns()))
    assert isinstance(state, StateView) and state.links is not None
    (link,) = state.links
    return link


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - nothing to wait for
            await asyncio.sleep(0.02)


def run(tmp_path: Path, work: Callable[[dict[str, Engine], list[Relay]], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with pair(tmp_path) as (engines, relays):
            await work(engines, relays)

    asyncio.run(all_of_it())


def leader_of(engines: dict[str, Engine]) -> Engine | None:
    return next((one for one in engines.values() if one.replica.member.role.value == "LEADER"), None)


def test_members_tell_who_hears_whom_and_how_fast(tmp_path: Path) -> None:
    async def work(engines: dict[str, Engine], relays: list[Relay]) -> None:
        await until(lambda: leader_of(engines) is not None)
        leader = leader_of(engines)
        assert leader is not None
        follower = next(one for one in engines.values() if one is not leader)
        await until(lambda: link_of(leader).rtt_ms is not None)
        reported = link_of(leader)
        assert reported.peer_id == follower.settings.node.id
        assert reported.in_since and reported.out_since and (reported.last_heard_ms or 0) < 10_000
        assert link_of(follower).rtt_ms is None, "a follower asks nobody"
        for relay in relays:
            relay.delay_s = 0.2
        await until(lambda: (link_of(leader).rtt_ms or 0) > 100)

    run(tmp_path, work)


def test_silence_is_told_as_silence_and_an_end_as_an_end(tmp_path: Path) -> None:
    async def work(engines: dict[str, Engine], relays: list[Relay]) -> None:
        await until(lambda: all(link_of(one).in_since and link_of(one).out_since for one in engines.values()))
        for relay in relays:
            relay.cut()
        await until(lambda: (link_of(engines["n0"]).last_heard_ms or 0) > 300)
        for relay in relays:
            relay.mend()
        await until(lambda: (link_of(engines["n0"]).last_heard_ms or 0) < 300)
        engines["n1"].stop()
        await until(lambda: link_of(engines["n0"]).out_since is None and link_of(engines["n0"]).in_since is None)
        assert link_of(engines["n0"]).last_heard_ms is not None, "when it was heard last stays known"

    run(tmp_path, work)


def test_a_member_that_is_back_after_a_cut_is_greeted_anew(tmp_path: Path) -> None:
    """Its removal was cut off again: our connection to it was that of the member before, of which nothing is known."""

    async def work(engines: dict[str, Engine], _relays: list[Relay]) -> None:
        await until(lambda: leader_of(engines) is not None)
        leader = leader_of(engines)
        assert leader is not None
        follower, leader_id = next(one for one in engines.values() if one is not leader), leader.settings.node.id
        replica = follower.replica
        await until(lambda: replica.leader_id == leader_id and replica.peers.of[leader_id].connected)
        before = replica.configuration
        alone = Configuration({one: at for one, at in before.voters.items() if one != leader_id})
        replica.reconfiguration.configure(alone, follower.now_ns())
        follower.turn_if_wanted()
        assert leader_id in replica.guests, "it leads on until its removal is committed"
        replica.reconfiguration.configure(before, follower.now_ns())
        follower.turn_if_wanted()
        await until(lambda: replica.peers.of[leader_id].connected)

    run(tmp_path, work)


def test_a_durable_ack_that_nobody_asked_for_is_no_round_trip() -> None:
    """It carries the number -1, as does the mark that nothing is asked."""
    health = LinkHealth()
    health.answered(-1, 522_000_000_000)
    assert health.rtt_ns is None
    health.asked(7, 522_000_000_000)
    health.answered(-1, 522_900_000_000)
    health.answered(7, 522_001_000_000)
    health.answered(-1, 999_000_000_000)
    assert health.rtt_ns == 1_000_000


def test_members_are_dialled_from_the_moment_they_join_until_they_leave(tmp_path: Path) -> None:
    """The connections follow the log: a new member is promoted, moves, takes over, and the old leader leaves."""

    async def work() -> None:
        ports = free_ports(2)
        n0, n1 = f"n0-127.0.0.1:{ports[0]}", f"n1-127.0.0.1:{ports[1]}"
        engines = {}
        for name, peers, join in (("n0", n0, "false"), ("n1", f"{n0};{n1}", "true")):
            flags = {"node.id": name, "peers": peers, "node.data": str(tmp_path / name), "node.join": join}
            store = MemoryStore(store_id=name)
            if join == "true":
                store.hard_state = replace(store.hard_state, voter_state=VoterState.REJOINING)
            engines[name] = Engine(load(flags, None, {}), store)
        old, new = engines["n0"], engines["n1"]
        outcomes: list[ChangeOutcome] = []
        running = [asyncio.create_task(one.run(lambda _port: None)) for one in engines.values()]
        await until(lambda: old.replica.role is Role.LEADER and old.replica.member.hard.group_id is not None)
        old.change_members(MemberChange(Kind.ADD, "n1", f"127.0.0.1:{ports[1]}"), outcomes.append)
        old.turn_if_wanted()
        await until(lambda: sorted(new.replica.configuration.voters) == ["n0", "n1"])
        await until(lambda: link_of(old).in_since is not None and old.replica.peers.of["n1"].counts)
        assert [one.code for one in outcomes] == [ResponseCode.SUCCESS]
        await until(lambda: old.replica.committed_index >= old.replica.configuration.index)
        old.change_members(MemberChange(Kind.REMOVE, "n0"), outcomes.append)
        old.turn_if_wanted()
        await until(lambda: new.replica.role is Role.LEADER and new.replica.leadership is not None)
        await until(lambda: new.replica.committed_index >= new.replica.configuration.index)
        assert sorted(new.replica.configuration.voters) == ["n1"] and not new.replica.peers.of
        await until(lambda: old.replica.role is not Role.LEADER)
        assert not (old.reason or new.reason)
        for engine in engines.values():
            engine.stop()
        assert await asyncio.gather(*running) == [0, 0]

    asyncio.run(work())
