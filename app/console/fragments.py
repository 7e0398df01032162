"""Fragments, the parts of a live page that change: GroupView -> HTML, rendered once per (page, role).

Invariants: a fragment is one element whose id is `live-<name>`, so that the page morphs it in place; it depends on the
view and the role alone (no names, no tokens), so that one view is drawn once; a page begins with the same.
The status region carries no number that runs, so a screen reader speaks only when the set of problems changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from jinja2 import Environment
from markupsafe import Markup, escape

from app.commands.access_flags import AccessFlags
from app.commands.tls_options import TlsFlags
from app.console import format as fmt
from app.console.beginnings import Beginning
from app.console.closures_view import closures_view
from app.console.console import Console
from app.console.dispatcher_diagram import HEIGHT, WIDTH, diagrams
from app.console.errors import NotFound
from app.console.live import Fragment, LiveKey
from app.console.preflight import preflight
from app.console.waterline import UNITS, ZERO_X, waterline
from app.health.facts import capital
from app.health.group_view import GroupView
from app.security.roles import Sight
from node.printable import pictured
from node.views.state import StateView

Context = dict[str, object]
GROUP_FRAGMENTS: Final = ("status", "sentence", "waterline", "recent", "dispatchers", "closures", "members")
SEVERITY_WORDS: Final = {"critical": "Critical", "attention": "Degraded", "unknown": "Unknown", "ok": "", "info": ""}
PLACES: Final = AccessFlags(TlsFlags(Path("CA.pem"), Path("CLIENT.pem"), Path("CLIENT.key")), has_token=True)
CODE: Final = re.compile(r"`([^`]+)`")
# So many newest views are kept as they were drawn: (group, unit, role) -> the view and its fragments.
DRAWN_MAX: Final = 64
_drawn: dict[tuple[str, str, str], tuple[GroupView, dict[str, Markup]]] = {}
_templates: dict[str, Environment] = {}


def install(env: Environment) -> None:
    """Called once with the console's templates."""
    _templates["env"] = env
    add_filters(env)


def add_filters(env: Environment) -> None:
    """What all pages share."""
    env.filters |= {
        "count": fmt.count,
        "index": fmt.index,
        "size": fmt.size,
        "ms": fmt.duration_ms,
        "clock": fmt.clock,
        "capital": capital,
        "codes": codes,
        "pasted": pasted,
        "pictured": pictured,
        "beginning": Beginning.of,
        "words": lambda text: str(text).replace("_", " "),
    }
    env.globals |= {"age": fmt.age, "span": fmt.span, "severity_words": SEVERITY_WORDS}


def environment() -> Environment:
    """The console's templates, for what is drawn outside of a request."""
    return _templates["env"]


def pasted(command: str) -> str:
    """A command with places for the files that it needs where it asks a port with TLS: this console's own need not lie
    where it is run."""
    if "https://" not in command:
        return command
    return PLACES.over_curl(command) if command.startswith("curl ") else PLACES.over(command)


def codes(text: str) -> Markup:
    """A sentence as HTML: what stands between back-ticks is code."""
    return Markup(CODE.sub(r"<code>\1</code>", str(escape(text))))


def group_context(view: GroupView, unit: str = "entries") -> Context:
    """What the templates of a group's page draw."""
    return {
        "view": view,
        "cluster": view.cluster,
        "unit": unit if unit in UNITS else "entries",
        "units": tuple(UNITS),
        "lanes": waterline(view, unit),
        "zero_x": ZERO_X,
        "diagrams": diagrams(view),
        "diagram_width": WIDTH,
        "diagram_height": HEIGHT,
        "closures": closures_view(view),
        "may_lead": [
            one.id for one in view.members if (may := preflight(view, one.id)).allowed or may.needs_acceptance
        ],
    }


def render_fragments(view: GroupView, role: str, unit: str = "entries") -> dict[str, Markup]:
    """Fragment name -> HTML: of one view drawn once, for a page, its stream, and whoever else opens it meanwhile."""
    key = (view.cluster.id, unit, role)
    drawn = _drawn.get(key)
    if drawn is not None and drawn[0] is view:
        return drawn[1]
    env = _templates["env"]
    context = {**group_context(view, unit), "role": role}
    made = {name: Markup(env.get_template(f"group/_{name}.html").render(context)) for name in GROUP_FRAGMENTS}
    if view.at is None:
        _drawn.pop(key, None)
        _drawn[key] = (view, made)
        if len(_drawn) > DRAWN_MAX:
            del _drawn[next(iter(_drawn))]
    return made


def group_fragments(unit: str, console: Console, key: LiveKey) -> Sequence[Fragment]:
    view = console.group_view(key.cluster_id or "")
    return [Fragment("", html) for html in render_fragments(view, key.role, unit).values()]


def clusters_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    env = _templates["env"]
    context = {**clusters_context(console, key.sight), "role": key.role}
    parts = ("status", "list", "console")
    return [Fragment("", env.get_template(f"_clusters_{name}.html").render(context)) for name in parts]


def clusters_context(console: Console, sight: Sight) -> Context:
    """All groups that are seen, the worst first for the sentence; the list keeps its order."""
    views = console.clusters(sight)
    order = {"critical": 0, "attention": 1, "unknown": 2, "ok": 3}
    worst = min(views, key=lambda view: order.get(view.severity, 2), default=None)
    return {
        "views": views,
        "worst": worst,
        "seed_problems": dict(sorted(console.seed_problems.items())) if sight.everything else {},
        "own": console.own_problems() if sight.everything else [],
        "all_seen": sight.everything,
    }


def node_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    """Raises NotFound for a member that is forgotten, so that its open page asks again and says so."""
    context = node_context(console.group_view(key.cluster_id or ""), key.node_id or "", key.role)
    if context is None:
        raise NotFound(f"{key.node_id} is no member of this group.", title="Unknown node")
    return [Fragment("", _templates["env"].get_template("_node.html").render(context))]


def node_context(view: GroupView, node_id: str, role: str) -> Context | None:
    """One member's page; None when the group has no such member."""
    member = view.member(node_id)
    if member is None:
        return None
    problems = [one for one in view.problems if one.node_id == node_id]
    lane = next(one for one in waterline(view).lanes if one.id == node_id)
    drawn = next((one for one in diagrams(view) if one.peer_id == node_id), None)
    return {
        "view": view,
        "cluster": view.cluster,
        "member": member,
        "state": member.state or StateView(engine="java" if member.is_java else fmt.UNKNOWN, self_id=member.id),
        "leader": view.leader,
        "problems": problems,
        "role": role,
        "lane": lane,
        "diagram": drawn,
        "diagram_width": WIDTH,
        "diagram_height": HEIGHT,
    }


LIVE: Mapping[str, Callable[[Console, LiveKey], Sequence[Fragment]]] = {
    "clusters": clusters_fragments,
    "node": node_fragments,
    **{f"group-{unit}": partial(group_fragments, unit) for unit in UNITS},
}
