"""Planted bugs of SAFETY M1 to M7: each is found by a scenario, or by a run at random, that passes without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.mutants.members import BY_SCENARIO_ONLY, CHANGES_OF_MEMBERS
from tests.unit import test_members_change as scenarios
from tests.unit import test_members_unread as unread
from tests.unit import test_recover_members as ended
from tests.unit.test_members_fuzz import Chaos

MUTANTS = {one.name: one for one in (*CHANGES_OF_MEMBERS, *BY_SCENARIO_ONLY)}


def at_random(seed: int) -> None:
    Chaos(seed).run()


FOUND_BY: dict[str, Callable[[], None]] = {
    "old_members_until_commit": scenarios.test_m1_a_change_is_judged_by_the_members_that_it_makes,
    "cut_keeps_members": scenarios.test_m1_a_cut_brings_back_the_members_before,
    "start_from_birth": scenarios.test_m1_a_start_finds_the_members_of_its_log,
    "announced_is_in_effect": scenarios.test_m1_what_was_written_down_and_never_appended_is_no_configuration,
    "appended_unrecorded": scenarios.test_m1_a_follower_writes_it_down_before_it_is_in_its_log,
    "two_changes_pending": scenarios.test_m2_one_change_at_a_time,
    "change_before_own_entry": scenarios.test_m2_no_change_before_an_entry_of_the_own_term_is_committed,
    "unknown_candidates_refused": scenarios.test_m3_a_member_that_lags_follows_and_votes_for_one_that_it_does_not_know,
    "lagging_learner_gives_no_vote": partial(at_random, 20),
    "learner_is_voter": scenarios.test_m4_a_learner_that_lags_is_not_promoted,
    "lagging_learner_promoted": scenarios.test_m4_a_learner_that_lags_is_not_promoted,
    "removed_leader_counts_itself": scenarios.test_m5_a_leader_that_removes_itself_does_not_count_itself_and_hands_over,
    "removed_leader_stays": scenarios.test_m5_a_leader_that_removes_itself_does_not_count_itself_and_hands_over,
    "leaving_voter_gives_up": partial(at_random, 45),
    "removed_member_unseats": scenarios.test_m5_a_removed_member_unseats_nobody_and_its_store_does_not_come_back,
    "removed_store_comes_back": scenarios.test_m5_a_removed_member_unseats_nobody_and_its_store_does_not_come_back,
    "strangers_let_in": scenarios.test_m7_who_does_not_know_the_group_is_not_let_in,
    "new_voter_silent_since_birth": scenarios.test_e6_a_new_voter_has_an_election_timeout_to_answer,
    "left_behind_keeps_its_vote": ended.test_who_was_left_behind_gives_up_its_vote_before_it_has_a_leader,
    "ended_id_refused_silently": ended.test_the_survivors_refuse_the_old_id_and_say_that_the_group_went_on,
    "ended_said_to_a_working_group": (
        ended.test_a_group_that_works_is_not_taken_apart_by_one_that_was_forced_to_leave_it
    ),
    "ended_believed_unproven": partial(
        ended.test_it_keeps_its_vote_where_that_is_not_said_or_not_proven, {"proven": False}, {"proof_wanted": True}
    ),
    "unread_record_stays": unread.test_m1_what_its_leader_appended_further_on_is_found_there,
    "unread_record_forgets": partial(unread.test_m1_what_never_came_is_in_effect_no_more_once_its_place_is_mended, 3),
    "forgotten_before_durable": (
        unread.test_m1_a_power_loss_brings_back_the_members_before_an_entry_that_was_committed_without_this_disk
    ),
    "members_change_beside_plain": scenarios.test_c8_nobody_changes_members_beside_a_plain_dledger_process,
}


@pytest.mark.parametrize("name", FOUND_BY)
def test_the_bug_is_found(name: str) -> None:
    with MUTANTS[name].plant() as tally, pytest.raises((AssertionError, KeyError, IndexError)):
        FOUND_BY[name]()
    assert tally.differed, f"{name} made no difference"


def test_what_the_simulator_does_not_hunt_is_found_here() -> None:
    assert {one.name for one in BY_SCENARIO_ONLY} <= FOUND_BY.keys()
