"""Group ids (SAFETY C9): another group of one name is refused; who has none takes one by its log, never by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.consensus.group_naming import named_in, naming_body
from node.protocol.codes import ResponseCode, VoterState
from node.protocol.entry import INDEX_UNIT, Magic, Slab
from node.protocol.group_id import group_id_of
from node.protocol.messages import Hello
from node.protocol.slab_encode import encode_slab
from tests.unit.core_kit import Leader, Solo, store_of

OURS, THEIRS = group_id_of("ours", "g"), group_id_of("theirs", "g")


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        (OURS, OURS, ResponseCode.SUCCESS),
        (OURS, THEIRS, ResponseCode.UNKNOWN_GROUP),
        (OURS, None, ResponseCode.SUCCESS),
        (None, THEIRS, ResponseCode.SUCCESS),
    ],
)
def test_another_group_of_this_name_is_refused(ours: str | None, theirs: str | None, code: ResponseCode) -> None:
    solo = Solo(store_of(group_id=ours), connect=False)
    ((_to, answer),) = solo.receive("n1", solo.hello_of("n1", answer=False, group_id=theirs))
    assert isinstance(answer, Hello) and (answer.code, answer.group_id) == (code, ours)
    assert (solo.replica.peers.of["n1"].hello is not None) is (code is ResponseCode.SUCCESS)


def named(solo: Solo) -> str | None:
    return solo.replica.member.hard.group_id


def hello_all(solo: Solo, **changes: object) -> None:
    for peer in ("n1", "n2"):
        solo.receive(peer, solo.hello_of(peer, **{"version_max": 2, **changes}))


def namings(leader: Leader) -> int:
    store = leader.solo.store
    entries = [store.get(index) for index in range(store.end_index + 1)]
    return sum(1 for entry in entries if entry is not None and entry.magic == Magic.CONFIG_CHANGE)


def test_no_leader_names_a_group_in_which_an_older_release_still_votes() -> None:
    leader = Leader(store=store_of(group_id=None))
    hello_all(leader.solo, version_max=1)
    leader.solo.tick(100)
    assert namings(leader) == 0
    leader.solo.receive("n1", leader.solo.hello_of("n1", version_max=2))
    leader.solo.tick(100)
    assert namings(leader) == 0  # n2 is of version 1
    hello_all(leader.solo)
    leader.solo.late_tick(1)
    assert namings(leader) == 0 and leader.solo.hard_states[-1].naming is not None  # written down first
    leader.solo.tick(100)
    leader.solo.tick(100)
    assert namings(leader) == 1 and named(leader.solo) is None  # once, and it holds when it is committed


def test_a_group_that_has_an_id_gets_no_other_one() -> None:
    leader = Leader(store=store_of(group_id=OURS))
    hello_all(leader.solo)
    leader.solo.tick(100)
    assert namings(leader) == 0 and named(leader.solo) == OURS


def test_a_leader_without_an_id_takes_that_of_a_follower_of_the_same_log() -> None:
    leader = Leader(store=store_of(group_id=None))
    leader.solo.receive("n1", leader.solo.hello_of("n1", version_max=2, group_id=THEIRS))
    sent = leader.solo.tick(100)
    assert named(leader.solo) == THEIRS and namings(leader) == 0
    reported = [message.group_id for _to, message in sent if isinstance(message, Hello)]
    assert reported == [THEIRS, THEIRS]  # everybody connected hears of it


def test_two_followers_with_two_ids_name_nothing_anew() -> None:
    leader = Leader(store=store_of(group_id=None))
    leader.solo.receive("n1", leader.solo.hello_of("n1", version_max=2, group_id=THEIRS))
    leader.solo.receive("n2", leader.solo.hello_of("n2", version_max=2, group_id=OURS))
    leader.solo.tick(100)
    assert namings(leader) == 0


def test_a_follower_without_an_id_takes_its_leaders_once_their_logs_match() -> None:
    solo = Solo(store_of((1,), group_id=None))
    solo.receive("n1", solo.hello_of("n1", group_id=THEIRS))
    solo.follow()
    assert named(solo) is None  # its name alone proves nothing
    solo.compare(0)
    assert named(solo) == THEIRS


def test_an_unproven_leader_names_nobody_where_a_proof_is_asked_for() -> None:
    solo = Solo(store_of((1,), group_id=None), proof_wanted=True)
    solo.receive("n1", solo.hello_of("n1", group_id=THEIRS, proven=False))
    solo.compare(0)
    assert named(solo) is None
    solo.receive("n1", solo.hello_of("n1", group_id=THEIRS, proven=True))
    solo.compare(0)
    assert named(solo) == THEIRS


def test_what_names_the_group_is_on_record_before_it_is_in_the_log() -> None:
    solo = Solo(store_of((1,), group_id=None))
    solo.compare(0)
    slab = encode_slab([naming_body(OURS)], 1, 1, solo.store.get(0).size, solo.store.meta(0).chain, Magic.CONFIG_CHANGE)
    answers = [solo.append_synced(slab, 1) for _ in range(2)]
    assert [answer.code for answer in answers if answer] == [ResponseCode.PUSH_REQUEST_IS_FULL, ResponseCode.SUCCESS]
    assert solo.hard_states[-1].naming == (1, OURS) and named(solo) is None
    solo.append(solo.slab(1), 1, commit_index=1)
    assert named(solo) == OURS and solo.replica.member.hard.naming is None


def test_of_two_namings_in_one_slab_the_last_one_is_on_record() -> None:
    """Two leaders gave the group its id, one after the other; a member that joins gets both entries in one slab."""
    solo = Solo(store_of((1,), group_id=None))
    solo.compare(0)
    pos, chain = solo.store.get(0).size, solo.store.meta(0).chain
    slab = encode_slab([naming_body(OURS)] * 2, 1, 1, pos, chain, Magic.CONFIG_CHANGE)
    answers = [solo.append_synced(slab, 1) for _ in range(2)]
    assert [answer.code for answer in answers if answer] == [ResponseCode.PUSH_REQUEST_IS_FULL, ResponseCode.SUCCESS]
    assert solo.hard_states[-1].naming == (2, OURS)


def test_the_entry_that_names_the_group_is_never_read_on_the_loop() -> None:
    store = store_of((1,), group_id=None)
    solo = Solo(store)
    solo.compare(0)
    slab = encode_slab([naming_body(OURS)], 1, 1, solo.store.get(0).size, solo.store.meta(0).chain, Magic.CONFIG_CHANGE)
    for _ in range(2):
        solo.append(slab, 1)
    store.recent_from = store.end_index + 1  # as after a start: nothing is in memory
    store.get = lambda index: pytest.fail(f"entry {index} is read on the loop")  # type: ignore[assignment, method-assign]
    behind, orders = slab, []
    for index in (2, 3):  # each commits the one before it
        behind = encode_slab([b"x"], index, 1, behind.end_pos, behind.last_chain)
        solo.append(behind, 1, commit_index=index - 1)
        (order,) = solo.effects.fetches
        assert (order.peer_id, order.first_index) == ("n0", 1) and named(solo) is None
        orders.append(order)
        if index == 2:
            solo.replica.disk.fetched(order, None, solo.now)  # damaged: the next commit asks again
    solo.replica.disk.fetched(orders[-1], slab, solo.now)
    solo.take()
    assert named(solo) == OURS and solo.replica.member.hard.naming is None


def test_no_message_waits_while_the_id_is_saved_and_none_speaks_of_it_before() -> None:
    """A leader's heartbeats go on meanwhile (S9); should the save be lost, the log names the group once more."""
    solo = Solo(store_of((1,), group_id=None))
    solo.replica.member.save(group_id=OURS, naming=None)
    effects = solo.replica.take_effects()
    assert effects.hard_state is not None and not effects.spoken_of
    assert solo.replica.hello(9, "n1").group_id is None
    solo.replica.disk.hard_state_saved(effects.hard_state, solo.now)
    assert {(to, m.group_id) for to, m in solo.take() if isinstance(m, Hello)} == {("n1", OURS), ("n2", OURS)}


