"""A member's own state changes by verbs that hold its invariants, and by nothing else."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import node.consensus
from node.consensus.cuts import order_cut
from node.consensus.member_state import MemberState
from node.consensus.roles import RoleEvent
from node.protocol.codes import Role
from tests.unit.core_kit import NOW, member_of, store_of


def following(*terms: int) -> MemberState:
    member = member_of(store_of(terms))
    member.follow("n1", NOW)
    return member


def test_r1_verified_grows_only_within_the_log_and_under_a_leader() -> None:
    member = following(1, 1, 1)
    member.note_verified(1)
    member.note_verified(0)
    assert member.verified_index == 1
    with pytest.raises(AssertionError, match="beyond the end"):
        member.note_verified(3)
    leader = member_of(store_of([1]))
    leader.change_role(RoleEvent.ELECTED, NOW, "votes")
    with pytest.raises(AssertionError, match="verifies as LEADER"):
        leader.note_verified(0)


def test_r1_what_was_verified_ends_with_the_term() -> None:
    member = following(1, 1)
    member.note_verified(1)
    member.adopt_term(2, NOW, "another term")
    assert member.verified_index == -1


def test_e1_a_campaign_is_a_candidates_in_the_next_term_with_its_own_vote() -> None:
    member = following(1)
    with pytest.raises(AssertionError, match="campaigns as FOLLOWER"):
        member.stand_for_election(NOW, None)
    member.change_role(RoleEvent.CAMPAIGN, NOW, "silence")
    member.stand_for_election(NOW, None)
    assert (member.term, member.hard.voted_for, member.role) == (2, "n0", Role.CANDIDATE)


def test_r8_what_is_about_to_be_cut_is_not_counted_on() -> None:
    member = following(1, 1, 1, 1)
    member.durable_index = 0
    order_cut(member, 2, "n1", "a conflict", NOW)
    assert member.note_durable(3) and member.durable_index == 1
    assert not member.note_durable(3)
    with pytest.raises(AssertionError, match="cut from 1, ordered was 2"):
        member.cut_done(1)
    member.cut_failed()
    assert (member.truncating_from, member.durable_index) == (None, 3)


def test_e2_a_saved_term_never_goes_down() -> None:
    member = following(1)
    member.hard_state_saved(replace(member.hard, term=3))
    with pytest.raises(AssertionError, match="saved after 3"):
        member.hard_state_saved(replace(member.hard, term=2))


def test_no_other_module_assigns_its_fields() -> None:
    """But those of the batch of effects, which everybody fills."""
    found = []
    for path in sorted(Path(node.consensus.__path__[0]).glob("*.py")):
        for statement in ast.walk(ast.parse(path.read_text())):
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            targets = [statement.target] if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) else targets
            owners = [ast.unparse(one.value) for one in targets if isinstance(one, ast.Attribute)]
            if any(owner in ("member", "self._member", "self.member") for owner in owners):
                found.append(f"{path.name}:{statement.lineno} {ast.unparse(statement)}")
    assert found == []
