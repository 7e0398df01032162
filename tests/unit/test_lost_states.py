"""A state that is lost behind a trimmed log is asked for, and given, beside the entries (SAFETY M6)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.consensus.api import MS
from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.own_caps import TAKES_SNAPSHOT
from node.protocol.codes import DispatcherState, ResponseCode, Role
from node.protocol.messages import HeartBeatRequest, HeartBeatResponse, PushRequest, PushResponse, SnapshotPart
from node.snapshots.directory import DAMAGED, FOLDER, SnapshotMeta, SnapshotWriter, newest_index, newest_sound
from node.snapshots.transfer import Taken
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import Solo, store_of
from tests.unit.test_snapshot_install import DATA, parts

BASE = 1


def trimmed() -> MemoryStore:
    """A log of three entries, of which the first two were removed."""
    whole = store_of([1, 1, 1], term=1)
    base = whole.meta(BASE)
    assert base is not None
    short = MemoryStore(store_id="s0", hard_state=whole.hard_state, base=base, base_pos=100)
    short.append_slab(whole.read_slab(2, 1))
    ticket = short.prepare_sync()
    assert ticket is not None
    short.finish_sync(ticket)
    return short


def of(sent: list[tuple[str, Any]], kind: type) -> list[Any]:
    return [one for _to, one in sent if isinstance(one, kind)]


# --- the member that lost it ---------------------------------------------------------------------------------------
def follower() -> Solo:
    solo = Solo(trimmed(), applies=True)
    solo.follow(term=1)
    solo.compare(2, term=1, commit_index=2)
    solo.replica.applying.ready(-1, None, solo.now)
    solo.take()
    return solo


def beat(solo: Solo) -> HeartBeatResponse:
    (answer,) = of(solo.receive("n1", HeartBeatRequest(3, "n1", 1, 2, None)), HeartBeatResponse)
    assert isinstance(answer, HeartBeatResponse)
    return answer


def part(solo: Solo, **changes: Any) -> SnapshotPart:
    base = solo.store.base
    one = SnapshotPart(
        77, "n1", 1, 1, 2, base.index, base.term, base.chain, 100, None, None, len(DATA), 99, "{}", 0, DATA
    )
    return replace(one, **changes)


def test_it_says_from_where_it_needs_one_and_keeps_its_log() -> None:
    solo = follower()
    assert ("applier_behind", None) in solo.replica.member.alarms
    assert beat(solo).needs_state_from == BASE
    assert of(solo.receive("n1", part(solo)), PushResponse) == []
    (order,) = solo.snapshots
    assert isinstance(order, TakePart) and order.keeps
    solo.snapshots.clear()
    solo.replica.disk.part_taken(order, Taken(len(DATA), is_whole=True), solo.now)
    (answer,) = of(solo.take(), PushResponse)
    assert (answer.code, answer.x_term, answer.x_index) == (ResponseCode.SUCCESS, BASE, len(DATA))
    assert solo.effects.begin_behind is None and solo.store.end_index == 2, "the log stays"
    assert beat(solo).needs_state_from == -1, "it is being loaded"
    solo.replica.applying.ready(BASE, 1, solo.now)
    solo.take()
    assert solo.effects.apply is not None and solo.effects.apply.first_index == 2
    assert ("applier_behind", None) not in solo.replica.member.alarms


def test_one_that_cannot_be_loaded_is_asked_for_again() -> None:
    solo = follower()
    solo.receive("n1", part(solo))
    (order,) = solo.snapshots
    assert isinstance(order, TakePart)
    solo.replica.disk.part_taken(order, Taken(len(DATA), is_whole=True), solo.now)
    solo.replica.applying.ready(-1, None, solo.now)
    solo.take()
    assert beat(solo).needs_state_from == BASE


def test_who_has_a_state_takes_none_for_entries_that_it_holds() -> None:
    solo = follower()
    solo.replica.applying.ready(BASE, 1, solo.now)
    solo.take()
    (answer,) = of(solo.receive("n1", part(solo)), PushResponse)
    assert answer.code == ResponseCode.SUCCESS and not solo.snapshots


# --- the leader -------------------------------------------------------------------------------------------------
def leader(*, stands_at: int = BASE) -> Solo:
    solo = Solo(trimmed(), connect=False, applies=True)
    for peer in ("n1", "n2"):
        solo.connect(peer, caps=(TAKES_SNAPSHOT,), end_index=2)
    compares = {to: one for to, one in solo.lead() if isinstance(one, PushRequest)}
    for peer, compare in compares.items():
        for _to, push in [one for one in solo.ack(peer, compare, 2) if isinstance(one[1], PushRequest)]:
            solo.ack(peer, push, 3)
    solo.sync()
    solo.replica.applying.ready(stands_at, None if stands_at < 0 else 1, solo.now)
    solo.take()
    solo.snapshots.clear()
    return solo


def says(solo: Solo, peer: str, needs: int) -> list[tuple[str, Any]]:
    answer = HeartBeatResponse(9, solo.replica.term, ResponseCode.SUCCESS, 3, needs_state_from=needs)
    return solo.receive(peer, answer)


def test_a_peer_that_needs_one_is_given_it_beside_the_entries() -> None:
    solo = leader()
    says(solo, "n1", BASE)
    order = solo.snapshots.pop()
    assert isinstance(order, OpenSnapshot) and (order.peer_id, order.from_index) == ("n1", BASE)
    meta = SnapshotMeta(BASE, 1, solo.store.base.chain, 100, len(DATA), 99, {})
    solo.replica.disk.snapshot_opened(order, meta, "", solo.now)
    (offer,) = parts(solo.take())
    assert offer.data == b"" and solo.replica.peers.of["n1"].state is DispatcherState.APPEND
    solo.ack("n1", offer, 3, x_term=BASE, x_index=0)
    read = solo.snapshots.pop()
    assert isinstance(read, ReadSnapshot) and read.offset == 0
    solo.replica.disk.snapshot_read(read, DATA, solo.now)
    (piece,) = parts(solo.take())
    assert piece.data == DATA
    solo.ack("n1", piece, 3, x_term=BASE, x_index=len(DATA))
    says(solo, "n1", -1)
    assert solo.replica.leadership is not None and solo.replica.leadership.way.holder_id is None
    assert not parts(solo.tick(300))


def test_a_lost_connection_begins_anew() -> None:
    solo = leader()
    says(solo, "n1", BASE)
    assert isinstance(solo.snapshots.pop(), OpenSnapshot)
    solo.replica.links.lost("n1", solo.now)
    solo.take()
    solo.connect("n1", caps=(TAKES_SNAPSHOT,), end_index=3)
    says(solo, "n1", BASE)
    assert isinstance(solo.snapshots.pop(), OpenSnapshot)


def test_who_lost_its_state_is_no_transferee_and_does_not_lead_on() -> None:
    solo = leader(stands_at=-1)
    assert solo.replica.applying.needs_state_from == BASE
    says(solo, "n1", BASE)
    assert solo.replica.handover.transferees.best() == "n2"
    solo.tick(10)
    assert solo.replica.transfers.transferee_id == "n2"


@pytest.mark.parametrize("commits", [True, False])
def test_a_leader_that_cannot_hand_over_for_want_of_commits_steps_down(commits: bool) -> None:
    """Else a member that needs a snapshot for the quorum waits for one from a leader that has none, for ever."""
    solo = leader(stands_at=-1)
    solo.replica.propose([b"x"], solo.now)
    pushes = {to: one for to, one in solo.take() if isinstance(one, PushRequest)}
    solo.sync()
    if commits:
        solo.ack("n1", pushes["n1"], 4)
    for _ in range(solo.replica.config.timing.transfer_deadline_ns // (10 * MS) + 2):
        says(solo, "n1", BASE)
        says(solo, "n2", -1)
        solo.tick(10)
    down = [one for one in solo.events if "nothing is committed while it leads" in str(one)]
    assert (solo.replica.role is Role.LEADER, bool(down)) == (commits, not commits)


def test_where_nobody_else_has_it_the_leader_stays() -> None:
    solo = leader(stands_at=-1)
    for peer in ("n1", "n2"):
        says(solo, peer, BASE)
    solo.tick(10)
    assert solo.replica.transfers.transferee_id is None


# --- on the disk --------------------------------------------------------------------------------------------------
def test_damaged_ones_are_set_aside_so_that_another_one_finds_room(tmp_path: Path) -> None:
    for index in (3, 5):
        writer = SnapshotWriter(tmp_path)
        writer.write(b"state of %d" % index)
        writer.commit(SnapshotMeta(index, 1))
        data = tmp_path / FOLDER / f"snapshot_{index}" / "data"
        data.write_bytes(b"state of x")
    found, wrong = newest_sound(tmp_path, sets_aside=True)
    assert found is None and len(wrong) == 2 and newest_index(tmp_path) == -1
    assert [one.name for one in (tmp_path / FOLDER).iterdir()] == [f"{DAMAGED}3"], "the last one stays, to be looked at"
