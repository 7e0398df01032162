"""Pages about messages: routes, what stands and who has taken it on, maintenance windows, history.

Each calls the function of its JSON twin (app.api.alerts). Invariants: every form posts without JavaScript and answers
303 to a page that shows the outcome; a key that the console made is shown in the answer to the form that made it, and
nowhere else; buttons stand only where the role allows them, and the gate asks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from app.api import alert_models, alerts
from app.api.alert_rights import allowed, standing
from app.api.alerts import NotifierDep, ProblemId, RouteName, Scope
from app.api.common import ConsoleDep, Cursor, Json, RowId, ViewerDep
from app.console import format as fmt
from app.console.console import Console
from app.console.drawing import page, see
from app.console.errors import ConsoleError, Invalid
from app.console.own_facts import OwnFacts
from app.health.facts import ATTENTION, INFO, join
from app.health.group_view import ClusterView
from app.notify import delivery
from app.notify.notifier import Notifier
from app.notify.routes import NewRoute, RoutePatch
from app.security.roles import Right, Viewer
from app.times import parse_time, rfc3339, shifted, utc_now

router = APIRouter(include_in_schema=False)
HISTORY_SHOWN: Final = 20
MUTE_HOURS: Final = {"1": "1 hour", "4": "4 hours", "12": "12 hours", "24": "a day", "72": "3 days", "168": "a week"}
WINDOW_HOURS: Final = {"1": "1 hour", "2": "2 hours", "4": "4 hours", "8": "8 hours", "24": "a day", "72": "3 days"}
Text = Annotated[str, Form(max_length=1024)]
Hours = Annotated[int, Form(ge=1, le=720)]
PAGE: Final = "/notifications"
PARTLY: Final = (
    INFO,
    "Of the groups that you see.",
    "Where messages go, and what the console knows of itself, is shown to those who see all.",
)
BLANK: Final[Mapping[str, str]] = {
    "kind": "", "name": "", "url": "", "host": "", "port": "587", "security": "starttls", "user": "", "sender": "",
    "recipients": "", "severity": "attention", "hold_s": "60", "reminder_s": "",
}  # fmt: skip


# --- the page ------------------------------------------------------------------------------------------------------


@router.get(PAGE)
async def notifications(
    request: Request,
    console: ConsoleDep,
    notifier: NotifierDep,
    viewer: ViewerDep,
    cursor: Cursor = None,
    tested: Annotated[str | None, Query(max_length=36)] = None,
) -> Response:
    return await show(request, console, notifier, viewer, cursor=cursor, tested=tested)


async def show(
    request: Request, console: ConsoleDep, notifier: Notifier, viewer: ViewerDep, *, status: int = 200,
    cursor: str | None = None, tested: str | None = None, made: Json | None = None,
) -> Response:  # fmt: skip
    whole = viewer.can("view")
    routes = (await alerts.list_routes(notifier, viewer))["items"] if whole else []
    messages = await alerts.list_messages(notifier, viewer.sight, HISTORY_SHOWN, cursor)
    context = {
        "sentence_of": sentence(routes) if whole else PARTLY, "routes": routes, "made": made, "whole": whole,
        "own": console.own_problems() if whole else [], "role": viewer.role,
        "alerts": alerts.alerts_json(notifier, viewer),
        "windows": (await alerts.list_windows(notifier, viewer))["items"], "groups": operated(console, viewer),
        "window_hours": WINDOW_HOURS,
        "messages": messages["items"], "next": messages["next"], "first": cursor is None,
        "trial": await trial_of(notifier, tested) if whole else None,
        "facts": own_facts(request.app.state.own_watch.facts) if whole else [],
    }  # fmt: skip
    return page(request, "notifications/page", context, status)


def operated(console: Console, viewer: Viewer) -> list[ClusterView]:
    """For which groups the viewer may announce maintenance."""
    return [view.cluster for view in console.clusters(viewer.grants.sight("operate"))]


def sentence(routes: list[Json]) -> tuple[str, str, str]:
    """Severity, headline and rest: whether anybody would hear of a problem now."""
    used = [one for one in routes if one["enabled"]]
    failing = [one for one in used if one["failing_since"] is not None]
    unused = [one["name"] for one in used if one["delivered_at"] is None and one["failing_since"] is None]
    if not used:
        why = "There is no route" if not routes else "All routes are switched off"
        return INFO, f"{why}: nobody hears of a problem who is not looking.", "An admin makes routes, below."
    if failing:
        first = failing[0]
        rest = f"Of {len(used)} routes {len(failing)} fail." if len(used) > 1 else "It is the only route."
        since = f"since {delivery.minute(parse_time(first['failing_since']))}"
        return ATTENTION, f"The route {first['name']} has not delivered {since}: {first['error']}.", rest
    if unused:
        verb = "were" if len(unused) > 1 else "was"
        return INFO, f"{join(unused)} {verb} never used: whether messages arrive is not known.", "Press Test."
    last = delivery.minute(parse_time(max(one["delivered_at"] for one in used)))
    count = "The route delivers." if len(used) == 1 else f"All {len(used)} routes deliver."
    return "ok", count, f"The last message went out at {last}."


async def trial_of(notifier: Notifier, message_id: str | None) -> Json | None:
    """What came of a test, stored or not yet."""
    held = notifier.outbox.messages.get(message_id or "")
    if held is not None:
        return alerts.message_json(held.row())
    row = await notifier.kept.message(message_id) if message_id is not None else None
    return alerts.message_json(row) if row is not None and row.kind == "test" else None


def own_facts(facts: OwnFacts) -> list[tuple[str, str]]:
    """What the console knows of itself, whether or not something is wrong with it."""
    database, disk, ends = facts.database, facts.disk, [one.ends_at for one in facts.certificates if one.ends_at]
    written = f"written in {fmt.duration_ms(database.write_ms)}" if database.error is None else database.error
    worst = max((abs(one.offset_ms) for one in facts.clocks), default=None)
    return [
        ("Database", f"{written}, {fmt.size(database.size_bytes)}"),
        ("Disk", f"{fmt.size(disk.free_bytes)} of {fmt.size(disk.total_bytes)} free" if disk else fmt.UNKNOWN),
        ("Certificates", f"the first ends {delivery.minute(min(ends))}" if ends else "none of its own"),
        ("API tokens", f"{len(facts.tokens)} near their end" if facts.tokens else "none near its end"),
        ("Clocks", f"{len(facts.clocks)} members, at most {fmt.duration_ms(worst)} apart from this one"
         if worst is not None else fmt.UNKNOWN),
    ]  # fmt: skip


# --- one problem ---------------------------------------------------------------------------------------------------


@router.get(PAGE + "/problems/{scope}/{problem_id}")
async def problem(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep
) -> Response:
    alert = standing(notifier, scope, problem_id, viewer, Right.VIEW)
    context = {
        "role": viewer.role_on(scope), "may": allowed(viewer, Right.OPERATE, scope),
        "alert": alerts.alert_json(notifier, alert, utc_now()), "problem": alert.open.problem,
        "mute_hours": MUTE_HOURS,
    }  # fmt: skip
    return page(request, "notifications/problem", context)


def problem_page(scope: str, problem_id: str) -> Response:
    return see(f"{PAGE}/problems/{quote(scope, safe='')}/{quote(problem_id, safe='')}")


@router.post(PAGE + "/problems/{scope}/{problem_id}/acknowledge")
async def acknowledge(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep
) -> Response:
    await alerts.acknowledge(request, scope, problem_id, notifier, viewer)
    return problem_page(scope, problem_id)


@router.post(PAGE + "/problems/{scope}/{problem_id}/unacknowledge")
async def unacknowledge(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep
) -> Response:
    await alerts.unacknowledge(request, scope, problem_id, notifier, viewer)
    return problem_page(scope, problem_id)


@router.post(PAGE + "/problems/{scope}/{problem_id}/mute")
async def mute(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep,
    hours: Hours = 1, until: Text = "",
) -> Response:  # fmt: skip
    ends = rfc3339(utc_now() + timedelta(hours=hours)) if not until.strip() else utc_of(until, "until")
    await alerts.mute(request, scope, problem_id, alert_models.Mute(until=ends), notifier, viewer)
    return problem_page(scope, problem_id)


@router.post(PAGE + "/problems/{scope}/{problem_id}/unmute")
async def unmute(scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep) -> Response:
    await alerts.unmute(scope, problem_id, notifier, viewer)
    return problem_page(scope, problem_id)


def utc_of(text: str, name: str) -> str:
    """A form's local time, which the page asks for in UTC. Raises Invalid."""
    try:
        at = datetime.fromisoformat(text.strip())
        return rfc3339(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise Invalid(f"{name}: {text!r} is no time such as 2026-01-31T22:00") from None


# --- maintenance ---------------------------------------------------------------------------------------------------


@router.post(PAGE + "/windows")
async def add_window(
    request: Request,
    notifier: NotifierDep,
    console: ConsoleDep,
    viewer: ViewerDep,
    hours: Hours,
    group: Text = "",
    begin: Text = "",
    reason: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    begins = utc_of(begin, "begin") if begin.strip() else rfc3339(utc_now())
    until = rfc3339(shifted(datetime.fromisoformat(begins), hours * 3600))
    asked = alert_models.NewWindow(group=group or None, begin=begins, until=until, reason=reason)
    await alerts.add_window(request, asked, notifier, console, viewer)
    return see(f"{PAGE}#maintenance")


@router.post(PAGE + "/windows/{window_id}/remove")
async def remove_window(request: Request, window_id: RowId, notifier: NotifierDep, viewer: ViewerDep) -> Response:
    await alerts.remove_window(request, window_id, notifier, viewer)
    return see(f"{PAGE}#maintenance")


# --- routes --------------------------------------------------------------------------------------------------------


@router.get(PAGE + "/new")
async def new_route(request: Request) -> Response:
    return form(request, BLANK)


def form(request: Request, given: Mapping[str, str], error: str | None = None, status: int = 200) -> Response:
    """Filled in as it was; the other form is blank."""
    kinds = {kind: given if given["kind"] == kind else BLANK for kind in ("webhook", "mail")}
    return page(request, "notifications/route_new", {"error": error, **kinds}, status)


@router.post(PAGE + "/routes")
async def add_route(
    request: Request, console: ConsoleDep, notifier: NotifierDep, viewer: ViewerDep, kind: Text, name: Text = "",
    url: Text = "", host: Text = "", port: Text = "", security: Text = "", user: Text = "", secret: Text = "",
    sender: Text = "", recipients: Text = "", severity: Text = "attention", hold_s: Text = "60", reminder_s: Text = "",
) -> Response:  # fmt: skip
    """What is wrong comes back in the form, filled in as it was, without the secret."""
    given = {
        "kind": kind, "name": name, "url": url, "host": host, "port": port, "security": security, "user": user,
        "sender": sender, "recipients": recipients, "severity": severity, "hold_s": hold_s, "reminder_s": reminder_s,
    }  # fmt: skip
    try:
        asked = NewRoute.model_validate(wanted(given, secret), strict=False)  # a form has texts only
        made = await alerts.add_route(request, asked, notifier, Response())
    except ValidationError as error:
        return form(request, given, in_words(error), 422)
    except ConsoleError as error:
        return form(request, given, error.detail, error.status)
    if "secret" not in made:
        return see(f"{PAGE}#routes")
    return await show(request, console, notifier, viewer, status=201, made=made)


def wanted(given: Mapping[str, str], secret: str) -> Json:
    """The form as the API would be asked."""
    fields: Json = {"name": given["name"].strip(), "severity": given["severity"], "hold_s": given["hold_s"] or 0}
    fields |= {"reminder_s": given["reminder_s"] or None, "secret": secret or None}
    if given["kind"] == "webhook":
        return fields | {"webhook": {"url": given["url"]}}
    people = [one for one in given["recipients"].replace(",", " ").split() if one]
    named = {key: given[key].strip() for key in ("host", "port", "security", "sender")}
    return fields | {"mail": named | {"user": given["user"].strip() or None, "recipients": people}}


def in_words(error: ValidationError) -> str:
    """Which field and why; never what was given, which may be a secret."""
    parts = []
    for one in error.errors(include_input=False, include_url=False):
        where = " ".join(str(part) for part in one["loc"] if part not in ("mail", "webhook"))
        reason = one["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {reason}" if where else reason)
    return "; ".join(parts)


@router.post(PAGE + "/routes/{name}/test")
async def try_route(name: RouteName, notifier: NotifierDep, viewer: ViewerDep) -> Response:
    done = await alerts.try_route(notifier, alerts.route_named(notifier, name), viewer.name)
    return see(f"{PAGE}?tested={done['id']}#tested")


@router.post(PAGE + "/routes/{name}/change")
async def change_route(
    request: Request, name: RouteName, notifier: NotifierDep, severity: Text = "attention", hold_s: Text = "60",
    reminder_s: Text = "", enabled: Text = "",
) -> Response:  # fmt: skip
    fields = {"severity": severity, "hold_s": hold_s or 0, "reminder_s": reminder_s or None, "enabled": bool(enabled)}
    try:
        asked = RoutePatch.model_validate(fields, strict=False)
    except ValidationError as error:
        raise Invalid(in_words(error)) from None
    await alerts.change_route(request, name, asked, notifier)
    return see(f"{PAGE}#routes")


@router.post(PAGE + "/routes/{name}/remove")
async def remove_route(request: Request, name: RouteName, notifier: NotifierDep) -> Response:
    await alerts.remove_route(request, name, notifier)
    return see(f"{PAGE}#routes")
