"""Damage that no peer's entries can link: given up under a leader, and the vote before it (SAFETY S6, E8)."""

from __future__ import annotations

from node.consensus.api import MS
from node.protocol.codes import ResponseCode, VoterState
from node.protocol.messages import FetchRequest, FetchResponse, PushKind
from tests.unit.core_kit import Solo, store_of

BUSY = ResponseCode.PUSH_REQUEST_IS_FULL
INCONSISTENT = ResponseCode.INCONSISTENT_STATE
OUT_OF_RANGE = ResponseCode.INDEX_OUT_OF_RANGE


def torn(first: int, last: int, *, terms: list[int] | None = None, voter: VoterState = VoterState.VOTER) -> Solo:
    """A log of six entries with damage in it that was not there when it was acknowledged, if it ever was."""
    store = store_of(terms or [1, 1, 1, 1, 1, 1], voter_state=voter)
    store.rot(first, last, known=True)
    return Solo(store)


def refuse(solo: Solo, code: ResponseCode = OUT_OF_RANGE, *, peers: tuple[str, ...] = ("n1", "n2")) -> None:
    """Whoever of these is asked for entries cannot give them, over and over."""
    for _ in range(30):
        sent = solo.tick(100)
        while sent:
            asked = [(to, one) for to, one in sent if isinstance(one, FetchRequest) and to in peers]
            sent = [one for to, request in asked for one in solo.receive(to, FetchResponse(request.seq, code, 9, None))]
        solo.push(PushKind.COMMIT, term=solo.replica.term)


def order(solo: Solo, cut: int = 4, *, commit_index: int = 7) -> ResponseCode | None:
    answer = solo.push(PushKind.TRUNCATE, term=2, first_index=cut, prev_term=1, commit_index=commit_index)
    return None if answer is None else ResponseCode(answer.code)


def test_a_leader_is_led_right_below_what_it_cannot_link() -> None:
    solo = torn(4, 5)
    solo.follow(term=2)
    ask = {"prev_index": 4, "prev_term": 1, "prev_chain": 77}
    assert solo.push(PushKind.COMPARE, term=2, **ask).code == BUSY  # type: ignore[union-attr]
    refuse(solo)
    answer = solo.push(PushKind.COMPARE, term=2, **ask)
    assert answer is not None
    assert (answer.code, answer.x_term, answer.x_index) == (INCONSISTENT, 0, 4)


def test_the_vote_goes_before_the_entries_do() -> None:
    solo = torn(4, 5)
    solo.follow(term=2)
    refuse(solo)
    solo.compare(3, term=2)
    solo.hard_states.clear()
    assert order(solo) == BUSY
    assert [state.voter_state for state in solo.hard_states] == [VoterState.REJOINING]
    cut = solo.effects.truncate
    assert cut is not None and cut.cut_index == 4 and "linked" in cut.record.reason
    assert solo.effects.hard_state is not None  # in the same batch: durable before the cut begins
    solo.store.truncate(4, cut.record)
    solo.replica.disk.truncated(cut.log_epoch, 4, solo.now)
    solo.take()
    assert solo.store.faults == () and solo.store.end_index == 3
    assert not {code for code, _ in solo.replica.member.alarms} & {"log_damaged", "log_unrecoverable"}
    answer = solo.append_synced(solo.slab(3, term=2), 1, term=2)
    assert answer is not None and answer.code == ResponseCode.SUCCESS


def test_a_rejoining_member_has_no_vote_to_give_up() -> None:
    solo = torn(4, 5, voter=VoterState.REJOINING)
    solo.follow(term=2)
    refuse(solo)
    solo.compare(3, term=2)
    assert order(solo) == BUSY and solo.effects.truncate is not None
    assert solo.replica.member.voter_state is VoterState.REJOINING


def test_nothing_goes_before_the_leader_was_asked_twice() -> None:
    solo = torn(4, 5)
    solo.follow(term=2)
    solo.compare(3, term=2)
    order(solo)
    assert solo.effects.truncate is None and solo.replica.member.voter_state is VoterState.VOTER


def test_nothing_goes_while_the_group_may_need_this_vote() -> None:
    """A leader that has not committed there itself may have no quorum without this member."""
    solo = torn(4, 5)
    solo.follow(term=2)
    refuse(solo)
    solo.compare(3, term=2)
    assert order(solo, commit_index=3) == BUSY
    assert solo.effects.truncate is None and solo.replica.member.voter_state is VoterState.VOTER


def test_nothing_committed_or_verified_goes() -> None:
    for verified, commit in ((5, -1), (3, 4)):
        solo = torn(4, 4)
        solo.follow(term=2)
        refuse(solo)
        solo.compare(verified, term=2)
        if commit >= 0:
            solo.replica.member.committed_index = commit
        order(solo)
        assert solo.effects.truncate is None and solo.replica.member.voter_state is VoterState.VOTER


def test_what_one_leader_cannot_link_another_one_may() -> None:
    solo = torn(4, 5)
    solo.follow(term=2)
    refuse(solo)
    solo.compare(3, term=3)
    answer = solo.push(PushKind.TRUNCATE, term=3, first_index=4, prev_term=1, commit_index=7)
    assert answer is not None and solo.effects.truncate is None


def test_a_leader_that_trimmed_or_is_damaged_too_proves_nothing() -> None:
    for code in (ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ResponseCode.DISK_ERROR):
        solo = torn(4, 5)
        solo.follow(term=2)
        refuse(solo, code)
        solo.compare(3, term=2)
        order(solo)
        assert solo.effects.truncate is None and solo.replica.member.voter_state is VoterState.VOTER


def test_a_third_member_that_is_away_is_not_waited_for() -> None:
    solo = torn(4, 5)
    solo.replica.links.lost("n2", solo.now)
    solo.follow(term=2)
    refuse(solo, peers=("n1",))
    solo.compare(3, term=2)
    assert order(solo) == BUSY and solo.effects.truncate is not None


def test_the_first_entry_of_all_may_go_too() -> None:
    solo = torn(0, 5)
    solo.follow(term=2)
    refuse(solo)
    answer = solo.push(PushKind.COMPARE, term=2, prev_index=3, prev_term=1, prev_chain=77)
    assert answer is not None and (answer.code, answer.x_index) == (INCONSISTENT, 0)
    assert order(solo, cut=0) == BUSY and solo.effects.truncate is not None


def test_a_new_leader_is_asked_at_once_however_long_the_pauses_were() -> None:
    solo = torn(4, 5)
    refuse_alone = 0
    for _ in range(100):  # nobody leads, and nobody has it: the pauses grow
        for to, one in solo.tick(100):
            if isinstance(one, FetchRequest):
                refuse_alone += 1
                solo.receive(to, FetchResponse(one.seq, OUT_OF_RANGE, 9, None))
    assert refuse_alone and solo.replica.repair.next_deadline() > solo.now + 1000 * MS  # type: ignore[operator]
    solo.follow(term=20)
    asked = [to for to, one in solo.tick(10) if isinstance(one, FetchRequest)]
    assert asked == ["n1"]


def test_a_hello_that_does_not_wait_for_the_save_gives_the_vote_up_at_once() -> None:
    solo = Solo(store_of([1, 1]))
    membership = solo.replica.membership
    membership.rejoin("it lost what it had", solo.now)
    assert solo.replica.member.durable_hard.voter_state is VoterState.VOTER  # nothing is saved yet
    for at_once in (True, False):
        hello = membership.hello(1, to="n1", code=ResponseCode.SUCCESS, at_once=at_once)
        assert hello.voter_state is VoterState.REJOINING
