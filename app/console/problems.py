"""The problem classifier: a table of rules over the GroupView and what is remembered of the last minute.

A rule is a function that yields findings; its text may say `{age}`. Order of the table = weight among equals.
Invariants: one cause is named once (a silent replica is not reported as lagging too); unknown is never called fine;
`info` never raises the group's severity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.console.aggregate import ack_is_fresh, lag_entries
from app.console.recall import Recall
from app.db.base import parse_time, rfc3339

Json = dict[str, Any]
CRITICAL, ATTENTION, UNKNOWN, INFO = "critical", "attention", "unknown", "info"
SEVERITY_ORDER = (CRITICAL, UNKNOWN, ATTENTION, INFO)

LAG_ENTRIES = 1000
LAG_MS = 1000
LAG_HELD_S = 2.0
NOT_APPEND_S = 2.0
ROUND_TRIPS_PER_MINUTE = 3
CLOSURES_SHARE = 0.8
CLOSURES_OLDEST_MS = 1000
COMMIT_STALLED_S = 2.0
TERM_CHANGES_PER_MINUTE = 3
NO_LEADER_GRACE_S = 1.5
# One sentence tells these: see `damaged`.
DAMAGE_ALARMS = ("log_damaged", "log_unrecoverable")
# What a member that is no full voter may not do; VOTER is the normal state.
VOTER_STATES = {
    "FORMING": "has not seen its group complete yet and does not campaign",
    "REJOINING": "came back without its log and does not vote until it has caught up",
}


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    severity: str
    text: str
    node_id: str | None = None
    since: datetime | None = None
    # How long it must have stood before it is worth a word.
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Facts:
    """What the rules look at."""

    view: Json
    recall: Recall
    now: datetime

    @property
    def members(self) -> list[Json]:
        return list(self.view["members"])

    @property
    def followers(self) -> list[Json]:
        return [one for one in self.members if one["id"] != self.view["leader_id"] and one["reach"] == "ok"]

    @property
    def stands(self) -> bool | None:
        stands: bool | None = self.view["quorum"]["stands"]
        return stands


Rule = Callable[[Facts], Iterator[Finding]]


def nobody_answers(facts: Facts) -> Iterator[Finding]:
    if not facts.members or any(one["reach"] in ("ok", "down") for one in facts.members):
        return
    if all(one["reach"] == "never" for one in facts.members):
        yield Finding("never_reached", UNKNOWN, "No control plane of this group has answered yet, for {age}")
    else:
        yield Finding("all_silent", UNKNOWN, "No control plane of this group has answered for {age}")


def quorum_lost(facts: Facts) -> Iterator[Finding]:
    if facts.stands is not False:
        return
    quorum = facts.view["quorum"]
    silent = [one["id"] for one in facts.members if one["reach"] != "ok"]
    cause = f": {join(silent)} {'do' if len(silent) > 1 else 'does'} not answer" if silent else ""
    if facts.view["leader_id"] is None and quorum["standing"] >= quorum["needed"]:
        return  # enough replicas are up; `no_leader` says it
    yield Finding("quorum_lost", CRITICAL, f"The quorum is lost{cause}; nothing has been committed for {{age}}")


def no_leader(facts: Facts) -> Iterator[Finding]:
    quorum = facts.view["quorum"]
    if facts.view["leader_id"] is None and quorum["standing"] >= quorum["needed"]:
        said = [(one["state"] or {}).get("leader_id") for one in facts.members if one["reach"] == "ok"]
        leaders = sorted({str(one) for one in said if one})
        if leaders:
            text = f"The leader {join(leaders)} does not answer the console, though replicas follow it, for {{age}}"
            yield Finding("leader_out_of_sight", ATTENTION, text, grace_s=NO_LEADER_GRACE_S)
        else:
            text = "There is no leader: no write can be accepted, for {age}"
            yield Finding("no_leader", CRITICAL, text, grace_s=NO_LEADER_GRACE_S)


def two_leaders(facts: Facts) -> Iterator[Finding]:
    terms: dict[int, list[str]] = {}
    for one in facts.members:
        if one["role"] == "LEADER":
            terms.setdefault((one["state"] or {}).get("term", -1), []).append(one["id"])
    for term, ids in terms.items():
        if len(ids) > 1:
            yield Finding("two_leaders", CRITICAL, f"{join(ids)} both lead term {term}: election safety is broken")


def diverged(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        dispatcher = one["dispatcher"] or {}
        if dispatcher.get("state") == "DIVERGED":
            why = f" ({dispatcher['last_error']})" if dispatcher.get("last_error") else ""
            text = f"{one['id']} has DIVERGED below what is committed{why}; replication to it stopped {{age}} ago"
            yield Finding("diverged", CRITICAL, text, one["id"], time_of(dispatcher.get("since")))


def engine_down(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        if one["reach"] == "down":
            state = one["state"] or {}
            told = state.get("engine_reason") or state.get("reason") or state.get("engine_problem")
            reason = f": {told}" if isinstance(told, str) and told else ""
            severity = CRITICAL if facts.stands is False else ATTENTION
            text = f"The engine of {one['id']} is down{reason}, for {{age}}"
            yield Finding("engine_down", severity, text, one["id"])


def silent(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        severity = CRITICAL if facts.stands is False else ATTENTION
        if one["reach"] == "never":
            why = f" ({one['problem']})" if one["problem"] else ""
            since = time_of(one["never_reached_since"])
            yield Finding("never_reached", severity, f"{one['id']} has never been reached{why}", one["id"], since, 2.0)
        elif one["reach"] == "stale":
            heard = ack_is_fresh(one["watermark"] or {})
            engine = (one["state"] or {}).get("engine") == "stale"
            who = f"The engine of {one['id']} does not answer its control plane" if engine else f"{one['id']} is silent"
            tail = "; the leader still hears it" if heard else ""
            since = None if engine else time_of(one["last_seen"])
            yield Finding("replica_silent", severity, f"{who}, for {{age}}{tail}", one["id"], since)


def cut_off(facts: Facts) -> Iterator[Finding]:
    """Answers us, but not its leader: a partition between members."""
    for one in facts.followers:
        age_ms = (one["watermark"] or {}).get("last_ack_ms")
        if age_ms is not None and not ack_is_fresh(one["watermark"]):
            text = f"{one['id']} runs, but the leader {facts.view['leader_id']} has not heard it for {{age}}"
            # A member that has just come back is heard at the next push: not worth a word.
            yield Finding("cut_off", ATTENTION, text, one["id"], moment(facts.now, age_ms / 1000), 1.5)


def disk(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        if one["reach"] != "ok":
            continue
        for alarm in (one["state"] or {}).get("alarms") or []:
            told = alarm if isinstance(alarm, dict) else {"kind": str(alarm)}
            kind = str(told.get("kind") or told.get("code") or told.get("name") or "alarm")
            if kind in DAMAGE_ALARMS and one["state"].get("faults"):
                continue  # `damaged` says it in one sentence
            detail = told.get("detail") or told.get("text") or told.get("message") or ""
            severity = CRITICAL if told.get("severity") == "critical" or kind.endswith("full") else ATTENTION
            text = f"{one['id']} raises {kind.replace('_', ' ')}" + (f": {plain(detail)}" if detail else "")
            yield Finding(f"alarm_{kind}", severity, text, one["id"], time_of(told.get("since") or told.get("at")))


def damaged(facts: Facts) -> Iterator[Finding]:
    """A member that cannot read part of its own log: which, what it may not do, and whether that heals."""
    for one in facts.members:
        state = one["state"] or {}
        faults, repair = state.get("faults") or [], state.get("repair") or {}
        if one["reach"] != "ok" or not faults:
            continue
        spans = [spelled_range(fault["first_index"], fault["last_index"]) for fault in faults]
        which = ", ".join(spans[:3]) + (f" and {len(spans) - 3} more ranges" if len(spans) > 3 else "")
        may_not = f"it votes, but cannot lead, does not count from entry {faults[0]['first_index']:,} on"
        whose = "it" if len(faults) == 1 and faults[0]["first_index"] == faults[0]["last_index"] else "them"
        hopeless = repair.get("hopeless") or 0
        alarms = {alarm.get("code"): alarm for alarm in state.get("alarms") or [] if isinstance(alarm, dict)}
        if hopeless:
            tail = "no member of the group can give what was written: `quorumscope store verify` shows what is gone"
        elif repair.get("peer_id"):
            tail = f"it is being repaired from {repair['peer_id']}, for {{age}}"
        else:
            tail = "it is repaired as soon as a peer that holds it answers, for {age}"
        text = f"{one['id']} cannot read {which} of its log: {may_not} and does not serve {whose}; {tail}"
        since = time_of((alarms.get("log_damaged") or {}).get("since"))
        severity = CRITICAL if hopeless else ATTENTION
        yield Finding("log_damaged", severity, text, one["id"], since)


def spelled_range(first: int, last: int) -> str:
    return f"entry {first:,}" if first == last else f"entries {first:,} to {last:,}"


def voter_state(facts: Facts) -> Iterator[Finding]:
    for one in facts.members:
        told = VOTER_STATES.get(str((one["state"] or {}).get("voter_state")))
        if one["reach"] == "ok" and told is not None:
            yield Finding("voter_restricted", ATTENTION, f"{one['id']} {told}, for {{age}}", one["id"], grace_s=5.0)


def lagging(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        lag = lag_entries(facts.view, one)
        series = facts.recall.lags.get(one["id"])
        lag_ms = (one["watermark"] or {}).get("lag_ms")
        if lag is None or lag <= LAG_ENTRIES or series is None or (lag_ms is not None and lag_ms <= LAG_MS):
            continue
        if series.held_s(lambda value: value > LAG_ENTRIES) < LAG_HELD_S:
            continue
        state, held = dispatcher_state(one)
        where = f": {state} for {spell(seconds_since(held, facts.now))}" if state and state != "APPEND" and held else ""
        rate = series.rate_per_s()
        if rate is None:
            yield Finding("lagging", ATTENTION, f"{one['id']} is {lag:,} entries behind{where}", one["id"])
        elif rate < -lag * 0.001:
            rest_s = lag / -rate
            text = f"{one['id']} is {lag:,} entries behind and catching up, level in about {spell(rest_s)}"
            yield Finding("catching_up", ATTENTION, text, one["id"])
        else:
            text = f"{one['id']} is {lag:,} entries behind and not catching up{where or ', for {age}'}"
            yield Finding("not_catching_up", ATTENTION, text, one["id"])


def dispatcher(facts: Facts) -> Iterator[Finding]:
    for one in facts.followers:
        item = one["dispatcher"] or {}
        trips = round_trips(item, facts.now)
        if trips > ROUND_TRIPS_PER_MINUTE:
            text = f"{one['id']} goes round between COMPARE and INSTALL_SNAPSHOT, {trips} times in the last minute"
            yield Finding("dispatcher_loop", CRITICAL, text, one["id"])
        state, since = dispatcher_state(one)
        if state in (None, "APPEND", "DIVERGED") or since is None or not ack_is_fresh(one["watermark"] or {}):
            continue
        if seconds_since(since, facts.now) > NOT_APPEND_S:
            why = f" ({item['last_error']})" if item.get("last_error") else reason_of(item)
            text = f"The dispatcher of {one['id']} has been in {state} for {{age}}{why}"
            yield Finding("not_append", ATTENTION, text, one["id"], since)


def closures(facts: Facts) -> Iterator[Finding]:
    told = facts.view["closures"] or {}
    pending, limit, oldest_ms = told.get("pending") or 0, told.get("limit"), told.get("oldest_age_ms")
    oldest = f", oldest {oldest_ms / 1000:.1f} s" if oldest_ms is not None and oldest_ms >= 0 else ""
    if limit and pending >= limit:
        yield Finding("closures_full", CRITICAL, f"{pending:,} writes wait, the limit: new ones are refused{oldest}")
    elif limit and pending >= CLOSURES_SHARE * limit:
        yield Finding("closures_piling", ATTENTION, f"{pending:,} writes wait, of at most {limit:,}{oldest}")
    elif pending and oldest_ms is not None and oldest_ms > CLOSURES_OLDEST_MS:
        yield Finding("closures_slow", ATTENTION, f"{pending:,} writes wait{oldest}")


def commit_stalled(facts: Facts) -> Iterator[Finding]:
    committed, waiting = facts.recall.committed, facts.recall.waiting
    if facts.view["leader_id"] is None or not committed.points or not waiting.points:
        return
    newest, count = committed.points[-1][1], waiting.points[-1][1]
    # An idle log stands still too: what counts is since when somebody waits.
    held_s = min(committed.held_s(lambda value: value == newest), waiting.held_s(lambda value: value > 0))
    if held_s >= COMMIT_STALLED_S:
        text = f"The commit index has not moved from {newest:,} for {{age}}, {count:,} entries wait"
        yield Finding("commit_stalled", CRITICAL, text, since=moment(facts.now, held_s))


def term_flapping(facts: Facts) -> Iterator[Finding]:
    changes = facts.recall.term_changes()
    if changes >= TERM_CHANGES_PER_MINUTE:
        text = f"The term changed {changes} times in the last minute: elections do not settle"
        yield Finding("term_flapping", ATTENTION, text)


def flush_async(facts: Facts) -> Iterator[Finding]:
    if facts.view["flush"] == "async":
        text = "flush is async: writes are acknowledged before they are on a disk; a power cut of a quorum loses them"
        yield Finding("flush_async", INFO, text)


RULES: tuple[Rule, ...] = (
    two_leaders,
    diverged,
    nobody_answers,
    quorum_lost,
    no_leader,
    engine_down,
    silent,
    cut_off,
    disk,
    damaged,
    commit_stalled,
    closures,
    dispatcher,
    lagging,
    voter_state,
    term_flapping,
    flush_async,
)


def classify(view: Json, recall: Recall, now: datetime) -> list[Json]:
    """All problems, worst first; remembers since when each stands."""
    facts = Facts(view, recall, now)
    found = [finding for rule in RULES for finding in rule(facts)]
    if any(one.code in ("never_reached", "all_silent") and one.node_id is None for one in found):
        found = [one for one in found if one.code not in ("never_reached", "replica_silent") or one.node_id is None]
    lagged = {one.node_id for one in found if one.code == "not_catching_up"}
    found = [one for one in found if not (one.code == "not_append" and one.node_id in lagged)]
    ids = {problem_id(one) for one in found}
    problems = []
    for one in found:
        first = recall.since(problem_id(one), now)
        since = min(one.since, now) if one.since is not None else first
        if (now - first).total_seconds() < one.grace_s:
            continue
        problems.append(
            {
                "id": problem_id(one),
                "code": one.code,
                "severity": one.severity,
                "node_id": one.node_id,
                "text": one.text.replace("{age}", spell((now - since).total_seconds())) + ".",
                "since": rfc3339(since),
            }
        )
    recall.forget_all_but(ids)
    return sorted(problems, key=lambda one: SEVERITY_ORDER.index(str(one["severity"])))


def problem_id(finding: Finding) -> str:
    return f"{finding.code}:{finding.node_id or ''}"


def worst(problems: list[Json]) -> str:
    """The group's severity."""
    weighty = [one["severity"] for one in problems if one["severity"] != INFO]
    return next((one for one in SEVERITY_ORDER if one in weighty), "ok")


