"""A follower begins its log where its leader's begins, or refuses to (SAFETY M1, M6, R4, R7, R8, E8)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from node.consensus.own_caps import TAKES_BASE
from node.protocol.codes import DispatcherState, FlushMode, ResponseCode, VoterState
from node.protocol.entry import EntryError
from node.protocol.messages import InstallRequest, PushKind, PushRequest, PushResponse
from node.store.files.identity import Base
from node.store.log_store import EntryMeta, TruncationRecord
from node.store.memory_store import MemoryStore
from node.transport.install_frames import INSTALL_HEAD, JSON_BYTES_MAX, decode_install, encode_install
from node.transport.slab_frames import BodyError
from tests.unit.core_kit import GROUP_ID, PEERS, Solo, store_of

S = DispatcherState
BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
MEMBERS = json.dumps({"members": {"voters": PEERS, "learners": {"n3": "127.0.0.1:20914"}}})


def order(index: int = 9, base_term: int = 2, **changes: Any) -> InstallRequest:
    request = InstallRequest(77, "n1", 3, 1, -1, index, base_term, 0x1234, 5000, GROUP_ID)
    return replace(request, **changes)


def following(store: MemoryStore, *, committed: int = -1, **changes: Any) -> Solo:
    solo = Solo(store, **changes)
    solo.follow(term=3)
    if committed >= 0:
        solo.compare(committed, term=3, commit_index=committed)
    return solo


def answer_to(solo: Solo, request: InstallRequest, sender: str = "n1") -> PushResponse:
    (answer,) = [one for _to, one in solo.receive(sender, request) if isinstance(one, PushResponse)]
    return answer


def begun(solo: Solo) -> list[PushResponse]:
    """The disk does what was ordered; what is said then."""
    begin = solo.effects.begin_behind
    assert begin is not None
    solo.store.begin_behind(begin.base, begin.record)
    solo.replica.disk.begun_behind(begin, None, solo.now)
    return [one for _to, one in solo.take() if isinstance(one, PushResponse)]


# --- the follower -------------------------------------------------------------------------------------------------
def test_m6_a_follower_left_behind_archives_and_begins_where_its_leader_does() -> None:
    solo = following(store_of([1, 1, 1], term=2), committed=1)
    answer = answer_to(solo, order())
    assert answer.code == BUSY and answer.durable_index == 1, "nothing but what is committed counts any more (R8)"
    commit = solo.push(PushKind.COMMIT, term=3)
    assert commit is not None and commit.code == ResponseCode.SUCCESS, "it goes on following"
    assert answer_to(solo, order()).code == BUSY and solo.effects.begin_behind is None, "never two at once"


def test_m6_it_says_what_it_holds_now_and_follows_from_there() -> None:
    solo = following(store_of([1, 1, 1], term=2), committed=1)
    answer_to(solo, order())
    (unasked,) = begun(solo)
    assert (unasked.verified_index, unasked.durable_index, unasked.end_index) == (9, 9, 9)
    store, replica = solo.store, solo.replica
    assert (store.begin_index, store.end_index, replica.committed_index) == (10, 9, 9)
    ((record, entries),) = store.archive
    assert (record.from_index, record.to_index, record.leader_id, len(entries)) == (0, 2, "n1", 3)
    assert ("base_installed", 10) in [(kind, detail.get("begin_index")) for kind, detail in solo.events]
    again = answer_to(solo, order())
    assert again.code == ResponseCode.SUCCESS and again.verified_index == 9, "one that comes twice changes nothing"
    slab = solo.slab(9, term=3)
    appended = solo.append_synced(slab, 2, term=3)
    assert appended is not None and appended.durable_index == 10


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (order(1), ResponseCode.INCONSISTENT_INDEX),  # below what is committed: M6
        (order(2), ResponseCode.INCONSISTENT_INDEX),  # another entry than the one that is committed here
        (order(2, 1), ResponseCode.INCONSISTENT_STATE),  # the term of ours, and another chain: R7
        (order(group_id="f" * 32), ResponseCode.UNKNOWN_GROUP),
        (order(base_chain=None), ResponseCode.UNEXPECTED_ARGUMENT),
        (order(term=2), ResponseCode.EXPIRED_TERM),
        (order(leader_id="n2"), ResponseCode.UNEXPECTED_MEMBER),
    ],
)
def test_m6_r4_what_is_refused_changes_nothing(request_: InstallRequest, code: ResponseCode) -> None:
    solo = following(store_of([1, 1, 1], term=2), committed=2)
    assert answer_to(solo, request_).code == code
    assert solo.effects.begin_behind is None and solo.store.end_index == 2


def test_m6_what_is_held_already_is_not_replaced() -> None:
    solo = following(store_of([1, 1, 2, 2], term=2))
    meta = solo.store.meta(2)
    assert meta is not None
    answer = answer_to(solo, order(2, meta.term, base_chain=meta.chain))
    assert answer.code == ResponseCode.SUCCESS and answer.verified_index == 2
    assert solo.effects.begin_behind is None and solo.store.begin_index == 0


def test_an_order_of_an_earlier_epoch_is_dropped() -> None:
    solo = following(store_of([1, 1], term=2))
    solo.push(PushKind.COMMIT, term=3, dispatch_epoch=5)
    assert solo.receive("n1", order()) == [] and solo.effects.begin_behind is None


def test_e8_a_damaged_log_is_replaced_by_one_that_may_not_vote() -> None:
    store = store_of([1, 1, 1], term=2)
    store.rot(1, known=True)
    solo = following(store)
    assert answer_to(solo, order()).code == BUSY
    assert solo.effects.begin_behind is not None
    assert solo.hard_states[-1].voter_state is VoterState.REJOINING, "durable before the log goes"
    begun(solo)
    assert solo.store.faults == () and solo.replica.member.voter_state is VoterState.REJOINING


def test_m1_the_configuration_at_the_base_is_in_effect() -> None:
    old = json.dumps({"members": {"voters": PEERS | {"n4": "127.0.0.1:20915"}, "learners": {}}})
    store = store_of([1, 1, 1], term=2, configurations=((0, old),))
    solo = following(store)
    answer_to(solo, order(members=(7, MEMBERS)))
    begun(solo)
    configuration = solo.replica.configuration
    assert (
        configuration.index == 7 and set(configuration.learners) == {"n3"} and set(configuration.voters) == set(PEERS)
    )
    assert solo.hard_states[-1].configurations == ((7, MEMBERS),)


def test_c9_a_member_without_an_id_takes_that_of_the_base() -> None:
    solo = following(store_of([1], term=2, group_id=None))
    answer_to(solo, order())
    begun(solo)
    assert solo.hard_states[-1].group_id == GROUP_ID


def test_s8_no_space_for_it_changes_nothing() -> None:
    solo = following(store_of([1, 1, 1], term=2), committed=1)
    answer_to(solo, order())
    begin = solo.effects.begin_behind
    assert begin is not None
    solo.replica.disk.begun_behind(begin, "no space", solo.now)
    solo.take()
    member = solo.replica.member
    assert member.truncating_from is None and member.durable_index == 2 and ("disk_full", None) in member.alarms
    assert answer_to(solo, order()).code == BUSY and solo.effects.begin_behind is not None, "asked again, tried again"


def test_s8_a_base_that_found_space_ends_the_alarm_of_a_full_disk() -> None:
    """Its group may be idle: then no append comes that would."""
    solo = following(store_of([1, 1, 1], term=2), committed=1)
    answer_to(solo, order())
    begin = solo.effects.begin_behind
    assert begin is not None
    solo.replica.disk.begun_behind(begin, "no space", solo.now)
    solo.replica.disk.disk_full(False, solo.now)
    solo.take()
    member = solo.replica.member
    assert ("disk_full", None) in member.alarms, "nothing was written yet"
    answer_to(solo, order())
    begun(solo)
    solo.replica.disk.disk_full(False, solo.now)
    assert ("disk_full", None) not in member.alarms and not member.short_of_space


def test_a_leader_that_is_none_any_more_when_it_is_done_vouches_for_nothing() -> None:
    solo = following(store_of([1, 1, 1], term=2))
    answer_to(solo, order())
    begin = solo.effects.begin_behind
    solo.push(PushKind.COMMIT, "n2", term=4)
    solo.effects.begin_behind = begin
    begun(solo)
    assert solo.replica.member.verified_index == -1 and solo.replica.committed_index == 9


# --- the leader ---------------------------------------------------------------------------------------------------
def leading(flush: FlushMode = FlushMode.SYNC, **hello: Any) -> tuple[Solo, PushRequest]:
    """n0 leads a log that begins at 2; n1, whose log ends at 0, is compared with."""
    whole = store_of([1, 1, 1], term=1)
    base = whole.meta(1)
    assert base is not None
    short = MemoryStore(store_id="s0", hard_state=whole.hard_state, base=base, base_pos=100)
    short.append_slab(whole.read_slab(2, 1))
    solo = Solo(short, connect=False, flush=flush)
    for peer in ("n1", "n2"):
        solo.connect(peer, **hello)
    (compare,) = [one for to, one in solo.lead() if to == "n1" and isinstance(one, PushRequest)]
    return solo, compare


def installs(sent: list[Any]) -> list[InstallRequest]:
    return [one for to, one in sent if to == "n1" and isinstance(one, InstallRequest)]


def test_a_peer_that_takes_a_base_gets_ours_and_goes_on_from_it() -> None:
    solo, compare = leading(caps=(TAKES_BASE,))
    sent = solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0)
    (install,) = installs(sent)
    base = solo.store.base
    assert (install.base_index, install.base_term, install.base_chain) == (1, base.term, base.chain)
    assert (install.base_pos, install.group_id, install.members) == (100, GROUP_ID, None)
    peer = solo.replica.peers.of["n1"]
    assert peer.state is S.INSTALL_SNAPSHOT and not peer.is_paused
    assert ("needs_snapshot", "n1") not in solo.replica.member.alarms
    assert not solo.ack("n1", install, -1, code=BUSY), "a little later"
    (again,) = installs(solo.tick(50))
    sent = solo.ack("n1", again, 1)
    (compare,) = [one for to, one in sent if to == "n1" and isinstance(one, PushRequest)]
    assert compare.kind is PushKind.COMPARE and compare.prev_index == 1
    assert compare.dispatch_epoch == install.dispatch_epoch + 1 and peer.state is S.COMPARE


def test_what_it_says_unasked_once_it_has_begun_counts_as_well() -> None:
    solo, compare = leading(caps=(TAKES_BASE,))
    (install,) = installs(solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0))
    solo.ack("n1", install, -1, code=BUSY)
    solo.ack("n1", install, 1, durable=0, seq=-1)
    assert solo.replica.peers.of["n1"].state is S.INSTALL_SNAPSHOT, "not durable yet"
    solo.ack("n1", install, 1, seq=-1)
    assert solo.replica.peers.of["n1"].state is S.COMPARE


@pytest.mark.parametrize(
    ("code", "state", "alarm"),
    [
        (ResponseCode.INCONSISTENT_INDEX, S.DIVERGED, "diverged"),
        (ResponseCode.INCONSISTENT_STATE, S.DIVERGED, "fork"),
        (ResponseCode.DISK_FULL, S.INSTALL_SNAPSHOT, "peer_disk_full"),
    ],
)
def test_a_refusal_is_an_alarm(code: ResponseCode, state: DispatcherState, alarm: str) -> None:
    solo, compare = leading(caps=(TAKES_BASE,))
    (install,) = installs(solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0))
    solo.ack("n1", install, -1, code=code, end_index=0)
    assert solo.replica.peers.of["n1"].state is state and (alarm, "n1") in solo.replica.member.alarms


def test_an_order_that_gets_lost_is_sent_again_and_a_new_connection_compares_first() -> None:
    solo, compare = leading(caps=(TAKES_BASE,))
    (install,) = installs(solo.ack("n1", compare, -1, code=ResponseCode.INCONSISTENT_STATE, end_index=0))
    timeout_ms = solo.replica.config.timing.push_timeout_ns // 1_000_000
    assert not installs(solo.late_tick(timeout_ms // 2))
    (again,) = installs(solo.late_tick(timeout_ms))
    assert again.seq != install.seq and again.dispatch_epoch == install.dispatch_epoch
    solo.connect("n1", caps=(TAKES_BASE,), end_index=0)
    assert solo.replica.peers.of["n1"].state in (S.COMPARE, S.INSTALL_SNAPSHOT)


# --- the frame ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("changes", [{}, {"members": (7, MEMBERS)}, {"group_id": None, "base_chain": None}])
def test_an_order_comes_through_the_wire_as_it_was(changes: dict[str, Any]) -> None:
    request = order(**changes)
    assert decode_install(encode_install(request), "n1", 77) == request


def broken(request: InstallRequest, at: int = 0, byte: int | None = None, cut: int = 0) -> bytes:
    raw = bytearray(encode_install(request))
    if byte is not None:
        raw[at] = byte
    return bytes(raw[: len(raw) - cut])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "its head alone"),
        (broken(order(), 0, 9), "version 9"),
        (broken(order(), cut=1), "says"),
        (broken(order(4, 4, term=3)), "of term 4"),
        (broken(order(-1)), "entry -1"),
        (broken(order(base_pos=-1)), "position -1"),
        (broken(order(group_id="nonsense")), "group 'nonsense'"),
        (broken(order(members=(10, MEMBERS))), "members"),  # behind the base
        (broken(order(members=(7, "{}"))), "members"),
        (broken(order(members=(7, MEMBERS.replace("{", '{"change": "\ud800", ', 1)))), "members"),
        (broken(order(), INSTALL_HEAD.size, 0), "cannot|can be read"),
        (INSTALL_HEAD.pack(1, 0, 0, 1, 3, -1, 9, 2, 0, 0, JSON_BYTES_MAX + 1) + bytes(JSON_BYTES_MAX + 1), "says"),
    ],
)
def test_a_broken_body_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(BodyError, match=text):
        decode_install(body, "n1", 77)


def test_a_log_never_begins_where_it_began_or_before() -> None:
    store = store_of([1, 1, 1])
    record = TruncationRecord("n0", "n1", 3, 0, 2, "left behind", -1)
    store.begin_behind(Base(EntryMeta(9, 2, 0x1234), 5000), record)
    for index in (9, 4):
        with pytest.raises(EntryError, match="begins behind entry 9"):
            store.begin_behind(Base(EntryMeta(index, 2, 0x1234), 5000), record)
