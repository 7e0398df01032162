"""`ha promote`: a slave becomes its pair's master, after whom it replaces, what it lacks and what stops it is read.

Invariants: it is done in the epoch that was read, and refused where another promotion came first; without `--yes` or a
confirmation nothing is changed; what is passed over is named by its code, one by one.
Exit codes: 0 it is master; 1 something stands against it; 75 nobody can say whether it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import typer

from app.commands.control_calls import control_answer
from app.commands.endings import Exit, Failure
from app.commands.members import YesOption, confirmed
from app.commands.output import JsonOption, say, show, show_json, show_lines
from app.commands.targets import I64_MAX, TokenFileOption, contexts_of, token_of
from app.commands.tls_options import CaOption, TlsFlags
from node.views.ha import HaPromotion, HaView
from node.views.reading import Unreadable, read

AcceptOption = Annotated[
    list[str] | None, typer.Option("--accept", metavar="CODE", help="Promote although this stands against it; repeat.")
]
RoleOption = Annotated[
    Literal["SYNC_MASTER", "ASYNC_MASTER"] | None,
    typer.Option("--role", help="Else what the master was that it followed last."),
]
OUTCOME_UNKNOWN: Final = 504
PROMOTED_WITHIN_S: Final = 70.0  # the control plane itself waits for its broker for 60 s, and then says what is known
FOLLOWED: Final = "transfer"  # of HaFollowing.state: the master sends to it


def promote(
    node: Annotated[str, typer.Option("--node", metavar="URL", help="The control plane of the slave.")],
    accept: AcceptOption = None,
    role: RoleOption = None,
    yes: YesOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would lose, and change nothing.")] = False,
    if_term: Annotated[
        int | None,
        typer.Option(
            "--if-term", metavar="N", min=0, max=I64_MAX, help="Only in this epoch; else the one it is in now."
        ),
    ] = None,
    ca: CaOption = None,
    token_file: TokenFileOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a slave its pair's master: what it lacks first."""
    token, (_, tls) = token_of(token_file), contexts_of(TlsFlags(ca))
    accepted = accept or []
    # An address that hangs is known within seconds here, and not after a promotion's minute.
    _status, said = control_answer("GET", node, "ha", token, tls=tls)
    if said.get("broker") == "down":
        raise Failure(Exit.UNREACHABLE, f"not promoted: its broker is down: {said.get('reason')}")
    # Who confirms has this epoch before them: one that a promotion elsewhere began meanwhile is another question.
    body: dict[str, Any] = {
        "role": role,
        "accept": accepted,
        "if_term": said.get("epoch") if if_term is None else if_term,
    }
    before = promotion(node, {**body, "dry_run": True}, token, tls)
    against = [one for one in before.findings if one.stops and not (one.can_be_accepted and one.code in accepted)]
    if dry_run:
        lines = [] if as_json else [*lines_of(before, accepted), replaced(node, token, tls)]
        show_json(before.to_json()) if as_json else show_lines(lines)
        return Exit.FINDING if against else Exit.FINE
    for line in [*lines_of(before, accepted), replaced(node, token, tls)]:
        say(line)
    if against:
        raise Failure(Exit.FINDING, f"not promoted: {how_on([one.code for one in against if one.can_be_accepted])}")
    words = f"make the slave at {node} {before.role} of its pair"
    if not yes and not confirmed(words):
        raise Failure(Exit.USAGE, f"nothing was changed: give --yes to {words}")
    after = promotion(node, body, token, tls)
    show_json(after.to_json()) if as_json else show(f"promoted: {after.role}, epoch {after.epoch}")
    return Exit.FINE if after.promoted else Exit.FINDING


def promotion(node: str, body: dict[str, Any], token: str | None, tls: Any) -> HaPromotion:
    """Raises Failure."""
    status, said = control_answer("POST", node, "ha/promote", token, body, tls=tls, within_s=PROMOTED_WITHIN_S)
    text = str(said.get("detail") or said.get("title") or status)
    if status == OUTCOME_UNKNOWN:
        raise Failure(Exit.UNKNOWN_OUTCOME, f"whether it was promoted is not known: {text}")
    if status == 404:
        raise Failure(Exit.USAGE, f"{node} is no broker in classic mode")
    if status >= 400:
        raise Failure(Exit.UNREACHABLE if status == 503 else Exit.FINDING, f"not promoted: {text}")
    try:
        return read(HaPromotion, said)
    except Unreadable as error:
        raise Failure(Exit.UNDETERMINED, f"{node}: its answer cannot be read: {error}") from error


def replaced(node: str, token: str | None, tls: Any) -> str:
    """The master that this slave follows: whether that answers it now, and how far the slave is behind it.

    Only words: where they cannot be had, the pre-flight's findings still decide. Raises Failure where it may not ask.
    """
    try:
        status, said = control_answer("GET", node, "ha", token, tls=tls)
        view = read(HaView, said) if status < 400 else None
    except Failure as failure:
        if failure.code != Exit.UNREACHABLE:
            raise
        view = None
    except Unreadable:
        view = None
    if view is None or view.broker == "down":
        return "  which master it replaces is not known: the slave does not say it"
    if (one := view.following) is None or one.address is None:
        return "  it follows no master now"
    if one.state == FOLLOWED:
        master = f"it replaces {one.address}, which answers it"
    else:  # the address is the one tried now, which may be another slave's: no master is named by it
        master = f"no master serves it now: it tries the others in turn ({one.reason or one.state})"
    if one.lag_bytes is None or view.end_offset is None:
        behind = "how far it is behind is not known: it heard of no end of that log since it started"
    else:
        ends = f"its log ends at {view.end_offset:,}, the master's at {one.master_offset:,} when last heard"
        behind = f"{ends}: {one.lag_bytes:,} bytes behind"
    return f"  {master}; {behind}"


def lines_of(before: HaPromotion, accepted: Sequence[str]) -> list[str]:
    if not before.findings:
        return [f"to be {before.role}: nothing stands against it, and it lacks nothing that is known of"]
    lines = [f"to be {before.role}:"]
    for one in before.findings:
        passed = one.can_be_accepted and one.code in accepted
        weight = "accepted" if passed else "stops it" if one.stops else "so that you know"
        lines.append(f"  {one.code} ({weight}): {one.text}")
    return lines


def how_on(codes: Sequence[str]) -> str:
    if not codes:
        return "what stops it cannot be accepted"
    return "if that is to be, repeat it with " + " ".join(f"--accept {one}" for one in dict.fromkeys(codes))
