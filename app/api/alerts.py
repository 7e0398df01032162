"""Alerts: what stands and who has taken it on, mutes, maintenance windows, routes of messages, and their history.

Problems keep their ids; `scope` is the id of a group, or `_console` for the console's own. Who may do what is in
app.security.policy: operators acknowledge, mute and announce maintenance, admins make routes. `start` and `stop`
are called when the console starts and stops.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, FastAPI, Path, Request, Response

from app.api.alert_models import (
    AlertList,
    AlertView,
    MessageView,
    Mute,
    NewRouteView,
    NewWindow,
    RouteList,
    RouteView,
    TrialView,
    WindowList,
    WindowView,
)
from app.api.alert_rights import allowed, check, standing
from app.api.common import (
    ConsoleDep,
    Cursor,
    Json,
    Limit,
    NameCursor,
    RowId,
    SightDep,
    ViewerDep,
    need,
    note,
    page_of,
    paged,
    time_or_none,
)
from app.api.models import Page
from app.console.errors import Conflict, ConsoleError, Invalid, NotFound
from app.console.settings import ConsoleSettings
from app.db.alerts import Alerts
from app.db.models import AlertMessage, AlertRoute, AlertWindow
from app.notify import delivery, rules
from app.notify.message import trial_payload
from app.notify.notifier import Notifier
from app.notify.outbox import DELIVERED, FAILED, Health, Message
from app.notify.routes import NAME, ROUTES_MAX, NewRoute, RoutePatch, new_row, route_json
from app.notify.rules import Alert
from app.notify.webhook import NotDelivered
from app.security.roles import Right, Viewer
from app.security.sealed import SealError
from app.times import rfc3339, utc_now
from node.openapi_statuses import says

router = APIRouter(prefix="/alerts", tags=["alerts"])
SILENT_MAX: Final = timedelta(days=30)
WINDOWS_MAX: Final = 200
Scope = Annotated[str, Path(max_length=64)]
ProblemId = Annotated[str, Path(max_length=255)]
RouteName = Annotated[str, Path(pattern=NAME)]


async def start(app: FastAPI) -> None:
    notifier = app.state.notifier = Notifier(
        app.state.console, Alerts(app.state.sessions), console_url_of(app.state.settings)
    )
    await notifier.start()


async def stop(app: FastAPI) -> None:
    await app.state.notifier.stop()


def console_url_of(settings: ConsoleSettings) -> str:
    """How people reach the console, as far as its settings say."""
    if settings.allowed_hosts and settings.secure:
        return f"https://{settings.allowed_hosts[0]}" + ("" if settings.behind_proxy else f":{settings.port}")
    return settings.url


def notifier_of(request: Request) -> Notifier:
    notifier: Notifier = request.app.state.notifier
    return notifier


NotifierDep = Annotated[Notifier, Depends(notifier_of)]


# --- what stands ---------------------------------------------------------------------------------------------------


@router.get("", responses=says(AlertList))
async def list_alerts(notifier: NotifierDep, viewer: ViewerDep, limit: Limit = 1000, cursor: NameCursor = None) -> Json:
    """Every problem that stands and that the caller may see, worst first: who has taken it on, what silences it,
    and what was sent of it."""
    return paged(alerts_json(notifier, viewer), lambda one: f"{one['scope']}/{one['problem']['id']}", limit, cursor)


def alerts_json(notifier: Notifier, viewer: Viewer) -> list[Json]:
    now = utc_now()
    seen = (one for one in notifier.memory.values() if allowed(viewer, Right.VIEW, one.open.key.scope))
    weighty = sorted(seen, key=lambda one: (-rules.weight(one.open.problem.severity), one.began, one.open.key))
    return [alert_json(notifier, one, now) for one in weighty]


def alert_json(notifier: Notifier, alert: Alert, now: datetime) -> Json:
    key, problem = alert.open.key, alert.open.problem
    mute = notifier.mutes.get(key)
    muted = mute is not None and mute.until > now
    names = {row.id: row.name for row in notifier.routes.values()}
    return {
        "scope": key.scope,
        "group": None if key.scope == rules.CONSOLE else alert.open.scope_name,
        "problem": problem.to_json(),
        "since": rfc3339(alert.began),
        "noticed_at": rfc3339(alert.noticed_at),
        "seen_at": rfc3339(alert.seen_at),
        "silent": notifier.silence(now).why(alert, now),
        "acknowledged_by": alert.acknowledged_by,
        "acknowledged_at": rfc3339(alert.acknowledged_at) if alert.acknowledged_at else None,
        "muted_until": rfc3339(mute.until) if mute is not None and muted else None,
        "muted_by": mute.by if mute is not None and muted else None,
        "sent": [
            {"route": names[route_id], "severity": last.severity, "at": rfc3339(last.at)}
            for route_id, last in sorted(alert.sent.items())
            if route_id in names
        ],
    }


@router.post("/problems/{scope}/{problem_id}/acknowledge", responses=says(AlertView))
async def acknowledge(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep
) -> Json:
    """Acknowledges a problem: no more messages about it, except one when it is over."""
    alert = standing(notifier, scope, problem_id, viewer)
    noted(request, alert, before=alert.acknowledged_by, after=viewer.name)
    return alert_json(notifier, await notifier.acknowledge(alert.open.key, viewer.name) or alert, utc_now())


@router.post("/problems/{scope}/{problem_id}/unacknowledge", responses=says(AlertView))
async def unacknowledge(
    request: Request, scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep
) -> Json:
    alert = standing(notifier, scope, problem_id, viewer)
    noted(request, alert, before=alert.acknowledged_by)
    return alert_json(notifier, await notifier.acknowledge(alert.open.key, None) or alert, utc_now())


@router.post("/problems/{scope}/{problem_id}/mute", responses=says(AlertView))
async def mute(
    request: Request, scope: Scope, problem_id: ProblemId, body: Mute, notifier: NotifierDep, viewer: ViewerDep
) -> Json:
    """Mutes a problem: no message about it until then, also if it comes back; one is sent if it still stands then."""
    alert = standing(notifier, scope, problem_id, viewer)
    noted(request, alert, after=f"muted until {body.until}")
    await notifier.mute(alert.open.key, soon(body.until, "until"), viewer.name)
    return alert_json(notifier, alert, utc_now())


@router.post("/problems/{scope}/{problem_id}/unmute", status_code=204)
async def unmute(scope: Scope, problem_id: ProblemId, notifier: NotifierDep, viewer: ViewerDep) -> None:
    """Ends a mute, also of a problem that does not stand now."""
    if scope != rules.CONSOLE:
        need(viewer, Right.OPERATE, scope)
    check(viewer, Right.OPERATE, scope)
    await notifier.unmute(rules.key_of(scope, problem_id))


def noted(request: Request, alert: Alert, *, before: Any = None, after: Any = None) -> None:
    key = alert.open.key
    note(request, f"problems/{key.scope}/{alert.open.problem.id}", before=before, after=after)


def soon(text: str, name: str) -> datetime:
    """A time in the future, at most SILENT_MAX away: what is silent for ever is forgotten. Raises Invalid."""
    until, now = time_or_none(text, name), utc_now()
    assert until is not None
    if until <= now:
        raise Invalid(f"`{name}` lies in the past")
    if until > now + SILENT_MAX:
        raise Invalid(f"`{name}` is more than {SILENT_MAX.days} days away")
    return until


# --- maintenance ---------------------------------------------------------------------------------------------------


@router.get("/windows", responses=says(WindowList))
async def list_windows(notifier: NotifierDep, viewer: ViewerDep) -> Json:
    now = utc_now()
    seen = [row for row in notifier.windows if allowed(viewer, Right.VIEW, row.scope or rules.CONSOLE)]
    return {"items": [window_json(row, now) for row in seen], "next": None}


@router.post("/windows", status_code=201, responses=says(WindowView, 201))
async def add_window(
    request: Request, body: NewWindow, notifier: NotifierDep, console: ConsoleDep, viewer: ViewerDep
) -> Json:
    """Announces maintenance: no message about this group's problems (or any) from `begin` to `until`.

    For each that still stands then, a message is sent.
    """
    until = soon(body.until, "until")
    begin = time_or_none(body.begin, "begin") or utc_now()
    if begin >= until:
        raise Invalid("`begin` must be before `until`")
    if body.group is not None:
        need(viewer, Right.OPERATE, body.group)
        console.watch_of(body.group)
    check(viewer, Right.OPERATE, body.group)
    if len(notifier.windows) >= WINDOWS_MAX:
        raise Conflict(f"There are {WINDOWS_MAX} maintenance windows already; remove one first.")
    row = AlertWindow(
        scope=body.group, begin=begin, until=until, reason=body.reason.strip(), by=viewer.name, at=utc_now()
    )
    await notifier.kept.add_window(row)
    note(request, f"alerts/windows/{row.id}", after=window_json(row, utc_now()))
    notifier.windows = await notifier.kept.windows()
    return window_json(row, utc_now())


@router.delete("/windows/{window_id}", status_code=204)
async def remove_window(request: Request, window_id: RowId, notifier: NotifierDep, viewer: ViewerDep) -> None:
    found = next((row for row in notifier.windows if row.id == window_id), None)
    if found is None or not allowed(viewer, Right.VIEW, found.scope or rules.CONSOLE):
        raise NotFound("There is no such maintenance window.")
    check(viewer, Right.OPERATE, found.scope)
    note(request, f"alerts/windows/{window_id}", before=window_json(found, utc_now()))
    await notifier.kept.remove_window(window_id)
    notifier.windows = await notifier.kept.windows()


def window_json(row: AlertWindow, now: datetime) -> Json:
    return {
        "id": row.id,
        "group": row.scope,
        "begin": rfc3339(row.begin),
        "until": rfc3339(row.until),
        "state": "over" if row.until <= now else "open" if row.begin <= now else "announced",
        "reason": row.reason,
        "by": row.by,
    }


# --- routes --------------------------------------------------------------------------------------------------------


@router.get("/routes", responses=says(RouteList))
async def list_routes(notifier: NotifierDep, viewer: ViewerDep) -> Json:
    """The routes of messages. Admins also see the targets as they were written down; nobody sees secrets."""
    rows = sorted(notifier.routes.values(), key=lambda row: row.name)
    return {"items": [shown(notifier, row, viewer.can("admin")) for row in rows], "next": None}


@router.post("/routes", status_code=201, responses=says(NewRouteView, 201))
async def add_route(request: Request, body: NewRoute, notifier: NotifierDep, response: Response) -> Json:
    """Makes a route. A webhook's key that the console made is in this answer (`secret`) and nowhere else."""
    if len(notifier.routes) >= ROUTES_MAX:
        raise Conflict(f"There are {ROUTES_MAX} routes already; remove one first.")
    try:
        row, made = new_row(body, notifier.seal, utc_now())
    except SealError as error:
        raise ConsoleError(str(error), status=503, title="The secret cannot be stored") from None
    if not await notifier.add_route(row):
        raise Conflict(f"There is a route {body.name} already.")
    note(request, f"alerts/routes/{row.name}", after=settings_of(row))
    response.headers["location"] = f"/api/v1/alerts/routes/{row.name}"
    return {**shown(notifier, row, True), **({"secret": made} if made is not None else {})}


