"""What is wrong with the brokers of a classic pair: rules over what each says of it (`GET /api/v1/ha`), and the proof
behind "in step".

Invariants: one cause is named once, at the broker that it is about; a slave's own word of why it is not served goes
before what its master does not see of it; what RocketMQ's protocol does not allow to check is never called in step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from app.health.audited import audited
from app.health.certificates import certificates
from app.health.facts import ATTENTION, CRITICAL, INFO, UNKNOWN, Facts, Finding, Rule, join, spell
from app.health.group_view import Doubt, GroupView, MemberView, SentenceView
from app.health.next_steps import timed_out
from app.health.pair_links import (
    WAITS_MS,
    answering,
    connection_of,
    ha_of,
    hangs,
    master_of,
    masters_of,
    served_by,
    slaves_of,
    unchecked_of,
)
from node.views.ha import HaConnection, HaView

BEHIND_MS: Final = 5000
FRESH_MS: Final = 1500
GRACE_S: Final = 2.0  # a connection is made anew within a second
CUT_GRACE_S: Final = 1.0  # beyond a silence that is too long already
CONTROL_ANSWERS: Final = frozenset({"ok", "down"})  # of its broker it may say that it is down
SERVED: Final = frozenset({"in_step", "behind", "empty"})
REFUSED: Final = {
    "ahead": (CRITICAL, "holds more than its master"),
    "forked": (CRITICAL, "holds other records than its master"),
    "stranger": (CRITICAL, "holds another pair's log"),
    "refused": (ATTENTION, "is refused by its master"),
}


# --- rules ------------------------------------------------------------------------------------------------------------
def no_broker_answers(facts: Facts) -> Iterator[Finding]:
    if not any(one.reach in CONTROL_ANSWERS for one in facts.members):
        text = "No broker of the pair answers for {age}: nothing is known of it"
        yield Finding("ha_all_silent", CRITICAL, text, grace_s=GRACE_S)


def silent_broker(facts: Facts) -> Iterator[Finding]:
    if not any(one.reach in CONTROL_ANSWERS for one in facts.members):
        return
    for one in facts.members:
        if ha_of(one) is not None:
            continue
        was = one.ha.role if one.ha is not None else None
        what = "slave" if was == "SLAVE" else "broker" if was is None else "master"
        severity = CRITICAL if what == "master" and master_of(facts.view) is None else ATTENTION
        if one.reach in CONTROL_ANSWERS:
            why = one.ha.reason if one.ha is not None else None
            text = f"The broker {one.id} does not answer its control plane for {{age}}{f' ({why})' if why else ''}"
            yield Finding("ha_broker_down", severity, text, one.id, grace_s=GRACE_S)
        else:
            yield Finding(
                "ha_silent", severity, f"The {what} {one.id} does not answer for {{age}}", one.id, grace_s=GRACE_S
            )


def no_master(facts: Facts) -> Iterator[Finding]:
    known = answering(facts.view)
    if known and not masters_of(facts.view) and not unseen_masters(facts.view):
        unheard = maybe_masters(facts.view)
        text = "No broker takes messages for {age}: none of those that answer is master"
        if unheard:
            text = f"No broker that answers takes messages for {{age}}; whether {join(unheard)} does is not known"
        yield Finding("ha_no_master", CRITICAL, text, grace_s=GRACE_S)


def two_masters(facts: Facts) -> Iterator[Finding]:
    found = masters_of(facts.view)
    if len(found) > 1:
        said = join([f"{one.id} (epoch {ha.epoch})" for one, ha in found])
        yield Finding("ha_two_masters", CRITICAL, f"{said} take messages at the same time for {{age}}", found[-1][0].id)


def fenced(facts: Facts) -> Iterator[Finding]:
    for one, said in answering(facts.view):
        if said.fenced_by_epoch:
            later = f"epoch {said.fenced_by_epoch} began elsewhere"
            text = f"{one.id} was master before {later}: it takes no messages for {{age}}"
            yield Finding("ha_fenced", ATTENTION if masters_of(facts.view) else CRITICAL, text, one.id)


def stopped_by(said: HaView) -> str | None:
    """Why it takes and stores nothing; None: it does."""
    return said.broken_by or next((one.text for one in said.problems if one.code == "disk_full"), None)


def full_disk(facts: Facts) -> Iterator[Finding]:
    for one, said in answering(facts.view):
        why = stopped_by(said)
        if why and not said.broken_by:
            what, severity = ("takes no messages", CRITICAL) if said.is_master else ("stores nothing", ATTENTION)
            yield Finding("ha_disk_full", severity, f"{one.id} {what} for {{age}}: {why}", one.id)


def unsaved_config(facts: Facts) -> Iterator[Finding]:
    for one, said in answering(facts.view):
        for why in [each.text for each in said.problems if each.code == "config_not_saved"]:
            text = f"{one.id} cannot save topics, groups and offsets for {{age}}: {why}"
            yield Finding("ha_config_not_saved", ATTENTION, text, one.id)


def broken_log(facts: Facts) -> Iterator[Finding]:
    for one, said in answering(facts.view):
        if said.broken_by:
            yield Finding("ha_log_broken", CRITICAL, f"{one.id} writes nothing for {{age}}: {said.broken_by}", one.id)


def damaged_log(facts: Facts) -> Iterator[Finding]:
    """What the background reading of each broker's log found."""
    for one, said in answering(facts.view):
        damaged = said.scrub.damaged if said.scrub is not None else ()
        if damaged:
            first, places = damaged[0], "one place" if len(damaged) == 1 else f"{len(damaged)} places"
            text = (
                f"{one.id} has a log that is damaged at {places}, the first from offset {first.from_offset} to"
                f" {first.to_offset}: {first.why}"
            )
            yield Finding("ha_log_damaged", CRITICAL, text, one.id)


