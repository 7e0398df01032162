"""What the pages "Messages" draw while they are open: asked of the control planes, once for all who look.

A page begins with the same contexts and templates as its stream goes on with (`LIVE`, see `live.py`).

Invariants: topics, queues and groups are one member's word, the leader's or, where none is known, of one that is named;
each broker's state is its own; a fragment depends on
the answers and on the role, and says when they were asked for, so that a page of answers that no longer come is stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from pydantic import BaseModel, ValidationError

from app.console import fragments, proxy
from app.console import messages_view as drawn
from app.console.console import Console
from app.console.errors import ConsoleError, NodeUnreachable, NothingListens
from app.console.live import Fragment, LiveKey
from app.console.messages_view import MemberBroker
from app.console.nodes import NodeRefused
from app.console.transfers import BEGUN_WITHIN_S, MAY_BE_DONE
from app.health.group_view import GroupView
from app.health.pair_links import slaves_of
from app.security.roles import RIGHTS, Right
from app.times import rfc3339, utc_now
from node.views.message_answers import (
    OVERDUE_MS,
    Broker,
    ConsumerGroups,
    OneConsumerGroup,
    Queues,
    Topic,
    Topics,
)

Context = dict[str, object]
A = TypeVar("A", bound=BaseModel)
LISTED: Final = 20  # topics, groups: the page stays readable on a telephone
QUEUES: Final = 200
READERS: Final = 1000
BEHIND_MOST: Final = 50  # queues of a group
LOOK_FIRST: Final = "Do not send it again before you have looked whether it was done: open its page anew."


@dataclass(frozen=True, slots=True)
class Listing:
    """Which topics and groups the page lists: those with `part` in their name; `*_after` is the last name of the page
    before. (No field may be called `contains`: the form's would hide its method of that name from scripts.)"""

    part: str = ""
    system: bool = False
    topics_after: str = ""
    groups_after: str = ""

    @classmethod
    def of(cls, query: str) -> Listing:
        """The listing that the query string of a page asks for."""
        said = dict(parse_qsl(query))
        names = {name: said.get(name, "") for name in ("part", "topics_after", "groups_after")}
        return cls(system=said.get("system") == "true", **names)

    def query(self, **changes: str | bool) -> str:
        """Of the address of this page, or of one that differs in that."""
        said = asdict(replace(self, **changes))  # type: ignore[arg-type]
        return urlencode({name: "true" if value is True else value for name, value in said.items() if value})

    def asked(self, after: str) -> dict[str, str | int | None]:
        """The query parameters with which a control plane is asked for this listing."""
        system = "true" if self.system else None
        return {"limit": LISTED, "system": system, "contains": self.part or None, "cursor": after or None}


def read(kind: type[A], said: Any) -> A:
    """Raises NodeUnreachable for what no control plane of ours answers."""
    try:
        return kind.model_validate(said)
    except ValidationError:
        raise NodeUnreachable("The control plane answers something else than is expected here.", code="odd") from None


async def ask(
    console: Console, cluster_id: str, kind: type[A], path: str, *, node_id: str | None = None, **params: Any
) -> A:
    """Of that member's control plane; by default of the leader's, or of any that answers. Raises ConsoleError."""
    return read(kind, await console.ask(cluster_id, path, node_id=node_id, **params))


async def would_change(console: Console, cluster_id: str, kind: type[A], path: str, body: Any) -> A:
    """What a change would do, by the leader's control plane. Raises ConsoleError."""
    _, url = console.control_url(cluster_id, None)
    return read(kind, await console.nodes.json("POST", url, path, json=body, timeout_s=BEGUN_WITHIN_S))


async def change(console: Console, cluster_id: str, kind: type[A], path: str, body: Any) -> A:
    """By the leader's control plane. Raises ConsoleError; where nobody knows whether it was done, it says so."""
    _, url = console.control_url(cluster_id, None)
    try:
        return read(kind, await console.nodes.json("POST", url, path, json=body, timeout_s=BEGUN_WITHIN_S))
    except NothingListens as error:
        raise NodeUnreachable(f"{error.detail}. Nothing was changed.", code=error.code) from None
    except NodeRefused as refusal:  # a node's own answers say it
        if refusal.node_status not in MAY_BE_DONE or "outcome" in refusal.body:
            raise
        why = f"{url} answered {refusal.node_status}: {refusal.detail}"
    except NodeUnreachable as error:
        why = error.detail
    raise NodeUnreachable(
        f"{why.removesuffix('.')}. It may have been done, or may yet be.", status=504, title="Outcome unknown",
        action=LOOK_FIRST, outcome="unknown",
    )  # fmt: skip


def teller(view: GroupView) -> str:
    """Whose word all of one page is: two members, asked in the midst of an election, know different things. Raises
    ConsoleError."""
    return proxy.pick(view, None)[0]


def base(view: GroupView, role: str) -> Context:
    """`answered_by`: the member whose broker's word it is where no leader is known."""
    leaderless = view.leader_id is None and any(one.reach in ("ok", "down") for one in view.members)
    return {
        "answered_by": teller(view) if leaderless else None,
        "view": view,
        "cluster": view.cluster,
        "drawn": drawn,
        "path": f"/clusters/{view.cluster.id}/messages",
        "reads_bodies": Right.READ_BODIES in RIGHTS.get(role, frozenset()),
        "asked_at": rfc3339(utc_now()),
    }


# --- what there is ----------------------------------------------------------------------------------------------------
async def overview_context(console: Console, cluster_id: str, role: str, listing: Listing) -> Context:
    """Brokers, topics, groups, what waits, changes of role."""
    view = console.group_view(cluster_id)
    context = base(view, role)
    brokers, listed = await asyncio.gather(brokers_of(console, view), lists(console, view, listing))
    return context | {
        "brokers": [drawn.row_of(one) for one in brokers],
        "sentence_": drawn.sentence_of(brokers, unserved_of(view) if view.is_pair else None),
        "changes": drawn.timeline_of(brokers),
        "master": drawn.master_of(brokers),
        "overdue_ms": OVERDUE_MS,
        "kept": drawn.kept_in_words(brokers),
        "topics": listed[0],
        "groups": listed[1],
        "error": listed[2],
        "listing": listing,
    }


def unserved_of(view: GroupView) -> list[str]:
    """The slaves of a pair that no master serves."""
    found = [(one.id, said.following) for one, said in slaves_of(view)]
    return [one for one, following in found if following is None or following.state != "transfer"]


async def brokers_of(console: Console, view: GroupView) -> list[MemberBroker]:
    answers = await proxy.from_all(console.nodes, view.members, "broker")
    clocks = {one.node_id: one.last_clock for one in console.watch_of(view.cluster.id).samples}
    found: list[MemberBroker] = []
    for one, said in zip(view.members, answers, strict=True):
        try:
            if isinstance(said, ConsoleError):
                raise said
            known = drawn.on_our_clock(read(Broker, said), clocks.get(one.id))
            found.append(MemberBroker(one.id, known, has_engine=one.unheard_since is None))
        except ConsoleError as error:
            found.append(MemberBroker(one.id, None, error.detail))
    return found


async def lists(
    console: Console, view: GroupView, listing: Listing
) -> tuple[Topics | None, ConsumerGroups | None, str]:
    """Topics and groups, or why they are not known."""
    cluster_id = view.cluster.id
    try:
        node_id = teller(view)
        of_topics, of_groups = listing.asked(listing.topics_after), listing.asked(listing.groups_after)
        topics = await ask(console, cluster_id, Topics, "topics", node_id=node_id, **of_topics)
        groups = await ask(console, cluster_id, ConsumerGroups, "consumer-groups", node_id=node_id, **of_groups)
        return topics, groups, ""
    except ConsoleError as error:
        return None, None, error.detail


async def topic_context(console: Console, cluster_id: str, role: str, topic: str) -> Context:
    """A topic, its queues, and who reads it. Raises ConsoleError."""
    view, path = console.group_view(cluster_id), f"topics/{quote(topic, safe='')}"
    context, node_id = base(view, role), teller(view)
    described, queues, groups = await asyncio.gather(
        ask(console, cluster_id, Topic, path, node_id=node_id),
        ask(console, cluster_id, Queues, f"{path}/queues", node_id=node_id, limit=QUEUES),
        ask(console, cluster_id, ConsumerGroups, "consumer-groups", node_id=node_id, limit=READERS),
    )
    readers = [
        one for one in groups.items if topic in one.topics or topic in {each.topic for each in one.subscriptions}
    ]
    return context | {"topic": described, "queues": queues, "groups": readers, "more_groups": groups.next}


async def group_context(console: Console, cluster_id: str, role: str, group: str) -> Context:
    """A group of consumers, its members, and how far it is in each queue. Raises ConsoleError."""
    view = console.group_view(cluster_id)
    context, path = base(view, role), f"consumer-groups/{quote(group, safe='')}"
    found = await ask(console, cluster_id, OneConsumerGroup, path, node_id=teller(view))
    queues = sorted(found.queues, key=lambda one: one.lag_messages or 0, reverse=True)
    left_out = max(0, len(queues) - BEHIND_MOST) + found.queues_left_out
    return context | {"group": found, "queues": queues[:BEHIND_MOST], "left_out": left_out}


# --- the streams ------------------------------------------------------------------------------------------------------
def fragment(name: str, context: Mapping[str, object]) -> Sequence[Fragment]:
    return [Fragment("", fragments.environment().get_template(f"messages/_{name}.html").render(context))]


async def overview_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    """`key.name` is the listing's query."""
    context = await overview_context(console, key.cluster_id or "", key.role, Listing.of(key.name))
    return [*fragment("overview", context), *fragment("lists", context)]


async def topic_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    """`key.name` is the topic."""
    return fragment("topic", await topic_context(console, key.cluster_id or "", key.role, key.name))


async def group_fragments(console: Console, key: LiveKey) -> Sequence[Fragment]:
    """`key.name` is the group of consumers."""
    return fragment("group", await group_context(console, key.cluster_id or "", key.role, key.name))


LIVE: Final[Mapping[str, Callable[[Console, LiveKey], Awaitable[Sequence[Fragment]]]]] = {
    "messages": overview_fragments,
    "message-topic": topic_fragments,
    "message-group": group_fragments,
}
