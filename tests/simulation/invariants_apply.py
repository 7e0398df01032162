"""What a state machine beside a log is promised: committed entries, all of them, in order, each once; true results.

That nothing is applied out of order or twice in one state is checked where it is applied (`applier.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from node.consensus.api import Appended, Outcome
from node.consensus.api import Applied as Answer
from node.snapshots.directory import newest_sound, pieces_of
from tests.simulation.applier import Applied, result_after
from tests.simulation.invariants_log import Logs
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from node.consensus.effects import BeginBehind
    from tests.simulation.member import Member
    from tests.simulation.world import World


class Appliers(Observer):
    """See the module's docstring. Comes after `Logs`."""

    def __init__(self, logs: Logs) -> None:
        self._committed = logs.committed
        self._results: list[bytes] = []  # after each entry of the one committed log, from its first one on
        # What is held against entries that the committed log does not show yet: a leader's may be damaged meanwhile.
        self._later: list[tuple[int, Callable[[], None]]] = []

    def _once_known(self, index: int, check: Callable[[], None]) -> None:
        if index <= self._committed.index:
            check()
        else:
            self._later.append((index, check))

    def applied(self, member: Member, one: Applied) -> None:
        here = -1 if member.replica is None else member.replica.committed_index
        if one.index > max(self._committed.index, self._committed.reported, here):
            raise Violation("applied_committed", f"{member.id} applied entry {one.index}, which nobody has committed")
        self._once_known(one.index, partial(self._is_committed, member.id, one))

    def _is_committed(self, member_id: str, one: Applied) -> None:
        key = self._committed.entries[one.index].key
        if key != (one.term, one.chain):
            text = f"{member_id} applied entry {one.index} of term {one.term}, committed is one of term {key[0]}"
            raise Violation("applied_committed", text)
        wanted = None if self._committed.entries[one.index].body is None else self._result(one.index)
        if one.result != wanted:
            text = f"{member_id} applied entry {one.index} with {one.result!r}, in this order it is {wanted!r}"
            raise Violation("applied_in_order", text)

    def _result(self, index: int) -> bytes:
        """What the last command up to there answers; nothing before the log's first entry."""
        results, first = self._results, self._committed.first_index
        while first + len(results) <= index:
            at = first + len(results)
            last, body = results[-1] if results else b"", self._committed.entries[at].body
            results.append(last if body is None else result_after(last, at, body))
        return results[index - first] if index >= first else b""

    def machine_read(self, member: Member, read_index: int, applied_index: int, content: bytes) -> None:
        """A question was answered."""
        if applied_index < read_index:
            text = f"{member.id} answered from a state of entry {applied_index}, the read index is {read_index}"
            raise Violation("read_behind_its_index", text)
        self._once_known(applied_index, partial(self._is_state, member.id, applied_index, content))

    def _is_state(self, member_id: str, index: int, content: bytes) -> None:
        wanted = self._result(index)
        if content != wanted:
            raise Violation("read_of_the_state", f"{member_id} answered {content!r} at entry {index}: {wanted!r}")

    def begun_behind(self, member: Member, order: BeginBehind) -> None:
        """With a state machine a log begins behind a snapshot only, and that is there at the same moment."""
        if member.state_machine is None:
            return
        index = order.base.meta.index
        found, wrong = newest_sound(member.directory, member.platform)
        if found is None or found.meta.index < index:
            text = f"{member.id} begins behind {index}, and has no snapshot that goes so far: {wrong}"
            raise Violation("snapshot_installed", text)
        data = b"".join(pieces_of(found, platform=member.platform))
        if found.meta.index == index:
            self._once_known(index, partial(self._is_state, member.id, index, data))

    def answered(self, member_id: str, outcome: Outcome) -> None:
        """A request that waited for its result."""
        if outcome.appended is not Appended.YES:
            return
        if outcome.applied is Answer.YES:
            self._once_known(outcome.last_index, partial(self._is_its_own, member_id, outcome))
        elif outcome.applied is not Answer.UNKNOWN:
            raise Violation("result_of_its_own", f"{member_id} forgot the result of entry {outcome.first_index}")

    def _is_its_own(self, member_id: str, outcome: Outcome) -> None:
        wanted = tuple(self._result(index) for index in range(outcome.first_index, outcome.last_index + 1))
        if outcome.results != wanted:
            where = f"[{outcome.first_index}, {outcome.last_index}]"
            raise Violation("result_of_its_own", f"{member_id} answered {outcome.results} for {where}: {wanted}")

    def stepped(self, world: World) -> None:
        if self._later:
            due, self._later = self._later, []
            for index, check in due:
                self._once_known(index, check)
        for member in world.members.values():
            if member.state_machine is not None:
                self._shown(member)  # a state machine goes on by itself
        for member in world.touched:
            if member.state_machine is not None:
                self._one_at_a_time(member)

    def _one_at_a_time(self, member: Member) -> None:
        leadership = None if member.replica is None else member.replica.leadership
        if leadership is not None:
            sent = [one.peer_id for one in leadership.dispatchers.values() if one.giving.status() is not None]
            if len(sent) > 1:
                raise Violation("one_snapshot_at_a_time", f"{member.id} sends one to each of {sent}")

    def _shown(self, member: Member) -> None:
        machine, replica, process = member.state_machine, member.replica, member.process
        if machine is None or replica is None or process is None or replica.applied_index is None:
            return
        shown = replica.applied_index
        if shown > replica.committed_index:
            raise Violation("applied_shown", f"{member.id}: applied {shown}, committed {replica.committed_index}")
        if machine.life_in(process.feeder) == replica.applying.life and shown > machine.at:
            raise Violation("applied_shown", f"{member.id} shows applied {shown}, it has applied {machine.at}")

    def healed(self, world: World) -> None:
        for member in world.present():
            machine, last = member.state_machine, self._committed.index
            if not getattr(member, "joined", True):  # a learner that has gone
                continue
            if machine is not None and (machine.at != last or machine.result != self._result(last)):
                raise Violation("applied_all", f"{member.id} applied up to {machine.at} of {last}, or not the same")
