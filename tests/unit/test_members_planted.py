"""Planted bugs of SAFETY M1 to M7: each is found by a scenario, or by a run at random, that passes without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.unit import test_members_change as scenarios
from tests.unit.test_members_fuzz import Chaos

CORE = "node.consensus."
CHANGES = CORE + "member_changes:MemberChanges."
LOG = CORE + "configurations:Configurations."
RECONFIGURATION = CORE + "reconfiguration:Reconfiguration."
MEMBERSHIP = CORE + "membership:Membership."
ELECTOR = CORE + "leader_elector:LeaderElector."


def at_random(seed: int) -> None:
    Chaos(seed).run()


PLANTED: tuple[tuple[Mutant, Callable[[], None]], ...] = (
    (
        Mutant(
            "old_members_until_commit", "M1", "a change is judged by the members before it until it is committed",
            (swapped(
                RECONFIGURATION + "log_changed", "in_effect is not self._from_log",
                "in_effect is not self._from_log and in_effect.index <= member.committed_index",
            ),),
        ),
        scenarios.test_m1_a_change_is_judged_by_the_members_that_it_makes,
    ),
    (
        Mutant(
            "cut_keeps_members", "M1", "members whose entry was cut stay in effect",
            (swapped(LOG + "cut", "[one for one in self._in_log if one.index < cut_index]", "list(self._in_log)"),),
        ),
        scenarios.test_m1_a_cut_brings_back_the_members_before,
    ),
    (
        Mutant(
            "start_from_birth", "M1", "a start takes the members of the birth",
            (ignored(LOG + "__init__", "place is not None"),),
        ),
        scenarios.test_m1_a_start_finds_the_members_of_its_log,
    ),
    (
        Mutant(
            "announced_is_in_effect", "M1", "what was written down is taken for what the log holds",
            (Edit(LOG + "_place_of", "return None", "return MUTANT.instead(None, index)"),),
        ),
        scenarios.test_m1_what_was_written_down_and_never_appended_is_no_configuration,
    ),
    (
        Mutant(
            "appended_unrecorded", "M1", "a follower appends a change before it is on its record",
            (Edit(RECONFIGURATION + "on_record", "return False", "return MUTANT.instead(False, True)"),),
        ),
        scenarios.test_m1_a_follower_writes_it_down_before_it_is_in_its_log,
    ),
    (
        Mutant(
            "two_changes_pending", "M2", "a change is proposed while the one before is not committed",
            (ignored(
                CHANGES + "_busy",
                "self.waits_for_record or self._member.configuration.index > self._member.committed_index",
            ),),
        ),
        scenarios.test_m2_one_change_at_a_time,
    ),
    (
        Mutant(
            "change_before_own_entry", "M2", "a new leader changes members before it has committed anything",
            (ignored(CHANGES + "_busy", "not leadership.own_entry_committed"),),
        ),
        scenarios.test_m2_no_change_before_an_entry_of_the_own_term_is_committed,
    ),
    (
        Mutant(
            "unknown_candidates_refused", "M3", "who is not in the own configuration gets no vote",
            (swapped(
                ELECTOR + "_judge", "not member.configurations.knows(vote.candidate_id)",
                "vote.candidate_id not in member.configuration.voters",
            ),),
        ),
        scenarios.test_m3_a_member_that_lags_follows_and_votes_for_one_that_it_does_not_know,
    ),
    (
        Mutant(
            "lagging_learner_gives_no_vote", "M3", "a voter whose own log does not say so yet gives no vote",
            (swapped(ELECTOR + "_judge", "member.voter_state is VoterState.VOTER", "member.has_vote"),),
        ),
        partial(at_random, 20),
    ),
    (
        Mutant(
            "learner_is_voter", "M4", "a new member is a voter at once",
            (swapped(
                LOG + "_take", "Configuration.at_entry(index, named, self._birth)",
                "Configuration({**Configuration.at_entry(index, named, self._birth).members}, index=index)",
            ),),
        ),
        scenarios.test_m4_a_learner_that_lags_is_not_promoted,
    ),
    (
        Mutant(
            "lagging_learner_promoted", "M4", "a learner is promoted whatever it lacks",
            (ignored(CHANGES + "_unsafe", "not self.caught_up(change.member_id)"),),
        ),
        scenarios.test_m4_a_learner_that_lags_is_not_promoted,
    ),
    (
        Mutant(
            "removed_leader_counts_itself", "M5", "a leader that removed itself counts itself on",
            (swapped(
                CORE + "configuration:Configuration.reached_by",
                "[own, *others] if own_id in self.voters else others", "[own, *others][: len(self.voters)]",
            ),),
        ),
        scenarios.test_m5_a_leader_that_removes_itself_does_not_count_itself_and_hands_over,
    ),
    (
        Mutant(
            "removed_leader_stays", "M5", "a leader that removed itself leads on for ever",
            (left_out(CHANGES + "tick", "self._leave(now)"),),
        ),
        scenarios.test_m5_a_leader_that_removes_itself_does_not_count_itself_and_hands_over,
    ),
    (
        Mutant(
            "leaving_voter_gives_up", "M5", "a leader whose removal only its own log holds does not campaign again",
            (swapped(LOG + "may_campaign", "member_id in before.voters", "False"),),
        ),
        partial(at_random, 45),
    ),
    (
        Mutant(
            "removed_member_unseats", "M5, E3, E4", "a removed member is let in, and raises everybody's term",
            (
                ignored(
                    MEMBERSHIP + "_judge",
                    "self._member.configuration.named.removed.get(hello.node_id) == hello.store_id",
                ),
                ignored(ELECTOR + "_judge_pre", "member.leader_alive(now)"),
                ignored(
                    ELECTOR + "_judge",
                    "vote.ledger_end_term == store.end_term and vote.ledger_end_index < store.end_index",
                ),
                ignored(ELECTOR + "_judge_real", "member.leader_alive(now) and not self._ticket_valid(vote)"),
            ),
        ),
        scenarios.test_m5_a_removed_member_unseats_nobody_and_its_store_does_not_come_back,
    ),
    (
        Mutant(
            "removed_store_comes_back", "M5", "a member that was removed comes back with what it had",
            (
                ignored(
                    MEMBERSHIP + "_judge",
                    "self._member.configuration.named.removed.get(hello.node_id) == hello.store_id",
                ),
                ignored(
                    CHANGES + "caught_up",
                    "peer.hello is None or self._member.configuration.named.removed.get(member_id)"
                    " == peer.hello.store_id",
                ),
            ),
        ),
        scenarios.test_m5_a_removed_member_unseats_nobody_and_its_store_does_not_come_back,
    ),
    (
        Mutant(
            "strangers_let_in", "M7, C9", "who does not know the group's id is let in as a member",
            (
                ignored(MEMBERSHIP + "_judge", "None not in (group_id, hello.group_id) and hello.group_id != group_id"),
                ignored(
                    MEMBERSHIP + "_may_be_ahead",
                    "member.hard.group_id is None or hello.group_id != member.hard.group_id"
                    " or sender == member.self_id",
                ),
            ),
        ),
        scenarios.test_m7_who_does_not_know_the_group_is_not_let_in,
    ),
    (
        Mutant(
            "new_voter_silent_since_birth", "E6, M3", "a new voter's silence counts from the leadership's begin",
            (left_out(RECONFIGURATION + "configure", "leadership.voter_came(peer, now)"),),
        ),
        scenarios.test_e6_a_new_voter_has_an_election_timeout_to_answer,
    ),
    (
        Mutant(
            "members_change_beside_plain", "C8", "members change while a plain DLedger process stands in the group",
            (ignored(CHANGES + "refusal", "self._membership.strangers.plain"),),
        ),
        scenarios.test_c8_nobody_changes_members_beside_a_plain_dledger_process,
    ),
)  # fmt: skip


@pytest.mark.parametrize(("mutant", "found_by"), PLANTED, ids=[mutant.name for mutant, _ in PLANTED])
def test_the_bug_is_found(mutant: Mutant, found_by: Callable[[], None]) -> None:
    with mutant.plant() as tally, pytest.raises((AssertionError, KeyError, IndexError)):
        found_by()
    assert tally.differed, f"{mutant.name} made no difference"
