"""`status`: how a group stands, and who leads it.

Invariant: what was not answered is shown as unknown, never as 0. `status` ends with 1 when a member does not answer, is
cut off from the others or raises an alarm, or when nobody leads (`app.commands.standing`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import typer

from app.commands.broker_standing import with_broker_alarms
from app.commands.control_calls import SILENT_AFTER_S, control_state
from app.commands.endings import ClassicBroker, Exit, Failure, Silence, Unheard
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, say, show_json, show_lines, terminal_width
from app.commands.plain_members import ask_metadata, with_plain
from app.commands.standing import AskedMember, StatusProblem, StatusView, pasteable, summary_of
from app.commands.status_table import hangs, table_of
from app.commands.targets import Target, in_group
from app.console.aggregate import newest_log
from app.health.facts import INFO
from app.health.foreign import OF_ANOTHER, OF_ANOTHER_NAME
from app.health.recall import Recall
from node.client import AnotherGroup, Denied, LedgerClient, LedgerError, UnknownGroup, Unreachable, Unsupported
from node.protocol.group_id import is_group_id
from node.protocol.peers import is_address
from node.views.closures import ClosuresView
from node.views.reading import Unreadable, read
from node.views.replication import DispatchersView, WatermarksView
from node.views.state import StateView

NO_ANSWER: Final = f"no answer within {SILENT_AFTER_S:.0f} s"
LATE_S: Final = 0.5
AGAIN_S: Final = 0.5  # for one that said nothing in an earlier look
LOOK_AGAIN_S: Final = 3.0
LOOK_EVERY_S: Final = 0.25
NOBODY: Final[Mapping[str, AskedMember]] = MappingProxyType({})
BY_ITS_WORD: Final = {"stale": Silence.NO_WORD, "down": Silence.NOTHING_LISTENS}  # of an engine, by its control plane


async def ask_member(client: LedgerClient, member_id: str, address: str) -> AskedMember:
    """A member's state, and what only a leader knows; or `reach: down` with the reason."""
    known = AskedMember(id=member_id, address=address, watermarks=None, reach="down", reason=None, state=None)
    try:
        async with asyncio.timeout(SILENT_AFTER_S):
            state = read(StateView, await client.introspect(member_id, "state"))
            reported: dict[str, object] = {"state": state}
            if state.role == "LEADER":
                reported["watermarks"] = read(WatermarksView, await client.introspect(member_id, "watermarks"))
                reported["dispatchers"] = read(DispatchersView, await client.introspect(member_id, "dispatchers"))
                reported["closures"] = read(ClosuresView, await client.introspect(member_id, "closures"))
    except TimeoutError:
        return known.model_copy(update={"reason": NO_ANSWER, "silence": Silence.NO_WORD})
    except AnotherGroup as error:
        return known.model_copy(update={"reason": f"{OF_ANOTHER}{str(error).partition(' another group ')[2]}"})
    except UnknownGroup:
        return known.model_copy(update={"reason": OF_ANOTHER_NAME})
    except Denied:
        raise
    except Unsupported:
        try:
            return await ask_metadata(client, known)
        except Unreachable as error:
            if isinstance(error.__cause__, TimeoutError):
                why = f"{NO_ANSWER} to METADATA, all that a plain DLedger tells"
                return known.model_copy(update={"reason": why, "silence": Silence.NO_WORD})
            return unanswered(known, error)
    except Unreadable as error:
        return known.model_copy(update={"reason": f"its answer cannot be read: {error}"})
    except (LedgerError, OSError) as error:
        return unanswered(known, error)
    return known.model_copy(update={"reach": "ok", **reported})


def unanswered(known: AskedMember, error: Exception) -> AskedMember:
    """The error for the member's line in `status`: without its name and address, the commonest one in plain words."""
    text = str(error)
    if "Connect call failed" in text or "Connection refused" in text:
        why = "connection refused: nothing listens there"
        return known.model_copy(update={"reason": why, "silence": Silence.NOTHING_LISTENS})
    why = text.replace(f"{known.id} at {known.address}: ", "")
    return known.model_copy(update={"reason": why, "silence": Silence.BROKEN})


