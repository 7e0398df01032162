"""Who belongs to a group, and what a majority of its voters is (SAFETY R3, M4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.consensus.configuration import Configuration
from node.protocol.quorum import majority_of


def of(voters: int, *learners: str) -> Configuration:
    return Configuration({f"n{n}": f"host{n}:1" for n in range(voters)}, {one: f"{one}:1" for one in learners})


@pytest.mark.parametrize(
    ("marks", "expected"),
    [([7], 7), ([7, 3], 3), ([7, 3, 5], 5), ([7, -1, -1], -1), ([9, 7, 5, 3], 5), ([1, 9, 9, 9, 1], 9), ([4, 4, 4], 4)],
)
def test_r3_element_n_half_in_descending_order(marks: list[int], expected: int) -> None:
    assert of(len(marks)).reached(marks) == expected


@given(st.lists(st.integers(-1, 50), min_size=1, max_size=9), st.integers(0, 3))
def test_r3_a_majority_reaches_it_and_no_more_whoever_learns(marks: list[int], learners: int) -> None:
    configuration = of(len(marks), *(f"l{n}" for n in range(learners)))
    index = configuration.reached(marks)
    assert 2 * sum(mark >= index for mark in marks) > len(marks)
    assert 2 * sum(mark > index for mark in marks) <= len(marks)


@given(st.integers(1, 9))
def test_two_majorities_meet_and_one_less_is_none(voters: int) -> None:
    assert 2 * majority_of(voters) > voters >= 2 * (majority_of(voters) - 1)
    configuration = of(voters)
    ids = list(configuration.voters)
    assert configuration.is_majority(ids[: configuration.majority])
    assert not configuration.is_majority(ids[: configuration.majority - 1])
    assert configuration.still_needed(0) == configuration.majority
    assert configuration.still_needed(voters) == 0


def test_a_value_of_a_learner_is_no_value_of_a_voter() -> None:
    with pytest.raises(AssertionError, match="4 values of 3 voters"):
        of(3, "l0").reached([1, 2, 3, 4])


def test_m4_learners_and_strangers_make_no_majority() -> None:
    configuration = of(3, "l0", "l1")
    assert not configuration.is_majority(["n0", "l0", "l1", "who"])
    assert not configuration.is_majority(["n0", "n0"])  # nor does one voter that is named twice
    assert configuration.is_majority(["n0", "n2"])


def test_learners_come_and_go_and_each_change_is_another_configuration() -> None:
    before = of(3)
    with_one = before.with_learner("l0", "l0:1")
    assert list(before.learners) == [] and list(with_one.learners) == ["l0"]
    assert with_one.members.keys() == {"n0", "n1", "n2", "l0"} and with_one.majority == 2
    assert with_one.with_learner("l0", "l0:1") == with_one
    assert with_one.without_learner("l0") == before


@pytest.mark.parametrize(
    ("member_id", "address", "why"),
    [("n1", "l:1", "is a voter already"), ("l0", "other:1", "remove it first"), ("l1", "host2:1", "has the address")],
)
def test_a_learner_that_cannot_be_one_is_refused(member_id: str, address: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        of(3, "l0").with_learner(member_id, address)


@pytest.mark.parametrize(("member_id", "why"), [("n1", "cannot be removed while"), ("who", "but nobody")])
def test_only_a_learner_can_be_removed(member_id: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        of(3, "l0").without_learner(member_id)


def test_a_group_without_voters_and_a_member_that_is_both_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one voter"):
        Configuration({}, {"l0": "l0:1"})
    with pytest.raises(ValueError, match="not both"):
        Configuration({"n0": "a:1"}, {"n0": "a:1"})
