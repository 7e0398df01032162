"""What an operator asks of one member: about its own log a scrub, another try at a repair, a trim, pins; a snapshot of
its state machine; and changes of who belongs to the group.

Invariants: the member that is asked does it, leader or not, but for a change of members; every request gets exactly one
answer, a trim's or a change's when it has ended; what cannot be done is answered with why, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from node.consensus.member_changes import ChangeOutcome, MemberChange
from node.consensus.replica import Replica
from node.engine.client_requests import ClientRequests
from node.engine.machine_requests import MachineRequests
from node.engine.member_requests import change_members
from node.engine.pin_leases import PIN_S_MAX
from node.engine.retention import Retention, Trimmed, need_view
from node.protocol.codes import ResponseCode
from node.protocol.entry import EntryError
from node.transport.bodies import BodyError, Fields

Answer = Callable[[ResponseCode, Mapping[str, Any]], None]
TRIM_FILES_MAX: Final = 10  # by one request: it is answered when they are gone
DRY_FILES_MAX: Final = 10_000


class Driver(Protocol):
    """What these actions need of the engine."""

    replica: Replica
    retention: Retention
    machine_requests: MachineRequests | None

    def change_members(self, change: MemberChange, done: Callable[[ChangeOutcome], None]) -> None: ...
    def scrub_now(self) -> int: ...
    def repair_now(self) -> None: ...
    def snapshot_now(self, done: Callable[[int, str], None]) -> bool: ...


class OperatorActions:
    """One per engine."""

    def __init__(self, driver: Driver, requests: ClientRequests, group: str) -> None:
        self._driver, self._requests, self._group = driver, requests, group
        self._actions: Mapping[str, Callable[[Fields, Answer], None]] = {
            "scrub": self._scrub, "repairs": self._repairs, "trim": self._trim, "pin": self._pin,
            "release": self._release, "members": self._members, "snapshot": self._snapshot,
            "restart_machine": self._restart_machine,
        }  # fmt: skip

    def act(self, fields: Fields, said: Callable[[dict[str, Any]], None]) -> None:
        """One request; `said` is given its answer."""

        def answer(code: ResponseCode, more: Mapping[str, Any]) -> None:
            said({"code": int(code), "group": self._group, **more})

        refused = self._requests.misdirected(fields)
        if refused is not None:
            said(self._requests.base(fields.values, refused))
            return
        action = self._actions.get(fields.text("what"))
        if action is None:
            raise BodyError(f"there is no {fields.text('what')!r} to do")
        action(fields, answer)

    def _scrub(self, _: Fields, answer: Answer) -> None:
        answer(ResponseCode.SUCCESS, {"passNumber": self._driver.scrub_now()})

    def _repairs(self, _: Fields, answer: Answer) -> None:
        self._driver.repair_now()
        answer(ResponseCode.SUCCESS, {"faults": len(self._driver.replica.store.faults)})

    def _snapshot(self, _: Fields, answer: Answer) -> None:
        def saved(index: int, error: str) -> None:
            answer(ResponseCode.SUCCESS, {"snapshotIndex": index, "detail": error or None})

        if not self._driver.snapshot_now(saved):
            raise BodyError("this group has no state machine that could be saved")

    def _restart_machine(self, _: Fields, answer: Answer) -> None:
        if self._driver.machine_requests is None:
            raise BodyError("this group has no state machine that could be ended")
        self._driver.machine_requests.restart()
        answer(ResponseCode.SUCCESS, {"committedIndex": self._driver.replica.committed_index})

    def _members(self, fields: Fields, answer: Answer) -> None:
        """A change of who belongs to the group: the leader's affair."""
        change_members(self._driver, fields, answer)

    def _trim(self, fields: Fields, answer: Answer) -> None:
        through_index, dry_run = fields.number("throughIndex"), fields.flag("dryRun")
        if through_index < 0:
            raise BodyError("throughIndex is missing: name the last entry that may go")
        files_max = DRY_FILES_MAX if dry_run else TRIM_FILES_MAX
        self._driver.retention.trim(
            through_index, files_max, forced=fields.flag("force"), dry_run=dry_run, done=partial(_trimmed, answer)
        )

    def _pin(self, fields: Fields, answer: Answer) -> None:
        for_s = fields.number("forSeconds")
        if not 1 <= for_s <= PIN_S_MAX:
            raise BodyError(f"forSeconds {for_s}: 1 to {PIN_S_MAX} are allowed")
        store = self._driver.replica.store
        from_index = fields.number("fromIndex")
        gone = from_index < store.begin_index
        code = ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN if gone else ResponseCode.UNEXPECTED_ARGUMENT
        try:
            self._driver.retention.pins.pin(fields.text("owner"), from_index, for_s)
        except EntryError as error:
            answer(code, {"detail": str(error), "beginIndex": store.begin_index})
        else:
            answer(ResponseCode.SUCCESS, {"beginIndex": store.begin_index})

    def _release(self, fields: Fields, answer: Answer) -> None:
        self._driver.retention.pins.release(fields.text("owner"))
        answer(ResponseCode.SUCCESS, {})


def _trimmed(answer: Answer, end: Trimmed) -> None:
    plan = end.plan
    more = {
        "files": len(plan.files), "bytes": plan.size_bytes, "throughIndex": plan.through_index,
        "removedFiles": end.removed_files, "removedBytes": end.removed_bytes, "beginIndex": end.begin_index,
        "keptBy": [need_view(need).to_json() for need in plan.kept_by], "forced": plan.forced, "detail": end.problem,
    }  # fmt: skip
    answer(ResponseCode.SUCCESS, more)