def settings_of(row: AlertRoute) -> Json:
    """As the trail keeps it: no secret, and of a webhook's URL the host alone."""
    shown = route_json(row, 0)
    return {name: shown[name] for name in ("kind", "target", "severity", "hold_s", "reminder_s", "enabled")}


def route_named(notifier: Notifier, name: str) -> AlertRoute:
    found = next((row for row in notifier.routes.values() if row.name == name), None)
    if found is None:
        raise NotFound(f"There is no route {name!r}.", title="Unknown route")
    return found


@router.get("/routes/{name}", responses=says(RouteView))
async def one_route(name: RouteName, notifier: NotifierDep, viewer: ViewerDep) -> Json:
    return shown(notifier, route_named(notifier, name), viewer.can("admin"))


@router.patch("/routes/{name}", responses=says(RouteView))
async def change_route(request: Request, name: RouteName, body: RoutePatch, notifier: NotifierDep) -> Json:
    """Changes when a route gets messages. Its target never changes: make another route and remove this one."""
    row = route_named(notifier, name)
    values: dict[str, Any] = body.model_dump(exclude_unset=True)
    missing = [key for key, value in values.items() if value is None and key != "reminder_s"]
    if missing:
        raise Invalid(f"{', '.join(missing)}: null is no value for it")
    if values:
        before = settings_of(row)
        await notifier.kept.change_route(row.id, **values)
        for key, value in values.items():
            setattr(row, key, value)
        note(request, f"alerts/routes/{row.name}", before=before, after=settings_of(row))
        if not row.enabled:
            notifier.outbox.drop(row.id, "the route was switched off")
    return shown(notifier, row, True)


