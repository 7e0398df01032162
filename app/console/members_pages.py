"""The page "Members" of a group: who belongs to it, what each one lacks, a change under way, how it came to be so; and
the page behind its buttons, which says what a change would mean before anybody confirms it.

Invariants: the live part depends on the group and the role alone; the buttons stand only where the role allows them,
and the gate asks again; nothing is asked of a group before its pre-flight is shown.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from app.api.common import ClusterId, ConsoleDep, OfALog, ViewerDep
from app.api.members import begin
from app.console import format as fmt
from app.console import fragments
from app.console.console import Console
from app.console.drawing import page, see
from app.console.errors import Invalid
from app.console.live import Fragment, LiveKey
from app.console.member_changes import MemberChange, MemberPreflight, preflight
from app.health.confirming import DAMAGED, DIVERGED, FULL, confirm_nothing, survives, writes_stopped
from app.health.facts import ELECTION_TIMEOUT_MAX_MS, entries_of, timing_of
from app.health.group_view import GroupView, MemberView
from app.health.links import heard_ms
from app.security.roles import Right
from node.views.members import MembersView
from node.views.members import MemberView as Configured

Context = Mapping[str, object]
router = APIRouter(include_in_schema=False, dependencies=[OfALog])
Kind = Literal["add", "promote", "remove", "replace", "address"]
Name = Annotated[str, Query(max_length=64)]
At = Annotated[str, Query(max_length=300)]
FormName = Annotated[str, Form(max_length=64)]
FormAt = Annotated[str, Form(max_length=300)]
TITLES: Final[Mapping[str, str]] = {
    "add": "Add a member", "promote": "Make {} a voter", "remove": "Remove {}", "replace": "Replace {}",
    "address": "Change the address of {}",
}  # fmt: skip


# Who is so near is behind by what is on its way.
NEAR_ENTRIES: Final = 100
NEAR_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Row:
    """One member as the page shows it; unknown is a word.

    `listens_at`: by its own word, where the group looks for it elsewhere (a translated address; a demo's relays).
    """

    id: str
    address: str
    listens_at: str
    kind: str
    leads: bool
    joined: str
    behind: str
    catching: str
    tone: str
    disk: str
    reach: str
    is_learner: bool
    is_connected: bool


def members_context(console: Console, view: GroupView, role: str) -> Context:
    """What the live part draws."""
    configuration = configuration_of(console, view)
    cluster_id = view.cluster.id
    return {
        "view": view,
        "cluster": view.cluster,
        "role": role,
        "rows": rows_of(view, configuration),
        "configuration": configuration,
        "since": console.configurations.since(cluster_id, configuration.index) if configuration else None,
        "changes": console.configurations.rows(cluster_id)[:20],
        "survives": survives(view),
        "stopped": writes_stopped(view),
    }


def configuration_of(console: Console, view: GroupView) -> MembersView | None:
    """As the leader said last; None: there is none that does."""
    samples = {one.node_id: one for one in console.watch_of(view.cluster.id).samples}
    leader = samples.get(view.leader_id or "")
    return None if leader is None else leader.configuration


def rows_of(view: GroupView, configuration: MembersView | None) -> list[Row]:
    named = {one.id: one for one in (configuration.items if configuration else None) or ()}
    known = {one.id: one for one in view.members}
    return [row_of(view, one, named.get(one), known.get(one)) for one in sorted(named.keys() | known.keys())]


def row_of(view: GroupView, member_id: str, named: Configured | None, seen: MemberView | None) -> Row:
    """What the configuration says of it, what its leader says, and what it says itself."""
    is_learner = named.kind == "learner" if named is not None else bool(seen and seen.is_learner)
    lag = view.lag_entries(seen) if seen is not None else named.lag_entries if named is not None else None
    catching, tone = catching_up(view, named, seen, lag)
    own = seen.address if seen is not None else ""
    said = (named.address if named is not None else None) or own
    free = seen.state.disk.free_bytes if seen is not None and seen.state is not None and seen.state.disk else None
    size = "" if lag is None or named is None or not named.lag_bytes or not lag else f" · {fmt.size(named.lag_bytes)}"
    return Row(
        id=member_id,
        address=said or fmt.UNKNOWN,
        listens_at=own if own != said else "",
        kind="learner" if is_learner else "voter",
        leads=member_id == view.leader_id,
        joined=joined_in_words(named),
        behind=f"{fmt.UNKNOWN if lag is None else entries_of(lag)}{size}",
        catching=catching,
        tone=tone,
        disk=fmt.UNKNOWN if free is None else f"{fmt.size(free)} free",
        reach=seen.reach if seen is not None else "never",
        is_learner=is_learner,
        is_connected=named is None or named.connected is not False,
    )


def joined_in_words(named: Configured | None) -> str:
    if named is None or named.joined_index is None:
        return fmt.UNKNOWN
    return "the group's birth" if named.joined_index == -1 else f"entry {named.joined_index:,}"


def catching_up(view: GroupView, named: Configured | None, seen: MemberView | None, lag: int | None) -> tuple[str, str]:
    """(in words, what it catches the eye with)."""
    then = ""
    if named is not None and named.promoting:
        leaves = f", and {named.replaces} leaves" if named.replaces else ""
        then = f"; becomes a voter once it has caught up{leaves}"
    if seen is not None and seen.id == view.leader_id:
        full = seen.id in confirm_nothing(view)
        return ("leads, and takes nothing new in: its disk is full", "critical-text") if full else ("leads", "")
    if seen is not None and (why := takes_nothing(view, seen)):
        return f"{why}{then}", "attention-text"
    if named is not None and named.connected is False:
        return f"not connected to {view.leader_id or 'a leader'}{then}", "attention-text"
    if seen is not None and seen.reach in ("never", "stale") and lag is None:
        return f"does not answer this console{then}", "attention-text"
    state = seen.dispatcher_state if seen is not None else None
    if lag == 0:
        return f"level{then}", ""
    if lag is None:
        return f"unknown{then}", ""
    seconds = named.catch_up_s_at_most if named is not None else None
    about = "" if seconds is None else f", {fmt.duration_ms(seconds * 1000)} at most"
    odd = "" if state in (None, "APPEND") else f" ({state})"
    votes = named is not None and named.kind == "voter"
    if not odd and (lag <= NEAR_ENTRIES or (votes and seconds is not None and seconds < NEAR_S)):
        return f"keeps up{then}", ""
    return f"catching up{odd}{about}{then}", "attention-text" if odd else ""


def takes_nothing(view: GroupView, seen: MemberView) -> str:
    """Why a member takes no entries in now, so that it is not catching up; empty: it does, or it is not known."""
    leader = view.leader
    if seen.reach == "down":
        return "its engine is down"
    unheard_ms = None if leader is None else heard_ms(leader, seen)
    if leader is not None and unheard_ms is not None:
        patience_ms = timing_of(leader).election_timeout_max_ms or ELECTION_TIMEOUT_MAX_MS
        if unheard_ms > patience_ms:
            return f"{leader.id} has not heard it for {fmt.duration_ms(unheard_ms)}"
    reason = confirm_nothing(view).get(seen.id)
    return f"takes nothing new in: {reason}" if reason in (FULL, DAMAGED, DIVERGED) else ""


def members_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    view = console.group_view(key.cluster_id or "")
    html = fragments.environment().get_template("members/_configuration.html")
    return [Fragment("", html.render(members_context(console, view, key.role)))]


LIVE = {"members": members_fragments}


@router.get("/clusters/{cluster_id}/members")
async def members_page(request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep) -> Response:
    view, note = console.group_view(cluster_id), ""
    try:
        await console.configurations.load(cluster_id)
    except SQLAlchemyError:
        note = "What was before cannot be read: the console's database does not answer."
    context = members_context(console, view, viewer.role_on(cluster_id))
    return page(request, "members/page", {**context, "note": note})


@router.get("/clusters/{cluster_id}/members/change")
async def change_page(
    request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep, kind: Kind = "add",
    id: Name = "", address: At = "", learner: bool = False, replaces: Name = "",
) -> Response:  # fmt: skip
    """The form, and as soon as it is whole the pre-flight, which asks the leader: for those who may change anything."""
    view = console.group_view(cluster_id)
    change = change_of(kind, id.strip(), address.strip(), learner, replaces.strip())
    checked: MemberPreflight | None = None
    if change is not None and viewer.can(Right.OPERATE, cluster_id):
        checked = await preflight(console.nodes, view, change)
    context = {
        "view": view,
        "cluster": view.cluster,
        "kind": kind,
        "asked": {"id": id.strip(), "address": address.strip(), "learner": learner, "replaces": replaces.strip()},
        "title": TITLES[kind].format(replaces or "a member" if kind == "replace" else id or "a member"),
        "check": checked,
        "key": str(uuid.uuid4()),
    }
    return page(request, "members/change", context)


def change_of(kind: str, member_id: str, address: str, learner: bool, replaces: str) -> MemberChange | None:
    """None: something is missing that has to be said first."""
    if not member_id or (kind in ("add", "replace", "address") and not address) or (kind == "replace" and not replaces):
        return None
    if kind == "replace":
        return MemberChange("add", member_id, address, replaces=replaces)
    return MemberChange(kind, member_id, address if kind in ("add", "address") else "", learner and kind == "add")


@router.post("/clusters/{cluster_id}/members/change")
async def change_members(
    request: Request, cluster_id: ClusterId, console: ConsoleDep, viewer: ViewerDep,
    kind: Annotated[Kind, Form()], id: FormName = "", address: FormAt = "",
    learner: Annotated[bool, Form()] = False, replaces: FormName = "",
    if_term: Annotated[int | None, Form()] = None, key: Annotated[str, Form(max_length=128)] = "",
) -> Response:  # fmt: skip
    """`if_term` is the term that the page showed: if the term moved meanwhile, the change is refused with 412."""
    change = change_of(kind, id.strip(), address.strip(), learner, replaces.strip())
    if change is None:
        raise Invalid("Say which member it is about, and where it is reached. Nothing was changed.")
    operation = await begin(request, console, viewer, cluster_id, change, if_term, key or None)
    return see(f"/operations/{operation['id']}")
