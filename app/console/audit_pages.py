"""The pages of audits: start one, watch it, read what it found, open an entry on all replicas side by side.

Pages and the REST API call the same functions. Invariant: the live fragment depends on the audit alone, never on who
looks: no names, no tokens, no bodies.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Form, Query, Request
from jinja2 import Environment
from starlette.responses import Response

from app.api.audits import audit_or_404, replicas_of, runner_of, start_audit
from app.api.common import ClusterId, Cursor, Index, OfALog
from app.audit.entries import entry_on_all, hex_rows, row_bytes, suspects_first
from app.audit.result import DEPTHS
from app.audit.runner import AuditRunner
from app.console.console import Console
from app.console.cursors import INT64_MAX, before_id
from app.console.drawing import page, see
from app.console.errors import Invalid, NotFound
from app.console.last_audits import look_up_forever
from app.console.live import Fragment, LiveKey
from app.console.schedules import PERIODS, spelled_period
from app.db.audits import FINAL, as_json
from app.db.engine import normal_url
from app.db.schedules import Schedules
from app.db.schedules import as_json as schedule_json
from app.health.group_view import GroupView
from node.views.events import EventView

Json = dict[str, Any]
router = APIRouter()
PAGE_SIZE = 25
FINDINGS_SIZE = 100
SCHEDULES_SHOWN: Final = 200

STEP_TEXT: Final = {
    "starting_jvm": "Starting the JVM",
    "fencing": "Fixing the fence",
    "reading": "Reading",
    "comparing": "Comparing",
}
DEPTH_TEXT: Final = {
    "bytes": "every byte of every replica; trusts no node",
    "digest": "each node digests its own disk, blocks that differ are read; takes the nodes' word",
    "chain": "the stored chain at the end; proves what was written, not what the disks hold",
}
_state: dict[str, Any] = {}


def install(env: Environment) -> None:
    """Called once with the console's templates."""
    env.filters["megabytes"] = lambda size: f"{size / 1e6:,.1f} MB"
    _state["env"] = env


async def start(app: FastAPI) -> None:
    console: Console = app.state.console
    runner = AuditRunner(
        app.state.sessions,
        audits_root(app.state.settings.db_url),
        on_end=lambda audit: ended(console, audit),
    )
    app.state.audit_runner = _state["runner"] = runner
    await runner.start()
    console.background.keep("looking up audits", partial(look_up_forever, console, runner))


def ended(console: Console, audit: Json) -> None:
    """An audit is over: an event, and the sentence may change. Until it is looked up nothing is said of audits."""
    console.take_events(audit["cluster_id"], None, [event_of(audit)])
    console.audits.pop(audit["cluster_id"], None)


async def stop(app: FastAPI) -> None:
    await app.state.audit_runner.stop()


def audits_root(db_url: str) -> Path:
    """Beside the database file, so that a console started again finds its jobs."""
    url = normal_url(db_url)
    if url.get_backend_name() == "sqlite" and url.database and url.database != ":memory:":
        return Path(url.database).resolve().parent / "audits"
    return Path(".quorumscope").resolve() / "audits"


# --- the live part -------------------------------------------------------------------------------------------------


def live_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    """`key.node_id` is the audit. Raises NotFound."""
    runner: AuditRunner = _state["runner"]
    audit = runner.live.get(key.node_id or "")
    if audit is None or audit["cluster_id"] != key.cluster_id:
        raise NotFound("This audit is not running; its page shows how it ended.", title="Not live")
    return [Fragment("", render_status(audit))]


LIVE: Mapping[str, Any] = {"audit": live_fragments}


def render_status(audit: Json) -> str:
    env: Environment = _state["env"]
    return env.get_template("audits/_status.html").render(status_context(audit))


def status_context(audit: Json) -> Json:
    """What the fragment needs; also the page's own first rendering."""
    progress = audit["progress"] or {}
    steps = lines_of(progress.get("steps", []))
    total, done = progress.get("blocks_total"), progress.get("blocks_done") or 0
    return {
        "audit": audit,
        "steps": steps,
        "progress": progress,
        "percent": round(100 * done / total) if total else None,
        "final": audit["state"] in FINAL,
        "sentence": sentence(audit),
        "tone": tone(audit),
        "findings": audit.get("findings", []),
        "findings_next": audit.get("findings_next"),
        "depth_text": DEPTH_TEXT.get(audit["depth"], ""),
        "of_pair": of_a_pair(audit),
    }


def lines_of(steps: Sequence[Json]) -> list[Json]:
    """The steps as lines: those that run side by side are one line, so that exactly one line is the present one."""
    running = [step["name"] for step in steps if step["state"] == "running"]
    lines: list[Json] = []
    for step in steps:
        name, state = step["name"], step["state"]
        if state == "running" and name != running[0]:
            continue
        text = at_once(running) if state == "running" else STEP_TEXT.get(name, name)
        lines.append({"name": name, "text": text, "state": state})
    return lines


def at_once(names: Sequence[str]) -> str:
    """Starting the JVM and fixing the fence."""
    first, *others = [STEP_TEXT.get(name, name) for name in names]
    return " and ".join([first, *(one[:1].lower() + one[1:] for one in others)])