@router.delete("/routes/{name}", status_code=204)
async def remove_route(request: Request, name: RouteName, notifier: NotifierDep) -> None:
    """Removes a route: messages that wait on it are given up, its history stays."""
    row = route_named(notifier, name)
    note(request, f"alerts/routes/{row.name}", before=settings_of(row))
    await notifier.kept.remove_route(row.id)
    notifier.routes.pop(row.id, None)
    notifier.outbox.drop(row.id, "the route was removed")
    notifier.outbox.health.pop(row.id, None)


@router.post("/routes/{name}/test", responses=says(TrialView))
async def trial(name: RouteName, notifier: NotifierDep, viewer: ViewerDep) -> Json:
    """Sends one test message now, also on a route that is switched off; the answer says how it went."""
    return await try_route(notifier, route_named(notifier, name), viewer.name)


async def try_route(notifier: Notifier, row: AlertRoute, by: str) -> Json:
    began = utc_now()
    message = Message(row.id, row.name, trial_payload(row.name, by, began, notifier.console_url), began, attempts=1)
    health = notifier.outbox.health.setdefault(row.id, Health())
    try:
        answer = await delivery.send(row, notifier.seal, message.payload)
    except NotDelivered as error:
        message.end(FAILED, str(error), utc_now())
        health.failed(utc_now(), str(error))
    else:
        message.end(DELIVERED, answer, utc_now())
        health.delivered(utc_now())
    notifier.outbox.messages[message.id] = message  # with the next look it is stored, as history
    took_ms = round((utc_now() - began).total_seconds() * 1000)
    return {"id": message.id, "route": row.name, "state": message.state, "result": message.result, "took_ms": took_ms}


