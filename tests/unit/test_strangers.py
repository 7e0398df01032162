"""What stands at a member's address and is no member: alarms that end, and who gives up over it (SAFETY C8)."""

from __future__ import annotations

import pytest

from node.consensus.api import SECOND
from node.consensus.strangers import FORMING_GIVES_UP_AFTER_NS, Stranger
from node.protocol.codes import ResponseCode, Role, VoterState
from tests.unit.core_kit import Leader, Solo, store_of

FORMING, VOTER, REJOINING = VoterState.FORMING, VoterState.VOTER, VoterState.REJOINING


def met(solo: Solo, kind: Stranger = Stranger.PLAIN, peer: str = "n2") -> str | None:
    return solo.replica.links.stranger_met(peer, kind, f"{peer}: something else", solo.now)


def alarms(solo: Solo) -> list[tuple[str, str | None]]:
    return sorted(solo.replica.member.alarms)


@pytest.mark.parametrize("kind", list(Stranger))
def test_an_established_voter_goes_on_under_an_alarm_that_ends(kind: Stranger) -> None:
    leader = Leader()
    for _ in range(3):
        assert met(leader.solo, kind) is None
        leader.solo.now += FORMING_GIVES_UP_AFTER_NS
    assert alarms(leader.solo) == [(kind.value, "n2")]
    assert leader.solo.replica.role is Role.LEADER and leader.propose([b"x"])
    leader.solo.replica.links.nobody_there("n2", leader.solo.now)
    assert alarms(leader.solo) == []


def test_a_member_that_comes_back_ends_it_too_and_only_its_own() -> None:
    solo = Solo(store_of((1,)))
    for peer in ("n1", "n2"):
        assert met(solo, peer=peer) is None
    solo.receive("n2", solo.hello_of("n2"))
    assert alarms(solo) == [("plain_member", "n1")]


def test_a_member_that_connects_to_us_says_nothing_of_what_answers_at_its_address() -> None:
    """Two addresses of our configuration were exchanged: each answers in the other's place, and both reach us."""
    solo = Solo(store_of((1,)), connect=False)
    for _ in range(3):
        solo.receive("n2", solo.hello_of("n1"))
        solo.receive("n2", solo.hello_of("n2", answer=False))
    assert alarms(solo) == [("hello_refused", "n2")]
    assert [kind for kind, _ in solo.events if kind.startswith("alarm")] == ["alarm"]
    solo.receive("n2", solo.hello_of("n2"))
    assert alarms(solo) == []


def test_a_member_whose_connection_stands_ends_it_by_whatever_it_says() -> None:
    """Its word was refused while settings were changed, say, and it introduces itself again."""
    solo = Solo(store_of((1,)))
    solo.receive("n2", solo.hello_of("n2", index_file_size=1))
    assert alarms(solo) == [("hello_refused", "n2")]
    solo.receive("n2", solo.hello_of("n2", answer=False))
    assert alarms(solo) == []


def test_what_is_said_last_is_what_stands() -> None:
    solo = Solo(store_of((1,)))
    for kind in (Stranger.PLAIN, Stranger.FOREIGN, Stranger.REFUSING):
        met(solo, kind)
        assert alarms(solo) == [(kind.value, "n2")]


@pytest.mark.parametrize(
    ("state", "terms", "at_once", "later"),
    [
        (FORMING, (), False, True),  # it may still learn that its group has a history
        (VOTER, (), True, True),  # the group formed, and nobody led it yet
        (VOTER, (1,), False, False),
        (REJOINING, (), False, False),
        (REJOINING, (1,), False, False),
    ],
)
def test_only_a_forming_group_gives_up(state: VoterState, terms: tuple[int, ...], at_once: bool, later: bool) -> None:
    solo = Solo(store_of(terms, voter_state=state), connect=False)
    assert (met(solo) is not None) is at_once
    solo.now += FORMING_GIVES_UP_AFTER_NS
    reason = met(solo)
    assert (reason is not None) is later
    assert reason is None or "not supported" in reason
    assert met(solo, Stranger.FOREIGN) is None


def test_who_follows_a_leader_goes_on_although_it_has_none_of_the_entries_yet() -> None:
    """Two of three held all that there was; the third gave up for good when the other follower's place was taken."""
    solo = Solo(store_of((), voter_state=VOTER))
    solo.follow()
    assert met(solo) is None and alarms(solo) == [("plain_member", "n2")]


def test_nobody_forms_a_group_beside_a_plain_voter_until_it_is_gone() -> None:
    solo = Solo(store_of(voter_state=FORMING), connect=False)
    met(solo)
    solo.receive("n1", solo.hello_of("n1", voter_state=FORMING, end_index=-1))
    assert solo.replica.member.voter_state is FORMING
    solo.replica.links.nobody_there("n2", solo.now)
    assert solo.replica.member.voter_state is VOTER


def test_who_connects_to_be_refused_is_told_now_and_then() -> None:
    solo = Solo(connect=False)
    for _ in range(5):
        ((_to, answer),) = solo.receive("n1", solo.hello_of("n1", answer=False, group="other"))
        assert answer.code is ResponseCode.UNKNOWN_GROUP
    assert [kind for kind, _ in solo.events].count("hello_refused") == 1
    solo.now += 10 * SECOND
    solo.receive("n1", solo.hello_of("n1", answer=False, group="other"))
    assert [kind for kind, _ in solo.events].count("hello_refused") == 2
    assert not solo.replica.member.alarms
