"""Changes of a group's members that the console asks for: the pre-flight, the change at the leader, its end.

The leader judges, and says what would follow (`node/control/members.py`); the console adds what it knows of the disk,
and what a change leaves to chance. Invariants: nothing is asked for that the leader refuses now; an operation has
exactly one end, and an answer that never came is `unknown`; the leader's own Idempotency-Key is our operation's id, so
asking twice changes once.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from app.console import format as fmt
from app.console.errors import Conflict, ConsoleError, NodeUnreachable, TermMoved
from app.console.nodes import NodeRefused, Nodes
from app.console.preflight import Check, Commands, check
from app.console.transfers import STATES, as_json, begun, operation_of, problem_of
from app.db.repositories import FAILED, RUNNING, UNKNOWN, Operations
from app.health.facts import entries_of
from app.health.group_view import GroupView
from app.health.next_steps import TOKEN_HEADER
from node.background import Background, reason_of
from node.views.base import Number, Text, View, Whole
from node.views.reading import Unreadable, read

Json = dict[str, Any]
KIND: Final = "member_change"
POLL_S: Final = 0.25
# A leader without a quorum steps down and says so; what is not over by then is not known to end.
ENDS_WITHIN_S: Final = 60.0
PREFLIGHT_S: Final = 12.0  # a leader's engine that is late has 5 s, and 5 s more to look at the change


class MemberChange(NamedTuple):
    """What is asked for. `kind`: add, promote, remove or address; `replaces`: who leaves once the new one votes."""

    kind: str
    member_id: str
    address: str = ""
    learner: bool = False
    replaces: str | None = None

    @property
    def words(self) -> str:
        match self.kind:
            case "add" if self.replaces:
                return f"replace {self.replaces} by {self.member_id} at {self.address}"
            case "add":
                return f"add {self.member_id} at {self.address}{' as a learner' if self.learner else ''}"
            case "address":
                return f"take {self.member_id} to be at {self.address}"
            case "promote":
                return f"make {self.member_id} a voter"
        return f"remove {self.member_id}"

    def call(self, if_term: int | None, *, dry_run: bool) -> tuple[str, str, Json | None, Json | None]:
        """(method, path, body, parameters) at the leader's control plane."""
        more: Json = {"if_term": if_term, "dry_run": dry_run}
        one = f"members/{quote(self.member_id, safe='')}"
        match self.kind:
            case "add":
                new = {"id": self.member_id, "address": self.address, "learner": self.learner}
                return "POST", "members", {**new, "replaces": self.replaces, **more}, None
            case "address":
                return "PUT", f"{one}/address", {"address": self.address, **more}, None
            case "promote":
                return "POST", f"{one}/promotion", more, None
        asked = {"dry_run": "true" if dry_run else None, "if_term": if_term}
        return "DELETE", one, None, asked

    def commands(self, url: str, if_term: int | None) -> Commands:
        """The same by hand; the token is never printed."""
        words = {
            "add": ["replace", self.replaces, self.member_id, self.address] if self.replaces
            else ["add", self.member_id, self.address, *(["--learner"] if self.learner else [])],
            "address": ["address", self.member_id, self.address],
        }.get(self.kind, [self.kind, self.member_id])  # fmt: skip
        term = [] if if_term is None else ["--if-term", str(if_term)]
        line = shlex.join(["quorumscope", "members", *(str(one) for one in words), "--node", url, *term])
        method, path, body, asked = self.call(if_term, dry_run=False)
        query = "" if asked is None or if_term is None else f"?if_term={if_term}"
        sent = "" if body is None else f" -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
        curl = f"curl -X {method} {shlex.quote(f'{url}/api/v1/{path}{query}')}{TOKEN_HEADER}{sent}"
        return Commands(cli=line, curl=curl)


class QuorumThen(View):
    """How many voters have to answer, which ones do, and how many of these may fail."""

    voters: tuple[Text, ...] = ()
    needed: Whole | None = None
    answering: tuple[Text, ...] = ()
    survives: Whole | None = None


class RefusedView(View):
    """Why the leader would not do it."""

    detail: Text


