"""What a campaign has seen: every transition, vote, fault, recovery path and answer, counted under a stable name.

A simulator that never enters a state proves nothing about it. So what could occur is listed here, from the product's
own tables where it has them, and a campaign in which something on the list never occurred fails. What cannot occur in
this simulation stands in `IMPOSSIBLE`, each with its reason.

Invariants: counting changes nothing in the world; names are stable, they are part of the JSON.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from node.consensus import leader_elector, progress
from node.consensus.api import Appended
from node.consensus.reads import LeaderReads
from node.consensus.vote_results import ParseResult
from node.protocol.codes import DispatcherState, ResponseCode, VoteResult
from node.protocol.dispatcher import TRANSITIONS, DispatcherEvent
from node.protocol.messages import (
    HeartBeatResponse,
    Hello,
    PushRequest,
    PushResponse,
    ReadIndexResponse,
    SnapshotPart,
    TransferResponse,
    VoteResponse,
)
from tests.simulation.history import Operation
from tests.simulation.observer import Observer, Removal

if TYPE_CHECKING:
    from node.consensus.api import Outcome
    from node.consensus.effects import BeginBehind, Effects, Event
    from node.consensus.member_changes import ChangeOutcome, MemberChange
    from node.protocol.messages import Message
    from node.store.log_store import EntryMeta, TruncationRecord
    from tests.simulation.applier import Applied
    from tests.simulation.member import Member
    from tests.simulation.world import World

FAULTS: Final = (
    "drop", "duplicate", "reorder", "slow_link", "reset", "partition", "asymmetric", "bridge", "ring", "isolate_leader",
    "clock_jump", "pause", "stop", "crash", "crash_at_io", "power_loss", "fsync_error", "enospc", "rot",
    "misdirected_write", "lost_write", "lost_tail", "lost_checkpoint", "wipe", "lost_file", "learner",
    "narrow_link", "trim", "trim_kept", "trim_forced", "pin", "retune",
)  # fmt: skip

# What a store says at open -> the recovery path that it took.
OPENING_ALARMS: Final[Mapping[str, str]] = {
    "was torn": "open.torn_tail",
    "did not match": "open.index_rebuilt",
    "is missing": "open.file_missing",
    "bytes instead of": "open.file_odd",
    "missing or broken": "open.checkpoint_missing",
    "does not agree": "open.checkpoint_disagrees",
    "lost history": "open.lost_history",
}

# Members that change (M1 to M7): what was asked for and how that ended, and what came of it.
OF_MEMBERS: Final = (
    "fault.membership", "fault.remove_leader", "fault.remove_down", "fault.old_directory", "fault.foreign_member",
    "change.add.200", "change.replace.200", "change.promote.200", "change.remove.200", "change.address.200",
    "change.busy", "change.lagging", "change.unsafe", "change.not_leader", "change.lost_with_its_leader",
    "members.promoted", "members.replaced", "members.restored_by_a_cut", "members.leader_left",
    "members.elected_newcomer", "vote.to_a_guest", "vote.of_a_learner_by_its_log", "alarm.removed",
)  # fmt: skip

OTHERS: Final = (
    # How processes end, and how they come back.
    "end.process", "end.power_loss", "end.io_boundary", "end.store_error", "end.stopped",
    "open.new", "open.born_later", "open.clean", "open.after_crash", "open.after_power_loss",
    "open.rewritten_same_boot", *OPENING_ALARMS.values(),
    # Who may vote.
    "voter.FORMING>VOTER", "voter.FORMING>REJOINING", "voter.REJOINING>VOTER", "open.REJOINING",
    # Roles and leadership.
    "role.CANDIDATE>LEADER", "role.LEADER>CANDIDATE", "role.FOLLOWER>CANDIDATE", "role.CANDIDATE>FOLLOWER",
    "transfer.catching_up", "transfer.taking_over", "transfer.200", "transfer.300", "transfer.418",
    # Cuts, and what goes from the front.
    "cut", "cut.repeated", "trim.removed", "open.trimmed", "base.begun", "base.archived", "open.base_finished",
    # Clients.
    "append.ok", "append.fail.404", "append.fail.408", "append.fail.415", "append.fail.506",
    "append.unknown.501", "append.unknown.502", "append.unknown.0", "append.batch",
    "read.ok", "read.fail.300", "read.fail.404", "read.fail.501", "read.lease", "read.log",
    # Answers among members.
    "push.200", "push.403", "push.406", "push.413", "push.415", "push.421", "push.cold",
    "beat.200", "beat.403", "beat.416", "take.200", "read_index.200", "read_index.404", "hello.200",
    # State machines.
    "apply.entry", "fault.applier_failed", "fault.applier_ended", "result.yes", "result.unknown", "alarm.apply_failed",
    "alarm.applier_down", "machine.read", "fault.snapshot_installed",
    # Snapshots that go from member to member, and states that are lost.
    "snapshot.part", "snapshot.installed", "snapshot.resumed", "snapshot.leader_changed",
    "fault.lose_sender", "fault.lose_state", "alarm.applier_behind",
    *OF_MEMBERS,
    # Settings that change while the group runs.
    "event.settings_agreed", "alarm.settings_differ",
    # Alarms that faults must raise.
    "alarm.disk_full", "alarm.peer_disk_full",
)  # fmt: skip

# What needs more runs than the 60 of `make test` to be certain; `make prove` has them.
RARE: Final = frozenset({
    "cut.repeated", "fault.ring", "fault.misdirected_write", "fault.lost_write", "fault.lost_tail",
    "fault.lost_checkpoint", "fault.lost_file", "open.file_missing", "open.file_odd",
    "transfer.300", "transfer.418", "open.index_rebuilt", "append.unknown.502",
    "open.checkpoint_missing", "open.checkpoint_disagrees", "append.fail.415", "push.415", "alarm.disk_full",
    "alarm.peer_disk_full", "dispatcher.TRUNCATE.reconnected", "push.413", "read.lease", "open.torn_tail",
    "fault.trim_kept", "open.trimmed", "fault.trim_forced", "base.begun", "base.archived", "open.base_finished",
    "dispatcher.APPEND.below_begin", "dispatcher.INSTALL_SNAPSHOT.reconnected", "dispatcher.COMPARE.below_begin",
    "dispatcher.INSTALL_SNAPSHOT.installed", *OF_MEMBERS, "snapshot.part", "snapshot.installed", "snapshot.resumed",
    "snapshot.leader_changed", "fault.lose_sender", "fault.lose_state", "alarm.applier_behind",
})  # fmt: skip

# What 500 seeds meet once or not at all, since silence is counted in ticks (E6) and leaders change less.
SCARCE: Final = frozenset({
    "cut.repeated", "dispatcher.TRUNCATE.reconnected", "open.checkpoint_disagrees", "open.base_finished",
    "dispatcher.INSTALL_SNAPSHOT.reconnected", "dispatcher.APPEND.below_begin", "vote.to_a_guest",
    "snapshot.resumed", "snapshot.leader_changed",
})  # fmt: skip
SCARCE_FROM_SEEDS: Final = 2000

_FORK: Final = "only a fork leads there, and a run with a fork has failed before: tests/scenarios/forks.txt"
_BASES: Final = "every member of a simulated group takes a base: tests/unit/test_entry_dispatcher.py"
IMPOSSIBLE: Final[Mapping[str, str]] = {
    "vote.REJECT_UNKNOWN_LEADER": "every member of a simulated group is configured with the same peers",
    "vote.REJECT_UNEXPECTED_LEADER": "a wire names its sender truly: nobody votes in another's name",
    "vote.REJECT_TERM_SMALL_THAN_LEDGER": "a member's term is never below its log's, and others are refused before",
    "vote.REJECT_TAKING_LEADERSHIP": "who takes leadership has voted for itself: REJECT_ALREADY_VOTED comes first",
    "dispatcher.INSTALL_SNAPSHOT.backoff_over": _BASES,
    "dispatcher.INSTALL_SNAPSHOT.refused": _FORK,
    "dispatcher.COMPARE.refused": _FORK,
    "dispatcher.TRUNCATE.refused": _FORK,
    "dispatcher.APPEND.refused": _FORK,
    "dispatcher.DIVERGED.backoff_over": _FORK,
    "dispatcher.DIVERGED.reconnected": _FORK,
    "dispatcher.APPEND.inconsistent": "a log that matched changes by its leader's word only; a new process reconnects",
    "dispatcher.TRUNCATE.inconsistent": "what a COMPARE verified stays so while leader, term and process do",
    "dispatcher.COMPARE.log_regressed": "nothing is matched before a COMPARE succeeded, so nothing can regress",
    "dispatcher.TRUNCATE.log_regressed": "nothing is cut below the match; a new process is a new connection",
}


def expected(*, rare: bool = True) -> list[str]:
    """Everything that has to occur in a campaign; without `rare`, in a short one."""
    names = [_transition(state, event) for state, event in TRANSITIONS]
    names += [f"vote.{result.value}" for result in VoteResult]
    names += [f"parse.{result.value}" for result in ParseResult]
    names += [f"fault.{kind}" for kind in FAULTS]
    names += OTHERS
    return [name for name in names if name not in IMPOSSIBLE and (rare or name not in RARE)]


def missing(counts: Mapping[str, int], *, rare: bool = True, scarce: bool = True) -> list[str]:
    """What of `expected` never occurred."""
    return [name for name in expected(rare=rare) if not counts.get(name) and (scarce or name not in SCARCE)]


def surprising(counts: Mapping[str, int]) -> list[str]:
    """What occurred although it is on the list of the impossible: the list is wrong."""
    return [name for name in IMPOSSIBLE if counts.get(name)]


def total(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sum of several runs."""
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part)
    return dict(counts)


