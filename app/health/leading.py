"""Rules about the group as a whole: quorum, leader, terms, and whether writes get through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from app.health.confirming import confirm_nothing, counted, survives
from app.health.facts import ATTENTION, CRITICAL, ENGINE_GRACE_S, INFO, UNKNOWN, Facts, Finding, join, moment, refused
from app.health.group_view import MemberView
from app.health.links import unheard_among
from app.health.members import engine_silent, unheard_since, was_reached, without_votes
from app.times import time_of

CLOSURES_SHARE: Final = 0.8
CLOSURES_OLDEST_MS: Final = 1000
COMMIT_STALLED_S: Final = 2.0
ELECTIONS_PER_MINUTE: Final = 3
NO_LEADER_GRACE_S: Final = 1.0
WRITES_STOPPED_GRACE_S: Final = 1.0


def nobody_answers(facts: Facts) -> Iterator[Finding]:
    if facts.first_look or any(one.reach in ("ok", "down") for one in facts.members):
        return
    if all(engine_silent(one) for one in facts.members):
        since = [at for one in facts.members if (at := unheard_since(one)) is not None]
        text = "No engine of this group answers its control plane, for {age}"
        yield Finding("engines_silent", UNKNOWN, text, None, max(since, default=None), ENGINE_GRACE_S)
    elif any(engine_silent(one) for one in facts.members):
        return  # each is named, by what it is that does not answer
    elif facts.recall.began_before("all_silent:") is None and all(
        one.reach == "never" and not was_reached(facts, one) for one in facts.members
    ):
        text = "No control plane of this group has answered yet, for {age}" + why_silent(facts)
        yield Finding("never_reached", UNKNOWN, text)
    else:
        seen = [at for one in facts.members if (at := time_of(one.last_seen)) is not None]
        text = "No control plane of this group has answered for {age}" + why_silent(facts)
        yield Finding("all_silent", UNKNOWN, text, since=max(seen, default=None))


def why_silent(facts: Facts) -> str:
    """What asking them came to, for the text: once where it is the same for all of them."""
    reasons: dict[str, list[str]] = {}
    for one in facts.members:
        said = (one.problem or "").removeprefix(one.control_url or "").removeprefix(":").strip()
        if said:
            reasons.setdefault(said, []).append(one.id)
    if len(reasons) == 1 and len(facts.members) > 1 and len(*reasons.values()) == len(facts.members):
        return f": {next(iter(reasons))}, each of {len(facts.members)}"
    named = [f"{join(ids)}: {said}" for said, ids in reasons.items()]
    return f" ({'; '.join(named)})" if named else ""


def may_go_on(members: Sequence[MemberView]) -> list[str]:
    """Whose engine may run though nothing of it reaches us. Where a connection is refused, a machine answers, and the
    node that should listen there is gone; where a control plane answers, the way there is not cut, and it knows whether
    its engine runs (`status` has that word of a member that itself never answered)."""
    silent = (one for one in members if one.reach in ("stale", "never") and not engine_silent(one))
    said_down = {one.id for one in members if one.reach == "never" and one.state and one.state.engine == "down"}
    return [one.id for one in silent if not refused(one) and one.id not in said_down]


def quorum_out_of_sight(facts: Facts) -> Iterator[Finding]:
    """Who answers has no quorum; who does not answer may have one."""
    quorum, silent = facts.view.quorum, may_go_on([one for one in facts.members if not one.is_learner])
    seen = [one.id for one in facts.members if one.reach in ("ok", "down")]
    if facts.leader is not None or facts.stands is not None or not seen or len(silent) < quorum.needed:
        return
    if any(one.reach == "ok" and one.leader_id for one in facts.members):
        return  # it follows one of them
    does = "does" if len(silent) == 1 else "do"
    text = f"No quorum is in sight: {join(silent)} {does} not answer, and may or may not commit without {join(seen)}"
    yield Finding("quorum_out_of_sight", CRITICAL, f"{text}, for {{age}}")


def quorum_lost(facts: Facts) -> Iterator[Finding]:
    quorum = facts.view.quorum
    if facts.stands is not False or (facts.leader is None and quorum.answering >= quorum.needed):
        return  # enough replicas are up without a leader: `no_leader` says it
    silent = [one.id for one in facts.members if one.reach in ("stale", "never")]
    down = [one.id for one in facts.members if one.reach == "down"]
    causes = [f"{join(silent)} {'do' if len(silent) > 1 else 'does'} not answer"] if silent else []
    causes += [f"{join(down)} {'are' if len(down) > 1 else 'is'} down"] if down else []
    if facts.leader is not None:
        lost = [one.id for one in facts.followers if not counted(facts.leader, one)]
        causes += [f"{facts.leader.id} leads and does not hear {join(lost)}"] if lost else []
    cause = f": {join(causes)}" if causes else ""
    text = f"The quorum is lost{cause}; nothing can be committed, for {{age}}"
    yield Finding("quorum_lost", CRITICAL, text)


def no_leader(facts: Facts) -> Iterator[Finding]:
    quorum = facts.view.quorum
    if facts.leader is not None or quorum.answering < quorum.needed:
        return
    reported = {one.leader_id for one in facts.members if one.reach == "ok" and one.leader_id}
    answering = {one.id for one in facts.members if one.reach == "ok"}
    unseen = sorted(reported - answering)
    if unseen:
        text = f"The leader {join(unseen)} does not answer, though replicas follow it, for {{age}}"
        yield Finding("leader_out_of_sight", ATTENTION, text, grace_s=NO_LEADER_GRACE_S)
    elif lost := without_votes(facts):
        they = "they do not know what they" if len(lost) > 1 else "it does not know what it"
        text = f"No leader can be elected: {join(lost)} may not vote, for {they} had acknowledged, and"
        text += f" {quorum.needed} votes are needed; no write can be accepted, for {{age}}"
        yield Finding("votes_lost", CRITICAL, text, grace_s=NO_LEADER_GRACE_S)
    else:
        away = sorted(one.id for one in facts.members if one.reach != "ok")
        why = unheard_among(facts, sorted(answering))
        why = why or (f"{join(away)} {'do' if len(away) > 1 else 'does'} not answer" if away else "")
        text = f"There is no leader{f', and {why}' if why else ''}: no write can be accepted, for {{age}}"
        yield Finding("no_leader", CRITICAL, text, grace_s=NO_LEADER_GRACE_S)


def writes_stopped(facts: Facts) -> Iterator[Finding]:
    """Enough members hear their leader, and too few of them hold what it would write."""
    idle, left = confirm_nothing(facts.view), survives(facts.view)
    if (
        facts.leader is None
        or not facts.stands
        or facts.view.commits
        or facts.leader.id in idle
        or left is None
        or left >= 0
        or not idle
    ):
        return  # a leader that takes no writes is its own alarm's matter
    whose = "; ".join(f"{one} confirms none: {why}" for one, why in sorted(idle.items()))
    text = f"No new write gets through, for {{age}}, though the quorum stands ({whose})"
    yield Finding("writes_stopped", CRITICAL, text, grace_s=WRITES_STOPPED_GRACE_S)


def two_leaders(facts: Facts) -> Iterator[Finding]:
    terms: dict[int, list[str]] = {}
    for one in facts.members:
        if one.role == "LEADER" and one.term is not None:
            terms.setdefault(one.term, []).append(one.id)
    for term, ids in terms.items():
        if len(ids) > 1:
            yield Finding("two_leaders", CRITICAL, f"{join(ids)} both lead term {term}: election safety is broken")


def commit_stalled(facts: Facts) -> Iterator[Finding]:
    committed, waiting = facts.recall.committed, facts.recall.waiting
    if facts.leader is None or not committed.points or not waiting.points:
        return
    newest, count = committed.points[-1][1], waiting.points[-1][1]
    # An idle log stands still too: what counts is since when somebody waits. Old samples make nothing longer.
    held_s = min(committed.held_s(lambda value: value == newest), waiting.held_s(lambda value: value > 0))
    if held_s >= COMMIT_STALLED_S:
        where = f"from {newest:,} " if newest >= 0 else "from nothing "
        text = f"The commit index has not moved {where}for {{age}}, {in_wait(count, 'entry', 'entries')}"
        yield Finding("commit_stalled", CRITICAL, text, since=moment(facts.now, held_s))


def in_wait(count: int, one: str, several: str) -> str:
    return f"1 {one} waits" if count == 1 else f"{count:,} {several} wait"


def closures(facts: Facts) -> Iterator[Finding]:
    reported = facts.view.closures
    if reported is None:
        return
    pending, limit, oldest_ms = reported.pending or 0, reported.limit, reported.oldest_age_ms
    wait = in_wait(pending, "write", "writes")
    oldest = f", oldest {oldest_ms / 1000:.1f} s" if oldest_ms is not None and oldest_ms >= 0 else ""
    if limit and pending >= limit:
        yield Finding("closures_full", CRITICAL, f"{wait}, the limit: new ones are refused{oldest}")
    elif limit and pending >= CLOSURES_SHARE * limit:
        yield Finding("closures_piling", ATTENTION, f"{wait}, of at most {limit:,}{oldest}")
    elif pending and oldest_ms is not None and oldest_ms > CLOSURES_OLDEST_MS:
        yield Finding("closures_slow", ATTENTION, f"{wait}{oldest}")


def term_flapping(facts: Facts) -> Iterator[Finding]:
    elections = facts.recall.elections()
    if elections >= ELECTIONS_PER_MINUTE:
        text = f"{elections} elections in the last minute"
        yield Finding("term_flapping", ATTENTION, text)


def first_leadership(facts: Facts) -> Iterator[Finding]:
    """Of the Java original: who leads for the first time since its process started wipes its followers."""
    if facts.leader is None or not any(one.is_java for one in facts.members):
        return
    fresh = [one.id for one in facts.followers if one.id not in facts.view.seen_leading]
    if fresh:
        has = "has" if len(fresh) == 1 else "have"
        text = f"{join(fresh)} {has} not led since the process started: a plain DLedger that leads for the first time"
        yield Finding("first_leadership_hazard", ATTENTION, f"{text} wipes its followers")


def flush_async(facts: Facts) -> Iterator[Finding]:
    if facts.view.flush == "async":
        text = "flush is async: writes are acknowledged before they are on a disk; a power cut of a quorum loses them"
        yield Finding("flush_async", INFO, text)
