"""Members change by entries of the log, one after another, and nothing is lost (SAFETY M1 to M7).

Each scenario is a function of its own: `test_members_planted.py` plays them again with a bug planted.
"""

from __future__ import annotations

import pytest

from node.consensus.api import MS, Appended
from node.consensus.member_changes import MemberChange
from node.consensus.strangers import Stranger
from node.protocol.codes import FlushMode, ResponseCode, Role, VoterState
from tests.unit.members_kit import ADD, ADDRESS, PROMOTE, REMOVE, Group, address_of


def n3_joins(group: Group, *, promote: bool = True) -> None:
    group.start("n3")
    assert group.change("n0", MemberChange(ADD, "n3", address_of("n3"), promote)) is None
    group.run(50 * MS)  # a follower is "busy" until the change is on its record
    assert group.outcomes[-1].code is ResponseCode.SUCCESS


def test_m4_a_new_member_learns_and_is_promoted_once_it_has_caught_up() -> None:
    group = Group()
    for _ in range(20):
        group.propose("n0")
    group.start("n3")
    group.cut_off("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    group.run(50 * MS)
    assert group.voters("n0") == ["n0", "n1", "n2"] and group.learners_of("n2") == ["n3"]
    joined_at = group.outcomes[-1].entry_index
    group.heal()
    group.run(1000 * MS)
    for one in ("n0", "n1", "n2", "n3"):
        assert group.voters(one) == ["n0", "n1", "n2", "n3"] and group.learners_of(one) == [], one
    assert group.replica("n3").member.has_vote
    assert group.replica("n0").configuration.joined["n3"] == joined_at
    number = group.propose("n0")
    group.run(200 * MS)
    assert group.is_acknowledged(number)
    group.invariants.finish()


def test_a_learner_that_is_to_stay_one_is_promoted_by_hand() -> None:
    group = Group()
    n3_joins(group, promote=False)
    group.run(1000 * MS)
    assert group.learners_of("n0") == ["n3"]
    assert group.change("n0", MemberChange(PROMOTE, "n3")) is None
    group.run(200 * MS)
    assert group.outcomes[-1].code is ResponseCode.SUCCESS and group.voters("n3") == ["n0", "n1", "n2", "n3"]


def test_m4_a_learner_that_lags_is_not_promoted() -> None:
    group = Group()
    group.start("n3")
    group.cut_off("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    group.run(1000 * MS)
    assert group.learners_of("n0") == ["n3"]
    refused = group.change("n0", MemberChange(PROMOTE, "n3"))
    assert refused is not None and refused.code is ResponseCode.FALL_BEHIND_TOO_MUCH
    assert refused.appended is Appended.NOT_APPENDED
    group.heal()
    group.run(1000 * MS)
    assert group.voters("n0") == ["n0", "n1", "n2", "n3"]


def test_m4_a_learner_makes_no_quorum_while_it_learns() -> None:
    group = Group()
    n3_joins(group, promote=False)
    group.run(500 * MS)
    group.crash("n1")
    group.crash("n2")
    number = group.propose("n0")
    group.run(200 * MS)
    assert group.nodes["n3"].store.end_index == group.nodes["n0"].store.end_index
    assert not group.is_acknowledged(number)


def test_m1_a_change_is_judged_by_the_members_that_it_makes() -> None:
    """Two voters: the entry that removes one needs only the other; the one that adds a voter needs it, too."""
    group = Group(1)
    group.start("n1")
    group.change("n0", MemberChange(ADD, "n1", address_of("n1"), promote=False))
    group.run(1000 * MS)
    end = group.nodes["n0"].store.end_index
    group.change("n0", MemberChange(PROMOTE, "n1"))
    group.cut_off("n1")
    for one in ("n0",):
        group.settle_disks(one)
    assert group.nodes["n0"].store.end_index == end + 1 and group.voters("n0") == ["n0", "n1"]
    assert group.replica("n0").committed_index == end, "half of the two holds it"
    group.heal()
    group.run(2000 * MS)
    assert group.replica("n0").committed_index > end


def test_m1_a_cut_brings_back_the_members_before() -> None:
    group = Group()
    group.run(200 * MS)
    group.start("n3")
    group.cut_off("n0")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    group.settle_disks("n0")
    assert group.learners_of("n0") == ["n3"]
    group.run(3000 * MS)
    assert group.leader() in ("n1", "n2")
    group.propose(group.leader() or "")
    group.run(100 * MS)
    group.heal()
    group.run(1000 * MS)
    assert group.learners_of("n0") == [] and group.nodes["n0"].store.hard_state.configurations == ()
    assert group.outcomes[-1].appended is Appended.UNKNOWN


def test_m1_who_is_removed_by_an_entry_that_is_cut_leads_the_one_who_wrote_it() -> None:
    """The removal of n2 stands in n0's log alone: n0 lets n2 in, or nobody could ever cut it."""
    group = Group()
    group.run(200 * MS)
    group.change("n0", MemberChange(REMOVE, "n2"))
    group.cut_off("n0")
    group.settle_disks("n0")
    assert group.voters("n0") == ["n0", "n1"] and group.voters("n1") == ["n0", "n1", "n2"]
    group.run(2000 * MS)
    if group.leader() != "n2":
        group.campaign("n2")
        group.run(200 * MS)
    assert group.leader() == "n2"
    group.heal()
    group.run(3000 * MS)
    for one in ("n0", "n1", "n2"):
        assert group.voters(one) == ["n0", "n1", "n2"], one
        assert group.replica(one).leader_id == "n2"
    group.invariants.finish()


def test_m1_a_start_finds_the_members_of_its_log() -> None:
    group = Group()
    n3_joins(group)
    group.run(1000 * MS)
    for one in ("n0", "n1", "n2", "n3"):
        group.crash(one)
    for one in ("n0", "n1", "n2", "n3"):
        group.restart(one)
        assert group.voters(one) == ["n0", "n1", "n2", "n3"], one
    group.run(3000 * MS)
    assert group.leader() is not None
    group.invariants.finish()


def test_m1_what_was_written_down_and_never_appended_is_no_configuration() -> None:
    group = Group()
    node = group.nodes["n0"]
    node.replica.change_members(MemberChange(ADD, "n3", address_of("n3")), group.outcomes.append)
    state = node.replica.take_effects().hard_state
    assert state is not None and state.configurations
    node.store.save_hard_state(state)
    group.crash("n0")
    group.restart("n0")
    assert group.voters("n0") == ["n0", "n1", "n2"] and group.learners_of("n0") == []
    assert node.store.hard_state.configurations == ()


def test_m1_what_was_written_down_and_never_came_goes_once_another_entry_is_committed_there() -> None:
    """Its leader is gone before it is asked for again: on record it must not outlive its place in the log."""
    group = Group()
    group.run(200 * MS)
    node = group.nodes["n1"]
    group.change("n0", MemberChange(REMOVE, "n2"))
    while group.packets and not node.store.hard_state.configurations:
        group.deliver(group.packets.pop(0))
    group.cut_off("n0")
    assert node.store.hard_state.configurations and group.voters("n1") == ["n0", "n1", "n2"]
    place = node.store.hard_state.configurations[0][0]
    assert node.store.end_index < place
    group.run(3000 * MS)
    group.propose(group.leader() or "")
    group.run(1000 * MS)
    assert node.replica.committed_index >= place and node.store.hard_state.configurations == ()


def test_m1_a_follower_writes_it_down_before_it_is_in_its_log() -> None:
    group = Group()
    group.run(200 * MS)
    node = group.nodes["n1"]
    seen: list[bool] = []
    append = node.store.append_slab

    def watched(slab: object) -> None:
        bodies = [body for _index, body in node.store.hard_state.configurations]
        seen.append(bool(bodies))
        append(slab)  # type: ignore[arg-type]

    node.store.append_slab = watched  # type: ignore[method-assign]
    group.start("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    group.run(200 * MS)
    assert seen and all(seen) and group.voters("n1") == ["n0", "n1", "n2", "n3"]


def test_m2_one_change_at_a_time() -> None:
    group = Group(5)
    group.cut_off("n0")
    assert group.change("n0", MemberChange(REMOVE, "n4")) is not None  # nobody answers any more
    group.heal()
    group.run(1000 * MS)
    leader = group.leader() or ""
    others = [one for one in group.voters(leader) if one != leader]
    assert group.change(leader, MemberChange(REMOVE, others[0])) is None
    refused = group.change(leader, MemberChange(REMOVE, others[1]))
    assert refused is not None and refused.code is ResponseCode.INCONSISTENT_STATE
    assert len(group.voters(leader)) == 4
    group.run(500 * MS)
    assert group.outcomes[-1].code is not None and len(group.voters(leader)) == 4


def test_m2_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    group = Group(4)
    group.propose("n0")
    group.run(200 * MS)
    group.crash("n0")
    group.run(2000 * MS)
    leader = group.leader() or ""
    group.cut_off(leader)
    group.now += 1
    replica = group.replica(leader)
    assert replica.leadership is not None
    replica.leadership.own_term_from = replica.committed_index + 1  # as before its first entry is committed
    refused = group.change(leader, MemberChange(REMOVE, "n0"))
    assert refused is not None and refused.code is ResponseCode.INCONSISTENT_STATE
    assert "no entry of term" in refused.detail


def test_m3_a_member_that_lags_follows_and_votes_for_one_that_it_does_not_know() -> None:
    group = Group()
    group.run(200 * MS)
    group.crash("n2")
    n3_joins(group)
    group.run(1000 * MS)
    group.change("n0", MemberChange(REMOVE, "n1"))
    group.run(500 * MS)
    assert group.voters("n0") == ["n0", "n2", "n3"]
    group.crash("n1")
    number = group.propose("n0")
    group.run(200 * MS)
    assert group.is_acknowledged(number)
    group.crash("n0")
    group.restart("n2")
    assert group.voters("n2") == ["n0", "n1", "n2"]
    group.run(4000 * MS)
    assert group.leader() == "n3" and group.voters("n2") == ["n0", "n2", "n3"]
    assert group.replica("n2").committed_index >= group.invariants.acknowledged
    group.invariants.finish()


def test_m5_a_leader_that_removes_itself_does_not_count_itself_and_hands_over() -> None:
    group = Group()
    group.run(200 * MS)
    group.cut_off("n2")
    end = group.nodes["n0"].store.end_index
    for one in (1, 2):  # n1 alone and the leader itself are no quorum of n1, n2
        refused = group.change("n0", MemberChange(REMOVE, "n0"))
        assert refused is not None and refused.code is ResponseCode.ILLEGAL_MEMBER_STATE, one
    group.heal()
    group.run(300 * MS)
    assert group.change("n0", MemberChange(REMOVE, "n0")) is None
    group.cut_off("n2")
    group.run(100 * MS)
    at = group.replica("n0").configuration.index
    assert at > end and group.replica("n0").peers.of["n1"].watermark_index >= at
    assert group.voters("n0") == ["n1", "n2"] and group.replica("n0").role is Role.LEADER
    assert group.replica("n0").committed_index < at
    group.heal()
    group.run(2000 * MS)
    assert group.leader() in ("n1", "n2") and group.replica("n0").role is not Role.LEADER
    assert group.voters("n1") == ["n1", "n2"] == group.voters("n2")
    number = group.propose(group.leader() or "")
    group.run(200 * MS)
    assert group.is_acknowledged(number)


def test_m5_a_removed_member_unseats_nobody_and_its_store_does_not_come_back() -> None:
    group = Group()
    group.run(200 * MS)
    group.cut_off("n2")
    assert group.change("n0", MemberChange(REMOVE, "n2")) is None
    group.run(300 * MS)
    term = group.replica("n0").term
    group.heal()
    group.run(3000 * MS)
    assert group.leader() == "n0" and group.replica("n0").term == term
    group.change("n0", MemberChange(ADD, "n2", address_of("n2")))
    group.run(1000 * MS)
    assert group.learners_of("n0") == ["n2"], "the same store is not let in"
    group.crash("n2")
    group.start("n2")
    group.run(2000 * MS)
    assert group.voters("n0") == ["n0", "n1", "n2"]


def test_a_voter_of_the_birth_whose_id_comes_back_joined_by_that_entry() -> None:
    group = Group()
    group.run(200 * MS)
    group.crash("n2")
    assert group.change("n0", MemberChange(REMOVE, "n2")) is None
    group.run(300 * MS)
    group.start("n2")
    assert group.change("n0", MemberChange(ADD, "n2", address_of("n2"))) is None
    group.run(2000 * MS)
    assert group.voters("n0") == ["n0", "n1", "n2"]
    joined = [one.entry_index for one in group.outcomes][-1]
    for one in ("n0", "n1", "n2"):
        assert group.replica(one).configuration.joined == {"n0": -1, "n1": -1, "n2": joined}, one


def test_a_member_is_replaced_in_one_order_and_whoever_leads_goes_on_with_it() -> None:
    group = Group()
    group.start("n3")
    group.cut_off("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3"), replaces="n1"))
    group.run(300 * MS)
    group.crash("n0")
    group.run(3000 * MS)
    group.restart("n0")
    group.heal()
    group.run(4000 * MS)
    assert group.voters(group.leader() or "") == ["n0", "n2", "n3"]
    assert group.replica("n0").configuration.named.replacing == {}
    group.invariants.finish()


def test_an_address_changes_for_everybody() -> None:
    group = Group()
    assert group.change("n0", MemberChange(ADDRESS, "n1", "127.0.0.1:30000")) is None
    group.run(300 * MS)
    for one in ("n0", "n1", "n2"):
        assert group.replica(one).configuration.voters["n1"] == "127.0.0.1:30000"
        assert group.replica(one).configuration.joined["n1"] == -1


def test_no_address_changes_of_a_member_that_the_quorum_needs() -> None:
    """Where it is wrong, nobody reaches that member, and nothing would be committed any more that says another one."""
    for group, down in ((Group(2), ""), (Group(3), "n2")):
        if down:
            group.crash(down)
        refused = group.change("n0", MemberChange(ADDRESS, "n1", "127.0.0.1:30000"))
        assert refused is not None and refused.code is ResponseCode.ILLEGAL_MEMBER_STATE
        assert "until n1 runs there, 1 of the" in refused.detail
        assert group.change("n0", MemberChange(ADDRESS, "n0", "127.0.0.1:30000")) is None
        group.run(300 * MS)
        assert group.outcomes[-1].code is ResponseCode.SUCCESS


def test_m7_who_does_not_know_the_group_is_not_let_in() -> None:
    group = Group()
    store = group.new_store("n9", forming=False)
    store.hard_state = type(store.hard_state)(voter_state=VoterState.REJOINING, group_id="0" * 32)
    group.start("n9", store=store)
    group.run(300 * MS)
    assert "n9" not in group.replica("n0").member.configurations.guests
    assert group.nodes["n9"].connected == set()


def test_m3_a_member_without_the_groups_id_believes_a_voter_that_it_knows() -> None:
    """A member that lost what it knew (a directory put back from before the group had its id) finds a new leader."""
    group = Group()
    n3_joins(group)
    group.run(1000 * MS)
    group.crash("n2")
    store = group.new_store("n2", forming=False)
    store.hard_state = type(store.hard_state)(voter_state=VoterState.REJOINING, group_id=None)
    group.nodes["n2"].store = store
    group.replica("n0").transfer("n3", group.now, on_done=lambda _outcome: None)
    group.carry_out("n0")
    group.run(500 * MS)
    assert group.leader() == "n3"
    group.restart("n2")
    group.cut_links.add(frozenset(("n2", "n1")))
    group.run(3000 * MS)
    assert group.replica("n2").leader_id == "n3" and group.replica("n2").member.has_vote
    group.invariants.finish()


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        (MemberChange(ADD, "n1", "127.0.0.1:1"), ResponseCode.UNEXPECTED_ARGUMENT, "n1 is a member already"),
        (MemberChange(ADD, "n3", address_of("n1")), ResponseCode.UNEXPECTED_ARGUMENT, "n1 has the address"),
        (MemberChange(ADD, "n-3", "127.0.0.1:1"), ResponseCode.UNEXPECTED_ARGUMENT, "is no member id"),
        (MemberChange(ADD, "n3", "nowhere"), ResponseCode.UNEXPECTED_ARGUMENT, "is not host:port"),
        (MemberChange(PROMOTE, "n1"), ResponseCode.UNEXPECTED_ARGUMENT, "n1 is a voter already"),
        (MemberChange(REMOVE, "n7"), ResponseCode.UNEXPECTED_ARGUMENT, "n7 is no member"),
        (MemberChange(ADDRESS, "n7", "127.0.0.1:1"), ResponseCode.UNEXPECTED_ARGUMENT, "n7 is no member"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(change: MemberChange, code: ResponseCode, why: str) -> None:
    group = Group()
    end = group.nodes["n0"].store.end_index
    outcome = group.change("n0", change)
    assert outcome is not None and outcome.code is code and why in outcome.detail, outcome
    assert group.nodes["n0"].store.end_index == end and not group.replica("n0").changes.waits_for_record
    elsewhere = group.change("n1", change)
    assert elsewhere is not None and elsewhere.code is ResponseCode.NOT_LEADER


def test_the_only_voter_stays_and_a_group_without_answers_loses_nobody() -> None:
    group = Group(1)
    refused = group.change("n0", MemberChange(REMOVE, "n0"))
    assert refused is not None and "only voter" in refused.detail
    group = Group()
    group.crash("n1")
    refused = group.change("n0", MemberChange(REMOVE, "n2"))
    assert refused is not None and refused.code is ResponseCode.ILLEGAL_MEMBER_STATE
    assert "1 of the 2 voters that are left answers" in refused.detail


def test_an_async_group_of_one_grows_to_three() -> None:
    group = Group(1, flush=FlushMode.ASYNC)
    for one in ("n1", "n2"):
        group.start(one)
        assert group.change("n0", MemberChange(ADD, one, address_of(one))) is None or group.outcomes[-1].code == 200
        group.run(2000 * MS)
    assert group.voters("n2") == ["n0", "n1", "n2"]
    assert group.leader() == "n0" and group.replica("n0").term == 1
    group.invariants.finish()


def test_e6_a_new_voter_has_an_election_timeout_to_answer() -> None:
    group = Group(1)
    group.start("n1")
    group.change("n0", MemberChange(ADD, "n1", address_of("n1"), promote=False))
    group.run(3000 * MS)
    group.change("n0", MemberChange(PROMOTE, "n1"))
    group.cut_off("n1")
    group.run(300 * MS)
    assert group.voters("n0") == ["n0", "n1"] and group.leader() == "n0"


def test_c8_nobody_changes_members_beside_a_plain_dledger_process() -> None:
    group = Group()
    group.replica("n0").links.stranger_met("n2", Stranger.PLAIN, "a plain DLedger node answers there", group.now)
    refused = group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    assert refused is not None and refused.code is ResponseCode.ILLEGAL_MEMBER_STATE
    assert "plain DLedger" in refused.detail and group.learners_of("n0") == []
