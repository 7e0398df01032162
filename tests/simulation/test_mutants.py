"""The planted bugs plant, and go; a few are hunted here, the whole table is `python -m tests.simulation.prove`."""

from __future__ import annotations

import pytest

from node.consensus.configuration import Configuration
from tests.simulation.mutants import MUTANTS, Edit, Mutant, PlantingError
from tests.simulation.mutants.planting import HOOK, find
from tests.simulation.prove import hunt, known_seeds

CONFIGURATION = "node.consensus.configuration:"
SEEDS = 40  # most need one or two
# One for each kind of rule; `.ci/run` and `make prove` hunt the whole table.
FAST = (
    "vote_not_persisted",
    "ack_before_sync",
    "median_of_even_group",
    "cut_below_committed",
    "directory_not_synced",
    "leader_silence_by_the_clock",
    "batch_again_after_restart",
    "base_without_archive",
    "driver_sends_before_saving",
    "client_sends_unknown_again",
    "control_shows_more_than_committed",
    "admission_off",
)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_plants_and_restores(name: str) -> None:
    """An edit whose text is gone from the production code fails here, by name."""
    mutant = MUTANTS[name]
    functions = [find(edit.target) for edit in (*mutant.cause, *mutant.edits)]
    before = [function.__code__ for function in functions]
    with mutant.plant() as tally:
        assert tally.differed == 0
        for function, code in zip(functions, before, strict=True):
            assert function.__code__ is not code
            assert function.__code__.co_varnames[: code.co_argcount] == code.co_varnames[: code.co_argcount]
    for function, code in zip(functions, before, strict=True):
        assert function.__code__ is code
        assert HOOK not in function.__globals__


@pytest.mark.parametrize("name", FAST)
def test_a_planted_bug_is_caught(name: str) -> None:
    """By an invariant, where the planted code was not the right one, and the same world without it is clean."""
    catch = hunt(name, seeds=SEEDS, first=known_seeds().get(name))
    assert catch.invariant is not None, f"{name} survived {catch.seeds} seeds; it differed {catch.differed} times"
    assert catch.differed > 0


def reached(*values: int) -> int:
    return Configuration({f"n{number}": "" for number in range(len(values))}).reached(values)


def test_a_mutant_is_seen_under_every_name_and_counts_its_difference() -> None:
    """The class was imported by name before the planting, here and in the product."""
    with MUTANTS["median_of_even_group"].plant() as tally:
        assert reached(4, 3, 2, 1) == 3
        assert reached(5, 5, 5, 1) == 5
        assert tally.differed == 1
    assert reached(4, 3, 2, 1) == 2


def test_code_that_has_changed_cannot_be_mutated_silently() -> None:
    """A missing function, a missing text, a text that is there twice, a text that does not compile."""
    for target, old, new, why in (
        (CONFIGURATION + "gone", "x", "y", "there is no 'gone'"),
        (CONFIGURATION + "Configuration.reached", "ordered[0]", "x", "0 times"),
        (CONFIGURATION + "Configuration.reached", "ordered", "x", "4 times"),
        (CONFIGURATION + "Configuration.reached", "self.majority - 1", "(", "does not compile"),
        (CONFIGURATION + "Mapping", "x", "y", "is no function"),
    ):
        code = Configuration.reached.__code__
        with (
            pytest.raises(PlantingError, match=why.replace("'", ".")),
            Mutant("bad", "R3", "", (Edit(target, old, new),)).plant(),
        ):
            pass
        assert Configuration.reached.__code__ is code


def test_a_planting_ends_also_when_the_run_fails() -> None:
    with pytest.raises(RuntimeError), MUTANTS["median_of_even_group"].plant():
        raise RuntimeError("the run fails")
    assert reached(4, 3, 2, 1) == 2


def test_the_driver_the_client_and_the_control_plane_have_twenty_bugs_and_more() -> None:
    touched = [edit.target for one in MUTANTS.values() if one.world == "driver" for edit in one.edits]
    assert len(touched) >= 20
    for part in ("node.engine.", "node.client.", "node.control."):
        assert sum(target.startswith(part) for target in touched) >= 5


def test_there_are_mutants_for_every_rule_with_a_classic_wrong_version() -> None:
    rules = " ".join(mutant.rule for mutant in MUTANTS.values())
    for rule in (
        "E1",
        "E2",
        "E3",
        "E4",
        "E5",
        "E6",
        "E7",
        "E8",
        "E9",
        "E10",
        "R1",
        "R2",
        "R3",
        "R4",
        "R5",
        "R6",
        "R7",
        "R8",
    ):
        assert rule in rules
    for rule in ("S1", "S2", "S3", "S4", "S6", "S8", "C1", "C2", "C3", "C4", *(f"M{number}" for number in range(1, 8))):
        assert rule in rules