def sentence(audit: Json) -> str:
    """Every page begins with one."""
    match audit["state"]:
        case "queued":
            return "Waiting for another audit to finish."
        case "running":
            now = [
                one["text"] for one in lines_of((audit["progress"] or {}).get("steps", [])) if one["state"] == "running"
            ]
            asked = " A cancel has been asked for." if audit.get("cancel_requested") else ""
            return f"{now[0] if now else 'The audit is running'}.{asked}"
        case "cancelled":
            return "Cancelled. Nothing can be said of these replicas from this audit."
        case "failed":
            return f"The audit failed: {(audit['problem'] or {}).get('detail') or 'no reason was given'}."
        case _:
            return str(audit["result"]["summary"])


def event_of(audit: Json) -> EventView:
    """The end of an audit on the group's event rail."""
    severity = {"critical": "critical", "attention": "attention"}.get(tone(audit), "info")
    return EventView(
        at=audit["finished_at"],
        kind="audit",
        severity=severity,
        text=f"Audit ({audit['depth']}): {sentence(audit)}",
        detail={"audit_id": audit["id"], "state": audit["state"], "verdict": audit["verdict"]},
    )


def tone(audit: Json) -> str:
    """The severity that colours the sentence; fine is the absence of colour."""
    if audit["state"] == "done":
        return {"divergent": "critical", "unauditable": "attention", "consistent": "ok"}[audit["verdict"]]
    return {"failed": "critical", "cancelled": "unknown"}.get(audit["state"], "ok")


# --- pages ---------------------------------------------------------------------------------------------------------


async def listed(request: Request, cluster_id: str | None, cursor: str | None) -> Json:
    sight = request.state.viewer.sight
    rows = await runner_of(request).kept.newest(cluster_id, PAGE_SIZE + 1, before_id(cursor), sight)
    live = runner_of(request).live
    audits = [dict(live.get(row.id) or as_json(row)) for row in rows[:PAGE_SIZE]]
    for audit in audits:
        audit["sentence"], audit["tone"] = sentence(audit), tone(audit)
    return {"audits": audits, "next": str(rows[PAGE_SIZE - 1].number) if len(rows) > PAGE_SIZE else None}


@router.get("/audits")
async def all_audits(request: Request, cursor: Cursor = None) -> Response:
    context = await listed(request, None, cursor)
    return page(
        request, "audits/all", {**context, "clusters": request.app.state.console.clusters(request.state.viewer.sight)}
    )


@router.get("/clusters/{cluster_id}/audits")
async def cluster_audits(
    request: Request,
    cluster_id: ClusterId,
    cursor: Cursor = None,
    depth: Annotated[str, Query(max_length=16)] = "bytes",
) -> Response:
    view = request.app.state.console.group_view(cluster_id)
    return await cluster_page(request, view, {"depth": depth if depth in DEPTHS else "bytes"}, cursor=cursor)


async def cluster_page(
    request: Request, view: GroupView, form: Json | None = None, *, scheduled: Json | None = None,
    cursor: str | None = None, status: int = 200,
) -> Response:  # fmt: skip
    """`form`, `scheduled`: what the two forms are filled in with."""
    kept: Schedules = request.app.state.schedules
    context = {
        **await listed(request, view.cluster.id, cursor), "view": view, "cluster": view.cluster,
        "form": {"depth": "bytes", "from_index": "", "to_index": "", "error": None} | (form or {}),
        "scheduled": {"depth": "bytes", "every": "day", "at": "", "error": None} | (scheduled or {}),
        "depths": [{"name": depth, "text": DEPTH_TEXT[depth]} for depth in ("bytes", "digest", "chain")],
        "periods": list(PERIODS), "key": str(uuid.uuid4()),
        "schedules": [
            schedule_json(row) | {"every": spelled_period(row.every_s)}
            for row in await kept.newest(view.cluster.id, SCHEDULES_SHOWN)
        ],
    }  # fmt: skip
    return page(request, "audits/cluster", context, status)


@router.post("/clusters/{cluster_id}/audits")
async def start_from_form(
    request: Request,
    cluster_id: ClusterId,
    depth: Annotated[str, Form(max_length=16)] = "bytes",
    from_index: Annotated[str, Form(max_length=32)] = "",
    to_index: Annotated[str, Form(max_length=32)] = "",
    key: Annotated[str, Form(max_length=128)] = "",
) -> Response:
    """A wrong field comes back in the form, filled in as it was."""
    view = request.app.state.console.group_view(cluster_id)
    try:
        if depth not in DEPTHS:
            raise Invalid(f"depth is one of {', '.join(DEPTHS)}")
        low, high = index_of(from_index, "from"), index_of(to_index, "to")
        audit = await start_audit(
            request, view, depth=depth, from_index=low, to_index=high, idempotency_key=key or None
        )
    except Invalid as error:
        form = {"depth": depth, "from_index": from_index, "to_index": to_index, "error": error.detail}
        return await cluster_page(request, view, form, status=422)
    return see(f"/clusters/{cluster_id}/audits/{audit['id']}")


