"""What the pages "Messages" draw of a broker group: its brokers, topics, queues and groups of consumers, as they say.

Each broker speaks for itself; topics and groups are the master's word. What no broker says is said to be unknown.

Invariants: "in step" needs a master, an answer of every broker, and dispatch that goes on at each; nothing that a
broker did not say is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from app.console import format as fmt
from app.console.sample import Clock
from app.console.their_clock import TheirClock
from node.views.message_answers import DISPATCH_BEHIND_MS, OVERDUE_MS, Broker, ConsumerGroup, RoleChange, Topic

NAMED: Final = 5  # topics of a group, in a list of groups


@dataclass(frozen=True, slots=True)
class MemberBroker:
    """One member's broker; `said` None: its control plane did not answer, and why. `has_engine` False: its engine does
    not answer now, so nobody knows what it lacks."""

    member_id: str
    said: Broker | None
    why: str = ""
    has_engine: bool = True


@dataclass(frozen=True, slots=True)
class Sentence:
    severity: str
    headline: str
    rest: str


@dataclass(frozen=True, slots=True)
class BrokerRow:
    member_id: str
    role: str
    is_master: bool
    address: str
    broker_id: str
    dispatch: str
    tone: str
    registered: str
    clients: str


def master_of(brokers: Sequence[MemberBroker]) -> MemberBroker | None:
    """The one of the newest term that says so."""
    masters = [one for one in brokers if one.said is not None and one.said.role == "MASTER"]
    return max(masters, key=lambda one: (one.said.term if one.said else None) or 0, default=None)


def sentence_of(brokers: Sequence[MemberBroker], unserved: Sequence[str] | None = None) -> Sentence:
    """The worst that is known of the brokers, first. `unserved`: who follows no master, in a pair, where a broker does
    not name the one that it follows."""
    master = master_of(brokers)
    silent = [one.member_id for one in brokers if one.said is None]
    down = [one for one in brokers if one.said is not None and one.said.broker == "down"]
    if master is None or (master.said is not None and (master.said.term or 0) < newest_term(brokers)):
        return masterless_sentence(brokers, master, silent, down)
    stopped = stopped_dispatch(master)
    if stopped:
        return Sentence("critical", f"Dispatch stands at the master, {master.member_id}: sends are refused.", stopped)
    for one in brokers:
        if (text := stopped_dispatch(one)) and one is not master:
            return Sentence("attention", f"Dispatch stands at {one.member_id}: it could not become master.", text)
    if down:
        votes = "Its member still votes; clients" if unserved is None else "Clients"
        rest = f"{reason_of(down[0])} {votes} cannot read there."
        return Sentence("attention", f"The broker of {names(one.member_id for one in down)} is down.", rest)
    if waits := waiting_sentence(master):
        return waits
    if unregistered := [(one, lost) for one in brokers if (lost := lost_at(one))]:
        return unregistered_sentence(master, unregistered)
    if silent:
        return Sentence(
            "unknown", f"{names(silent)} cannot be asked.", f"{master.member_id} is master and takes messages."
        )
    if alone := [one.member_id for one in brokers if not one.has_engine]:
        whose = "Its engine does" if len(alone) == 1 else "Their engines do"
        text = f"What the broker of {names(alone)} lacks is not known."
        return Sentence("unknown", text, f"{whose} not answer; {master.member_id} is master and takes messages.")
    apart = unserved
    if apart is None:
        apart = [one.member_id for one in brokers if one.said is not None and one.said.leader_id != master.member_id]
    if apart:
        text = f"The broker of {names(apart)} does not follow {master.member_id}."
        return Sentence("attention", text, f"{master.member_id} is master; who reads there sees nothing new.")
    return Sentence("ok", f"{master.member_id} is master, and every broker's dispatch is in step.", "")


def newest_term(brokers: Sequence[MemberBroker]) -> int:
    return max((one.said.term or 0 for one in brokers if one.said is not None), default=0)


def masterless_sentence(
    brokers: Sequence[MemberBroker], deposed: MemberBroker | None, silent: list[str], down: list[MemberBroker]
) -> Sentence:
    """Where no broker says that it is master of the newest term; who cannot be asked may be."""
    if len(silent) == len(brokers):
        return Sentence("unknown", "No broker's state is known.", brokers[0].why if brokers else "")
    newest = newest_term(brokers)
    followed = {one.said.leader_id for one in brokers if one.said is not None and one.said.term == newest}
    if unseen := [one for one in silent if one in followed]:
        text = f"Whether {names(unseen)} takes messages is not known: the others follow it, and it cannot be asked."
        return Sentence("unknown", text, "")
    why = [f"{names(one.member_id for one in down)}: {reason_of(down[0])}"] if down else []
    if deposed is not None and deposed.said is not None:
        why.append(f"{deposed.member_id} still says that it is master, of term {deposed.said.term}, which is over.")
    why += [f"{names(silent)} cannot be asked."] if silent else []
    which = f" of term {newest}" if deposed is not None else ""
    return Sentence("critical", f"No broker is master{which}: nothing can be sent.", " ".join(why))


def waiting_sentence(master: MemberBroker) -> Sentence | None:
    """Of what waits at the master too long: for its delivery, for a producer's decision."""
    assert master.said is not None
    schedule, transactions = master.said.schedule, master.said.transactions
    late = [one for one in schedule.levels if one.overdue_ms > OVERDUE_MS] if schedule is not None else []
    if late:
        oldest = fmt.duration_ms(max(one.overdue_ms for one in late))
        rest = f"The oldest of {sum(one.waiting for one in late):,} was due {oldest} ago; it is tried again and again."
        return Sentence("attention", "Messages with a delay are due and not delivered.", rest)
    if transactions is not None and transactions.unanswered:
        gone = [one.producer_group for one in transactions.groups if not one.producers]
        why = f"no producer of {names(gone)} is connected" if gone else "their producers do not decide"
        rest = f"After {transactions.checks_max} checks a transaction is given up: {why}."
        count = fmt.count(transactions.unanswered)
        were = "transaction was" if transactions.unanswered == 1 else "transactions were"
        return Sentence("attention", f"{count} {were} asked about three times or more.", rest)
    return None


