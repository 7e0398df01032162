"""`broker`: the brokers of a group: who is master, how far each one's dispatch is, and how roles changed.

Exit codes: 0 there is a master, and every broker answers and is in step; 1 not so; 2 a control plane does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Final

import typer

from app.commands.broker_calls import asked, failure_of, urls_of
from app.commands.control_calls import SILENT_AFTER_S
from app.commands.endings import Exit, Failure, Unheard
from app.commands.messages import in_columns
from app.commands.output import JsonOption, show, show_json, show_lines
from app.commands.targets import Target, in_group

BEHIND_MS: Final = 1000  # then a master takes no more
CHANGES_SHOWN: Final = 8
Json = dict[str, Any]
commands = typer.Typer(help="The brokers of a group.", no_args_is_help=True, rich_markup_mode=None)


def brokers_of(target: Target) -> list[Json]:
    """What each says, by member; one whose control plane does not answer is `unknown`. Raises Failure."""
    urls = sorted(urls_of(target).items())
    with ThreadPoolExecutor(max_workers=len(urls)) as threads:  # all at once: one that hangs holds up no other
        return list(threads.map(lambda one: broker_of(target, *one), urls))


def broker_of(target: Target, member_id: str, url: str) -> Json:
    """Raises Failure."""
    try:
        status, said = asked(target, url, "broker", SILENT_AFTER_S)
    except Unheard as unheard:
        return {"broker": "unknown", "reason": str(unheard), "silence": unheard.silence, "self_id": member_id}
    except Failure as failure:
        if failure.code == Exit.DENIED and target.not_shown(url) is not None:
            return {"broker": "unknown", "reason": str(failure), "denied": True, "self_id": member_id}
        if failure.code != Exit.UNREACHABLE:
            raise
        status, said = 503, {"detail": str(failure)}
    if status >= 400:
        if status != 503:
            raise failure_of(url, status, said)
        return {"broker": "unknown", "reason": said.get("detail"), "self_id": member_id}
    return said


def trouble_of(one: Json) -> str | None:
    """What is wrong with one broker, in words."""
    if one["broker"] != "ok":
        return str(one.get("reason") or one["broker"])
    dispatch = one["dispatch"]
    if dispatch["stopped_by"]:
        return f"dispatch is stopped: {dispatch['stopped_by']}"
    if dispatch["behind_ms"] > BEHIND_MS:
        return f"dispatch is {dispatch['behind_ms'] / 1000:.1f} s behind"
    if one["role"] is None:
        return "no role yet: the group has had no leader since it began"
    silent = [server["address"] for server in one["name_servers"] if server["registered_at"] is None]
    return f"not registered at {', '.join(silent)}" if silent else None


def without_master(found: Sequence[Json]) -> str:
    """Of a member whose control plane does not answer, or not without a token, nobody knows what its broker is."""
    unheard = [one["self_id"] for one in found if "silence" in one or "denied" in one]
    if unheard:
        return f"no broker that is known of is master; whether {' or '.join(unheard)} has one is not known"
    return "no broker is master: messages are not taken now"


@commands.command("list")
@in_group
def list_brokers(target: Target, as_json: JsonOption = False) -> int:
    """Print every member's broker: role, address, how far its dispatch is, what is wrong."""
    found = brokers_of(target)
    masters = [one["self_id"] for one in found if one.get("role") == "MASTER"]
    if as_json:
        show_json({"items": found, "master_id": masters[0] if len(masters) == 1 else None})
    else:
        rows = [("MEMBER", "ROLE", "ADDRESS", "DISPATCHED", "BEHIND", "TROUBLE")]
        for one in found:
            dispatch = one.get("dispatch") or {}
            index, behind = dispatch.get("dispatched_index"), dispatch.get("behind_entries")
            rows.append(
                (
                    one["self_id"], one.get("role") or "-", one.get("address") or "-",
                    "-" if index is None else f"{index:,}", "-" if behind is None else f"{behind:,}",
                    trouble_of(one) or "-",
                )
            )  # fmt: skip
        show_lines(in_columns(rows))
        if len(masters) != 1:
            show(f"masters: {masters}" if masters else without_master(found))
    if any(one["broker"] == "unknown" and (masters or "denied" in one) for one in found):
        return Exit.UNDETERMINED
    return Exit.FINE if len(masters) == 1 and not any(map(trouble_of, found)) else Exit.FINDING


@commands.command("describe")
@in_group
def describe_broker(
    target: Target,
    member: Annotated[str, typer.Argument(metavar="MEMBER", help="Such as n0.")],
    as_json: JsonOption = False,
) -> int:
    """Print one member's broker with its last changes of role, and what each step took."""
    if member not in urls_of(target):
        raise Failure(Exit.USAGE, f"{member} is none of {', '.join(sorted(target.control_urls))}")
    [one] = [one for one in brokers_of(target) if one["self_id"] == member]
    trouble = trouble_of(one)
    if as_json:
        show_json(one)
    else:
        show_lines(broker_lines(one, trouble))
    if one["broker"] == "unknown":
        return Exit.UNDETERMINED
    return Exit.FINE if trouble is None else Exit.FINDING


def broker_lines(one: Json, trouble: str | None) -> list[str]:
    if one["broker"] != "ok":
        return [f"the broker of {one['self_id']} is {one['broker']}: {one.get('reason')!s}"]
    dispatch, counts = one["dispatch"], one["counts"]
    lines = [
        f"the broker of {one['self_id']} at {one['address']}: {one['role'] or 'no role yet'} in term {one['term']}",
        f"dispatched {dispatch['dispatched_index']:,} of {dispatch['committed_index']:,} committed entries",
        f"topics {counts['topics']}, consumers {counts['consumers']} (groups {counts['consumer_groups']}),"
        f" producers {counts['producers']}, pulls that wait {one['pulls_held']}",
    ]
    lines += [f"name server {each['address']}: registered {each['registered_at'] or 'NOT'}"
              for each in one["name_servers"]]  # fmt: skip
    lines += waiting_lines(one["schedule"], one["transactions"])
    lines += [f"trouble: {trouble}"] if trouble else []
    for change in one["role_changes"][-CHANGES_SHOWN:]:
        lines.append(f"{change['at']} {change['change']} in term {change['term']}: {change['outcome']},"
                     f" {change['took_ms']:.1f} ms")  # fmt: skip
        for step in change["steps"]:
            failed = f": {step['error']}" if step["error"] else ""
            lines.append(f"    {step['took_ms']:8.1f} ms  {step['step']}{failed}")
    return lines


def waiting_lines(schedule: Json | None, transactions: Json | None) -> list[str]:
    """What waits at a master: for its time, and for a producer's decision."""
    lines = []
    if schedule is not None:
        lines.append(f"schedule: {schedule['waiting']:,} wait for their time, {schedule['delivered']:,} delivered")
        for one in schedule["levels"]:
            late = f", OVERDUE for {one['overdue_ms'] / 1000:.1f} s" if one["overdue_ms"] > BEHIND_MS else ""
            lines.append(f"    level {one['level']}: {one['waiting']:,} wait, the next is due {one['due_at']}{late}")
    if transactions is not None:
        oldest = f", the oldest since {transactions['oldest_at']}" if transactions["oldest_at"] else ""
        asked = f", {transactions['unanswered']:,} asked three times or more" if transactions["unanswered"] else ""
        lines.append(f"transactions: {transactions['open']:,} open{oldest}{asked}")
        for one in transactions["groups"]:
            group = one["producer_group"] or "(no group)"
            lines.append(f"    {group}: {one['open']:,} open, {one['producers']:,} producers connected")
    return lines


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="broker")
