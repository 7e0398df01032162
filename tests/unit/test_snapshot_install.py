"""A snapshot comes over in pieces, and the log begins behind it, or nothing changes (SAFETY M6, R4, R8, E8)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from node.consensus.configuration import Configuration
from node.consensus.effects import OpenSnapshot, ReadSnapshot, TakePart
from node.consensus.own_caps import TAKES_SNAPSHOT
from node.protocol.codes import DispatcherState, ResponseCode
from node.protocol.messages import PushKind, PushRequest, PushResponse, SnapshotPart
from node.snapshots.directory import SnapshotMeta
from node.snapshots.transfer import Taken
from node.store.memory_store import MemoryStore
from node.transport.slab_frames import BodyError
from node.transport.snapshot_frames import PART_HEAD, decode_part, encode_part
from tests.unit.core_kit import GROUP_ID, Solo, store_of

S = DispatcherState
BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
DATA = bytes(range(10))
CAPS = (TAKES_SNAPSHOT,)


def part(index: int = 9, offset: int = 0, data: bytes = b"", **changes: Any) -> SnapshotPart:
    one = SnapshotPart(
        77, "n1", 3, 1, -1, index, 2, 0x1234, 5000, GROUP_ID, None, len(DATA), 99, json.dumps({"log_time_ms": 7}),
        offset, data,
    )  # fmt: skip
    return replace(one, **changes)


def following(*terms: int, committed: int = -1) -> Solo:
    solo = Solo(store_of(terms, term=2), applies=True)
    solo.follow(term=3)
    if committed >= 0:
        solo.compare(committed, term=3, commit_index=committed)
    return solo


def answers(sent: list[tuple[str, Any]]) -> list[PushResponse]:
    return [one for _to, one in sent if isinstance(one, PushResponse)]


def ordered(solo: Solo) -> TakePart:
    order = solo.snapshots.pop()
    assert isinstance(order, TakePart) and not solo.snapshots
    return order


def taken(solo: Solo, order: TakePart, outcome: Taken | None) -> list[PushResponse]:
    solo.replica.disk.part_taken(order, outcome, solo.now)
    return answers(solo.take())


# --- the follower -------------------------------------------------------------------------------------------------
def test_m6_the_log_begins_behind_a_snapshot_once_all_of_it_is_there() -> None:
    solo = following(1, 1, 1, committed=1)
    assert answers(solo.receive("n1", part(data=DATA[:6]))) == [], "the answer comes with what is held"
    order = ordered(solo)
    (busy,) = answers(solo.receive("n1", part(data=DATA[:6])))
    assert busy.code == BUSY and not solo.snapshots, "one piece at a time"
    (answer,) = taken(solo, order, Taken(6))
    assert (answer.code, answer.x_term, answer.x_index, answer.seq) == (ResponseCode.SUCCESS, 9, 6, 77)
    assert solo.effects.begin_behind is None and solo.store.end_index == 2, "the log stays in use"
    solo.receive("n1", part(offset=6, data=DATA[6:]))
    (answer,) = taken(solo, ordered(solo), Taken(10, is_whole=True))
    assert answer.x_index == 10
    begin = solo.effects.begin_behind
    assert begin is not None and (begin.base.meta.index, begin.base.pos) == (9, 5000)
    solo.store.begin_behind(begin.base, begin.record)
    solo.replica.disk.begun_behind(begin, None, solo.now)
    (unasked,) = answers(solo.take())
    assert (unasked.verified_index, unasked.durable_index, unasked.end_index) == (9, 9, 9)
    (again,) = answers(solo.receive("n1", part()))
    assert again.code == ResponseCode.SUCCESS and not solo.snapshots, "the log holds that entry: nothing changes"


def test_what_is_applied_follows_once_the_state_machine_says_where_it_stands() -> None:
    solo = following(1, 1, 1, committed=2)
    applying = solo.replica.applying
    applying.ready(0, 1, solo.now)
    solo.take()
    before = solo.effects.apply
    assert before is not None and before.first_index == 1
    solo.receive("n1", part())
    taken(solo, ordered(solo), Taken(10, is_whole=True))
    begin = solo.effects.begin_behind
    assert begin is not None
    solo.store.begin_behind(begin.base, begin.record)
    solo.replica.disk.begun_behind(begin, None, solo.now)
    applying.applied(before.life, 2, [b"", b""], solo.now)  # a batch of the state before
    solo.take()
    assert solo.replica.member.applied_index is None and solo.effects.apply is None
    slab = solo.slab(9, term=3)
    solo.append_synced(slab, 2, term=3, commit_index=10)
    assert solo.effects.apply is None, "nobody knows what it holds"
    assert not any(alarm[0] == "applier_behind" for alarm in solo.replica.member.alarms)
    applying.ready(9, 2, solo.now)
    solo.take()
    assert solo.effects.apply is not None and solo.effects.apply.first_index == 10


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (part(1), ResponseCode.INCONSISTENT_INDEX),  # below what is committed
        (part(2), ResponseCode.INCONSISTENT_INDEX),  # another entry than the one that is committed here
        (part(group_id="f" * 32), ResponseCode.UNKNOWN_GROUP),
        (part(base_chain=None), ResponseCode.UNEXPECTED_ARGUMENT),
        (part(term=2), ResponseCode.EXPIRED_TERM),
        (part(leader_id="n2"), ResponseCode.UNEXPECTED_MEMBER),
    ],
)
def test_m6_what_is_refused_is_not_even_written(one: SnapshotPart, code: ResponseCode) -> None:
    solo = following(1, 1, 1, committed=2)
    (answer,) = answers(solo.receive("n1", one))
    assert answer.code == code and not solo.snapshots and solo.store.end_index == 2


def test_a_log_alone_takes_none() -> None:
    solo = Solo(store_of([1], term=2))
    solo.follow(term=3)
    (answer,) = answers(solo.receive("n1", part()))
    assert answer.code == ResponseCode.UNSUPPORTED


def test_whoever_has_moved_on_meanwhile_begins_nothing() -> None:
    solo = following(1, 1, 1, committed=1)
    solo.receive("n1", part())
    order = ordered(solo)
    solo.push(PushKind.COMMIT, "n2", term=4)
    assert taken(solo, order, Taken(10, is_whole=True)) == [] and solo.effects.begin_behind is None


def test_it_is_judged_again_when_it_is_whole() -> None:
    """What was committed meanwhile may be newer."""
    solo = following(1, 1, 1, committed=1)
    solo.receive("n1", part(2))
    order = ordered(solo)
    solo.compare(2, term=3, commit_index=2)
    (answer,) = taken(solo, order, Taken(10, is_whole=True))
    assert answer.code == ResponseCode.INCONSISTENT_INDEX
    assert solo.effects.begin_behind is None


def test_a_damaged_one_and_a_disk_without_room_change_nothing() -> None:
    solo = following(1, 1, 1, committed=1)
    solo.receive("n1", part())
    (answer,) = taken(solo, ordered(solo), Taken(0, error="it does not match its checksum"))
    assert (answer.code, answer.x_index) == (ResponseCode.INSTALL_SNAPSHOT_ERROR, 0)
    solo.receive("n1", part())
    (answer,) = taken(solo, ordered(solo), None)
    assert answer.code == ResponseCode.DISK_FULL and ("disk_full", None) in solo.replica.member.alarms
    assert solo.effects.begin_behind is None and solo.store.end_index == 2


# --- the leader ---------------------------------------------------------------------------------------------------
def leading(*members: str) -> Solo:
    """n0 leads a log that begins at 2; these members, whose logs end at 0, are to begin anew."""
    whole = store_of([1, 1, 1], term=1)
    base = whole.meta(1)
    assert base is not None
    short = MemoryStore(store_id="s0", hard_state=whole.hard_state, base=base, base_pos=100)
    short.append_slab(whole.read_slab(2, 1))
    solo = Solo(short, connect=False, applies=True)
    for peer in ("n1", "n2"):
        solo.connect(peer, caps=CAPS)
    for to, one in solo.lead():
        if to in members and isinstance(one, PushRequest):
            solo.ack(to, one, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0)
    return solo


def saved(solo: Solo, **changes: Any) -> SnapshotMeta:
    """What the state machine of that leader saved at its base."""
    meta = SnapshotMeta(1, 1, solo.store.base.chain, 100, len(DATA), 99, {"log_time_ms": 7})
    return replace(meta, **changes)


def opened(solo: Solo, why: str = "", **changes: Any) -> list[SnapshotPart]:
    meta = None if why else saved(solo, **changes)
    order = solo.snapshots.pop()
    assert isinstance(order, OpenSnapshot) and order.from_index == 1 and not solo.snapshots
    solo.replica.disk.snapshot_opened(order, meta, why, solo.now)
    return parts(solo.take())


def parts(sent: list[tuple[str, Any]]) -> list[SnapshotPart]:
    return [one for _to, one in sent if isinstance(one, SnapshotPart)]


def held(
    solo: Solo, one: SnapshotPart, held_bytes: int, code: ResponseCode = ResponseCode.SUCCESS, to: str = "n1"
) -> Any:
    return solo.ack(to, one, -1, code=code, end_index=0, x_term=one.base_index, x_index=held_bytes)


def was_read(solo: Solo, at: int, count: int) -> list[SnapshotPart]:
    order = solo.snapshots.pop()
    assert isinstance(order, ReadSnapshot) and order.offset == at and not solo.snapshots
    solo.replica.disk.snapshot_read(order, DATA[at : at + count], solo.now)
    return parts(solo.take())


def test_the_peer_says_how_far_it_is_and_gets_what_comes_next() -> None:
    solo = leading("n1")
    (offer,) = opened(solo)
    assert (offer.base_index, offer.base_pos, offer.total_bytes, offer.data) == (1, 100, 10, b"")
    assert json.loads(offer.more) == {"log_time_ms": 7}
    held(solo, offer, 4)  # from an earlier connection
    (one,) = was_read(solo, 4, 3)
    assert (one.offset, one.data) == (4, DATA[4:7])
    status = solo.replica.status(solo.now).dispatchers[0].snapshot
    assert status is not None and (status.index, status.held_bytes, status.total_bytes) == (1, 4, 10)
    held(solo, one, 7)
    (one,) = was_read(solo, 7, 3)
    held(solo, one, 10)
    (asked,) = parts(solo.tick(200))
    assert (asked.offset, asked.data) == (10, b""), "whether it is in place by now"
    sent = solo.ack("n1", asked, 1)
    assert solo.replica.peers.of["n1"].state is S.COMPARE
    assert [one.kind for _to, one in sent if isinstance(one, PushRequest)] == [PushKind.COMPARE]


def test_a_piece_that_gets_lost_is_sent_again_and_shorter() -> None:
    solo = leading("n1")
    (offer,) = opened(solo)
    held(solo, offer, 0)
    (one,) = was_read(solo, 0, 6)
    (again,) = parts(solo.late_tick(5_000))
    assert again.seq != one.seq and (again.offset, again.data) == (0, DATA[:6])


def test_an_answer_about_another_snapshot_moves_nothing() -> None:
    solo = leading("n1")
    (offer,) = opened(solo)
    solo.ack("n1", offer, -1, end_index=0, x_term=7, x_index=5)
    assert not solo.snapshots


def test_two_peers_have_their_turns() -> None:
    solo = leading("n1", "n2")
    (offer,) = opened(solo)
    assert "is sent a snapshot first" in (solo.replica.peers.of["n2"].last_error or "")
    solo.tick(50)
    solo.ack("n1", offer, 1)
    solo.tick(50)
    (order,) = solo.snapshots
    assert isinstance(order, OpenSnapshot) and order.peer_id == "n2"


def test_where_there_is_none_it_is_said_and_tried_again() -> None:
    solo = leading("n1")
    assert opened(solo, "one is being saved") == []
    assert ("needs_snapshot", "n1") in solo.replica.member.alarms
    solo.late_tick(1_500)
    assert opened(solo) and ("needs_snapshot", "n1") not in solo.replica.member.alarms


@pytest.mark.parametrize("changes", [{"chain": 5}, {"term": 0}, {"index": 7}])
def test_one_that_is_not_of_this_log_is_not_sent(changes: dict[str, Any]) -> None:
    solo = leading("n1")
    assert opened(solo, **changes) == []
    assert "of another history" in solo.replica.member.alarms["needs_snapshot", "n1"].text


def test_one_that_arrives_damaged_twice_is_not_sent_again() -> None:
    solo = leading("n1")
    (offer,) = opened(solo)
    held(solo, offer, 0, ResponseCode.INSTALL_SNAPSHOT_ERROR)
    solo.late_tick(1_500)
    (offer,) = opened(solo)  # the peer may have lost power
    held(solo, offer, 0, ResponseCode.INSTALL_SNAPSHOT_ERROR)
    assert "damaged" in solo.replica.member.alarms["needs_snapshot", "n1"].text
    solo.late_tick(1_500)
    (order,) = solo.snapshots
    assert isinstance(order, OpenSnapshot) and order.from_index == 2


def test_one_that_cannot_be_read_twice_is_not_opened_again() -> None:
    solo = leading("n1")
    for _ in range(2):
        (offer,) = opened(solo)
        held(solo, offer, 0)
        (order,) = solo.snapshots
        assert isinstance(order, ReadSnapshot)
        solo.replica.disk.snapshot_read(order, None, solo.now)
        solo.take()
        assert "cannot be read" in solo.replica.member.alarms["needs_snapshot", "n1"].text
        solo.snapshots.clear()
        solo.late_tick(1_500)
    (again,) = solo.snapshots
    assert isinstance(again, OpenSnapshot) and again.from_index == 2


def test_a_lost_connection_makes_way_and_the_next_asks_first() -> None:
    solo = leading("n1", "n2")
    opened(solo)
    solo.replica.links.lost("n1", solo.now)
    solo.take()
    solo.tick(50)
    (order,) = solo.snapshots
    assert isinstance(order, OpenSnapshot) and order.peer_id == "n2"


def test_who_is_removed_makes_way_for_the_next() -> None:
    """It may be connected as ever: the entry that removes it is in effect at once."""
    solo = leading("n1", "n2")
    opened(solo)
    left = {one: at for one, at in solo.replica.configuration.voters.items() if one != "n1"}
    solo.replica.reconfiguration.configure(Configuration(left), solo.now)
    solo.take()
    solo.tick(50)
    (order,) = solo.snapshots
    assert isinstance(order, OpenSnapshot) and order.peer_id == "n2"


def test_a_release_that_takes_none_is_an_alarm() -> None:
    solo = leading()
    solo.connect("n1", caps=(), end_index=0)
    compare = [one for to, one in solo.sent if to == "n1" and isinstance(one, PushRequest)][-1]
    solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0)
    assert "upgrade it" in solo.replica.member.alarms["needs_snapshot", "n1"].text


# --- the frame ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("one", [part(), part(offset=3, data=DATA[3:7]), part(group_id=None)])
def test_a_part_comes_through_the_wire_as_it_was(one: SnapshotPart) -> None:
    assert decode_part(b"".join(encode_part(one)), "n1", 77) == one


def broken(one: SnapshotPart, at: int = 0, byte: int | None = None, cut: int = 0) -> bytes:
    raw = bytearray(b"".join(encode_part(one)))
    if byte is not None:
        raw[at] = byte
    return bytes(raw[: len(raw) - cut])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "its head alone"),
        (broken(part(), 0, 9), "version 9"),
        (broken(part(), cut=1), "says"),
        (broken(part(data=b"abc"), -1, 0), "checksum"),
        (broken(part(-1)), "entry -1"),
        (broken(part(offset=8, data=b"abc")), "bytes 8 to 11 of a snapshot of 10"),
        (broken(part(more="[]")), "kept with it"),
        (broken(part(more="{")), "kept with it"),
        (broken(part(), PART_HEAD.size, 0), "can be read"),
        (broken(part(group_id="nonsense")), "group 'nonsense'"),
    ],
)
def test_a_broken_body_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(BodyError, match=text):
        decode_part(body, "n1", 77)
