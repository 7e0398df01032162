"""Text scripts for a whole group, each its own golden file.

A script is a list of commands, one a line; what a command brings about stands below it, indented. Running a script
drops the indented lines, carries the commands out and compares; `python -m tests.scenarios.runner --rewrite` writes
what happened into the files instead. The safety invariants are checked after every command.

    group 3 [flush=async] [down] [unnamed] [applier] [broker] [born=999/7]
                                        n0, n1, n2 with new stores; formed and connected unless `down`; `unnamed`:
                                        made without a token, so that the first leader gives the group its id;
                                        `applier`: entries are applied to a state machine, not to a log alone;
                                        `born`: behind which entry, of which term, every log begins
    store n1 1 1 2 [term=3] [begin=1]   (down) a store whose entries have these terms, all durable, a VOTER
    campaign n1                         an election time-out passes, and only n1 notices
    propose n1 a b [expected=5] [until=applied] | propose n1 x*3
    applier n1 at=3 [term=1] / apply n1 [upto=5] [fail=why] / applier-ends n1 why
                                        n1's state machine says where it stands / applies what is ordered / ends
    save n1                             n1's state machine saves a snapshot of what it has applied (snapshots.py)
    deliver n2 [from=n1] [type=Push] [drop=3] [count=2]
                                        what is under way to n2, shown; the first `drop` of it is lost
    stabilize [n0 n1]                   everything under way arrives, the disks keep up
    hold n1 / release n1                n1's disk finishes nothing / keeps up again
    flush n1                            n1's disk finishes one group commit
    crash n1 / restart n1 / wipe n1 [init] [from=0]
                                        a wiped store begins as its group did, or `from` the beginning of all
    partition n0 n1 | n2 / heal / reset n0 n1 / connect
    tick 100ms [n1] / run 2s            time passes for timers only, in one leap / with everything delivered
    transfer n0 to=n1 [deadline=500ms] [if_term=2] / read n1
    order n2 TRUNCATE from=n1 term=2 cut=3 [prev_term=2] [epoch=9] | order n2 COMMIT from=n1 term=2 commit=9
    vote n2 from=n1 term=9 end=5/3 [pre]
    full n0 on|off
    rot n1 3..5 [known] / scrub n1      bytes rot, unnoticed or known when it opens / n1 reads its whole log
    join l0 / leave l0 / tell n2 join l0    learners (learners.py)
    open-lane n0 a / over n0 a lane=1 from=0 x y / lane-lost n0 a    lanes (lanes.py)
    send n0 a lane=1 from=0 x y / spoil … / records n0      broker groups, whose entries are records (broker_groups.py)
    status [n0] / log [n0] / dispatchers n0 / closures n0 / watermarks n0
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from node.consensus.api import MS, Applied, Outcome, Proposal, ReadOutcome, TransferOutcome
from node.consensus.effects import Event
from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import SLAB_BYTES_MAX, Magic
from node.protocol.messages import PushKind, PushRequest, VoteRequest
from node.store.log_store import ORIGIN, EntryMeta, HardState
from node.store.memory_store import MemoryStore
from tests.scenarios.appliers import Appliers
from tests.scenarios.bases import BaseVerbs
from tests.scenarios.broker_groups import BrokerVerbs
from tests.scenarios.cluster import GROUP_ID, Cluster, Packet
from tests.scenarios.invariants import Invariants
from tests.scenarios.lanes import LaneVerbs
from tests.scenarios.learners import Learners
from tests.scenarios.render import dispatcher_line, event_line, log_line, message_line, status_line
from tests.scenarios.snapshots import Snapshots

SCRIPTS = Path(__file__).parent
BORN_CHAIN = 0x1234_5678  # of the entry that a group was born behind
UNITS = {"ms": MS, "s": 1000 * MS}


class ScriptError(ValueError):
    """A command that cannot be understood; names it."""


def duration_ns(text: str) -> int:
    match = re.fullmatch(r"(\d+)(ms|s)", text)
    if match is None:
        raise ScriptError(f"{text!r} is no duration such as 100ms or 2s")
    return int(match[1]) * UNITS[match[2]]


class Command:
    """One line: the verb, plain words, and name=value options."""

    def __init__(self, line: str) -> None:
        self.verb, *rest = line.split()
        self.words = [word for word in rest if "=" not in word]
        self.options = dict(word.split("=", 1) for word in rest if "=" in word)

    def number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


class Scenario:
    """Carries out the commands of one script."""

    def __init__(self) -> None:
        self._cluster: Cluster | None = None
        self._invariants: Invariants | None = None
        self._held: set[str] = set()
        self._output: list[str] = []
        self._verbs: dict[str, Callable[[Command], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name) for name in dir(self) if name[:3] == "do_"
        }

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            raise ScriptError("a script starts with `group`")
        return self._cluster

    def run(self, line: str) -> list[str]:
        """One command's output."""
        command = Command(line)
        if command.verb not in self._verbs:
            raise ScriptError(f"unknown verb in {line!r}; known: {', '.join(sorted(self._verbs))}")
        self._output = []
        self._verbs[command.verb](command)
        if self._invariants is not None:
            self._invariants.check()
        return self._output

    def say(self, text: str) -> None:
        self._output.append(text)

    def _event(self, node_id: str, event: Event) -> None:
        assert self._invariants is not None
        self._invariants.event(node_id, event)
        line = event_line(node_id, event)
        if line is not None:
            self.say(line)

    # --- making a group -----------------------------------------------------------------------------------------
    def do_group(self, command: Command) -> None:
        flush = FlushMode(command.options.get("flush", "sync"))
        group_id = None if "unnamed" in command.words else GROUP_ID
        seed = command.number("seed", 1)
        index, _, term = command.options.get("born", "-1/-1").partition("/")
        self._cluster = Cluster(
            int(command.words[0]), seed=seed, flush=flush, group_id=group_id, applies="applier" in command.words,
            base=EntryMeta(int(index), int(term), BORN_CHAIN) if int(index) >= 0 else ORIGIN,
            file_bytes=command.number("file", 1 << 30), broker="broker" in command.words,
        )  # fmt: skip
        appliers = Appliers(self.cluster, self.say)
        self._verbs |= {**appliers.verbs, **Learners(self.cluster).verbs}
        self._verbs |= Snapshots(self.cluster, appliers, self.say).verbs
        lanes = LaneVerbs(self.cluster, self.say)
        self._verbs |= {**lanes.verbs, **BaseVerbs(self.cluster, self.say).verbs}
        self._verbs |= BrokerVerbs(self.cluster, lanes, self.say).verbs
        self._invariants = Invariants(self._cluster, alarms_allowed=True)
        if "down" in command.words:
            for node_id in self.cluster.ids:
                self.cluster.crash(node_id)
        else:
            self.cluster.dial()
            self._settle()
        self.cluster.on_event = self._event

    def do_store(self, command: Command) -> None:
        node_id, *terms = command.words
        last = int(terms[-1]) if terms else 0
        term = command.number("term", last)
        hard = HardState(term=term, voter_state=VoterState.VOTER, group_id=self.cluster.group_id)
        store = MemoryStore(store_id=f"{node_id}-given", hard_state=hard)
        for number, term in enumerate(terms):
            store.append_as_leader([f"{term}.{number}".encode()], int(term), Magic.NORMAL)
        begin = command.number("begin", 0)
        if begin > 0:  # the entries before it were removed
            whole, base = store, store.meta(begin - 1)
            assert base is not None
            store = MemoryStore(store_id=f"{node_id}-given", hard_state=hard, base=base)
            store.append_slab(whole.read_slab(begin, SLAB_BYTES_MAX))
        ticket = store.prepare_sync()
        if ticket is not None:
            store.finish_sync(ticket)
        self.cluster.nodes[node_id].store = store

    # --- what clients and operators do --------------------------------------------------------------------------
    def do_propose(self, command: Command) -> None:
        node_id, *words = command.words
        bodies: list[bytes] = []
        for word in words:
            body, _, times = word.partition("*")
            bodies += [body.encode()] * int(times or 1)
        assert self._invariants is not None
        number = self._invariants.proposed
        self._invariants.proposed += 1

        def done(outcome: Outcome) -> None:
            assert self._invariants is not None
            self._invariants.proposal(number, outcome)
            where = f" {outcome.first_index}..{outcome.last_index} term {outcome.term}" if outcome.term >= 0 else ""
            detail = f": {outcome.detail}" if outcome.detail else ""
            result = f", result {outcome.applied} {' '.join(map(bytes.decode, outcome.results))}".rstrip()
            said = result if outcome.applied is not Applied.NOT_ASKED else ""
            self.say(f"proposal {number}: {outcome.code.name} ({outcome.appended}){where}{said}{detail}")

        expected = int(command.options["expected"]) if "expected" in command.options else None
        proposal = Proposal(bodies, done, expected, at_apply=command.options.get("until") == "applied")
        self.cluster.nodes[node_id].replica.propose_many([proposal], self.cluster.now)
        self.cluster.carry_out(node_id)

    def do_transfer(self, command: Command) -> None:
        def done(outcome: TransferOutcome) -> None:
            self.say(f"transfer to {outcome.transferee_id}: {outcome.code.name}: {outcome.detail}")

        if_term = int(command.options["if_term"]) if "if_term" in command.options else None
        deadline = duration_ns(command.options.get("deadline", "5s"))
        replica = self.cluster.nodes[command.words[0]].replica
        replica.transfer(
            command.options.get("to"), self.cluster.now, on_done=done, deadline_ns=deadline, if_term=if_term
        )
        self.cluster.carry_out(command.words[0])

    def do_read(self, command: Command) -> None:
        node_id = command.words[0]

        def done(outcome: ReadOutcome) -> None:
            detail = f": {outcome.detail}" if outcome.detail else ""
            self.say(f"read at {node_id}: {outcome.code.name} from {outcome.read_index}{detail}")

        self.cluster.nodes[node_id].replica.read_index(done, self.cluster.now)
        self.cluster.carry_out(node_id)

    # --- messages and disks -------------------------------------------------------------------------------------
    def do_deliver(self, command: Command) -> None:
        to = command.words[0]
        kind, sender = command.options.get("type", ""), command.options.get("from")

        def wanted(packet: Packet) -> bool:
            named = kind in type(packet.message).__name__ or kind in message_line(packet)
            return packet.to == to and sender in (None, packet.sender) and named

        chosen = [packet for packet in self.cluster.packets if wanted(packet)]
        drop = command.number("drop", 0)
        chosen = chosen[: drop + command.number("count", len(chosen))]
        self.cluster.packets = [packet for packet in self.cluster.packets if packet not in chosen]
        for number, packet in enumerate(chosen):
            self.say(("lost  " if number < drop else "") + message_line(packet))
            if number >= drop:
                self.cluster.deliver(packet)

    def _settle(self, among: list[str] | None = None) -> None:
        """Delivers until it is quiet among these nodes; held disks stand still."""
        cluster = self.cluster
        members = set(among or cluster.ids)
        for _round in range(1000):
            inside = [packet for packet in cluster.packets if {packet.sender, packet.to} <= members]
            cluster.packets = [packet for packet in cluster.packets if packet not in inside]
            for packet in inside:
                cluster.deliver(packet)
            for node_id in cluster.ids:
                if node_id in members and node_id not in self._held:
                    cluster.settle_disks(node_id)
            if not any({packet.sender, packet.to} <= members for packet in cluster.packets):
                return
        raise AssertionError("it never gets quiet")

    def do_stabilize(self, command: Command) -> None:
        self._settle(command.words)

    def do_hold(self, command: Command) -> None:
        self._held.update(command.words)

    def do_release(self, command: Command) -> None:
        self._held.difference_update(command.words)
        self._settle()

    def do_flush(self, command: Command) -> None:
        for node_id in command.words:
            self.cluster.start_sync(node_id)
            self.cluster.finish_sync(node_id)

    def do_full(self, command: Command) -> None:
        node_id, state = command.words
        node = self.cluster.nodes[node_id]
        node.store.full = state == "on"
        node.replica.disk.disk_full(state == "on", self.cluster.now)
        self.cluster.carry_out(node_id)

    def do_rot(self, command: Command) -> None:
        node_id, span, *how = command.words
        first, _, last = span.partition("..")
        node = self.cluster.nodes[node_id]
        node.store.rot(int(first), int(last or first), known="known" in how)
        if node.up and "known" in how:
            node.replica.disk.log_damaged(node.store.faults, self.cluster.now)
            self.cluster.carry_out(node_id)

    def do_scrub(self, command: Command) -> None:
        self.cluster.scrub(command.words[0])

    # --- faults and time ----------------------------------------------------------------------------------------
    def do_crash(self, command: Command) -> None:
        for node_id in command.words:
            self.cluster.crash(node_id)

    def do_restart(self, command: Command) -> None:
        for node_id in command.words:
            self.cluster.restart(node_id)
        self.do_connect(command)

    def do_wipe(self, command: Command) -> None:
        node_id = command.words[0]
        if self.cluster.nodes[node_id].up:
            self.cluster.crash(node_id)
        base = ORIGIN if command.options.get("from") == "0" else None
        store = self.cluster.new_store(node_id, forming="init" in command.words, base=base)
        self.cluster.restart(node_id, store=store)
        self.do_connect(command)

    def do_connect(self, _command: Command) -> None:
        """Only the HELLOs travel, so that what is under way stays there."""
        cluster = self.cluster
        for _turn in range(2):
            cluster.dial()
            for kind in (False, True):
                hellos = [p for p in cluster.packets if getattr(p.message, "answer", None) is kind]
                cluster.packets = [packet for packet in cluster.packets if packet not in hellos]
                for packet in hellos:
                    cluster.deliver(packet)

    def do_partition(self, command: Command) -> None:
        sides = [side.split() for side in " ".join(command.words).split("|")]
        for one in sides[0]:
            for other in sides[1]:
                self.cluster.cut_links.add(frozenset((one, other)))
                self.cluster.drop_link(one, other)

    def do_heal(self, command: Command) -> None:
        self.cluster.cut_links.clear()
        self.do_connect(command)

    def do_reset(self, command: Command) -> None:
        self.cluster.drop_link(*command.words)
        self.do_connect(command)

    def do_campaign(self, command: Command) -> None:
        cluster = self.cluster
        cluster.now += cluster.timing.election_max_ns
        cluster.nodes[command.words[0]].replica.elector.campaign(cluster.now)
        cluster.carry_out(command.words[0])

    def do_tick(self, command: Command) -> None:
        self.cluster.now += duration_ns(command.words[0])
        for node_id in command.words[1:] or self.cluster.ids:
            self.cluster.tick(node_id)

    def do_run(self, command: Command) -> None:
        end = self.cluster.now + duration_ns(command.words[0])
        while self.cluster.now < end:
            self.cluster.now += 10 * MS
            self.do_connect(command)
            for node_id in self.cluster.ids:
                self.cluster.tick(node_id)
            self._settle()

    # --- forged messages ----------------------------------------------------------------------------------------
    def do_order(self, command: Command) -> None:
        to, kind = command.words
        message = PushRequest(
            seq=9000, kind=PushKind[kind], leader_id=command.options["from"], term=command.number("term", 0),
            dispatch_epoch=command.number("epoch", 1 << 40), commit_index=command.number("commit", -1),
            prev_index=command.number("prev", command.number("cut", 0) - 1),
            prev_term=command.number("prev_term", -1), first_index=command.number("cut", -1),
        )  # fmt: skip
        self.cluster.post(command.options["from"], to, message)

    def do_vote(self, command: Command) -> None:
        end_index, end_term = command.options["end"].split("/")
        sender = command.options["from"]
        message = VoteRequest(
            9000, sender, command.number("term", 0), int(end_index), int(end_term), pre="pre" in command.words
        )
        self.cluster.post(sender, command.words[0], message)

    # --- looking ------------------------------------------------------------------------------------------------
    def do_status(self, command: Command) -> None:
        for node_id in command.words or self.cluster.ids:
            self.say(status_line(self.cluster, node_id))

    def do_log(self, command: Command) -> None:
        for node_id in command.words or self.cluster.ids:
            self.say(log_line(self.cluster, node_id))

    def do_dispatchers(self, command: Command) -> None:
        for one in self.cluster.nodes[command.words[0]].replica.status(self.cluster.now).dispatchers:
            self.say(dispatcher_line(one))

    def do_watermarks(self, command: Command) -> None:
        status = self.cluster.nodes[command.words[0]].replica.status(self.cluster.now)
        for mark in status.watermarks:
            share = "" if mark.counts else ", does not count"
            self.say(
                f"{mark.id} watermark {mark.watermark_index} (match {mark.match_index}, lag {mark.lag_entries}){share}"
            )
        self.say(f"quorum index {status.quorum_index}, {status.quorum_needed} needed")

    def do_closures(self, command: Command) -> None:
        closures = self.cluster.nodes[command.words[0]].replica.status(self.cluster.now).closures
        self.say(f"{closures.pending} pending")
        for group in closures.groups:
            indexes = f"{group.first_index}..{group.last_index}"
            self.say(f"{indexes}: {group.count} wait for {group.needed} of {', '.join(group.waits_for)}")


def play(text: str) -> str:
    """The script with its commands' real output in place of what it says."""
    scenario = Scenario()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {said}" for said in scenario.run(line)]
    return "\n".join(lines) + "\n"


def scripts() -> list[Path]:
    return sorted(SCRIPTS.glob("*.txt"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the scenario scripts.")
    parser.add_argument("--rewrite", action="store_true", help="write what happens into the scripts")
    parser.add_argument("names", nargs="*", help="only these scripts (default: all)")
    arguments = parser.parse_args()
    differ = 0
    for path in scripts():
        if arguments.names and path.stem not in arguments.names:
            continue
        before = path.read_text()
        after = play(before)
        if before != after:
            differ += 1
            print(f"{path.name}: {'rewritten' if arguments.rewrite else 'differs'}")
            if arguments.rewrite:
                path.write_text(after)
    return 0 if arguments.rewrite else int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