async def ask_group(
    target: Target, recall: Recall | None = None, silent: Mapping[str, AskedMember] = NOBODY
) -> StatusView:
    """All members' states, and what follows from them and from what `recall` remembers. Raises Denied."""
    asked = of_one_group(await ask_all(target, silent))
    strangers = [one for one in asked if one.reason == OF_ANOTHER_NAME]
    if strangers and all(one.state is None for one in asked):  # then it is the name that is wrong
        raise Denied(f"{strangers[0].id} at {strangers[0].address} answers UNKNOWN_GROUP")
    named = named_by_group(target, asked)
    try:
        asked += await ask_all(named, silent)
    except Denied as error:
        say(f"{', '.join(named.peers)}: {error}; give --peers with them, so that they are asked with the token")
    if target.itself is not None and target.asked is not None and target.asked not in named.peers:
        asked.append(AskedMember(id=target.asked, address="", reach="ok", state=target.itself))
    members = sorted(asked, key=lambda one: one.id)
    every = replace(target, peers={**named.peers, **target.peers})
    members = await asyncio.gather(*(completed(one, members, every) for one in members))
    members = await with_broker_alarms([startable(one, target) for one in members], target)
    return with_plain(summary_of(target.group, members, recall=recall, demo=target.demo, asked=target.asked))


async def ask_all(target: Target, silent: Mapping[str, AskedMember] = NOBODY) -> list[AskedMember]:
    """Each member's state, in SILENT_AFTER_S whoever hangs. Who was `silent` before is given less time, and is still
    what it was then where it uses that up. Raises Denied."""
    named: dict[str, str] = {}  # control planes, by the members that have answered

    async def ask(member_id: str, address: str) -> AskedMember:
        # A client each: a member that hangs must not hold up the others.
        client = target.client(SILENT_AFTER_S, only=member_id)
        answered = asyncio.Event()

        async def its_engine() -> AskedMember:
            try:
                async with asyncio.timeout(AGAIN_S if member_id in silent else None):
                    member = await ask_member(client, member_id, address)
                named.update(urls_of(member.state))
                return member
            except TimeoutError:
                return silent[member_id]
            finally:
                answered.set()
                await client.close()

        async def its_control_plane() -> StateView | Failure | None:
            """Of one that is late, and may hang: asked meanwhile, not thereafter."""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATE_S):
                    await answered.wait()
            if answered.is_set() or member_id in silent:
                return None
            url, left_s = target.control_urls.get(member_id), SILENT_AFTER_S - LATE_S
            token = None if url is None else target.token_for(url)  # what a member only names gets none
            url = url or named.get(member_id)
            return None if url is None else await asyncio.to_thread(word_of, url, token, target.control_tls, left_s)

        member, word = await asyncio.gather(its_engine(), its_control_plane())
        url = target.control_urls.get(member_id) or own_url(member.state, member_id) or member.control_url
        member = member.model_copy(update={"control_url": url})
        if word is None or member.reach != "down":
            return member
        return with_word(member, word).model_copy(update={"was_looked_up": True})

    return await asyncio.gather(*(ask(member_id, target.peers[member_id]) for member_id in sorted(target.peers)))


def of_one_group(asked: Sequence[AskedMember]) -> list[AskedMember]:
    """Without what members of another group of this name said: of the ids that were given, the commonest counts.

    Addresses that were given alone say no id; a restored group beside the old one has its name, and its members' names.
    """
    ids = [one.state.group_id for one in asked if one.state is not None and is_group_id(one.state.group_id)]
    ours = max(ids, key=lambda one: (ids.count(one), -ids.index(one)), default=None)
    return [
        one
        if one.state is None or one.state.group_id in (None, ours) or ours is None
        else AskedMember(
            id=one.id, address=one.address, reach="down",
            reason=f"{OF_ANOTHER}of this name: its id is {one.state.group_id}, not {ours}",
        )
        for one in asked
    ]  # fmt: skip


def named_by_group(target: Target, asked: Sequence[AskedMember]) -> Target:
    """The members that the group's leader names, or without one the newest log, and nobody here knew. Their addresses
    are its word alone: without TLS, which proves who answers there, they are not given the token."""
    states = [one.state for one in asked if one.state is not None]
    leaders = [state for state in states if state.role == "LEADER"]
    named_by = max(leaders, key=lambda state: state.term or 0, default=None) or newest_log(states)
    named = {
        one.id: one.address for one in (named_by and named_by.peers) or () if one.address and is_address(one.address)
    }
    new = {member_id: address for member_id, address in named.items() if member_id not in target.peers}
    return replace(target, peers=new, token=None if target.tls is None else target.token)


async def look_closely(target: Target) -> StatusView:
    """Looks again where something may be a moment's, until it has lasted or is over: one look proves neither."""
    recall, silent = Recall(), NOBODY
    deadline = time.monotonic() + LOOK_AGAIN_S
    while True:
        summary = await ask_group(target, recall, silent)
        silent = {one.id: one for one in (*summary.members, *summary.others) if hangs(one)}
        doubt = any(one.field == "in_step" for one in summary.unknown)
        settled = not summary.pending and (bool(pressing_of(summary)) or not doubt)
        if settled or summary.quorum.answering == 0 or time.monotonic() > deadline:
            return summary
        await asyncio.sleep(LOOK_EVERY_S)


