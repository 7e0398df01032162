"""`restart`: a member's engine, or its state machine, that hangs is ended and started again by what keeps it running.

Invariant: fine (0) means that another one answered, or that the state machine applied what was committed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.commands.one_member import OneMember, end_of
from app.commands.output import JsonOption, say, show, show_json
from app.commands.targets import TokenFileOption
from app.commands.tls_options import CaOption


def restart(
    node: Annotated[str, typer.Option(metavar="URL", help="The control plane of the member that hangs.")],
    state_machine: Annotated[
        bool, typer.Option("--state-machine", help="Its state machine alone; the engine goes on.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Although it answers; a leader hands over first.")] = False,
    token_file: TokenFileOption = None,
    ca: CaOption = None,
    as_json: JsonOption = False,
) -> int:
    """End an engine that hangs and start it again."""
    what = "state_machine" if state_machine else "engine"
    words = what.replace("_", " ")
    body = {"what": what, "force": force}
    one = OneMember.at(node, token_file, ca)
    operation = one.followed("restart", f"the {words} is started again", body)
    if as_json:
        show_json(operation)
    elif operation["state"] == "done":
        show(summary(words, operation.get("outcome") or {}))
    else:
        say((operation.get("problem") or {}).get("detail") or f"the restart ended {operation['state']}")
    return end_of(operation)


def summary(words: str, outcome: dict[str, Any]) -> str:
    took_s = outcome.get("took_ms", 0) / 1000
    if "applied_index" in outcome:
        return f"another state machine has applied entry {outcome['applied_index']}, after {took_s:.1f} s"
    return f"another {words} answers, after {took_s:.1f} s"


def register(app: typer.Typer) -> None:
    """Adds this family's command."""
    app.command()(restart)
