"""What clients are promised: SAFETY C1 to C4 and E7, checked while they are told.

The history is judged by `linearizability`; here it is watched online, so that a violation stops the run where it
happened, and once more against the log that is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.protocol.codes import ResponseCode
from node.protocol.messages import TransferRequest
from tests.simulation.history import Operation
from tests.simulation.invariants_election import UNSETTLING
from tests.simulation.invariants_log import Logs
from tests.simulation.linearizability import Anomaly, LogChecker
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.protocol.messages import Message
    from tests.simulation.member import Member
    from tests.simulation.world import World

LOSES_ANSWERS = ("stall", "slow_disk", "client_loss")  # and has nothing to do with links


class Clients(Observer):
    """See the module's docstring."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._world: World | None = None
        self._checker: LogChecker | None = None
        self._handed_over: dict[str, tuple[int, int]] = {}  # leader -> (incarnation, term) of its take-leadership

    def started(self, world: World) -> None:
        self._world = world
        self._checker = LogChecker(world.history)
        world.history.watchers.append(self._completed)

    def _completed(self, operation: Operation) -> None:
        assert self._checker is not None and self._world is not None
        _raise(self._checker.completed(operation))
        if operation.result != "ok":
            return
        if operation.kind == "append" and operation.code != ResponseCode.SUCCESS:
            raise Violation("outcome_codes", operation.describe())
        promised = max(operation.last_index, operation.read_index)
        if promised > max(self._logs.committed.reported, self._committed_now()):
            raise Violation("reported_before_commit", f"{operation.describe()}, which no leader has committed")

    def _committed_now(self) -> int:
        """In the middle of a step: what any member says that it has committed."""
        assert self._world is not None
        members = self._world.members.values()
        return max((one.replica.committed_index for one in members if one.replica is not None), default=-1)

    # --- E7 ------------------------------------------------------------------
    def sent(self, member: Member, to: str, message: Message) -> None:
        if isinstance(message, TransferRequest) and message.ticket is not None:
            self._handed_over[member.id] = member.incarnation, message.term

    def stepped(self, world: World) -> None:
        for member_id, (incarnation, term) in self._handed_over.items():
            member = world.members[member_id]
            replica = member.replica
            if (
                replica is None
                or replica.leadership is None
                or (member.incarnation, replica.term)
                != (
                    incarnation,
                    term,
                )
            ):
                continue
            if replica.leadership.reads.lease_holds(member.clock.now()):
                text = f"{member_id} told another member to take leadership of term {term} and trusts its lease"
                raise Violation("no_lease_after_transfer", text)

    # --- the end ------------------------------------------------------------------
    def healed(self, world: World) -> None:
        assert self._checker is not None
        committed = self._logs.committed
        first = committed.first_index
        log = {index: held.body for index, held in enumerate(committed.entries.since(first), first)}
        _raise(self._checker.finish(log))
        if world.history.open_count:
            open_ones = [one.describe() for one in world.history if one.completed is None]
            raise Violation("closure_once", f"nobody ever completed {open_ones[:3]}")
        work = world.workload
        if work.transfers_started != work.transfers_done + work.transfers_lost:
            text = f"{work.transfers_started} transfers began, {work.transfers_done} were reported"
            raise Violation("transfer_reported", f"{text}, {work.transfers_lost} were lost with their process")


class KnownOutcomes(Observer):
    """In a world whose only trouble is links that are slow but alive, no append waits in vain (C2, C5)."""

    def started(self, world: World) -> None:
        config = world.config
        if config.narrow_link and not any(getattr(config, name, 0) for name in (*UNSETTLING, *LOSES_ANSWERS)):
            world.history.watchers.append(self._completed)

    def _completed(self, operation: Operation) -> None:
        if operation.kind == "append" and operation.result == "unknown":
            raise Violation("slow_links_cost_nothing", f"{operation.describe()}, and no link is down")


def _raise(anomalies: list[Anomaly]) -> None:
    if anomalies:
        raise Violation("linearizability", f"{anomalies[0].rule}: {anomalies[0].detail}")