def test_a_naming_at_an_impossible_place_is_a_bad_push_and_no_crash() -> None:
    solo = Solo(store_of((1,), group_id=None))
    solo.compare(0)
    slab = encode_slab([naming_body(OURS)], 1, 1, solo.store.get(0).size, solo.store.meta(0).chain, Magic.CONFIG_CHANGE)
    magic, _pos, size, index, term = INDEX_UNIT.unpack(slab.index_records)
    answer = solo.append(replace(slab, index_records=INDEX_UNIT.pack(magic, 5, size, index, term)), 1)
    assert answer is not None and answer.code is ResponseCode.UNEXPECTED_ARGUMENT
    assert solo.replica.member.hard.naming is None


def test_a_naming_that_was_cut_off_names_nothing_and_its_id_is_given_again() -> None:
    solo = Solo(store_of((1, 1), group_id=None, naming=(1, OURS)))
    solo.compare(1)
    solo.append(solo.slab(1), 1, commit_index=1)
    assert named(solo) is None and solo.replica.member.hard.naming == (-1, OURS)


def naming_slab(solo: Solo, after: int, group_id: str) -> Slab:
    entry = solo.store.get(after)
    pos = 0 if entry is None else entry.pos + entry.size
    chain = 0 if after < 0 else solo.store.meta(after).chain
    return encode_slab([naming_body(group_id)], after + 1, 1, pos, chain, Magic.CONFIG_CHANGE)


def test_a_naming_from_before_a_reset_brings_no_old_id_back() -> None:
    """The log still names the old id, and the record of that too; the group was given another one since (E10)."""
    solo = Solo(store_of((1,), group_id=OURS, naming=(1, THEIRS)))
    solo.compare(0)
    assert solo.append_synced(naming_slab(solo, 0, THEIRS), 1, commit_index=1) is not None
    assert solo.replica.committed_index == 1
    assert named(solo) == OURS and solo.hard_states[-1].naming is None
    assert not [detail for kind, detail in solo.events if kind == "group_id"]


def test_an_empty_member_takes_its_leaders_id_and_not_the_one_of_an_entry_from_before_a_reset() -> None:
    solo = Solo(store_of(group_id=None, voter_state=VoterState.REJOINING))
    solo.receive("n1", solo.hello_of("n1", group_id=OURS, version_max=2))
    solo.follow()
    slab = naming_slab(solo, -1, THEIRS)
    for _ in range(2):  # first the id in it goes on record
        solo.append(slab, -1, commit_index=0)
    assert solo.replica.committed_index == 0 and named(solo) == OURS
    assert solo.replica.member.hard.naming is None


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'{"group_id":5}', b'{"group_id":"x"}', b"[" * 99_999, b'{"a":1}'])
def test_a_change_that_names_nothing_is_none(body: bytes) -> None:
    assert named_in(body) is None
    assert named_in(naming_body(OURS)) == OURS
