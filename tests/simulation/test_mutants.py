"""The planted bugs plant, and go; a few are hunted here, the whole table is `python -m tests.simulation.prove`."""

from __future__ import annotations

import pytest

from node.consensus import quorum_ack_checker
from node.consensus.quorum_ack_checker import quorum_value
from tests.simulation.mutants import MUTANTS, Edit, Mutant, PlantingError
from tests.simulation.mutants.planting import HOOK, find

CHECKER = "node.consensus.quorum_ack_checker:"
# Each rule group once, those that show within a few seeds; the rest of the table takes minutes.
FAST = (
    "stored_term_led_again",
    "votes_twice_in_a_term",
    "ack_before_sync",
    "follower_commits_to_its_end",
    "acked_at_append",
    "read_without_leadership",
)
SEEDS = 20


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_plants_and_restores(name: str) -> None:
    """An edit whose text is gone from the production code fails here, by name."""
    mutant = MUTANTS[name]
    functions = [find(edit.target) for edit in mutant.edits]
    before = [function.__code__ for function in functions]
    with mutant.plant() as tally:
        assert tally.differed == 0
        for function, code in zip(functions, before, strict=True):
            assert function.__code__ is not code
            assert function.__code__.co_varnames[: code.co_argcount] == code.co_varnames[: code.co_argcount]
    for function, code in zip(functions, before, strict=True):
        assert function.__code__ is code
        assert HOOK not in function.__globals__


def test_a_mutant_is_seen_under_every_name_and_counts_its_difference() -> None:
    """`quorum_value` was imported by name before the planting, here and in the product."""
    with MUTANTS["median_of_even_group"].plant() as tally:
        assert quorum_value([4, 3, 2, 1]) == 3
        assert quorum_value([5, 5, 5, 1]) == 5
        assert tally.differed == 1
    assert quorum_value([4, 3, 2, 1]) == 2


def test_code_that_has_changed_cannot_be_mutated_silently() -> None:
    """A missing function, a missing text, a text that is there twice, a text that does not compile."""
    for target, old, new, why in (
        (CHECKER + "gone", "x", "y", "there is no 'gone'"),
        (CHECKER + "quorum_value", "ordered[0]", "x", "0 times"),
        (CHECKER + "quorum_value", "ordered", "x", "3 times"),
        (CHECKER + "quorum_value", "len(ordered) // 2", "(", "does not compile"),
        (CHECKER + "FlushMode", "x", "y", "is no function"),
    ):
        code = quorum_ack_checker.quorum_value.__code__
        with (
            pytest.raises(PlantingError, match=why.replace("'", ".")),
            Mutant("bad", "R3", "", (Edit(target, old, new),)).plant(),
        ):
            pass
        assert quorum_ack_checker.quorum_value.__code__ is code


def test_a_planting_ends_also_when_the_run_fails() -> None:
    with pytest.raises(RuntimeError), MUTANTS["median_of_even_group"].plant():
        raise RuntimeError("the run fails")
    assert quorum_value([4, 3, 2, 1]) == 2


def test_there_are_mutants_for_every_rule_with_a_classic_wrong_version() -> None:
    rules = " ".join(mutant.rule for mutant in MUTANTS.values())
    for rule in ("E1", "E2", "E3", "E4", "E6", "E7", "E8", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"):
        assert rule in rules
    for rule in ("S1", "S2", "S3", "S4", "S6", "S8", "C1", "C2", "C3"):
        assert rule in rules