def index_of(text: str, name: str) -> int | None:
    plain = text.strip().replace(",", "").replace(" ", "")
    if not plain:
        return None
    if not (plain.isascii() and plain.isdigit()) or int(plain) > INT64_MAX:
        raise Invalid(f"{name}: {text!r} is no index")
    return int(plain)


@router.get("/clusters/{cluster_id}/audits/{audit_id}")
async def one_audit(request: Request, cluster_id: ClusterId, audit_id: str, cursor: Cursor = None) -> Response:
    audit = await audit_or_404(request, audit_id)
    if audit["cluster_id"] != cluster_id:
        raise NotFound(f"There is no audit {audit_id} of this group.", title="Unknown audit")
    if audit["state"] in FINAL:
        findings, after = await runner_of(request).kept.findings(audit_id, FINDINGS_SIZE, before_id(cursor))
        audit = {**audit, "findings": findings, "findings_next": after}
    cluster = {"id": cluster_id, "name": audit["cluster_name"]}
    # A page whose stream does not exist would load itself again and again.
    followed = audit["state"] not in FINAL and audit_id in runner_of(request).live
    watch = request.app.state.console.watches.get(cluster_id)
    view = None if watch is None else watch.view
    is_pair = of_a_pair(audit) or (view is not None and view.is_pair)
    context = {
        **status_context(audit), "cluster": cluster, "followed": followed, "repairs": repairs_of(audit, view),
        "commands": commands(request, audit, is_pair=is_pair),
    }  # fmt: skip
    if view is not None:
        context["view"] = view
    return page(request, "audits/audit", context)


def repairs_of(audit: Json, view: GroupView | None) -> list[tuple[str, int, int]]:
    """Which members can mend what was found, and the range that it lies in: where one replica alone is at fault."""
    if view is None or view.is_pair or of_a_pair(audit):
        return []
    found: dict[str, tuple[int, int]] = {}
    for one in audit.get("findings", []):
        if one["severity"] == "critical" and len(one["replicas"]) == 1 and view.member(one["replicas"][0]) is not None:
            low, high = found.get(one["replicas"][0], (one["from_index"], one["to_index"]))
            found[one["replicas"][0]] = (min(low, one["from_index"]), max(high, one["to_index"]))
    return [(node_id, low, high) for node_id, (low, high) in sorted(found.items())]


def of_a_pair(audit: Json) -> bool:
    """Its places are offsets of a commit log."""
    return bool((audit["result"] or {}).get("unit") == "offset")


def commands(request: Request, audit: Json, *, is_pair: bool) -> Json:
    """The lines that do the same from a shell."""
    how = "--ha" if is_pair else f"--depth {audit['depth']}"
    bounds = [("from", audit["from_index"]), ("to", audit["to_index"])]
    flags = "".join(f" --{name} {value}" for name, value in bounds if value is not None)
    body = f'{{"cluster": "{audit["cluster_id"]}", "depth": "{audit["depth"]}"'
    body += "".join(f', "{name}_index": {value}' for name, value in bounds if value is not None) + "}"
    return {
        "cli": f"quorumscope audit --cluster {audit['cluster_id']} {how}{flags}",
        "curl": (
            f"curl -H 'Authorization: Bearer $QUORUMSCOPE_TOKEN' -H 'Content-Type: application/json' -d '{body}'"
            f" {str(request.base_url).rstrip('/')}/api/v1/audits"
        ).replace("'Authorization: Bearer $QUORUMSCOPE_TOKEN'", '"Authorization: Bearer $QUORUMSCOPE_TOKEN"'),
    }


@router.post("/clusters/{cluster_id}/audits/{audit_id}/cancel")
async def cancel_from_form(request: Request, cluster_id: ClusterId, audit_id: str) -> Response:
    audit = await audit_or_404(request, audit_id)
    if audit["cluster_id"] != cluster_id:
        raise NotFound(f"There is no audit {audit_id} of this group.", title="Unknown audit")
    await runner_of(request).cancel(audit_id)
    return see(f"/clusters/{cluster_id}/audits/{audit_id}")


@router.get("/clusters/{cluster_id}/entries/{index}/replicas", dependencies=[OfALog])
async def side_by_side(
    request: Request,
    cluster_id: ClusterId,
    index: Index,
    audit: Annotated[str | None, Query(max_length=36)] = None,
) -> Response:
    """Bodies are customers' data: the gate asks for the right to read them, and writes the trail."""
    console: Console = request.app.state.console
    view = console.group_view(cluster_id)
    held = suspects_first(await asyncio.to_thread(entry_on_all, replicas_of(console, view), index))
    shown = [entry for entry in held if entry.raw is not None]
    lengths = {len(entry.raw or b"") for entry in shown}
    width = row_bytes(len(shown))
    context = {
        "view": view,
        "cluster": view.cluster,
        "index": index,
        "held": held,
        "shown": shown,
        "rows": hex_rows(held, width=width),
        "row_bytes": width,
        "longest": max(lengths, default=0),
        "equal": len({(entry.raw or b"") for entry in shown}) <= 1,
        "audit_id": audit,
    }
    return page(request, "audits/entry", context)