class LeaderSays(View):
    """The leader's own pre-flight: its words, so nothing of it is believed to be of any type."""

    refused: RefusedView | None = None
    before: QuorumThen | None = None
    after: QuorumThen | None = None
    lag_entries: Whole | None = None
    lag_bytes: Whole | None = None
    catch_up_s_at_most: Number | None = None
    needs_disk_bytes: Whole | None = None


class MemberPreflight(View):
    """What a change would mean. `allowed` False: it would be refused; `checks` say why. null: nobody knows."""

    allowed: bool
    would: str
    if_term: Whole | None
    checks: tuple[Check, ...]
    before: QuorumThen | None = None
    after: QuorumThen | None = None
    lag_entries: Whole | None = None
    lag_bytes: Whole | None = None
    catch_up_s_at_most: Number | None = None
    needs_disk_bytes: Whole | None = None
    free_disk_bytes: Whole | None = None
    commands: Commands


async def preflight(nodes: Nodes, view: GroupView, change: MemberChange, if_term: int | None = None) -> MemberPreflight:
    """What the leader says of it now; whoever does not answer refuses nothing, and allows nothing."""
    leader = view.leader
    url = (leader and leader.control_url) or "http://LEADER"
    known: LeaderSays | None = None
    if leader is None or not leader.control_url:
        first = check("leader", "refused", "There is no reachable leader that could change the members")
    else:
        method, path, body, asked = change.call(if_term, dry_run=True)
        try:
            said = await nodes.json(method, url, path, json=body, params=asked, timeout_s=PREFLIGHT_S)
            known = read(LeaderSays, said.get("members"))
            first = check("leader", "ok", f"{view.leader_id} leads term {view.term}")
        except NodeRefused as refusal:
            first = check("change", "refused", refusal.detail)
        except Unreadable as error:
            first = check("leader", "refused", f"{view.leader_id} says what cannot be read: {error}")
        except ConsoleError as error:
            first = check("leader", "refused", f"{view.leader_id} does not say what would follow: {error.detail}")
    checks = [first, *checks_of(view, change, known)] if known else [first]
    known = known or LeaderSays()
    return MemberPreflight(
        allowed=not any(one.state == "refused" for one in checks),
        would=change.words,
        if_term=view.term if if_term is None else if_term,
        checks=tuple(checks),
        before=known.before,
        after=known.after,
        lag_entries=known.lag_entries,
        lag_bytes=known.lag_bytes,
        catch_up_s_at_most=known.catch_up_s_at_most,
        needs_disk_bytes=known.needs_disk_bytes,
        free_disk_bytes=free_disk(view, change.member_id),
        commands=change.commands(url, view.term if if_term is None else if_term),
    )


def free_disk(view: GroupView, member_id: str) -> int | None:
    one = view.asked(member_id)
    return one.state.disk.free_bytes if one is not None and one.state is not None and one.state.disk else None


def checks_of(view: GroupView, change: MemberChange, known: LeaderSays) -> list[Check]:
    """What there is to know, the worst last word first: the leader's own."""
    found = [
        check("change", "refused", known.refused.detail)
        if known.refused
        else check("change", "ok", f"{view.leader_id} would {change.words}")
    ]
    before, after = known.before or QuorumThen(), known.after or QuorumThen()
    found += [quorum_check("quorum now", before, None), quorum_check("quorum then", after, before)]
    if change.kind == "address" and change.member_id in after.answering:
        found.append(moved_check(change, after))
    if change.kind in ("add", "promote"):
        found += [lag_check(change, known), time_check(change, known), disk_check(view, change, known)]
    return found


def quorum_check(name: str, one: QuorumThen, before: QuorumThen | None) -> Check:
    if one.needed is None or one.survives is None:
        return check(name, "unknown", "How many have to answer is unknown")
    new = [one_id for one_id in one.answering if before is not None and one_id not in before.answering]
    once = f", {', '.join(new)} among them once it has caught up" if new else ""
    counted = f"{one.needed} of {len(one.voters)} voters have to answer, {len(one.answering)} do{once}"
    if one.survives < 0:
        return check(name, "attention", f"{counted}: {-one.survives} too few")
    may = "none may fail" if one.survives == 0 else f"{one.survives} may fail"
    fewer = before is not None and before.survives is not None and one.survives < before.survives
    return check(name, "attention" if fewer or one.survives == 0 else "ok", f"{counted}: {may}")