def lost_at(one: MemberBroker) -> list[str]:
    """The name servers that this broker is not registered at."""
    said = one.said
    if said is None or said.role is None:
        return []
    return [server.address for server in said.name_servers if server.registered_at is None]


def unregistered_sentence(master: MemberBroker, unregistered: Sequence[tuple[MemberBroker, list[str]]]) -> Sentence:
    """Who is found nowhere, or where somebody is not found."""
    of_master = next((lost for one, lost in unregistered if one is master), [])
    if master.said is not None and of_master and len(of_master) == len(master.said.name_servers):
        rest = f"{names(of_master)} cannot be reached: clients that ask there do not find it."
        return Sentence("attention", f"The master, {master.member_id}, is registered nowhere.", rest)
    who = names(one.member_id for one, _ in unregistered)
    where = names(sorted({address for _, lost in unregistered for address in lost}))
    is_ = "are" if len(unregistered) > 1 else "is"
    rest = "Clients that ask there do not find what they look for; it is tried again every second."
    return Sentence("attention", f"{who} {is_} not registered at {where}.", rest)


def stopped_dispatch(one: MemberBroker) -> str:
    """Why nothing goes on there, or for how long something has waited; empty: all is well."""
    dispatch = one.said.dispatch if one.said is not None else None
    if dispatch is None:
        return ""
    if dispatch.stopped_by:
        return dispatch.stopped_by
    if dispatch.behind_ms > DISPATCH_BEHIND_MS:
        return f"It is behind by {fmt.count(dispatch.behind_entries)} entries, {fmt.duration_ms(dispatch.behind_ms)}."
    return ""


def reason_of(one: MemberBroker) -> str:
    return (one.said.reason if one.said is not None else one.why) or "It gives no reason."


def names(of: Iterable[str]) -> str:
    found = list(of)
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def listed_in_words(items: Sequence[object], following: str | None, after: str, contains: str) -> str:
    """How many of topics or groups are on this page, and whether there are others."""
    where = "from there on" if after else "the first by name" if following else ""
    more = "and there are more" if after and following else ""
    which = f"with \u201c{contains}\u201d in their name" if contains else ""
    return ", ".join(one for one in (f"{len(items):,}", which, where, more) if one)