def pressing_of(summary: StatusView) -> list[StatusProblem]:
    """Problems that somebody should do something about."""
    return [one for one in summary.problems if one.severity != INFO]


def own_url(state: StateView | None, member_id: str) -> str | None:
    """Where a member says that a control plane is, its own or another's."""
    return urls_of(state).get(member_id)


def urls_of(state: StateView | None) -> dict[str, str]:
    """All control planes that a member names."""
    return {one.id: one.control_url for one in (state and state.peers) or () if one.control_url}


async def completed(member: AskedMember, members: Sequence[AskedMember], target: Target) -> AskedMember:
    """A member that is down, with what its control plane says; where that is, others may know. What a member only
    names gets no token."""
    strange = (member.reason or "").startswith((OF_ANOTHER, OF_ANOTHER_NAME))
    if member.reach != "down" or member.was_looked_up or strange:
        return member
    if member.control_url is not None:
        token = target.token_for(member.control_url)
        return await asyncio.to_thread(with_control_plane, member, member.control_url, token, target.control_tls)
    urls = [url for other in members if (url := own_url(other.state, member.id)) is not None]
    if not urls:
        return member
    named = member.model_copy(update={"control_url": urls[0]})
    return await asyncio.to_thread(with_control_plane, named, urls[0], None, target.control_tls)


def startable(member: AskedMember, target: Target) -> AskedMember:
    """A member of which nothing answers, with what starts it, where this machine's own files say that."""
    line = target.starts.get(member.id)
    if line is None or member.reach != "down" or member.start is not None:
        return member
    return member.model_copy(update={"start": StateView(engine="down", self_id=member.id, started_with=line)})


def with_control_plane(
    member: AskedMember, url: str, token: str | None, tls: ssl.SSLContext | None = None
) -> AskedMember:
    """What the control plane of a member whose engine is down says: it may outlive it, and knows how to start it."""
    return with_word(member, word_of(url, token, tls))


def word_of(
    url: str, token: str | None, tls: ssl.SSLContext | None = None, within_s: float = SILENT_AFTER_S
) -> StateView | Failure:
    """What a control plane says, in as much time as its engine has."""
    try:
        return control_state(url, None, token, tls, within_s)
    except Failure as failure:
        return failure


def with_word(member: AskedMember, state: StateView | Failure) -> AskedMember:
    if isinstance(state, Failure):
        if hangs(member) or not (isinstance(state, Unheard) and state.silence is Silence.NO_WORD):
            return member
        # Who takes the question may be starting an engine just now.
        hangs_there = f"{NO_ANSWER} from its control plane; at its port: {member.reason}"
        return member.model_copy(update={"reason": hangs_there, "silence": Silence.NO_WORD})
    reason = f"engine {state.engine}: {state.engine_reason}" if state.engine_reason else member.reason
    if state.engine == "ok" and state.self_id == member.id:
        reason = f"{member.reason}; its control plane says that its engine runs"
    if state.self_id != member.id:
        return member.model_copy(update={"reason": reason})
    start = StateView(
        engine=state.engine, engine_reason=state.engine_reason, self_id=state.self_id,
        started_with=state.started_with, data_dir=state.data_dir, peers=state.peers,
    )  # fmt: skip
    silence = BY_ITS_WORD.get(state.engine or "", member.silence)
    return member.model_copy(update={"reason": reason, "silence": silence, "start": start})


def or_of_a_pair(command: Callable[..., int]) -> Callable[..., int]:
    """The command for a group, but that `ha status` answers where `--node` is a broker in classic mode."""

    @functools.wraps(command)
    def run(**given: Any) -> int:
        try:
            return command(**given)
        except ClassicBroker:
            from app.commands.ha import status as status_of_pair

            names = ("ca", "token_file", "config", "as_json")
            return status_of_pair([given["node"]], **{name: given[name] for name in names})

    return run


@or_of_a_pair
@in_group
def status(
    target: Target,
    as_json: JsonOption = False,
) -> int:
    """Show what every member holds and who leads."""
    summary = pasteable(run_async(lambda: look_closely(target)), target.access)
    if as_json:
        show_json(summary.to_json())
    else:
        lines = table_of(summary, terminal_width())
        show_lines(lines)
    if summary.quorum.answering == 0:
        raise Failure(Exit.UNREACHABLE, f"no member of {target.group} answers")
    if target.unanswered or pressing_of(summary):
        return Exit.FINDING
    return Exit.UNDETERMINED if summary.unknown else Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(status)
