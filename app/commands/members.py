"""`members`: who belongs to a group, and changes of it, one at a time.

A change begins with its pre-flight: what the quorum is before and after, what the member lacks and how long that
takes at most; then it is confirmed (`--yes`), asked of the leader, and over when it is committed. A new member becomes
a voter by itself once it has caught up, and whom it replaces leaves then.

Invariant: 0 means that the change is committed; 75 that nobody can say; nothing is asked for without a confirmation.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace as replace_in
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from app.commands.access_flags import AccessFlags
from app.commands.endings import Exit, Failure
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, say, show, show_json, show_lines, terminal_width, wrapped
from app.commands.targets import I64_MAX, Target, in_group
from app.commands.waiting import said_if_slow
from app.health.facts import entries_of
from node.client import LedgerError, Unsupported
from node.client import members as client_members
from node.protocol.codes import ResponseCode
from node.protocol.peers import checked_address, checked_id
from node.views.members import MembersView, MemberView
from node.views.reading import Unreadable, read
from node.views.state import StateView

ASK_WITHIN_S: Final = 30.0
NEW_MEMBER_S: Final = 2.0
YesOption = Annotated[bool, typer.Option("--yes", help="Do it; without it the pre-flight is shown, and a question.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the pre-flight only.")]
IfTermOption = Annotated[
    int | None,
    typer.Option("--if-term", metavar="N", min=0, max=I64_MAX, help="Only if the group is still in this term."),
]


def _checked(check: Callable[[str], str]) -> Callable[[str], str]:
    def text(given: str) -> str:
        try:
            return check(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return text


MemberArgument = Annotated[str, typer.Argument(metavar="ID")]
NewMemberArgument = Annotated[str, typer.Argument(metavar="ID", callback=_checked(checked_id))]
AddressArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", callback=_checked(checked_address))]


class ListedByDefault(TyperGroup):
    """`members --json` is `members list --json`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = args[:1]
        if not given or (given[0].startswith("-") and given[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


members = typer.Typer(name="members", cls=ListedByDefault, help="Who belongs to a group, and changes of it.")


OF_PLAIN: Final = (
    "the leader is a plain DLedger: its members are those of its configuration, which no command shows or changes"
)


async def ask_members(target: Target) -> MembersView:
    """The leader's view. Raises LedgerError, Failure."""
    client = target.client(ASK_WITHIN_S)
    try:
        with said_if_slow(waiting_for_leader(target)):
            return read(MembersView, await client_members.members(client))
    except Unsupported as error:
        raise Failure(Exit.UNDETERMINED, OF_PLAIN) from error
    except Unreadable as error:
        raise Failure(Exit.UNDETERMINED, f"the answer cannot be read: {error}") from error
    finally:
        await client.close()


def waiting_for_leader(target: Target) -> str:
    asked = ", ".join(f"{one} at {address}" for one, address in target.peers.items())
    return f"waiting for the leader of group {target.group} to answer (asking {asked}) ..."


def line_of(member: MemberView) -> str:
    """One member, for people."""
    kind = member.kind or "?"
    if member.promoting:
        leaves = f", and {member.replaces} leaves" if member.replaces else ""
        kind += f" (becomes a voter once it has caught up{leaves})"
    lag = f", {entries_of(member.lag_entries)} behind" if member.lag_entries else ""
    if lag and member.catch_up_s_at_most:
        lag += f" ({member.catch_up_s_at_most} s at most)"
    there = "" if member.connected else ", NOT CONNECTED"
    return f"  {member.id:<8}{member.address or '(address unknown)':<24}{kind}, {since_of(member)}{lag}{there}"


def since_of(member: MemberView) -> str:
    """Since when it belongs to the group, and votes."""
    if member.joined_index is None:
        return "since when is not known"
    if member.joined_index == -1:
        return "since the group began"
    if member.kind != "voter":
        return f"since entry {member.joined_index}"
    voter = "since when is not known" if member.voter_index is None else f"since entry {member.voter_index}"
    return f"{voter}; it came with entry {member.joined_index}"


def voters_make(needed: int | None) -> str:
    """One is needed only where there is one: "1 of 1 voter makes a quorum"."""
    return "voter makes" if needed == 1 else "voters make"


@members.command("list")
@in_group
def list_members(target: Target, as_json: JsonOption = False) -> int:
    """Show who belongs to the group, as its leader's log says."""

    found = run_async(lambda: ask_members(target))
    if as_json:
        show_json({"items": [one.to_json() for one in found.items or ()], "pending": pending_of(found)})
        return Exit.FINE
    show_lines(wrapped(listed(target, found), terminal_width()))
    return Exit.FINE


def listed(target: Target, found: MembersView) -> list[str]:
    """For people; of a demo also where its members listen, for its log names the relays between them."""
    lines = [f"group {target.group}: {found.needed} {voters_make(found.needed)} a quorum"]
    lines += [line_of(one) for one in found.items or ()]
    if target.demo and any(target.peers.get(one.id, one.address) != one.address for one in found.items or ()):
        at = ", ".join(f"{one} at {address}" for one, address in sorted(target.peers.items()))
        lines.append(f"  (a demo's members reach each other over relays; they listen: {at})")
    if found.pending is not None:
        waits = (
            f": it waits for {found.pending.needed} of {', '.join(found.pending.waits_for)}"
            if (found.pending.waits_for)
            else ""
        )
        lines.append(f"? entry {found.pending.index}, which says so, is not committed yet{waits}")
    return lines


def pending_of(found: MembersView) -> dict[str, Any] | None:
    return None if found.pending is None else dict(found.pending.to_json())


@members.command()
@in_group
def add(
    target: Target,
    member: NewMemberArgument,
    address: AddressArgument,
    learner: Annotated[bool, typer.Option("--learner", help="It stays one until promoted by hand.")] = False,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    if_term: IfTermOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take in a new member, started with `node --join`: it learns, and becomes a voter once it has caught up."""
    fields = {"kind": "add", "memberId": member, "address": address, "promote": not learner}
    return change(target, fields, f"add {member} at {address}", yes, dry_run, if_term, as_json)


@members.command()
@in_group
def promote(
    target: Target,
    member: MemberArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    if_term: IfTermOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a learner that has caught up a voter."""
    fields = {"kind": "promote", "memberId": member}
    return change(target, fields, f"make {member} a voter", yes, dry_run, if_term, as_json)


@members.command()
@in_group
def remove(
    target: Target,
    member: MemberArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    if_term: IfTermOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a member leave for good; a leader that is removed hands over."""
    fields = {"kind": "remove", "memberId": member}
    return change(target, fields, f"remove {member}", yes, dry_run, if_term, as_json)


@members.command()
@in_group
def replace(
    target: Target,
    old: Annotated[str, typer.Argument(metavar="OLD")],
    new: Annotated[str, typer.Argument(metavar="NEW", callback=_checked(checked_id))],
    address: AddressArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    if_term: IfTermOption = None,
    as_json: JsonOption = False,
) -> int:
    """Take in a new member in place of another one, which leaves once the new one is a voter."""
    fields = {"kind": "add", "memberId": new, "address": address, "promote": True, "replaces": old}
    return change(target, fields, f"replace {old} by {new} at {address}", yes, dry_run, if_term, as_json)


@members.command("address")
@in_group
def move(
    target: Target,
    member: MemberArgument,
    address: AddressArgument,
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    if_term: IfTermOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell all members where one of them is reached from now on."""
    fields = {"kind": "address", "memberId": member, "address": address}
    return change(target, fields, f"take {member} to be at {address}", yes, dry_run, if_term, as_json)


def change(
    target: Target, fields: dict[str, Any], words: str, yes: bool, dry_run: bool, if_term: int | None, as_json: bool
) -> int:
    """Its pre-flight, the question, and the change."""
    if if_term is not None:
        fields = {**fields, "ifTerm": if_term}
    before = run_async(lambda: ask(target, {**fields, "dryRun": True}))
    if before.get("code") != ResponseCode.SUCCESS:
        raise Failure(Exit.FINDING, f"not changed: {before.get('detail') or before.get('code')}")
    refused = before.get("refused")
    if fields["kind"] == "add" and not refused:
        before["diskFreeBytes"] = run_async(lambda: disk_of(target, fields["memberId"], fields["address"]))
    if fields["kind"] == "address" and not refused:
        before |= run_async(lambda: move_of(target, fields["memberId"], fields["address"]))
    if dry_run:
        known = {name: before.get(on_wire) for name, on_wire in PREFLIGHT.items()}
        show_json({"would": words, **known}) if as_json else show_lines(preflight(words, before))
        return Exit.FINDING if refused else Exit.FINE
    for line in preflight(words, before):
        say(line)
    if refused:
        raise Failure(Exit.FINDING, f"not changed: {refused.get('detail')}")
    if not yes and not confirmed(words):
        raise Failure(Exit.USAGE, f"nothing was changed: give --yes to {words}")
    ended = run_async(lambda: ask(target, fields))
    done, is_unknown = ended.get("code") == ResponseCode.SUCCESS, ended.get("appended") == "unknown"
    if as_json:
        show_json({"changed": done, **{name: ended.get(on_wire) for name, on_wire in ENDED.items()}})
    elif done:
        show(f"changed: entry {ended.get('index')} is committed" + follows(target.access, fields, before.get("wasAt")))
    elif is_unknown:
        look = f"`{target.access.again('members', 'list')}` shows whether it was made"
        show(f"outcome unknown: {ended.get('detail') or ended.get('code')}; {look}")
    else:
        show(f"not changed: {ended.get('detail') or ended.get('code')}")
    if done:
        return Exit.FINE
    return Exit.UNKNOWN_OUTCOME if is_unknown else Exit.FINDING


# Our JSON's names, as everywhere, and those of the wire.
PREFLIGHT: Final = {
    "refused": "refused", "before": "before", "after": "after", "lag_entries": "lagEntries", "lag_bytes": "lagBytes",
    "catch_up_s_at_most": "catchUpSAtMost", "needs_disk_bytes": "needsDiskBytes", "free_disk_bytes": "diskFreeBytes",
    "member_id": "memberId", "answers_there": "answersThere", "was_at": "wasAt",
}  # fmt: skip
ENDED: Final = {
    "code": "code", "index": "index", "term": "term", "appended": "appended", "leader_id": "leaderId",
    "detail": "detail",
}  # fmt: skip


def preflight(words: str, known: dict[str, Any]) -> list[str]:
    """What would follow, for people."""
    before, after = known.get("before") or {}, known.get("after") or {}
    lines = [f"to {words}:"]
    for name, one in (("now", before), ("then", after)):
        voters, there = one.get("voters") or [], one.get("answering") or []
        needed = one.get("needed")
        fail = len(there) - needed if isinstance(needed, int) else 0
        may = f"{max(fail, 0)} of them may fail" if fail >= 0 else f"{-fail} too few"
        new = ", ".join(one for one in there if name == "then" and one not in (before.get("answering") or []))
        once = f", {new} among them once it has caught up" if new else ""
        said = f"{needed} of {len(voters)} {voters_make(needed)} a quorum, {len(there)} answer{once}: {may}"
        lines.append(f"  {name}: {said}")
    if known.get("lagEntries") and not words.startswith("remove "):  # who goes need not catch up
        seconds, size = known.get("catchUpSAtMost"), known.get("lagBytes")
        took = "" if seconds is None else f", {seconds} s at most beside other work"
        bytes_text = "" if size is None else f" ({size:,} bytes on its disk)"
        lines.append(f"  it lacks {entries_of(known['lagEntries'])}{bytes_text}{took}")
    if "diskFreeBytes" in known:
        free, needs = known["diskFreeBytes"], known.get("needsDiskBytes")
        if free is None:
            lines.append("  its disk is not known: it does not answer there yet (start it with `node --join`)")
        else:
            short = "" if needs is None or needs < free else ": TOO LITTLE for this log"
            lines.append(f"  its disk has {free:,} bytes free{short}")
    if "answersThere" in known:
        lines.append(f"  {there_words(known)}")
    if known.get("refused"):
        lines.append(f"  refused: {known['refused'].get('detail')}")
    return lines


def confirmed(words: str) -> bool:
    """Whether somebody at a terminal says yes."""
    return sys.stdin.isatty() and typer.confirm(f"{words}?", err=True)


def there_words(known: dict[str, Any]) -> str:
    """Who answers at the address that a member is to have: all others look for it there from then on, nowhere else."""
    member, other = known["memberId"], known["answersThere"]
    if other == member:
        return "it answers there"
    found = f"{member} does not answer there" if other is None else f"{other} answers there, not {member}"
    return f"{found}: THE OTHERS LOSE {member} until it does, and it counts for no quorum"


def follows(access: AccessFlags, fields: dict[str, Any], was_at: str | None = None) -> str:
    if fields["kind"] == "address" and was_at:
        return f"; `{access.again('members', 'address', fields['memberId'], was_at)}` takes it back"
    if fields["kind"] == "remove":
        return f"; end the process of {fields['memberId']} on its machine: it would go on running"
    if fields["kind"] != "add" or not fields.get("promote", True):
        return ""
    leaves = f", and {fields['replaces']} leaves then" if fields.get("replaces") else ""
    return f"; {fields['memberId']} becomes a voter once it has caught up{leaves}: `{access.again('members', 'list')}`"


async def disk_of(target: Target, member_id: str, address: str) -> int | None:
    """How much room a new member has, as it says itself; None where it does not answer there."""
    state = await state_at(target, member_id, address)
    return None if state is None or state.disk is None else state.disk.free_bytes


async def move_of(target: Target, member_id: str, address: str) -> dict[str, Any]:
    """Who answers at the address that a member is to have (None: nobody), and which one it has by its leader."""
    state = await state_at(target, member_id, address)
    items = (await ask_members(target)).items or ()
    was_at = next((one.address for one in items if one.id == member_id), None)
    return {"memberId": member_id, "answersThere": None if state is None else state.self_id, "wasAt": was_at}


async def state_at(target: Target, member_id: str, address: str) -> StateView | None:
    """What whoever listens there says of itself; None where nobody does."""
    client = replace_in(target, peers={member_id: address}).client(NEW_MEMBER_S)
    try:
        async with asyncio.timeout(NEW_MEMBER_S):
            return read(StateView, await client.introspect(member_id, "state"))
    except (TimeoutError, LedgerError, OSError, ValueError):
        return None
    finally:
        await client.close()


async def ask(target: Target, fields: dict[str, Any]) -> dict[str, Any]:
    """One question to the leader. Raises LedgerError."""
    client = target.client(ASK_WITHIN_S)
    try:
        with said_if_slow(waiting_for_leader(target)):
            return await client_members.change_members(client, fields)
    except Unsupported as error:
        raise Failure(Exit.UNDETERMINED, OF_PLAIN) from error
    finally:
        await client.close()


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(members)