def some_in_words(all_of: Sequence[str], left_out: int = 0) -> str:
    """The first of them, and how many others there are, those that are not listed among them."""
    first, others = all_of[:NAMED], len(all_of) - NAMED + left_out
    return f"{', '.join(first)} and {others:,} more" if others > 0 else ", ".join(first)


def row_of(one: MemberBroker) -> BrokerRow:
    said = one.said
    if said is None or said.broker == "down":
        role, address = ("unknown", fmt.UNKNOWN) if said is None else ("down", said.address)
        why = reason_of(one)
        return BrokerRow(
            one.member_id, role, False, address, fmt.UNKNOWN, why, "attention-text", fmt.UNKNOWN, fmt.UNKNOWN
        )
    trouble, dispatch = stopped_dispatch(one), said.dispatch
    at = fmt.UNKNOWN if dispatch is None else f"entry {fmt.index(dispatch.dispatched_index)}"
    if not trouble and not one.has_engine and dispatch is not None:
        trouble = f"at {at}; its engine does not answer"
    counts = said.counts
    return BrokerRow(
        one.member_id, (said.role or "none yet").lower(), said.role == "MASTER", said.address, f"{said.broker_id}",
        trouble or (f"in step, {at}" if dispatch is not None else fmt.UNKNOWN), "attention-text" if trouble else "",
        registered_in_words(said),
        fmt.UNKNOWN if counts is None else f"{counts.producers:,} producers, {counts.consumers:,} consumers",
    )  # fmt: skip


def registered_in_words(said: Broker) -> str:
    if not said.name_servers:
        return "no name server is configured"
    there = sum(one.registered_at is not None for one in said.name_servers)
    return f"{there} of {len(said.name_servers)} name servers"


def timeline_of(brokers: Sequence[MemberBroker], most: int = 12) -> list[tuple[str, RoleChange]]:
    """Changes of role of all brokers, the newest first; those of one instant as their broker made them."""
    found = [
        (one.member_id, change) for one in brokers if one.said is not None for change in reversed(one.said.role_changes)
    ]
    return sorted(found, key=lambda pair: pair[1].at or "", reverse=True)[:most]


def on_our_clock(said: Broker, clock: Clock | None) -> Broker:
    """With its changes of role on this console's clock: beside those of others they are in the order of time."""
    theirs = TheirClock(clock)
    changes = [one.model_copy(update={"at": theirs.at(one.at)}) for one in said.role_changes]
    return said.model_copy(update={"role_changes": changes})


def lag_in_words(group: ConsumerGroup) -> str:
    """What the group has still to read, since when the oldest of it waits, and where nobody can say how much it is."""
    unread = group.queues_without_offset
    uncounted = f"; nothing committed in {unread} queue{'s' if unread > 1 else ''}" if unread else ""
    if not group.lag_messages:
        return f"nothing{uncounted}"
    return f"{group.lag_messages:,} messages, the oldest for {fmt.duration_ms(group.lag_ms)}{uncounted}"


def rate_in_words(per_s: float | None) -> str:
    return fmt.UNKNOWN if per_s is None else f"{per_s:,.1f}"


def size_in_words(topic: Topic) -> str:
    return ("about " if topic.size_is_estimated else "") + fmt.size(topic.size_bytes)


def kept_in_words(brokers: Sequence[MemberBroker]) -> str:
    """By the master's configuration: each member removes its own files."""
    master = master_of(brokers)
    if master is None or master.said is None:
        return "for as long as their master is configured to: which that is, is unknown"
    kept = master.said.kept
    if kept is None:
        return "for ever: no retention is configured"
    hours = ", ".join(f"{one}:00" for one in kept.delete_when)
    size = f", and earlier where the log grows beyond {fmt.size(kept.max_log_bytes)}" if kept.max_log_bytes else ""
    return f"until their file is {kept.hours} h old (it goes at {hours}){size}, or the disk is nearly full"


def takes_sends(perm: int) -> bool:
    """RocketMQ's bit for writing; what is only to be read refuses a send."""
    return bool(perm & 2)


def perm_in_words(perm: int) -> str:
    return {6: "read and write", 4: "read only", 2: "write only", 7: "read and write, inherited"}.get(perm, "neither")
