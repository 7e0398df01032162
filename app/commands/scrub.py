"""`scrub`: one running member reads its whole log now, mends what it finds from its peers, and says how that ended.

Invariant: fine (0) means that the member itself said that nothing of its log is damaged any more.
"""

from __future__ import annotations

import ssl
import time
from typing import Annotated, Any, Final

import typer

from app.commands.control_calls import control_call, control_state
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json
from app.commands.targets import TokenFileOption, contexts_of, token_of
from app.commands.tls_options import CaOption, TlsFlags
from app.health.facts import spelled_range

LOOK_EVERY_S: Final = 0.3
ENDS: Final = {"done": Exit.FINE, "failed": Exit.FINDING, "cancelled": Exit.FINDING}


def scrub(
    node: Annotated[str, typer.Option(metavar="URL", help="The control plane of the member that shall read its log.")],
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """Have one member read its whole log and repair damage."""
    token = token_of(token_file)
    _, tls = contexts_of(TlsFlags(ca))
    member = control_state(node, None, token, tls).self_id
    read = followed(node, "scrub", token, tls, f"{member} reads its log")
    repaired: dict[str, Any] | None = None
    faults = control_state(node, None, token, tls).faults
    if read["state"] == "done" and faults:
        repaired = followed(node, "repairs", token, tls, f"{member} asks its peers")
        faults = control_state(node, None, token, tls).faults
    damaged = [(one.first_index, one.last_index) for one in faults or ()]
    last = repaired or read
    whole = read["state"] == "done" and faults is not None and not damaged
    if as_json:
        ranges = [{"from_index": low, "to_index": high} for low, high in damaged]
        show_json({"node": member, "whole": whole, "scrub": read, "repair": repaired, "damaged": ranges})
    else:
        show(summary(member, read, last, damaged, whole))
    return Exit.FINE if whole else ENDS.get(str(last["state"]), Exit.UNDETERMINED) or Exit.UNDETERMINED


def followed(
    url: str, what: str, token: str | None, tls: ssl.SSLContext | None, says: str, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The operation to its end; its progress goes to stderr. Raises Failure: with UNKNOWN_OUTCOME where it was begun
    and nobody tells any more how it ended."""
    operation = control_call("POST", url, what, token, body or {}, tls=tls)
    shown: str | None = None
    while operation.get("state") == "running":
        if operation.get("progress") != shown:
            shown = str(operation.get("progress"))
            say(f"{says}: {shown}")
        time.sleep(LOOK_EVERY_S)
        try:
            operation = control_call("GET", url, f"operations/{operation.get('id')}", token, tls=tls)
        except Failure as failure:
            if failure.code != Exit.UNREACHABLE:
                raise
            text = f"outcome unknown: the {what} was begun, and how it ended nobody tells: {failure}"
            raise Failure(Exit.UNKNOWN_OUTCOME, text) from failure
    if operation.get("state") is None:
        raise Failure(Exit.UNDETERMINED, f"{url} did not say how its {what} ended")
    return operation


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