def few_slaves(facts: Facts) -> Iterator[Finding]:
    for one, said in masters_of(facts.view):
        codes = {each.code: each.text for each in said.problems}
        needed = (said.in_sync_replicas or 2) - 1
        if "too_few_slaves" in codes:
            text = (
                f"Too few slaves of {one.id} are near enough for {{age}}: {codes['too_few_slaves']}, {needed} needed;"
                " sends are answered SLAVE_NOT_AVAILABLE"
            )
            yield Finding("ha_too_few_slaves", CRITICAL, text, one.id, grace_s=GRACE_S)
        elif "no_slave" in codes:
            text = f"{one.id} alone holds what is sent for {{age}}: {codes['no_slave']}"
            yield Finding("ha_no_slave", ATTENTION, text, one.id, grace_s=GRACE_S)


def unserved_slaves(facts: Facts) -> Iterator[Finding]:
    """Each slave that gets nothing, once: by its own word, by its master's, or by what neither says.

    Where there is no master, nobody gets anything, and `no_master` says so: the slaves are not what is wrong. One that
    serves anybody is there, heard or not.
    """
    master = master_of(facts.view)
    served = {one.id for one, said in slaves_of(facts.view) if said.following and said.following.state == "transfer"}
    known = {one.id for one in facts.members}
    refused = (
        {each.about: each.text for each in master[1].problems if each.code == "slave_not_served"} if master else {}
    )
    for one, said in slaves_of(facts.view):
        link = connection_of(master[1], one.id) if master else None
        follows = said.following
        stand = next((each for each in (follows and follows.stand, link and link.stand) if each in REFUSED), None)
        own = follows.reason if follows is not None else None
        if stand is not None and own is not None and not own.startswith(f"{stand}: "):
            own = None  # of the next attempt: a slave that is refused tries the others in turn
        why = own or refused.get(one.id) or (link.reason if link else None)
        if stand is not None and (follows is None or follows.state != "transfer"):
            severity, what = REFUSED[stand]
            text = f"{one.id} {what}, and gets nothing for {{age}}{f': {why}' if why else ''}"
            yield Finding(f"ha_{stand}", severity, text, one.id)
        elif master is None and not served:
            continue
        elif follows is None or follows.state != "transfer" or (master is not None and link is None):
            tried = f", tried last at {follows.address}" if follows is not None and follows.address else ""
            because = f": {why}" if why else ""
            text = f"{one.id} gets nothing from its master for {{age}}{tried}{because}"
            yield Finding("ha_slave_gone", ATTENTION, text, one.id, grace_s=GRACE_S)
        elif master is not None and link is not None and hangs(link, facts.view):
            since = facts.when(master[0], link.last_heard_ms or 0.0)
            text = f"{master[0].id} hears nothing of its slave {one.id} for {{age}}; both answer here"
            yield Finding("ha_slave_gone", ATTENTION, text, one.id, since, CUT_GRACE_S)
    for name, why in refused.items():
        if name not in known:
            yield Finding(
                "ha_slave_not_served", ATTENTION, f"A slave that is not watched here, {name}, is refused: {why}"
            )
        elif name in served:
            text = f"Another slave that calls itself {name} is refused: {why}"
            yield Finding("ha_slave_not_served", ATTENTION, text, grace_s=GRACE_S)