def _transition(state: DispatcherState, event: DispatcherEvent) -> str:
    return f"dispatcher.{state.value}.{event.value}"


class Coverage(Observer):
    """Counts one world. `recording` is around its run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._ended: dict[str, tuple[str, bool, str]] = {}  # member -> (how, unsynced bytes, boot)
        self._unsynced: dict[str, bool] = {}
        self._cuts: Counter[str] = Counter()
        self._beginning: dict[str, EntryMeta] = {}  # whose log is to begin anew, and behind what
        self._configured_at: dict[tuple[str, int], int] = {}  # a life -> the entry that its configuration is of
        # Who is sent a snapshot: in which connection, the last piece, and of which one, by whom.
        self._parts: dict[str, tuple[tuple[int, int], int, tuple[str, int, int]]] = {}
        self._replacing: dict[str, dict[str, str]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Counts what the core does inside: the table of transitions is data, and so is what a round comes to."""
        counts, parse, holds = self.counts, leader_elector.parse_votes, LeaderReads.lease_holds
        through_log = LeaderReads.committed

        class Counted(dict[Any, DispatcherState]):
            def get(self, key: Any, default: Any = None) -> Any:
                counts[_transition(*key)] += 1
                return super().get(key, default)

        def parse_votes(results: Iterable[VoteResult], needed: int) -> ParseResult:
            parsed = parse(results, needed)
            counts[f"parse.{parsed.value}"] += 1
            return parsed

        def lease_holds(reads: LeaderReads, now: int) -> bool:
            held = holds(reads, now)
            counts["read.lease"] += held
            return held

        def committed(reads: LeaderReads, index: int, now: int) -> None:
            before = len(reads)
            through_log(reads, index, now)
            counts["read.log"] += before - len(reads)

        with (
            patch.object(progress, "TRANSITIONS", Counted(TRANSITIONS)),
            patch.object(leader_elector, "parse_votes", parse_votes),
            patch.object(LeaderReads, "lease_holds", lease_holds),
            patch.object(LeaderReads, "committed", committed),
        ):
            yield

    # --- lives ------------------------------------------------------------------------------------------------------
    def started(self, world: World) -> None:
        world.history.watchers.append(self._completed)

    def stepped(self, world: World) -> None:
        for member in world.touched:
            if member.store is not None:
                self._unsynced[member.id] = member.store.durable_index < member.store.end_index

    def booted(self, member: Member) -> None:
        store, counts = member.store, self.counts
        assert store is not None
        how, unsynced, boot = self._ended.pop(member.id, ("", False, ""))
        path = {"": "open.new", "stopped": "open.clean", "power_loss": "open.after_power_loss"}
        counts[path.get(how, "open.after_crash")] += 1
        if unsynced and how != "stopped" and boot == member.platform.boot_id():
            counts["open.rewritten_same_boot"] += 1
        for text in store.alarms:
            for part, name in OPENING_ALARMS.items():
                counts[name] += part in text
        counts["open.faults"] += bool(store.faults)
        counts["open.born_later"] += how == "" and member.world.born_at is not None
        began = self._beginning.pop(member.id, None)
        counts["open.base_finished"] += began is not None and store.base == began
        counts["open.trimmed"] += store.begin_index > member.world.first_index
        counts[f"open.{store.hard_state.voter_state.value}"] += 1

    def crashed(self, member: Member, how: str) -> None:
        self.counts[f"end.{how}"] += 1
        self._ended[member.id] = how, self._unsynced.get(member.id, False), member.platform.boot_id()

    def refused(self, member: Member, error: BaseException) -> None:
        self.counts[f"refused.{type(error).__name__}"] += 1

    def fault(self, kind: str, detail: str) -> None:
        self.counts[f"fault.{kind}"] += 1

    def applied(self, member: Member, one: Applied) -> None:
        self.counts["apply.entry"] += 1

    def machine_read(self, member: Member, read_index: int, applied_index: int, content: bytes) -> None:
        self.counts["machine.read"] += 1

    def answered(self, member_id: str, outcome: Outcome) -> None:
        if outcome.appended is Appended.YES:
            self.counts[f"result.{outcome.applied.value}"] += 1

    def cut(self, member: Member, record: TruncationRecord) -> None:
        self.counts["cut"] += 1
        self._cuts[member.id] += 1
        self.counts["cut.repeated"] += self._cuts[member.id] == 2

    def effects(self, member: Member, effects: Effects) -> None:
        if effects.begin_behind is not None:
            self._beginning[member.id] = effects.begin_behind.base.meta

    # --- what is said -----------------------------------------------------------------------------------------------
    def begun_behind(self, member: Member, order: BeginBehind) -> None:
        self._beginning.pop(member.id, None)
        self.counts["base.begun"] += 1
        if member.state_machine is not None:
            self.counts["snapshot.installed"] += 1
            self._parts.pop(member.id, None)
        self.counts["base.archived"] += order.record.from_index <= order.record.to_index

    def trimmed(self, member: Member, begin_before: int, removal: Removal) -> None:
        assert member.store is not None
        self.counts["trim.removed" if member.store.begin_index > begin_before else "trim.nothing"] += 1

    def event(self, member: Member, event: Event) -> None:
        counts, detail = self.counts, event.detail
        counts[f"event.{event.kind}"] += 1
        if event.kind == "alarm":
            counts[f"alarm.{detail['code']}"] += 1
        elif event.kind == "voter_state":
            counts[f"voter.{detail['was']}>{detail['state']}"] += 1
        elif event.kind == "role":
            counts[f"role.{detail['was']}>{detail['role']}"] += 1
            counts["members.elected_newcomer"] += detail["role"] == "LEADER" and member.id not in member.world.ids
        elif event.kind == "configuration":
            self._configured(member, detail["index"], detail["promoted"], detail["left"])
        elif event.kind == "transfer":
            counts[f"transfer.{detail['code'] if detail['phase'] == 'done' else detail['phase']}"] += 1
            takes_over, replica = detail["phase"] == "taking_over", member.replica
            counts["members.leader_left"] += (
                takes_over and replica is not None and member.id not in replica.configuration.voters
            )

    def sent(self, member: Member, to: str, message: Message) -> None:
        counts = self.counts
        match message:
            case PushResponse():
                counts[f"push.{int(message.code)}"] += 1
            case HeartBeatResponse():
                counts[f"beat.{int(message.code)}"] += 1
            case SnapshotPart():
                self._part(member, to, message)
            case VoteResponse():
                counts[f"vote.{message.result.value}"] += 1
                if message.result is VoteResult.ACCEPT:
                    self._voted(member, to)
            case TransferResponse():
                counts[f"take.{int(message.code)}"] += 1
            case ReadIndexResponse():
                counts[f"read_index.{int(message.code)}"] += 1
            case Hello() if message.answer:
                counts[f"hello.{int(message.code)}"] += 1
            case PushRequest() if message.slab is not None and member.store is not None:
                counts["push.cold"] += member.store.recent_slab(message.slab.first_index, 1) is None
            case _:
                pass

    # --- snapshots on their way -------------------------------------------------------------------------------------
    def _part(self, member: Member, to: str, part: SnapshotPart) -> None:
        counts, said = self.counts, (member.id, part.base_index, part.data_crc)
        before = self._parts.get(to)
        if part.data:
            counts["snapshot.part"] += 1
            if before is None or before[0] != (part.term, part.dispatch_epoch):
                counts["snapshot.resumed"] += part.offset > 0
            elif before[1] == part.offset:
                counts["snapshot.part_again"] += 1
            if before is not None and before[2] != said:
                counts["snapshot.leader_changed"] += before[2][0] != member.id
                counts["snapshot.newer_meanwhile"] += part.base_index > before[2][1]
            self._parts[to] = (part.term, part.dispatch_epoch), part.offset, said

    # --- members that change ----------------------------------------------------------------------------------------
    def members_changed(self, asked: Member, change: MemberChange, outcome: ChangeOutcome) -> None:
        counts, code = self.counts, outcome.code
        kind = "replace" if change.replaces else str(change.kind)
        counts[f"change.{kind}.{int(code)}"] += 1
        counts["change.busy"] += code is ResponseCode.INCONSISTENT_STATE
        counts["change.lagging"] += code is ResponseCode.FALL_BEHIND_TOO_MUCH
        counts["change.unsafe"] += code is ResponseCode.ILLEGAL_MEMBER_STATE
        counts["change.not_leader"] += code is ResponseCode.NOT_LEADER
        counts["change.lost_with_its_leader"] += outcome.appended is Appended.UNKNOWN

    def _configured(self, member: Member, index: int, promoted: list[str], left: list[str]) -> None:
        life = member.id, member.incarnation
        self.counts["members.promoted"] += bool(promoted)
        self.counts["members.restored_by_a_cut"] += index < self._configured_at.get(life, -1)
        self._configured_at[life] = index
        if member.replica is not None and member.replica.leadership is not None:
            before = self._replacing.get(member.id, {})
            self.counts["members.replaced"] += any(one in before.values() for one in left)
            self._replacing[member.id] = dict(member.replica.configuration.named.replacing)

    def _voted(self, member: Member, candidate: str) -> None:
        if member.replica is not None:
            configuration = member.replica.configuration
            self.counts["vote.to_a_guest"] += candidate not in configuration.members
            self.counts["vote.of_a_learner_by_its_log"] += member.id not in configuration.voters

    def _completed(self, operation: Operation) -> None:
        reported = "" if operation.result == "ok" else f".{operation.code}"
        self.counts[f"{operation.kind}.{operation.result}{reported}"] += 1
        self.counts["append.batch"] += operation.result == "ok" and len(operation.bodies) > 1
