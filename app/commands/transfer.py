"""`transfer`: moves a group's leadership, and says why it did not move.

Invariant: "moved" is said only where the leader's answer says so; a plain DLedger group is asked only what it can tell.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.endings import Exit, Failure
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, show, show_json
from app.commands.targets import I64_MAX, Target, in_group
from node.client import LedgerClient, LedgerError, Refused
from node.protocol.codes import ResponseCode


@in_group
def transfer(
    target: Target,
    to: Annotated[
        str | None, typer.Argument(metavar="[MEMBER]", help="Who shall lead; the best one if absent.")
    ] = None,
    if_term: Annotated[
        int | None, typer.Option(metavar="N", min=0, max=I64_MAX, help="Only if the group is still in this term.")
    ] = None,
    deadline_ms: Annotated[
        int, typer.Option(metavar="N", min=100, max=600_000, help="Give up after this long.")
    ] = 5000,
    accept_data_loss: Annotated[
        str | None,
        typer.Option(
            metavar="MEMBER",
            help="Of a plain DLedger group only: the member's name again, to accept that it wipes its followers.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Move leadership to another member."""
    if accept_data_loss is not None and accept_data_loss != to:
        text = f"--accept-data-loss {accept_data_loss}: type the name of the member that shall lead"
        raise Failure(Exit.USAGE, text + (f", {to}" if to else ""))
    if accept_data_loss is not None and to not in target.peers:  # a plain DLedger group's members never change
        raise Failure(Exit.USAGE, f"{to} is no member of {target.group} (known: {', '.join(sorted(target.peers))})")

    async def work() -> dict[str, Any]:
        client = target.client(deadline_ms / 1000 + 5)
        accepted = {"accept_data_loss": True} if accept_data_loss else {}
        try:
            return dict(await client.transfer(to, if_term=if_term, deadline_ms=deadline_ms, **accepted))
        except Refused as refused:
            raise Failure(Exit.FINDING, f"not moved: {await way_out(client, refused, to)}") from refused
        finally:
            await client.close()

    reported = run_async(work)
    if to is not None and accept_data_loss is None and reported.get("code") == ResponseCode.UNKNOWN_MEMBER:
        raise Failure(Exit.USAGE, f"{to} is no member of {target.group}: `quorumscope members list` says who is")
    moved = reported.get("code") == ResponseCode.SUCCESS
    may_move = reported.get("code") == ResponseCode.TIMEOUT  # the leader stepped down, and heard of nobody in time
    leads_now = to is not None and reported.get("leaderId") == to
    said_term = reported.get("term")
    term_known = said_term if said_term is not None and said_term >= 0 else None  # -1: it refused before it looked
    result = {
        "moved": moved,
        "code": reported.get("code"),
        "leader_id": reported.get("leaderId"),
        "transferee_id": reported.get("transfereeId"),
        "term": term_known,
        "detail": reported.get("detail"),
    }
    if as_json:
        show_json(result)
    elif not moved and leads_now:
        show(f"{to} leads already, in term {result['term']}")
    else:
        term = "" if result["term"] is None else f" in term {result['term']}"
        leads = f"{result['leader_id'] or 'nobody known'} leads{term}"
        word = "not known whether it moved" if may_move else "not moved"
        show(f"moved: {leads}" if moved else f"{word}: {leads}; {result['detail'] or 'no reason given'}")
    if may_move and not leads_now:
        return Exit.UNKNOWN_OUTCOME
    return Exit.FINE if moved or leads_now else Exit.FINDING


async def way_out(client: LedgerClient, refused: Refused, to: str | None) -> str:
    """Why a plain DLedger group's leadership was not moved, and what would move it all the same."""
    if refused.missing == "to":
        return f"{refused}: name the member that shall lead"
    if refused.missing == "accept_data_loss":
        return f"{refused} (--accept-data-loss {to} moves it all the same)"
    try:
        end = await client.plain_end_index()
        newest = await client.read(end, 1, include_all=True) if end >= 0 else []
    except LedgerError:
        newest = []
    hint = f"; its newest entry is of term {newest[0].term}, and an election since then makes it more" if newest else ""
    return f"{refused}: --if-term N, which its own log of the last election names{hint}"


def register(app: typer.Typer) -> None:
    """Adds this command."""
    app.command()(transfer)