def late_slaves(facts: Facts) -> Iterator[Finding]:
    for master, said in masters_of(facts.view):
        for one in said.connections or ():
            if one.state != "transfer" or one.lag_bytes is None:
                continue
            name = one.peer_id or one.address
            known = next((each.id for each in facts.members if each.id == one.peer_id), None)
            limit = said.slave_fall_behind_max_bytes
            if limit is not None and one.lag_bytes > limit:
                text = f"{name} is {one.lag_bytes:,} bytes behind {master.id}, and is not waited for"
                yield Finding("ha_behind", ATTENTION, text, known, grace_s=GRACE_S)
            elif one.lag_ms is not None and one.lag_ms > BEHIND_MS:
                text = f"{name} has not acknowledged what {master.id} has had for {spell(one.lag_ms / 1000)}"
                yield Finding("ha_behind", ATTENTION, text, known, grace_s=GRACE_S)


def waiting_sends(facts: Facts) -> Iterator[Finding]:
    for one, said in masters_of(facts.view):
        oldest = max(said.waiting or (), key=lambda each: each.age_ms, default=None)
        if oldest is not None and oldest.age_ms > WAITS_MS:
            count, whom = said.waiting_count or 1, join(list(oldest.waits_for)) or "a slave"
            what = "1 send waits" if count == 1 else f"{count:,} sends wait"
            yield Finding("ha_sends_wait", ATTENTION, f"{what} at {one.id} for {whom}", one.id)


def unchecked(facts: Facts) -> Iterator[Finding]:
    for name in dict.fromkeys(unchecked_of(facts.view)):
        text = f"{name} speaks RocketMQ's own protocol: what its log holds cannot be compared, only how far it is"
        yield Finding("ha_unchecked", INFO, text)


RULES: Final[tuple[Rule, ...]] = (
    two_masters, no_broker_answers, no_master, broken_log, full_disk, unsaved_config, damaged_log, few_slaves,
    silent_broker, fenced, unserved_slaves, late_slaves, waiting_sends, certificates, unchecked, audited,
)  # fmt: skip
# What a cause explains in the same broker.
EXPLAINS: Final[dict[str, frozenset[str]]] = {
    "ha_silent": frozenset({"ha_behind", "ha_slave_gone"}),
    "ha_broker_down": frozenset({"ha_behind", "ha_slave_gone"}),
    "ha_slave_gone": frozenset({"ha_behind"}),
    "ha_disk_full": frozenset({"ha_behind", "ha_slave_gone", "ha_refused", "ha_config_not_saved"}),
    "ha_fenced": frozenset({"ha_slave_gone"}),
}


# --- proof and sentence -----------------------------------------------------------------------------------------------
def unproven(facts: Facts) -> list[Doubt]:
    """Everything that is not known to be well; empty: a master, and every slave acknowledges what it has."""
    view = facts.view
    found = [Doubt(member=one.id, text=text) for one in view.members if (text := _unheard(one))]
    master = master_of(view)
    if master is None:
        unseen = [
            f"{slave} follows a master at {address}, whose control plane is not among those that are asked"
            for slave, address in unseen_masters(view)
        ]
        return [*found, *(Doubt(member=None, text=text) for text in unseen or ["no master is known"])]
    if not served_by(view, master[1]):
        found.append(Doubt(member=master[0].id, text=f"no slave gets what {master[0].id} has"))
    for one, said in slaves_of(view):
        if connection_of(master[1], one.id) is None:
            found.append(Doubt(member=one.id, text=f"{master[0].id} knows no connection of {one.id}"))
        elif said.following is None or said.following.state != "transfer":
            found.append(Doubt(member=one.id, text=f"{one.id} says that it is not served"))
    links = master[1].connections or ()
    return found + [
        Doubt(member=one.peer_id, text=text)
        for one in links
        if (text := _owed(one, master[1], is_heard=not hangs(one, view)))
    ]


