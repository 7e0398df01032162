"""`scrub`: one running member reads its whole log now, mends what it finds from its peers, and says how that ended.

Invariant: fine (0) means that the member itself said that nothing of its log is damaged any more.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.endings import Exit
from app.commands.one_member import OneMember, end_of
from app.commands.output import JsonOption, show, show_json
from app.commands.targets import TokenFileOption
from app.commands.tls_options import CaOption
from app.health.facts import spelled_range


def scrub(
    node: Annotated[str, typer.Option(metavar="URL", help="The control plane of the member that shall read its log.")],
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Have one member read its whole log and repair damage."""
    one = OneMember.at(node, token_file, ca)
    member = one.state().self_id
    read = one.followed("scrub", f"{member} reads its log")
    repaired: dict[str, Any] | None = None
    faults = one.state().faults
    if read["state"] == "done" and faults:
        repaired = one.followed("repairs", f"{member} asks its peers")
        faults = one.state().faults
    damaged = [(fault.first_index, fault.last_index) for fault in faults or ()]
    last = repaired or read
    whole = read["state"] == "done" and faults is not None and not damaged
    if as_json:
        ranges = [{"from_index": low, "to_index": high} for low, high in damaged]
        show_json({"node": member, "whole": whole, "scrub": read, "repair": repaired, "damaged": ranges})
    else:
        show(summary(member, read, last, damaged, whole))
    return Exit.FINE if whole else end_of(last) or Exit.UNDETERMINED


def summary(
    member: str, read: dict[str, Any], last: dict[str, Any], damaged: list[tuple[int, int]], whole: bool
) -> str:
    outcome = read.get("outcome") or {}
    found = outcome.get("faults")
    if whole:
        ranges = "1 damaged range was" if found == 1 else f"{found} damaged ranges were"
        mended = f"; {ranges} repaired from its peers" if found else ""
        if number := outcome.get("damaged_snapshots"):
            mended += f"; {'1 damaged snapshot was' if number == 1 else f'{number} damaged snapshots were'} replaced"
        return f"{member} has read all of its log: nothing of it is damaged{mended}"
    problem = (last.get("problem") or {}).get("detail") or f"its {last.get('kind')} ended {last.get('state')}"
    which = ", ".join(spelled_range(low, high) for low, high in damaged[:3]) or "its log"
    return f"{member} is not whole, {which}: {problem}"


def register(app: typer.Typer) -> None:
    """Adds this family's command."""
    app.command()(scrub)