def shown(notifier: Notifier, row: AlertRoute, whole: bool) -> Json:
    health = notifier.outbox.health.get(row.id)
    answer = route_json(row, len(notifier.outbox.waiting(row.id)), whole=whole)
    if health is not None:
        answer["delivered_at"] = rfc3339(health.delivered_at) if health.delivered_at else None
        answer["failing_since"] = rfc3339(health.failing_since) if health.failing_since else None
        answer["error"] = health.error
    return answer


# --- history -------------------------------------------------------------------------------------------------------


@router.get("/messages", responses=says(Page[MessageView]))
async def list_messages(notifier: NotifierDep, sight: SightDep, limit: Limit = 50, cursor: Cursor = None) -> Json:
    """Messages, newest first: sent, waiting, given up. Those of the last second may be missing."""
    return page_of([message_json(row) for row in await notifier.kept.messages(limit + 1, cursor, sight)], limit)


def message_json(row: AlertMessage) -> Json:
    return {
        "id": row.id,
        "route": row.route_name,
        "kind": row.kind,
        "state": row.state,
        "attempts": row.attempts,
        "created_at": rfc3339(row.created_at),
        "ended_at": rfc3339(row.ended_at) if row.ended_at else None,
        "result": row.result,
        "text": row.payload.get("text"),
        "group": row.payload.get("group"),
        "problem": row.payload.get("problem"),
    }
