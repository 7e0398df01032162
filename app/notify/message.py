"""What a message says: the JSON of a webhook, and the subject and text of a mail, from the same facts. Pure.

Invariants: a line that came from a member cannot end a header (what cannot be printed becomes a space) and is bounded;
times are RFC 3339 UTC; no secret is in a message.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Final

from app.health.facts import capital, spell
from app.notify.rules import CONSOLE, Alert, Due
from app.times import rfc3339

Json = dict[str, Any]
LINE_CHARS_MAX: Final = 300
SUBJECT_CHARS_MAX: Final = 160
PREFIXES: Final = {"opened": "", "worse": "worse: ", "reminder": "still: "}
STEPS: Final = ("means", "at_stake", "step", "command", "curl", "docs")


def line(text: str, chars_max: int = LINE_CHARS_MAX) -> str:
    """One line of at most so many characters."""
    plain = "".join(one if one.isprintable() else " " for one in text).strip()
    return plain if len(plain) <= chars_max else plain[: chars_max - 1].rstrip() + "…"


def payload_of(due: Due, route_name: str, console_url: str) -> Json:
    """The body of a webhook; a mail is written from it. `id` stays the same when it is sent again."""
    alert, until = due.alert, due.until
    scope, problem = alert.open.key.scope, alert.open.problem
    shown = problem.model_dump(mode="json")
    lasted_s = ((until or due.at) - alert.began).total_seconds()
    group = None if scope == CONSOLE else {"id": scope, "name": alert.open.scope_name}
    return {
        "id": str(uuid.uuid4()),
        "kind": due.kind,
        "at": rfc3339(due.at),
        "route": route_name,
        "thread": thread_of(alert),
        "text": line(headline(due.kind, alert.open.scope_name, problem.what, lasted_s)),
        "group": group,
        "problem": {
            "id": problem.id,
            "code": problem.code,
            "severity": problem.severity,
            "member": problem.node_id,
            "text": line(problem.what),
            "since": rfc3339(alert.began),
            "until": rfc3339(until) if until is not None else None,
            "lasted_s": round(max(0.0, lasted_s), 3),
            **{name: shown[name] or None for name in STEPS},
        },
        "console_url": console_url,
        "page": console_url + (f"/clusters/{scope}" if group is not None else "/notifications"),
    }


def headline(kind: str, scope_name: str, what: str, lasted_s: float) -> str:
    if kind == "over":
        return f"{scope_name}: over after {spell(lasted_s)}: {what}"
    return f"{scope_name}: {PREFIXES[kind]}{what}"


def thread_of(alert: Alert) -> str:
    """The same for all messages of one alert."""
    key = alert.open.key
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key.scope}/{key.problem_id}/{rfc3339(alert.noticed_at)}"))


def trial_payload(route_name: str, by: str, at: datetime, console_url: str) -> Json:
    text = f"Test of the route {route_name}, sent by {by}. Nothing is wrong."
    return {
        "id": str(uuid.uuid4()),
        "kind": "test",
        "at": rfc3339(at),
        "route": route_name,
        "thread": str(uuid.uuid4()),
        "text": line(text),
        "group": None,
        "problem": None,
        "console_url": console_url,
        "page": f"{console_url}/notifications",
    }


def subject_of(payload: Json) -> str:
    problem = payload["problem"]
    weight = "" if problem is None or payload["kind"] == "over" else f"{problem['severity']}: "
    return line(f"[Quorumscope] {weight}{payload['text']}", SUBJECT_CHARS_MAX)


def text_of(payload: Json) -> str:
    """The body of a mail."""
    problem = payload["problem"]
    lines = [payload["text"], ""]
    if problem is not None:
        lines += [f"Since:         {problem['since']}"]
        if problem["until"] is not None:
            lines += [f"Until:         {problem['until']}"]
        lines += [f"Severity:      {problem['severity']}"]
        if payload["kind"] != "over":
            named = (("What it means", "means"), ("At stake", "at_stake"), ("What to do", "step"))
            lines += [
                f"{f'{name}:':<14} {line(capital(problem[key], problem.get('member')), 2000)}"
                for name, key in named
                if problem[key]
            ]
            lines += ["", *(f"    {line(problem[key], 2000)}" for key in ("command", "curl") if problem[key])]
        lines += [""]
    lines += [f"Page:          {payload['page']}", f"Message:       {payload['id']} ({payload['kind']})", ""]
    return "\n".join(lines)
