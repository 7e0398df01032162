"""Which files retention removes: DLedger's hour, age, size and ratios, and who keeps what (`store/retention.py`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.retention import FILES_MAX, DataFile, Limits, Need, Plan, Survey, plan_by_hand, plan_by_policy

HOUR: Final = 3600
NOW: Final = 1_000_000.0
LIMITS: Final = Limits(72 * HOUR, frozenset({4}), 0, 0.70, 0.85, True)
EVERYTHING: Final = 1 << 40


def files_of(*ages_h: float) -> tuple[DataFile, ...]:
    """Ten entries and 100 bytes each."""
    return tuple(DataFile(10 * number, 10 * number + 9, 100, NOW - age * HOUR) for number, age in enumerate(ages_h))


def survey_of(*ages_h: float, hour: int = 4, used: int | None = None) -> Survey:
    """A log of these files and one more; `used`: of a disk of 1000 bytes."""
    total, free = (None, None) if used is None else (1000, 1000 - used)
    return Survey(files_of(*ages_h), 100 * (len(ages_h) + 1), NOW, hour, total, free)


def policy(
    survey: Survey, limits: Limits = LIMITS, needs: tuple[Need, ...] = (), through_max: int = EVERYTHING
) -> Plan:
    return plan_by_policy(limits, survey, needs, through_max)


def test_old_files_go_in_the_hour_that_is_set() -> None:
    assert policy(survey_of(100, 80, 72, 71, 1)).through_index == 29
    assert "72 h ago, and it is 04 o'clock" in policy(survey_of(100)).reason
    assert policy(survey_of(100, hour=5)) == Plan()
    assert policy(survey_of(71, 100)) == Plan(), "from the front only"


def test_a_disk_that_fills_lets_old_files_go_at_any_hour() -> None:
    assert policy(survey_of(100, 80, 1, hour=12, used=699)) == Plan()
    plan = policy(survey_of(100, 80, 1, hour=12, used=700))
    assert (plan.through_index, plan.urgent) == (19, False)
    assert "70% of the disk is used" in plan.reason


def test_a_full_disk_takes_files_of_any_age_but_no_more_than_it_needs() -> None:
    plan = policy(survey_of(1, 1, 1, 1, hour=12, used=960))
    assert (len(plan.files), plan.urgent) == (2, True)
    assert len(policy(survey_of(1, 1, hour=12, used=850)).files) == 1, "at the ratio itself one file goes"
    assert policy(survey_of(1, 1, hour=12, used=849)) == Plan()
    assert policy(survey_of(1, 1, hour=12, used=960), replace(LIMITS, force_clean=False)) == Plan()
    assert policy(survey_of(1, 1, hour=12, used=None)) == Plan(), "a disk that does not say how full it is"


def test_a_write_that_found_no_space_takes_the_oldest_file_whatever_the_ratio() -> None:
    def full(used: int | None, limits: Limits = LIMITS) -> Plan:
        return plan_by_policy(limits, survey_of(1, 1, hour=12, used=used), (), EVERYTHING, disk_full=True)

    assert (len(full(100).files), full(100).urgent, len(full(None).files)) == (1, True, 1)
    assert len(full(990).files) == 2, "beyond the ratio as many as that asks for"
    assert full(100, replace(LIMITS, force_clean=False)) == Plan()


def test_a_log_that_is_too_large_loses_its_oldest_files_at_once() -> None:
    limits = replace(LIMITS, max_log_bytes=300)
    assert policy(survey_of(1, 1, hour=12), limits) == Plan()
    plan = policy(survey_of(1, 1, 1, 1, hour=12), limits)
    assert (plan.through_index, plan.urgent) == (19, True)
    assert "the log has 500 bytes, 300 are allowed" in plan.reason


def test_one_look_removes_a_bounded_number_of_files() -> None:
    plan = policy(survey_of(*[100] * 30))
    assert len(plan.files) == FILES_MAX and plan.wanted_files == FILES_MAX


def test_what_somebody_needs_stays_and_the_plan_says_who() -> None:
    lags = Need("voter n2", 15, "is known to hold entries up to 14 on its disk")
    audit = Need("audit 7", 5, "has pinned entries from 5 on")
    later = Need("voter n1", 40, "is known to hold entries up to 39 on its disk")
    old = survey_of(100, 100, 100)
    plan = policy(old, needs=(lags, later))
    assert (plan.through_index, plan.kept_by) == (9, (lags,))
    plan = policy(old, needs=(lags, audit))
    assert (plan.files, plan.kept_by, plan.wanted_files) == ((), (audit, lags), 3)
    assert policy(old, needs=(Need("x", 10, ""),)).through_index == 9, "the entry before the one that is needed goes"
    assert policy(old, needs=(Need("x", 9, ""),)).files == ()


def test_nothing_goes_that_this_member_does_not_hold_for_good() -> None:
    assert policy(survey_of(100, 100), through_max=18).through_index == 9
    assert policy(survey_of(100, 100), through_max=19).through_index == 19
    assert policy(survey_of(100, 100), through_max=-1).files == ()


def test_by_hand_only_force_goes_past_a_need_and_the_plan_says_whom_it_leaves_behind() -> None:
    need = Need("voter n2", 3, "is not connected")
    young = survey_of(1, 1, 1, hour=12)
    assert plan_by_hand(19, young, (), EVERYTHING, forced=False).through_index == 19
    assert plan_by_hand(18, young, (), EVERYTHING, forced=False).through_index == 9, "whole files only"
    kept = plan_by_hand(19, young, (need,), EVERYTHING, forced=False)
    assert (kept.files, kept.kept_by, kept.forced) == ((), (need,), False)
    forced = plan_by_hand(19, young, (need,), EVERYTHING, forced=True)
    assert (forced.through_index, forced.kept_by, forced.forced) == (19, (need,), True)
    assert plan_by_hand(19, young, (need,), 9, forced=True).through_index == 9, "what is not committed here"
    harmless = plan_by_hand(19, young, (Need("voter n2", 20, ""),), EVERYTHING, forced=True)
    assert (harmless.through_index, harmless.forced) == (19, False)


@given(
    ages=st.lists(st.integers(0, 200), max_size=20),
    used=st.one_of(st.none(), st.integers(0, 1000)),
    hour=st.integers(0, 23),
    max_log_bytes=st.integers(0, 2500),
    needs=st.lists(st.integers(-1, 250), max_size=4),
    through_max=st.integers(-1, 250),
    forced=st.booleans(),
)
def test_whatever_is_asked_a_plan_keeps_to_its_bounds(
    ages: list[int], used: int | None, hour: int, max_log_bytes: int, needs: list[int], through_max: int, forced: bool
) -> None:
    survey = survey_of(*ages, hour=hour, used=used)
    owners = [Need(f"owner {number}", index, "") for number, index in enumerate(needs)]
    limits = replace(LIMITS, max_log_bytes=max_log_bytes)
    by_policy = plan_by_policy(limits, survey, owners, through_max)
    by_hand = plan_by_hand(through_max, survey, owners, through_max, forced=forced)
    for plan, past_needs in ((by_policy, False), (by_hand, forced)):
        assert plan.files == survey.files[: len(plan.files)], "whole files from the front"
        assert plan.through_index <= through_max
        if not past_needs:
            assert all(plan.through_index < need.from_index for need in owners) or not plan.files
        assert all(need in owners for need in plan.kept_by)


@pytest.mark.parametrize("needed", [0, 9, 10, 11, 19, 20])
def test_a_need_keeps_exactly_its_own_entry_and_those_behind(needed: int) -> None:
    plan = policy(survey_of(100, 100, 100), needs=(Need("somebody", needed, ""),))
    assert plan.through_index == (needed // 10) * 10 - 1 if needed >= 10 else not plan.files
