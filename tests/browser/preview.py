"""The group page over prepared views, for looking at: `python -m tests.browser.preview [PORT]`, then /degraded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from app.console import fragments
from app.console.app import create_app
from app.console.settings import ConsoleSettings
from app.resources import resource
from tests.unit.views import ALL, NOW


class Visitor:
    """Somebody who may do everything, so that every control is drawn."""

    name, role, csrf_token = "ann", "admin", "x"

    def can(self, right: str) -> bool:
        return True


def history(request: Request) -> Response:
    """An hour with a replica that falls behind, a gap, and some events."""
    until = int(datetime.now(NOW.tzinfo).timestamp())
    times = list(range(until - 3600, until, 10))
    bumps: dict[str, Callable[[int], int]] = {
        "n0": lambda n: 0,
        "n1": lambda n: n % 5,
        "n2": lambda n: max(0, (n - 150)) ** 2 * 2,
    }
    replicas = {}
    for node_id, bump in bumps.items():
        lag = [None if node_id == "n1" and 200 < n < 230 else bump(n) for n in range(len(times))]
        replicas[node_id] = {
            "lag": lag,
            "lag_min": [None if one is None else one // 3 for one in lag],
            "lag_max": [None if one is None else one * 2 for one in lag],
        }
    at = [datetime.fromtimestamp(until - ago_s, NOW.tzinfo).isoformat() for ago_s in (2500, 1200, 1180)]
    events = [{"at": one, "kind": "role", "severity": "info", "text": "n0 leads term 7"} for one in at]
    since, to = (datetime.fromtimestamp(one, NOW.tzinfo).isoformat() for one in (until - 3600, until))
    return JSONResponse({"t": times, "replicas": replicas, "events": events, "since": since, "until": to})


def build() -> Starlette:
    env = create_app(ConsoleSettings(db_url="sqlite://")).state.templates.env
    env.auto_reload = True

    def show(request: Request) -> Response:
        view = ALL[request.path_params["name"]]()
        unit = request.query_params.get("unit", "entries")
        context = {
            "view": view, "cluster": view.cluster, "unit": unit,
            "fragments": fragments.render_fragments(view, "admin", unit),
            "viewer": Visitor(), "csrf_token": "x", "instance": "", "version": "0", "demo": True,
            "at": None, "now": view.as_of, "range": "1h", "range_s": 3600, "ranges": ("15m", "1h", "1d"),
            "summary": [{"id": "n0", "now": 0, "worst": 12, "samples": 60, "gaps": 0}],
            "history_note": "every sample", "history_events": [],
        }  # fmt: skip
        return HTMLResponse(env.get_template("group.html").render(context))

    return Starlette(
        routes=[
            Route("/api/v1/clusters/orders/history", history),
            Mount("/static", StaticFiles(directory=resource("static"))),
            Route("/{name}", show),
        ]
    )


if __name__ == "__main__":
    uvicorn.run(build(), port=int(sys.argv[1]) if len(sys.argv) > 1 else 8499, log_level="warning")
