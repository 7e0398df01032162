"""Retention: which data files go from the front of a log, and who keeps the rest; DLedger's rules as pure functions.

Four reasons, as DLedger has them. Age: files written last before `reserved_s` go, but only in the hours of
`delete_hours`, or while the disk is used beyond `check_ratio`. Size: the oldest go while the log is larger than
`max_log_bytes`. Disk: beyond `force_ratio` the oldest go whatever their age, until the disk is used less (DLedger
removes all that it has; here no more go than needed). By hand: files that hold only entries up to a given one.

Whatever the reason, an entry stays that somebody needs (`Need`): a member that is not known to hold it, a pin. Only
an order by hand may go past them (`forced`), and then its plan says whom it leaves behind.

Invariants: whole files from the front, never the last one; never an entry beyond `through_max`, up to which this member
itself has committed, synced and applied; at most `FILES_MAX` by one look of the policy; nothing here reads a clock or a
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FILES_MAX: Final = 10  # in one round, as DLedger's


@dataclass(slots=True, frozen=True)
class DataFile:
    """A data file in front of the log's last one. `modified_s`: when it was written last, in seconds of wall time."""

    first_index: int
    last_index: int
    size_bytes: int
    modified_s: float


@dataclass(slots=True, frozen=True)
class Survey:
    """What a store sees of its disk at one moment: its oldest files, its whole size, the disk's, and the local hour."""

    files: tuple[DataFile, ...]
    log_bytes: int
    now_s: float
    hour: int
    disk_total_bytes: int | None = None  # None: the system does not say
    disk_free_bytes: int | None = None

    @property
    def used_ratio(self) -> float | None:
        """How much of the disk is used; None where that is not known."""
        if not self.disk_total_bytes or self.disk_free_bytes is None:
            return None
        return 1 - self.disk_free_bytes / self.disk_total_bytes


@dataclass(slots=True, frozen=True)
class Need:
    """Somebody needs the entries from `from_index` on; `why` goes on after the owner's name."""

    owner: str
    from_index: int
    why: str


@dataclass(slots=True, frozen=True)
class Limits:
    """The configured policy; `max_log_bytes` 0: any size."""

    reserved_s: int
    delete_hours: frozenset[int]
    max_log_bytes: int
    check_ratio: float
    force_ratio: float
    force_clean: bool


@dataclass(slots=True, frozen=True)
class Plan:
    """What would go, and why. `kept_by`: who holds back what should go; of a forced plan: whom it leaves behind."""

    files: tuple[DataFile, ...] = ()
    reason: str = ""
    kept_by: tuple[Need, ...] = ()
    wanted_files: int = 0
    urgent: bool = False  # the log is too large, or the disk too full: what is held back hurts
    forced: bool = False

    @property
    def through_index(self) -> int:
        """The last entry that would go; -1: none."""
        return self.files[-1].last_index if self.files else -1

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.files)


def plan_by_policy(
    limits: Limits, survey: Survey, needs: Sequence[Need], through_max: int, *, disk_full: bool = False
) -> Plan:
    """What the limits ask to remove now. `disk_full`: a write found no space, whatever the ratio says."""
    aged, aged_why = _aged(limits, survey)
    large, large_why = _too_large(limits, survey)
    full, full_why = _disk_too_full(limits, survey, disk_full)
    count, urgent, reason = max((aged, False, aged_why), (large, True, large_why), (full, True, full_why))
    if not count:
        return Plan()
    return _within(survey.files[: min(count, FILES_MAX)], reason, needs, through_max, urgent=urgent)


def plan_by_hand(through_index: int, survey: Survey, needs: Sequence[Need], through_max: int, *, forced: bool) -> Plan:
    """What an operator asks to remove: files that hold only entries up to `through_index`."""
    files = tuple(one for one in survey.files if one.last_index <= through_index)
    reason = f"an operator asked for it, through entry {through_index}"
    return _within(files, reason, needs, through_max, forced=forced)


def _within(
    wanted: tuple[DataFile, ...], reason: str, needs: Sequence[Need], through_max: int, *,
    urgent: bool = False, forced: bool = False,
) -> Plan:  # fmt: skip
    free = tuple(one for one in wanted if one.last_index <= through_max)
    through = free[-1].last_index if free else -1
    kept_by = tuple(sorted((need for need in needs if need.from_index <= through), key=lambda need: need.from_index))
    files = free if forced else tuple(one for one in free if not kept_by or one.last_index < kept_by[0].from_index)
    return Plan(files, reason, kept_by, len(wanted), urgent, forced and bool(kept_by))


def _aged(limits: Limits, survey: Survey) -> tuple[int, str]:
    used = survey.used_ratio
    if survey.hour in limits.delete_hours:
        when = f"it is {survey.hour:02d} o'clock"
    elif used is not None and used >= limits.check_ratio:
        when = f"{used:.0%} of the disk is used"
    else:
        return 0, ""
    count = 0
    for one in survey.files:
        if one.modified_s + limits.reserved_s > survey.now_s:
            break
        count += 1
    return count, f"written last over {limits.reserved_s // 3600} h ago, and {when}"


def _too_large(limits: Limits, survey: Survey) -> tuple[int, str]:
    if not limits.max_log_bytes:
        return 0, ""
    count = _until(survey, survey.log_bytes - limits.max_log_bytes)
    return count, f"the log has {survey.log_bytes} bytes, {limits.max_log_bytes} are allowed"


def _disk_too_full(limits: Limits, survey: Survey, disk_full: bool) -> tuple[int, str]:
    used = survey.used_ratio
    if not limits.force_clean:
        return 0, ""
    if used is None or used < limits.force_ratio:
        return (min(1, len(survey.files)), "the disk is full: a write found no space") if disk_full else (0, "")
    assert survey.disk_total_bytes is not None
    # At the ratio itself a file goes, too: the disk has to be used less.
    count = _until(survey, max(1, int((used - limits.force_ratio) * survey.disk_total_bytes)))
    return count, f"{used:.0%} of the disk is used, from {limits.force_ratio:.0%} on the oldest files go"


def _until(survey: Survey, excess_bytes: int) -> int:
    """How many of the oldest files make up so many bytes."""
    count = 0
    for one in survey.files:
        if excess_bytes <= 0:
            break
        excess_bytes -= one.size_bytes
        count += 1
    return count
