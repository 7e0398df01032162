"""The engine: one group's driver. Its turns feed the core, and have what it asks carried out (`duties`).

Everything that arrives in one turn of the loop goes to the core first; then `_turn` proposes all appends at once,
carries out the effects, and arms one timer (`metronome`).

Invariants: the core is entered from the loop only; whatever the core or the store raises ends the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Any, Final, ParamSpec

from node.config import Settings
from node.consensus.lanes import LaneOpened
from node.consensus.member_changes import ChangeOutcome, MemberChange
from node.consensus.replica import Proposal, ReadOutcome, Replica, TransferOutcome
from node.consensus.status import ReplicaStatus
from node.consensus.strangers import Stranger
from node.engine.action_trail import ActionTrail
from node.engine.applier import Applier, Machine
from node.engine.awaited_reads import AwaitedReads
from node.engine.client_requests import ClientRequests
from node.engine.cold_turns import ColdTurns
from node.engine.committed_stream import CommittedStreams
from node.engine.duties import Duties
from node.engine.events import EventRing, EventSink, no_sink
from node.engine.group_end import GroupEnd
from node.engine.introspect import Introspection
from node.engine.lane_requests import LaneRequests
from node.engine.machine_requests import MachineRequests
from node.engine.member_files import member_files
from node.engine.metronome import Metronome
from node.engine.operator_actions import OperatorActions
from node.engine.options import client_access, member_trust, replica_config, tls_files
from node.engine.own_address import OwnAddress
from node.engine.peer_links import PeerLinks
from node.engine.process import Process
from node.engine.proposals import Done, Proposals
from node.engine.quota import Quota
from node.engine.retirement import Retirement
from node.engine.settings_reload import SettingsReload
from node.engine.slow_requests import SlowRequests
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.group_kind import PLAIN, GroupKind
from node.protocol.messages import HeartBeatResponse, Message, PushKind, PushRequest, PushResponse, ReadWay
from node.store.log_store import LogStore
from node.transport.connection import Connection
from node.transport.tls import client_context

LOOK_AGAIN_SHARE: Final = 20  # of the shortest time-out that an append begins: so late it may be noticed
SUCCESS: Final = ResponseCode.SUCCESS
EXIT_CRASHED: Final = 1
EXIT_REFUSED: Final = 3
P = ParamSpec("P")


class Engine:
    """See the module's docstring. `run` returns the process's exit code; `reason` says why it is not 0."""

    def __init__(
        self, settings: Settings, store: LogStore, process: Process | None = None, on_event: EventSink = no_sink,
        *, applier: Applier | None = None, machine: Machine | None = None, kind: GroupKind = PLAIN,
    ) -> None:  # fmt: skip
        """Without `process` it makes one of its own, and closes it at its end. `on_event` is given every event, too
        (node/logs.py): it must not wait. `kind`: what the group's log may hold; without `applier` it is a log alone.
        `machine`: an applier that clients may give commands to, and ask (a kind that takes commands has one)."""
        assert (machine is not None) == kind.takes_commands, f"kind {kind.name}: is there a state machine?"
        applier = applier or machine
        self.settings, self.store, self._on_event = settings, store, on_event
        self.process, self._is_process_own = process or Process(), process is None
        self.now_ns = self.process.now_ns
        self.boot_id, self.reason = uuid.uuid4().hex[:12], ""
        self.events = EventRing(self.boot_id)
        self._loop = self.process.loop
        self.introspection = Introspection(settings, store, self.events, self.boot_id)
        config = replica_config(settings, self.introspection.own_url, applies=applier is not None, kind=kind)
        self.replica = Replica(config, store, self.process.random, self.now_ns())
        self._tls_files = tls_files(settings)
        client_tls = None if self._tls_files is None else client_context(*self._tls_files)
        self._member, self._members = self.replica.member, self.replica.configuration
        self._guests: frozenset[str] = frozenset()
        self.own_address, members = OwnAddress(self), self._members.members
        self.links = PeerLinks(self, config.group, config.self_id, members, client_tls, member_trust(settings))
        self._done: Done = []
        self.duties = Duties(self, store, settings, self.links, self._done, self.process, applier, machine)
        self.feeder = self.duties.feeder
        self.introspection.scrub = self.duties.scrubber.view
        self.retention = self.duties.retention
        self.introspection.retention = self.retention.view
        self.introspection.connections = self.process.port.places.view
        if self._tls_files is not None:
            self.introspection.certificates = lambda: self.process.port.certificates.view(self.replica.peers.of)
        quota = Quota(self.process.share.requests)
        slow = SlowRequests(self._loop, self.now_ns)
        self.client_requests = ClientRequests(
            self, self.duties.reads, self.introspection, quota, self._status, client_access(settings), slow,
            ColdTurns(self._loop, self.now_ns, slow), self.process.port.places.counts.refused,
        )  # fmt: skip
        self.files = member_files(lambda: self.settings, self.process.port, self.links, self.client_requests, self.note)
        self.introspection.files = self.files
        self.settings_reload = SettingsReload(self)
        self.introspection.settings_view = self.settings_reload.view
        self.introspection.settings_alarms = self.settings_reload.alarms
        lanes = LaneRequests(self, self.client_requests, quota, config.group)
        self.client_requests.serve(RequestCode.OPEN_LANE, lanes.open)
        self.client_requests.serve(RequestCode.LANE_APPEND, lanes.append)
        self.machine_requests: MachineRequests | None = None
        if machine is not None:
            self.machine_requests = MachineRequests(self, machine, self.client_requests, quota, steady_ns=self.now_ns)
            self.client_requests.serve(RequestCode.COMMAND, self.machine_requests.command)
            self.client_requests.serve(RequestCode.QUESTION, self.machine_requests.question)
        act = self.client_requests.actions.handler(OperatorActions(self, self.client_requests, config.group).act)
        self.client_requests.serve(RequestCode.OPERATOR_ACTION, act)
        self.group_end = GroupEnd(self, self.links, self.client_requests)
        self.streams = CommittedStreams(self.replica, self.now_ns, lambda: self.duties.held.closed)
        self.client_requests.serve(RequestCode.COMMITTED_STREAM, self.streams.handle)
        self.client_requests.when_closed.append(self.streams.closed)
        self.awaited = AwaitedReads(self.replica, self.client_requests.reads.read)
        self.client_requests.serve(RequestCode.AWAITED_READ, self.awaited.handle)
        self.client_requests.when_closed.append(self.awaited.closed)
        self.proposals = Proposals(self.replica, self._done)
        self.trail: ActionTrail | None = None
        self._turn_scheduled, self._deadline_moved = False, True
        self._look_again_at = self._look_again_ns = self._gap_reported_ns = 0
        self._metronome = Metronome(self._on_tick, self.now_ns, config.timing.rest_ns, self.process.ticked)
        self.retimed()
        self.introspection.tick_gap_max_ns = lambda: self._metronome.gap_max_ns
        self.introspection.late_ns = self.late_ns = self._metronome.late_ns
        self._seq = self._exit_code = 0
        self._ended = asyncio.Event()
        self.retirement = Retirement(self, self._loop.call_later)

    def use_trail(self, trail: ActionTrail) -> None:
        """What operators ask over the member port is recorded there first; before `run`, which closes it."""
        self.trail = trail
        self.client_requests.actions.use_trail(trail, self.turn_if_wanted)

    # --- life ---------------------------------------------------------------------------------------------------
    async def run(self, on_ready: Callable[[int], None]) -> int:
        """Serves until `stop` or an error. Raises OSError when the port cannot be had."""
        port, group = self.process.port, self.replica.config.group
        on_ready(await port.serve(group, self.group_end, self.settings.self_address, self._tls_files))
        self.links.start()
        self.duties.start()
        if self.machine_requests is not None:
            self.machine_requests.start()
        self.own_address.follow()
        self._schedule()
        await self._ended.wait()
        port.leave(group)
        await self._shut_down()
        return self._exit_code

    async def _shut_down(self) -> None:
        with contextlib.suppress(Exception):
            self.replica.stop(self.now_ns())
            if self._exit_code != EXIT_CRASHED:
                self.duties.carry_out()
        self._metronome.stop()
        self.duties.stop()
        if self.machine_requests is not None:
            self.machine_requests.stop()
        self.streams.close()
        self.awaited.close()
        await self.links.stop()
        self.process.port.end(self.group_end)
        await asyncio.sleep(0)
        self.duties.disk.close()
        if self.trail is not None:
            self.trail.close()
        if self._is_process_own:
            self.process.close()

    def stop(self) -> None:
        """A clean end, at once; `retirement.begin` hands leadership over before."""
        self._ended.set()

    def fail(self, reason: str) -> None:
        """The engine cannot go on; the supervisor starts it again."""
        self._end(EXIT_CRASHED, reason)

    def refuse(self, reason: str) -> None:
        """A refusal that an operator must settle: the supervisor does not start the engine again before."""
        self._end(EXIT_REFUSED, reason)

    def _end(self, code: int, reason: str) -> None:
        if not self.reason:
            self._exit_code, self.reason = code, reason
            self.note("engine", "critical", {"text": reason})
        self._ended.set()

    def retimed(self) -> None:
        """The time-outs of the core's configuration are in force."""
        timing = self.replica.config.timing
        self._look_again_ns = min(timing.push_timeout_ns, timing.closure_timeout_ns) // LOOK_AGAIN_SHARE
        self._gap_reported_ns = timing.election_min_ns
        self._metronome.longest_ns = timing.rest_ns
        self._schedule()

    # --- one turn -----------------------------------------------------------------------------------------------
    def _schedule(self) -> None:
        """A turn soon, and a look at the core's deadlines in it."""
        self._deadline_moved = True
        self._schedule_plain()

    def _schedule_plain(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def guarded(self, step: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
        """Nothing that the core or the store raises is survivable: what is in memory may be wrong then."""
        if self.reason:
            return
        try:
            step(*arguments, **named)
        except Exception as error:
            self._crashed(error)

    def step(self, step: Callable[[], object]) -> None:
        """Something enters the core, perhaps in the middle of a turn; what follows is carried out in the next one."""
        self.guarded(step)
        self._schedule()

    def _crashed(self, error: Exception) -> None:
        self._loop.call_exception_handler({"message": "the engine ends", "exception": error})
        self.fail(f"{type(error).__name__}: {error}")

    def _turn(self) -> None:
        self._turn_scheduled = False
        self.guarded(self._one_turn)

    def read_done(self) -> None:
        """All frames of one read were taken in: what they brought is carried out now.

        Only appends wait for the loop, to be merged with other clients', and only while others wait for their quorum.
        """
        if self.proposals.waiting and not self._metronome.owed:
            if self.replica.has_pending:
                self._schedule_plain()
                return
        elif self._member.gathered is None and not self._done and not self._deadline_moved:
            return
        self.guarded(self._one_turn)

    def turn_if_wanted(self) -> None:
        if self._member.gathered is not None or self._done or self._deadline_moved:
            self.guarded(self._one_turn)

    def _follow_members(self) -> None:
        """The connections are those of the configuration in effect (SAFETY M1, M7)."""
        replica = self.replica
        self._members, self._guests = replica.configuration, frozenset(replica.guests)
        self.links.follow(self._members.members, self._guests)
        self.own_address.follow()

    def _one_turn(self) -> None:
        now = self.now_ns()
        if self.proposals.waiting and not self._metronome.owed:  # else first the judgement, then what asks for it (E6)
            self.proposals.propose(now)
            if self.proposals.waiting:
                self._schedule_plain()
        if self.duties.carry_out():
            self._deadline_moved = True  # something out of the ordinary: it may be due soon
        if self._member.configuration is not self._members or self._member.configurations.guests.keys() != self._guests:
            self._follow_members()
        if self.streams.streams:
            self.streams.moved()
        if self.awaited.waiting:
            self.awaited.moved()
        if self._deadline_moved or now >= self._look_again_at:
            self._arm(now)

    def _arm(self, now: int) -> None:
        """The next tick.

        Appends and their answers begin no shorter wait than their time-outs, so that it is enough to look every now and
        then (a look costs as much as a tenth of an append).
        """
        self._deadline_moved = False
        self._look_again_at = now + self._look_again_ns
        self._metronome.arm(self.replica.next_look(now), now)

    def _on_tick(self, now: int) -> None:
        gap_ns = self._metronome.gap_ns
        if gap_ns > self._gap_reported_ns:
            self.note("stalled", "warning", {"reason": f"this process did nothing for {gap_ns // 1_000_000} ms"})
        self._deadline_moved = True
        self.guarded(self.replica.tick, now)
        self.guarded(self._one_turn)

    # --- from the core's point of view: what arrives --------------------------------------------------------------
    def receive(self, sender: str, message: Message) -> None:
        """`read_done` follows."""
        if self.reason:
            return
        try:
            self.replica.receive(sender, message, self.now_ns())
        except Exception as error:  # as in `guarded`
            self._crashed(error)
        if isinstance(message, PushResponse | HeartBeatResponse):
            plain = message.code is SUCCESS
        else:
            plain = isinstance(message, PushRequest) and message.kind <= PushKind.COMMIT
        if not plain:
            self._deadline_moved = True

    def peer_connected(self, peer_id: str) -> None:
        self.step(lambda: self.replica.links.connected(peer_id, self.now_ns()))

    def peer_lost(self, peer_id: str) -> None:
        self.step(lambda: self.replica.links.lost(peer_id, self.now_ns()))

    def leader_bytes(self, peer_id: str) -> None:
        """A part of a frame of that member's has come; `read_done` follows."""
        self.guarded(self.replica.leader_bytes, peer_id, self.now_ns())

    def stranger_met(self, peer_id: str, kind: Stranger, text: str) -> None:
        """Something that is no member answered at that peer's address (SAFETY C8)."""

        def step() -> None:
            reason = self.replica.links.stranger_met(peer_id, kind, text, self.now_ns())
            if reason is not None:
                self.refuse(reason)

        self.step(step)

    def nobody_there(self, peer_id: str) -> None:
        self.step(lambda: self.replica.links.nobody_there(peer_id, self.now_ns()))

    # --- for client requests, which frames wake: `read_done` follows ---------------------------------------------
    def open_lane(self, origin: Connection, done: Callable[[LaneOpened], None]) -> None:
        """Takes effect at once: what an earlier lane has waiting here is not appended any more."""
        deliver = self._later(done)
        self.guarded(lambda: deliver(self.replica.open_lane(origin, self.now_ns())))

    def lane_lost(self, origin: Connection) -> None:
        """Nothing more comes over that connection's lane, or nothing that can be read."""
        self.replica.lanes.lost(origin)

    def propose_over_lane(self, origin: Connection, proposal: Proposal) -> None:
        self.proposals.add(origin, proposal, ordered=False)
        self.replica.lanes.watch(proposal)

    def read_index(self, done: Callable[[ReadOutcome], None], way: ReadWay = ReadWay.USUAL) -> None:
        self.guarded(lambda: self.replica.read_index(self._later(done), self.now_ns(), way))
        self._deadline_moved = True

    def transfer(
        self, to: str | None, deadline_ms: int | None, if_term: int | None, done: Callable[[TransferOutcome], None],
        reason: str = "asked for",
    ) -> None:  # fmt: skip
        deadline_ns = None if deadline_ms is None else deadline_ms * 1_000_000
        self.guarded(
            lambda: self.replica.transfer(
                to, self.now_ns(), on_done=self._later(done), deadline_ns=deadline_ns, if_term=if_term, reason=reason
            )
        )
        self._deadline_moved = True

    def change_members(self, change: MemberChange, done: Callable[[ChangeOutcome], None]) -> None:
        self.guarded(lambda: self.replica.change_members(change, self._later(done)))
        self._deadline_moved = True

    def scrub_now(self) -> int:
        """A pass over the whole log at once; its number."""
        return self.duties.scrubber.ask("request")

    def snapshot_now(self, done: Callable[[int, str], None]) -> bool:
        """Has the state machine save one; False where there is no state machine."""
        if self.machine_requests is not None:
            self.machine_requests.snapshot(done)
        return self.machine_requests is not None

    def repair_now(self) -> None:
        """Another try for what is damaged, whatever was said before."""
        self.guarded(lambda: self.replica.disk.repair_now(self.now_ns()))
        self._deadline_moved = True

    def _later(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        """A callback of the core only hands its argument on."""
        return lambda outcome: self._done.append((done, outcome))

    def address_of(self, member_id: str | None) -> str:
        return self.replica.configuration.members.get(member_id or "", "")

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def note(self, kind: str, severity: str, detail: dict[str, Any]) -> None:
        self.events.add(kind, severity, detail)
        self._on_event(kind, severity, {"term": self.replica.term, "role": self.replica.role.value, **detail})

    def _status(self) -> ReplicaStatus:
        return self.replica.status(self.now_ns())
