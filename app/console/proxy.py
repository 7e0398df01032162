"""Reading through the control planes: one node's answer, or all replicas' answers side by side.

Invariant: a replica that does not answer is in the answer, with the reason; agreement is claimed only over what was
read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from app.console.errors import ConsoleError, NodeUnreachable, NotFound
from app.console.nodes import Nodes
from app.health.group_view import GroupView, MemberView
from app.times import rfc3339, utc_now
from node.views.answers import Truncation

Json = dict[str, Any]
TRUNCATIONS_MAX = 1000
CUTS: Final = TypeAdapter(list[Truncation])
COMPARED = ("term", "body", "body_crc", "chain_crc", "magic", "size_bytes")


def pick(view: GroupView, node_id: str | None) -> tuple[str, str]:
    """(id, control URL): the named member, else the leader, else the first that answers.

    Raises NodeUnreachable, NotFound.
    """
    if node_id is not None:
        chosen = view.asked(node_id)
        if chosen is None:
            raise NotFound(f"{view.cluster.name} has no node {node_id!r}.", title="Unknown node")
    else:
        chosen = view.leader or next((one for one in view.members if one.reach in ("ok", "down")), None)
    if chosen is None or not chosen.control_url:
        raise NodeUnreachable("No control plane of this group is known to answer.", status=503)
    return chosen.id, chosen.control_url


async def from_all(nodes: Nodes, members: Sequence[MemberView], path: str, **params: Any) -> list[Json | ConsoleError]:
    """Each member's answer or the reason why there is none, in the order of the members."""

    async def ask(one: MemberView) -> Json | ConsoleError:
        try:
            if not one.control_url:
                return NodeUnreachable(f"the address of {one.id}'s control plane is unknown")
            return await nodes.get(one.control_url, path, **params)
        except ConsoleError as error:
            return error

    return list(await asyncio.gather(*(ask(one) for one in members)))


async def side_by_side(nodes: Nodes, view: GroupView, index: int, as_: str) -> Json:
    """One entry as every replica holds it."""
    members = view.members
    answers = await from_all(nodes, members, f"entries/{index}", view="raw", **{"as": as_})
    replicas: list[Json] = []
    held: list[Json] = []
    for one, answer in zip(members, answers, strict=True):
        entry = None if isinstance(answer, ConsoleError) else answer.get("entry", answer)
        problem = answer.detail if isinstance(answer, ConsoleError) else None
        if problem is None and not (isinstance(entry, dict) and entry.get("index") == index):
            entry, problem = None, "it answers something else than this entry"
        replicas.append({"node_id": one.id, "entry": entry, "problem": problem})
        if entry is not None:
            held.append(entry)
    agree = all(same_entry(held[0], other) for other in held[1:]) if len(held) > 1 else None
    return {"index": index, "agree": agree, "compared": len(held), "replicas": replicas}


def same_entry(first: Json, second: Json) -> bool:
    return all(first.get(key) == second.get(key) for key in COMPARED)


def are_cuts(items: Any) -> bool:
    try:
        CUTS.validate_python(items or [], strict=True)
        return True
    except ValidationError:
        return False


async def truncations(nodes: Nodes, view: GroupView, node_id: str | None) -> Json:
    """All replicas' archives in one list, newest first; what is older than a node's newest thousand is unknown."""
    members = [one for one in view.members if node_id in (None, one.id)]
    answers = await from_all(nodes, members, "truncations", limit=TRUNCATIONS_MAX)
    items: list[Json] = []
    unknown: list[Json] = []
    for one, answer in zip(members, answers, strict=True):
        if isinstance(answer, ConsoleError) or not are_cuts(answer.get("items")):
            reason = answer.detail if isinstance(answer, ConsoleError) else "it answers something else"
            since = one.last_seen or rfc3339(utc_now())
            unknown.append({"field": f"truncations of {one.id}", "reason": reason, "since": since})
        else:
            items += [{**item, "node_id": one.id} for item in answer.get("items") or []]
            if answer.get("next") is not None:
                reason = f"it keeps more than {TRUNCATIONS_MAX}: ask its control plane for those before"
                unknown.append({"field": f"truncations of {one.id}", "reason": reason, "since": rfc3339(utc_now())})
    items.sort(key=lambda item: str(item.get("at") or ""), reverse=True)
    return {"items": items, "next": None, "unknown": unknown}