def round_trips(item: Json, now: datetime) -> int:
    """COMPARE -> INSTALL_SNAPSHOT transitions of the last minute."""
    recent = [one for one in item.get("transitions") or [] if one.get("to") == "INSTALL_SNAPSHOT"]
    times = [time_of(one.get("at")) for one in recent]
    return sum(1 for at in times if at is not None and seconds_since(at, now) <= 60)


def reason_of(item: Json) -> str:
    transitions = item.get("transitions") or []
    reason = transitions[-1].get("reason") if transitions else None
    return f" ({reason})" if reason else ""


def dispatcher_state(one: Json) -> tuple[str | None, datetime | None]:
    item = one["dispatcher"] or {}
    return item.get("state"), time_of(item.get("since"))


def time_of(text: Any) -> datetime | None:
    try:
        return parse_time(text) if isinstance(text, str) else None
    except ValueError:
        return None


def seconds_since(at: datetime, now: datetime) -> float:
    return max(0.0, (now - at).total_seconds())


def moment(now: datetime, ago_s: float) -> datetime:
    return datetime.fromtimestamp(now.timestamp() - ago_s, tz=now.tzinfo)


def plain(detail: Any) -> str:
    if isinstance(detail, dict):
        return ", ".join(f"{key} {value}" for key, value in detail.items())
    return str(detail)


def join(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else ""


def spell(seconds: float) -> str:
    """An age as people say it: 38 s, 4 min, 2 h 5 min, 3 d."""
    whole = int(max(0.0, seconds))
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min"
    if whole < 2 * 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d"
