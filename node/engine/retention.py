"""Removes files from the front of the log: by the configured policy, or because an operator asked.

Every `check_interval_s`, and at once when the disk is full, a reading thread looks how old, large and full everything
is; `store/retention.py` says what should go, the core who still needs it, and the writing thread removes it, one file
at a time with a pause after each, so that group commits go on in between. What was removed, why and until where is an
event.

Invariants: one round at a time; before each file it is asked again who needs it; nothing goes by itself while the
table says nothing of it; what is held back from a log that is too large, or a disk that is too full, is an alarm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from node.config_models import RetentionTable
from node.consensus.replica import Replica
from node.engine.clock import wall_text
from node.engine.disk import Disk
from node.engine.pin_leases import MACHINE, PinLeases
from node.store.files.old_log import BEFORE_ENTRY_0
from node.store.log_store import LogStore
from node.store.retention import FILES_MAX, Limits, Need, Plan, Survey, plan_by_hand, plan_by_policy
from node.views.state import NeedView, RetentionView

FILE_PAUSE_S: Final = 0.1  # DLedger's deleteFilesInterval
BY_POLICY: Final = "the retention policy"
SHOWN_MAX: Final = 20
SNAPSHOT: Final = "the broker's newest snapshot"
WHY_KEPT: Final = (
    "what it holds of queues whose messages have expired is nowhere else; before there is one, nothing goes"
)
WHY_APPLIED_AGAIN: Final = "it applies them again when it starts; a snapshot that is saved now makes them fewer"


class Driver(Protocol):
    """What retention needs of the engine."""

    replica: Replica
    now_ns: Callable[[], int]

    def step(self, step: Callable[[], object]) -> None: ...
    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None: ...


class Trimmed(NamedTuple):
    """How an order by hand ended. `problem`: why not all of it was done, or nothing."""

    plan: Plan
    removed_files: int
    removed_bytes: int
    begin_index: int
    problem: str = ""


@dataclass(slots=True)
class Round:
    """One way through a plan."""

    plan: Plan
    by: str
    ended: Callable[[str], None]
    from_index: int
    files: int = 0
    size_bytes: int = 0
    through_index: int = field(default=-1)


def limits_of(table: RetentionTable) -> Limits:
    return Limits(
        reserved_s=table.file_reserved_hours * 3600,
        delete_hours=frozenset(map(int, table.delete_when)),
        max_log_bytes=table.max_log_bytes,
        check_ratio=table.disk_space_ratio_to_check_expired,
        force_ratio=table.disk_space_ratio_to_force_clean,
        force_clean=table.enable_disk_force_clean,
    )


class Retention:
    """One per engine; lives on its loop."""

    def __init__(self, driver: Driver, store: LogStore, disk: Disk, table: RetentionTable) -> None:
        self._driver, self._store, self._disk, self._table = driver, store, disk, table
        self._limits = limits_of(table)
        self._loop = asyncio.get_running_loop()
        self.pins = PinLeases(store)
        self._timer: asyncio.TimerHandle | None = None
        self._round: Round | None = None
        self._looking = self._stopped = False
        self._waiting: list[tuple[int, bool, Callable[[Trimmed], None]]] = []
        self.refuses_writes = False  # the disk is used beyond `disk_full_ratio`
        self._kept_by: tuple[Need, ...] = ()
        self._removed_files = self._removed_bytes = 0
        self._last: tuple[str, str] | None = None  # when, and what was removed

    def start(self) -> None:
        """The first look comes at once, if the policy is on."""
        self._arm(0.0)

    def change(self, table: RetentionTable) -> None:
        """Another policy from now on; the first look comes at once, if it is on."""
        self._table, self._limits = table, limits_of(table)
        if not table.enabled:
            self.refuses_writes = False
        self._arm(0.0)

    def stop(self) -> None:
        self._stopped = True
        self.pins.stop()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._table.enabled and not self._stopped:
            self._timer = self._loop.call_later(seconds, self.look)

    # --- by policy ------------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Now, unless a round is under way; the next look follows by itself."""
        if not self._table.enabled or self._stopped:
            return
        self._arm(self._table.check_interval_s)
        if self._round is None and not self._looking:
            self._looking = True
            self._disk.survey(FILES_MAX, self._surveyed)

    def _surveyed(self, survey: Survey) -> None:
        self._looking = False
        if self._stopped or self._round is not None:
            return
        used = survey.used_ratio
        self.refuses_writes = used is not None and used >= self._table.disk_full_ratio
        if self.refuses_writes and not self._driver.replica.member.disk_full:
            now = self._driver.now_ns
            self._driver.step(lambda: self._driver.replica.disk.disk_full(True, now(), by_ratio=True))
        full = self._driver.replica.member.short_of_space
        plan = plan_by_policy(self._limits, survey, self.needs(), self._through_max(), disk_full=full)
        self._kept_by = plan.kept_by
        self._say_held(plan)
        if plan.files:
            self._begin(plan, BY_POLICY, self._policy_ended)

    def _policy_ended(self, problem: str) -> None:
        """There may be more to do at once; what could not be done now is tried with the next look."""
        self._arm(self._table.check_interval_s if problem else FILE_PAUSE_S)

    def _say_held(self, plan: Plan) -> None:
        """The alarm of a log, or a disk, that cannot be made smaller because somebody needs what is oldest."""
        text = None
        if plan.urgent and len(plan.files) < plan.wanted_files and plan.kept_by:
            text = f"nothing more can be removed although {plan.reason}: {in_words(plan.kept_by)}"
        self._driver.step(lambda: self._driver.replica.disk.retention_held(text, self._driver.now_ns()))

    # --- by hand --------------------------------------------------------------------------------------------------
    def trim(
        self, through_index: int, files_max: int, *, forced: bool, dry_run: bool, done: Callable[[Trimmed], None]
    ) -> None:
        """Removes the oldest files that hold only entries up to `through_index`; `dry_run`: says what would go, and who
        keeps what. Nobody else's round runs beside it."""

        def surveyed(survey: Survey) -> None:
            plan = plan_by_hand(through_index, survey, self.needs(), self._through_max(forced=forced), forced=forced)
            begin = self._store.begin_index
            if dry_run or not plan.files:
                kept = [need for need in self._not_even_by_force() if need.from_index <= through_index]
                done(Trimmed(plan, 0, 0, begin, in_words(kept) if forced else ""))
            elif self._round is not None:
                done(Trimmed(plan, 0, 0, begin, "files are being removed already: ask again when that has ended"))
            else:

                def ended(problem: str) -> None:
                    done(Trimmed(plan, one.files, one.size_bytes, self._store.begin_index, problem))

                one = self._begin(plan, "an operator", ended)

        self._disk.survey(files_max, surveyed)

    # --- who needs what -------------------------------------------------------------------------------------------
    def needs(self) -> list[Need]:
        """Members that are not known to hold the log, pins, and what is nowhere else."""
        pins = [
            Need(owner, index, f"has pinned entries from {index} on")
            for owner, index in self._store.pins.held()
            if owner != MACHINE
        ]
        return self._driver.replica.held.needs() + pins + self._not_even_by_force()

    def _not_even_by_force(self) -> list[Need]:
        """Without these entries a state would be nowhere any more."""
        kept, found = self._kept_for_snapshot(), []
        if kept is not None:  # before there is one, an old commit log stays, too
            found = [Need(SNAPSHOT, kept or BEFORE_ENTRY_0, f"needs entries from {kept} on ({WHY_KEPT})")]
        for owner, index in self._store.pins.held():
            if owner == MACHINE:
                found.append(Need(owner, index, f"needs entries from {index} on ({WHY_APPLIED_AGAIN})"))
        return found

    def _kept_for_snapshot(self) -> int | None:
        return self._store.kept_for_snapshot(self._driver.replica.committed_index)

    def _through_max(self, *, forced: bool = False) -> int:
        replica = self._driver.replica
        own = replica.held.removable_through()
        applied = replica.applied_index if replica.config.applies else own
        # The entry that becomes the first is committed, too: where it lies is settled then (SAFETY S5).
        through = min(own, -1 if applied is None else applied) - 1
        kept = self._not_even_by_force() if forced else ()
        return min([through, *(need.from_index - 1 for need in kept)])

    # --- one round ------------------------------------------------------------------------------------------------
    def _begin(self, plan: Plan, by: str, ended: Callable[[str], None]) -> Round:
        self._round = one = Round(plan, by, ended, plan.files[0].first_index)
        self._next(one)
        return one

    def _next(self, one: Round) -> None:
        """The next file of the plan, if nobody has come to need it since."""
        files = one.plan.files
        if self._stopped:
            return
        if one.files == len(files):
            self._end(one, "")
            return
        through = files[one.files].last_index
        if self._store.begin_index > through != BEFORE_ENTRY_0:  # it is gone already
            one.files += 1
            self._next(one)
            return
        late = () if one.plan.forced else tuple(need for need in self.needs() if need.from_index <= through)
        if late or through > self._through_max(forced=one.plan.forced):
            self._end(one, in_words(late) or "these entries are not safe on this disk any more")
            return
        self._disk.remove_prefix(through, one.plan.forced, lambda problem: self._removed(one, problem))

    def _removed(self, one: Round, problem: str) -> None:
        file = one.plan.files[one.files]
        if not problem and self._store.begin_index <= file.last_index:
            problem = (
                f"entry {file.last_index} is damaged and mended first, or a change of the members is being recorded"
            )
        if problem:
            self._end(one, problem)
            return
        one.files += 1
        one.size_bytes += file.size_bytes
        one.through_index = file.last_index
        self._removed_files += 1
        self._removed_bytes += file.size_bytes
        self._loop.call_later(FILE_PAUSE_S if one.files < len(one.plan.files) else 0, self._next, one)

    def _end(self, one: Round, problem: str) -> None:
        self._round = None
        if one.files:
            self._say_removed(one)
        one.ended(problem)

    def _say_removed(self, one: Round) -> None:
        plan = one.plan
        left = [f"{need.owner} (from entry {need.from_index} on)" for need in plan.kept_by if plan.forced]
        files = "1 data file was" if one.files == 1 else f"{one.files} data files were"
        what = "RocketMQ's old commit log"
        if one.through_index != BEFORE_ENTRY_0:
            what = f"entries {one.from_index} to {one.through_index}"
        text = (
            f"{files} removed, {one.size_bytes} bytes, {what}: {plan.reason}."
            f" The log begins at {self._store.begin_index}"
        )
        if left:
            text += f". Forced: {', '.join(left[:SHOWN_MAX])} can no longer be given what went"
        self._last = wall_text(), text
        detail = {
            "text": text, "by": one.by, "reason": plan.reason, "from_index": one.from_index,
            "to_index": one.through_index, "files": one.files, "bytes": one.size_bytes,
            "begin_index": self._store.begin_index, "forced": plan.forced, "left_behind": left[:SHOWN_MAX],
        }  # fmt: skip
        self._driver.note("prefix_removed", "warning" if plan.forced else "info", detail)

    # --- for people -----------------------------------------------------------------------------------------------
    def view(self) -> RetentionView:
        """For `GET state`."""
        at, text = self._last or (None, None)
        return RetentionView(
            enabled=self._table.enabled,
            removing=self._round is not None,
            removed_files=self._removed_files,
            removed_bytes=self._removed_bytes,
            last_removed_at=at,
            last_removed=text,
            kept_by=tuple(need_view(need) for need in self._kept_by[:SHOWN_MAX]),
            pins=self.pins.views(),
        )


def need_view(need: Need) -> NeedView:
    return NeedView(owner=need.owner, from_index=need.from_index, why=need.why)


def in_words(needs: Sequence[Need]) -> str:
    """Who keeps entries, and why; the first few."""
    said = [f"{need.owner} {need.why}" for need in needs[:3]]
    more = f", and {len(needs) - 3} more" if len(needs) > 3 else ""
    return "; ".join(said) + more
