"""Problems of the console itself: database, disk, certificates, tokens, clocks. Rules over OwnFacts, pure.

A rule yields findings; what each means and what to do stands beside it. Invariants: what is not known is no problem
here, unless it had to be known (a certificate that cannot be read); each problem says what to do; `since` is when the
fact began, as far as it is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from app.console.own_facts import CertificateFacts, ClockFacts, OwnFacts
from app.health.facts import (
    ATTENTION,
    CERTIFICATE_NOW,
    CERTIFICATE_SOON,
    CRITICAL,
    INFO,
    capital,
    spell,
)
from app.health.group_view import Problem
from app.times import rfc3339

DOCS: Final = "docs/notifications.md#problems-of-the-console-itself"
SLOW_WRITE_MS: Final = 1000.0
DATABASE_BYTES_MAX: Final = 4_000_000_000
# Of the disk that the database lies on: a share, and no more than so much.
LOW_SHARE, LOW_BYTES = 0.05, 5_000_000_000
FULL_SHARE, FULL_BYTES = 0.01, 500_000_000
TOKEN_SOON: Final = timedelta(days=7)
TOKEN_NOW: Final = timedelta(days=2)
# A token that nobody used for so long before its end is missed by nobody.
TOKEN_IN_USE: Final = timedelta(days=7)
CLOCK_MS: Final = 2000.0
OURS: Final = "the certificate of this console"
AUTHORITIES: Final = "the last authority for control planes"


@dataclass(frozen=True, slots=True)
class OwnFinding:
    """`subject` keeps two findings of one code apart; `grace_s`: how long it must have stood to be worth a word."""

    code: str
    severity: str
    text: str
    means: str
    at_stake: str
    step: str
    subject: str = ""
    since: datetime | None = None
    grace_s: float = 0.0
    command: str | None = None

    @property
    def id(self) -> str:
        return f"{self.code}:{self.subject}"


Rule = Callable[[OwnFacts], Iterator[OwnFinding]]


def database(facts: OwnFacts) -> Iterator[OwnFinding]:
    one = facts.database
    if one.error is not None:
        yield OwnFinding(
            "database_not_writable", CRITICAL,
            f"The console's database cannot be written: {one.error}",
            "nothing is stored: no history, no events, no trail; changes through this console are refused, while it"
            " goes on watching",
            "what happens now is missing from the history; messages still go out, and are sent again after a restart",
            f"look at {one.place}: its disk, its mode, and who else has it open",
            since=one.failing_since,
        )  # fmt: skip
    elif one.write_ms is not None and one.write_ms > SLOW_WRITE_MS:
        yield OwnFinding(
            "database_slow", ATTENTION, f"The console's database takes {one.write_ms / 1000:.1f} s for one write",
            "another process holds it, or its disk is too slow", "pages that store something wait so long",
            f"look who else has {one.place} open, and at its disk", grace_s=15.0,
        )  # fmt: skip
    if one.size_bytes is not None and one.size_bytes > DATABASE_BYTES_MAX:
        yield OwnFinding(
            "database_large", ATTENTION, f"The console's database has {one.size_bytes / 1e9:.1f} GB",
            "history, operations and trail are kept longer, or of more groups, than this console is meant for",
            "its disk fills, and pages over long times become slow",
            "set `console.history_days`, `operations_days` and `trail_days` lower, or move it to a PostgreSQL server",
        )  # fmt: skip


def disk(facts: OwnFacts) -> Iterator[OwnFinding]:
    one = facts.disk
    if one is None:
        return
    full = one.free_bytes < min(one.total_bytes * FULL_SHARE, FULL_BYTES)
    if full or one.free_bytes < min(one.total_bytes * LOW_SHARE, LOW_BYTES):
        yield OwnFinding(
            "console_disk_low", CRITICAL if full else ATTENTION,
            f"The disk of this console has {one.free_bytes / 1e9:.2f} GB of {one.total_bytes / 1e9:.0f} GB left",
            f"the console's database and its audits lie on it, under {one.path}",
            "once it is full nothing is stored, no audit ends, and changes are refused",
            "make room; this says what takes it", command=f"du -xh --max-depth=2 {one.path} | sort -h | tail",
        )  # fmt: skip


def certificates(facts: OwnFacts) -> Iterator[OwnFinding]:
    for one in facts.certificates:
        if one.ends_at is None:
            yield finding_of(one, ATTENTION, f"{capital(one.what)} cannot be read: {one.error or 'unknown'}")
            continue
        left = one.ends_at - facts.as_of
        if left <= timedelta(0):
            ended = spell(-left.total_seconds())
            yield finding_of(one, CRITICAL, f"{capital(one.what)} is not valid any more; it ended {ended} ago")
        elif left <= CERTIFICATE_SOON:
            severity = CRITICAL if left <= CERTIFICATE_NOW else ATTENTION
            yield finding_of(one, severity, f"{capital(one.what)} ends in {spell(left.total_seconds())}")


def finding_of(one: CertificateFacts, severity: str, text: str) -> OwnFinding:
    ours = "browsers and programs refuse a console whose certificate has ended"
    theirs = "control planes whose certificates these authorities signed are not reached once they have ended"
    return OwnFinding(
        "certificate_ends", severity, text, ours if ours_is(one) else theirs,
        "nobody gets in over HTTPS" if ours_is(one) else "groups go dark, though they run",
        f"put a new one at {one.path} and send SIGHUP to the console; this says what the file holds",
        subject="console" if ours_is(one) else "authorities",
        command=f"openssl x509 -noout -subject -enddate -in {one.path}",
    )  # fmt: skip


def ours_is(one: CertificateFacts) -> bool:
    return one.what == OURS


def tokens(facts: OwnFacts) -> Iterator[OwnFinding]:
    for one in facts.tokens:
        if one.used_at is None or min(one.ends_at, facts.as_of) - one.used_at > TOKEN_IN_USE:
            continue
        left = one.ends_at - facts.as_of
        if left > TOKEN_SOON:
            continue
        spelled = spell(abs(left.total_seconds()))
        over = left <= timedelta(0)
        yield OwnFinding(
            "token_ends", ATTENTION if left <= TOKEN_NOW else INFO,
            f"The API token {one.name} of {one.user} " + (f"ended {spelled} ago" if over else f"ends in {spelled}"),
            "something uses it: " + ("it is refused now" if over else "it is refused from then on"),
            "what works with it (a script, a monitor) stops",
            f"make another one under Account as {one.user}, hand it to what uses this one, and revoke this one",
            subject=str(one.id),
        )  # fmt: skip


def clocks(facts: OwnFacts) -> Iterator[OwnFinding]:
    """One whose clock differs from all others' is the one to mend: a member, or this console."""
    differ = [one for one in facts.clocks if abs(one.offset_ms) > CLOCK_MS + one.margin_ms]
    offsets = [one.offset_ms for one in facts.clocks]
    if len(facts.clocks) > 1 and len(differ) == len(facts.clocks) and max(offsets) - min(offsets) <= CLOCK_MS:
        middle = sorted(offsets)[len(offsets) // 2]
        where = "behind" if middle > 0 else "ahead of"
        yield clock(
            f"The clock of this console is {spell_s(middle)} {where} those of all {len(offsets)} members that it asks",
            "this machine's clock is not set by a time server, or by another one than the members'",
            "this console's machine",
        )
        return
    for one in sorted(differ, key=lambda each: (each.scope, each.node_id)):
        means = "its clock, or this console's, is not set by a time server"
        yield clock(clock_text(one), means, f"{one.node_id}'s machine", one)


def clock_text(one: ClockFacts) -> str:
    where = "ahead of" if one.offset_ms > 0 else "behind"
    return f"The clock of {one.node_id} ({one.group}) is {spell_s(one.offset_ms)} {where} this console's"


def clock(text: str, means: str, whose: str, one: ClockFacts | None = None) -> OwnFinding:
    return OwnFinding(
        "clock_differs", ATTENTION, text, means,
        "no entry: replication asks no clock what time it is; but events of different members are not in their true"
        " order, and certificates are taken for ended, or not valid yet",
        f"set the clock of {whose}; there, this says whether a time server is followed",
        subject=f"{one.scope}.{one.node_id}" if one is not None else "", grace_s=15.0, command="timedatectl",
    )  # fmt: skip


def spell_s(offset_ms: float) -> str:
    seconds = abs(offset_ms) / 1000
    return f"{seconds:.1f} s" if seconds < 10 else spell(seconds)


def not_reread(facts: OwnFacts) -> Iterator[OwnFinding]:
    if facts.not_reread is not None:
        yield OwnFinding(
            "file_not_reread", ATTENTION, f"A file could not be read again: {facts.not_reread}",
            "somebody asked for it with SIGHUP, and the file is not what it has to be",
            "once the old certificate or token ends, or the console is started anew, it is missed",
            "mend that file, and send SIGHUP to the console again (`systemctl reload quorumscope-console`)",
            since=facts.not_reread_since,
        )  # fmt: skip


def restart_needed(facts: OwnFacts) -> Iterator[OwnFinding]:
    if facts.restart_needed:
        yield OwnFinding(
            "restart_needed", ATTENTION, f"Restart needed: {', '.join(facts.restart_needed)}",
            "the configuration says something else for these keys by now, and they change with a start only",
            "the console goes on as it was started",
            "start the console anew (`systemctl restart quorumscope-console`), or put the file back and send SIGHUP",
        )  # fmt: skip


RULES: Final[tuple[Rule, ...]] = (database, disk, certificates, tokens, clocks, not_reread, restart_needed)


class OwnProblems:
    """The rules with their memory: since when each finding stands."""

    def __init__(self) -> None:
        self.noticed: dict[str, datetime] = {}

    def judge(self, facts: OwnFacts) -> list[Problem]:
        found = [one for rule in RULES for one in rule(facts)]
        now = facts.as_of
        self.noticed = {one.id: min(self.noticed.get(one.id, now), one.since or now) for one in found}
        ripe = [one for one in found if (now - self.noticed[one.id]).total_seconds() >= one.grace_s]
        return [problem_of(one, self.noticed[one.id]) for one in ripe]


def problem_of(one: OwnFinding, since: datetime) -> Problem:
    text = one.text + "."
    sentence = f"{one.step}: `{one.command}`" if one.command else one.step
    return Problem(
        id=one.id, code=one.code, severity=one.severity, text=text, what=text, since=rfc3339(since), means=one.means,
        at_stake=one.at_stake, step=one.step, command=one.command, docs=DOCS, next_step=sentence,
    )  # fmt: skip