def moved_check(change: MemberChange, after: QuorumThen) -> Check:
    """Nobody reaches it where it was, and whether it runs where it is to be the leader does not know."""
    text = f"Until {change.member_id} runs at {change.address} it counts for no quorum"
    if after.survives is None:
        return check("address", "attention", text)
    left = after.survives - 1
    may = f"{-left} too few answer" if left < 0 else "none may fail" if left == 0 else f"{left} may fail"
    return check("address", "attention", f"{text}; {may} meanwhile")


def lag_check(change: MemberChange, known: LeaderSays) -> Check:
    lag = known.lag_entries
    if lag is None:
        return check("lag", "unknown", f"What {change.member_id} lacks is unknown")
    size = known.lag_bytes
    of = "" if size is None else f", {fmt.size(size)}"
    return check("lag", "ok", f"{change.member_id} lacks {entries_of(lag)}{of}")


def time_check(change: MemberChange, known: LeaderSays) -> Check:
    seconds = known.catch_up_s_at_most
    if seconds is None:
        return check("time", "unknown", f"How long {change.member_id} takes to catch up is unknown")
    return check("time", "ok", f"It catches up in {fmt.duration_ms(seconds * 1000)} at most, if its disk keeps up")


def disk_check(view: GroupView, change: MemberChange, known: LeaderSays) -> Check:
    needs, free = known.needs_disk_bytes, free_disk(view, change.member_id)
    if needs is None or free is None:
        wants = "" if needs is None else f"; the log takes {fmt.size(needs)}"
        return check("disk", "unknown", f"What room the disk of {change.member_id} has is unknown{wants}")
    text = f"Its disk has {fmt.size(free)} free; the log takes {fmt.size(needs)}"
    return check("disk", "attention" if free <= needs else "ok", text)


class MemberChanges:
    """Starts operations and follows them in tasks; what still runs when these are stopped is left to
    `Operations.orphaned` at the next start."""

    def __init__(self, nodes: Nodes, operations: Operations, background: Background) -> None:
        self.nodes, self.operations, self.background = nodes, operations, background

    def start(self, operation_id: str, url: str, change: MemberChange, if_term: int | None) -> None:
        self.background.run(f"{KIND} {operation_id}", self.follow(operation_id, url, change, if_term))

    async def follow(self, operation_id: str, url: str, change: MemberChange, if_term: int | None) -> None:
        method, path, body, asked = change.call(if_term, dry_run=False)
        headers = {"idempotency-key": operation_id}
        try:
            async with asyncio.timeout(ENDS_WITHIN_S):
                remote = await begun(self.nodes, method, url, path, json=body, params=asked, headers=headers)
                while remote.get("state") == RUNNING:
                    await asyncio.sleep(POLL_S)
                    remote = await operation_of(self.nodes, url, remote["id"])
        except NodeRefused as refusal:
            await self.end(operation_id, FAILED, None, problem_of(refusal))
        except (TimeoutError, NodeUnreachable) as error:
            await self.end_unknown(operation_id, str(error) or "timed out")
        except Exception as error:  # an answer that is none: whoever asked must not wait for ever
            await self.end_unknown(operation_id, reason_of(error))
            raise
        else:
            state = str(remote.get("state"))
            outcome, problem = as_json(remote.get("outcome")), as_json(remote.get("problem"))
            await self.end(operation_id, state if state in STATES else UNKNOWN, outcome, problem)

    async def end_unknown(self, operation_id: str, why: str) -> None:
        detail = f"No answer came ({why}); the page Members shows who belongs to the group."
        await self.end(operation_id, UNKNOWN, None, {"title": "Outcome unknown", "detail": detail})

    async def end(self, operation_id: str, state: str, outcome: Json | None, problem: Json | None) -> None:
        await self.operations.set(operation_id, state=state, outcome=outcome, problem=problem)


def refused_change(checked: MemberPreflight) -> Conflict:
    why = "; ".join(one.text for one in checked.checks if one.state == "refused")
    return Conflict(why, title="Change refused", action="Nothing was changed.")


def check_term(view: GroupView, if_term: int | None) -> None:
    """Raises TermMoved."""
    if if_term is not None and view.term is not None and if_term != view.term:
        raise TermMoved(f"The group is in term {view.term}, not {if_term}; look again, then repeat.")