def _unheard(one: MemberView) -> str:
    if ha_of(one) is None:
        return f"{one.id} does not tell its state"
    if one.age_ms is None or one.age_ms > max(FRESH_MS, 3 * (one.interval_ms or 0)):
        return f"{one.id} reported its state {'never' if one.age_ms is None else f'{one.age_ms / 1000:.1f} s ago'}"
    return ""


def _owed(one: HaConnection, master: HaView, *, is_heard: bool) -> str:
    """What of a connection is not known to be well."""
    name = one.peer_id or one.address
    if not is_heard:
        return f"{master.self_id} has heard nothing of {name} for {spell((one.last_heard_ms or 0) / 1000)}"
    if one.state != "transfer" or (one.kind == "ours" and one.stand not in SERVED):
        return f"{name} is not served"
    if one.acked_offset is None or one.lag_bytes is None:
        return f"how far {name} is, is unknown"
    if one.lag_bytes and (one.lag_ms is None or one.lag_ms > WAITS_MS):
        age = "an unknown time" if one.lag_ms is None else spell(one.lag_ms / 1000)
        return f"{name} has not acknowledged what {master.self_id} has had for {age}"
    return ""


def maybe_masters(view: GroupView) -> list[str]:
    """Who hangs, or does not answer here, may take messages all the same."""
    away = [one for one in view.members if one.reach != "ok" and timed_out(one)]
    return [one.id for one in away if one.ha is None or one.ha.role != "SLAVE"]


def unseen_masters(view: GroupView) -> list[tuple[str, str]]:
    """(slave, address) where a slave is served by a master whose control plane nobody named: all brokers that were
    named answer, and none of them is that one."""
    known = answering(view)
    if len(known) < len(view.members):
        return []
    addresses = {said.ha_address for _one, said in known}
    return [
        (one.id, said.following.address)
        for one, said in slaves_of(view)
        if said.following is not None and said.following.state == "transfer"
        and said.following.address is not None and said.following.address not in addresses
    ]  # fmt: skip


def without_master(view: GroupView) -> str:
    if unseen_masters(view):
        return "Whether a broker takes messages is not known."
    unheard = maybe_masters(view)
    if unheard and len(unheard) < len(view.members):
        return f"No broker that answers takes messages; whether {join(unheard)} does is not known."
    return "No broker takes messages." if not unheard else "Whether a broker takes messages is not known."


def sentence_of(view: GroupView) -> SentenceView:
    """What every page of a pair begins with."""
    pressing = [one for one in view.problems if one.severity != INFO]
    notices = [one for one in view.problems if one.severity == INFO]
    master = master_of(view)
    slaves = served_by(view, master[1]) if master else []
    takes = without_master(view)
    if master:
        role = f"{master[1].role} in epoch {master[1].epoch}"
        does = f"is {role} and takes no messages" if stopped_by(master[1]) else f"takes messages as {role}"
        silent = [one.peer_id or one.address for one in master[1].connections or () if hangs(one, view)]
        but = f", and {join(silent)} {'says' if len(silent) == 1 else 'say'} nothing" if silent else ""
        takes = f"{master[0].id} {does}; {len(slaves)} {'slave is' if len(slaves) == 1 else 'slaves are'} served{but}."
    if pressing:
        more = f"{len(pressing) - 1} more problem{'s' if len(pressing) > 2 else ''}." if len(pressing) > 1 else ""
        headline, parts = pressing[0].text, ["" if pressing[0].code == "ha_no_master" else takes, more]
    elif view.unproven:
        headline = f"Whether every slave is in step is not known: {view.unproven[0].text}."
        also = "; ".join(one.text for one in view.unproven[1:4])
        parts = [takes, f"Also: {also}." if also else ""]
    else:
        whole = "acknowledges everything" if len(slaves) == 1 else "acknowledge everything"
        who = {1: "The slave", 2: "Both slaves"}.get(len(slaves), f"All {len(slaves)} slaves")
        headline = f"{who} {whole}." if unchecked_of(view) else f"{who} {'is' if len(slaves) == 1 else 'are'} in step."
        parts = [takes]
    parts += [one.text for one in notices]
    return SentenceView(headline=headline, rest=" ".join(one for one in parts if one))


def severity_of(view: GroupView, of_problems: str) -> str:
    return UNKNOWN if of_problems == "ok" and view.unproven else of_problems
