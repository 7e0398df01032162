"""One line of text for a message, an event, a node's state: what the scenario scripts show."""

from __future__ import annotations

from node.consensus.effects import Event
from node.consensus.status import DispatcherStatus
from node.protocol.entry import Magic
from node.protocol.messages import (
    FetchRequest,
    FetchResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexResponse,
    TransferRequest,
    TransferResponse,
    VoteRequest,
    VoteResponse,
)
from node.store.faults.ranges import fault_at, in_words
from tests.scenarios.cluster import Cluster, Packet


def message_line(packet: Packet) -> str:
    """Who says what to whom."""
    message = packet.message
    match message:
        case VoteRequest():
            name = "PRE_VOTE" if message.pre else "VOTE"
            end = f"{message.ledger_end_index}/{message.ledger_end_term}"
            text = f"{name} term {message.term}, log ends at {end}" + (", with a ticket" if message.ticket else "")
        case VoteResponse():
            text = f"{'PRE_VOTE' if message.pre else 'VOTE'} answer {message.result}, term {message.term}"
        case HeartBeatRequest():
            text = f"HEART_BEAT term {message.term}, commit {message.commit_index}"
        case HeartBeatResponse():
            text = f"HEART_BEAT answer {message.code.name}, term {message.term}, end {message.end_index}"
        case PushRequest():
            text = _push(message)
        case PushResponse():
            marks = f"verified {message.verified_index}, durable {message.durable_index}, end {message.end_index}"
            x = f", x {message.x_index}/{message.x_term}" if message.x_term >= 0 else ""
            faulty = f", damaged from {message.faulty_from}" if message.faulty_from >= 0 else ""
            text = f"PUSH answer {message.code.name}, term {message.term}: {marks}{x}{faulty}"
        case Hello():
            text = f"HELLO{' answer' if message.answer else ''} {message.voter_state}, end {message.end_index}"
        case TransferRequest():
            text = f"LEADERSHIP_TRANSFER take term {message.term} at {message.take_leadership_index}"
        case TransferResponse():
            text = f"LEADERSHIP_TRANSFER answer {message.code.name}"
        case ReadIndexResponse():
            text = f"READ_INDEX answer {message.code.name}, index {message.read_index}"
        case FetchRequest():
            text = f"FETCH {message.first_index}..{message.last_index}"
        case FetchResponse():
            got = message.slab
            what = f": {got.first_index}..{got.last_index}" if got is not None else ""
            text = f"FETCH answer {message.code.name}{what}"
        case _:
            text = f"READ_INDEX term {message.term}"
    return f"{packet.sender}->{packet.to} {text}"


def _push(push: PushRequest) -> str:
    head = f"PUSH {push.kind.name} term {push.term}"
    if push.kind is PushKind.APPEND and push.slab is not None:
        slab = push.slab
        return f"{head}: {slab.first_index}..{slab.last_index} after {push.prev_index}/{push.prev_term}"
    if push.kind is PushKind.COMPARE:
        return f"{head}: {push.prev_index}/{push.prev_term}"
    if push.kind is PushKind.TRUNCATE:
        return f"{head}: from {push.first_index}, term there {push.prev_term}"
    return f"{head}: {push.commit_index}"


def event_line(node_id: str, event: Event) -> str | None:
    """What a reader of a script wants to know; None for the rest."""
    detail = event.detail
    match event.kind:
        case "role":
            return f"{node_id} {detail['was']} -> {detail['role']}, term {detail['term']}: {detail['reason']}"
        case "dispatcher":
            return f"{node_id} dispatcher of {detail['peer']}: {detail['was']} -> {detail['state']}: {detail['reason']}"
        case "voter_state":
            return f"{node_id} {detail['was']} -> {detail['state']}: {detail['reason']}"
        case "alarm":
            return f"{node_id} ALARM {detail['code']}: {detail['text']}"
        case "alarm_cleared":
            return f"{node_id} alarm {detail['code']} is over"
        case "truncation":
            return f"{node_id} cuts {detail['from_index']}..{detail['to_index']} on the order of {detail['leader']}"
        case "truncated":
            return f"{node_id} has cut; its log ends at {detail['end_index']}"
        case "base_ordered":
            held = f"{detail['was_from']}..{detail['was_to']}"
            archived = "has nothing" if detail["was_to"] < detail["was_from"] else f"archives {held}"
            return f"{node_id} {archived}, and is to begin behind {detail['base_index']} as {detail['leader']} does"
        case "base_installed":
            return f"{node_id} begins at {detail['begin_index']} now: it does not hold what is before"
        case "group_id":
            return f"{node_id} names the group {detail['group_id']}: {detail['reason']}"
        case "repair":
            return f"{node_id} repaired {detail['first_index']}..{detail['last_index']} from {detail['peer']}"
        case "configuration":
            changed = [f"{one} joined" for one in detail["joined"]] + [f"{one} left" for one in detail["left"]]
            return (
                f"{node_id} configuration: {', '.join(changed)}; learners now {', '.join(detail['learners']) or 'none'}"
            )
        case "peer_log_regressed":
            return f"{node_id} notices that {detail['peer']} regressed: {detail['text']}"
        case _:
            return None


def status_line(cluster: Cluster, node_id: str) -> str:
    node = cluster.nodes[node_id]
    if not node.up:
        return f"{node_id} is down"
    status = node.replica.status(cluster.now)
    log = status.log
    marks = f"durable {log.durable_index}, committed {log.committed_index}"
    if node.config.applies:
        marks += f", applied {'unknown' if log.applied_index is None else log.applied_index}"
    damage = f", damaged {in_words(node.store.faults)}" if status.faults else ""
    alarms = "".join(f", alarm {alarm.code}" for alarm in status.alarms)
    return (
        f"{node_id} {status.role} term {status.term}, leader {status.leader_id}, {status.voter_state}, "
        f"log {log.begin_index}..{log.end_index}, {marks}{damage}{alarms}"
    )


def log_line(cluster: Cluster, node_id: str) -> str:
    """index:term=body of every entry, and a bar after the last committed one."""
    node = cluster.nodes[node_id]
    committed = node.replica.committed_index if node.up else -1
    parts = []
    for index in range(node.store.begin_index, node.store.end_index + 1):
        if fault_at(node.store.faults, index) is not None:
            parts.append(f"{index}:damaged")
            continue
        entry = node.store.get(index)
        assert entry is not None
        body = "noop" if entry.magic == Magic.NOOP else entry.body.decode()
        parts.append(f"{index}:{entry.term}={body}" + (" |" if index == committed else ""))
    return f"{node_id} " + (" ".join(parts) or "(empty)")


def dispatcher_line(one: DispatcherStatus) -> str:
    error = f", last error: {one.last_error}" if one.last_error else ""
    return (
        f"{one.peer_id} {one.state}, match {one.match_index}, next {one.write_index}, "
        f"{one.in_flight} in flight, {one.resends} resends{error}"
    )
