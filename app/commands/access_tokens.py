"""`access issue|list|revoke`: the named tokens of a node's control plane, in the file that it reads again.

Invariant: a token is printed once; the file has its SHA-256. What is changed counts within a second, without a restart.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json
from node.control_tokens import NEVER, ControlToken, TokensError, read_tokens, rfc3339, words_of
from node.control_tokens import issue as issue_in
from node.control_tokens import revoke as revoke_in
from node.control_tokens import rights_of as rights_in

commands = typer.Typer(help="Named tokens of a control plane.", no_args_is_help=True, rich_markup_mode=None)
FileOption = Annotated[
    Path, typer.Option("--file", metavar="FILE", help="The node's `[control] tokens_file`; made where there is none.")
]


@commands.command()
def issue(
    name: Annotated[str, typer.Argument(help="Whose it is: a name for the trail.")],
    file: FileOption,
    rights: Annotated[str, typer.Option(metavar="RIGHT+RIGHT", help="append, read, observe, operate.")] = "observe",
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="How long it lives.")] = 90,
) -> int:
    """Issue a token; it is shown once."""
    try:
        made, token = issue_in(file, name, rights_in(rights), days)
    except TokensError as error:
        raise Failure(Exit.FINDING, str(error)) from error
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--rights: {error}") from error
    say(f"{made.id}, {words_of(made.rights)}, until {shown_end(made)}; shown once, put it into $QUORUMSCOPE_TOKEN:")
    print(token)
    return Exit.FINE


def shown_end(one: ControlToken) -> str:
    return NEVER if one.ends_at is None else rfc3339(one.ends_at)


@commands.command("list")
def list_tokens(file: FileOption, as_json: JsonOption = False) -> int:
    """List the tokens, also those that have ended."""
    try:
        tokens = read_tokens(file)
    except TokensError as error:
        raise Failure(Exit.FINDING, str(error)) from error
    now = datetime.now(UTC)
    ended = {one.id for one in tokens if one.ends_at is not None and one.ends_at <= now}
    if as_json:
        items = [
            {
                "id": one.id,
                "name": one.name,
                "rights": words_of(one.rights).split("+"),
                "ends_at": None if one.ends_at is None else rfc3339(one.ends_at),
                "ended": one.id in ended,
            }
            for one in tokens
        ]
        show_json({"items": items, "next": None})
    else:
        for one in tokens:
            show(f"{one.id}  {one.name:<24}  {words_of(one.rights):<28}  {shown_end(one)}"
                  + ("  ended" if one.id in ended else ""))  # fmt: skip
    return Exit.FINE


@commands.command()
def revoke(
    which: Annotated[str, typer.Argument(metavar="NAME|ID", help="All tokens of this name, or the one with this id.")],
    file: FileOption,
) -> int:
    """Take tokens out of the file."""
    try:
        gone = revoke_in(file, which)
    except TokensError as error:
        raise Failure(Exit.FINDING, str(error)) from error
    if not gone:
        raise Failure(Exit.FINDING, f"{file} has no token {which!r}; `access list` shows them")
    say(f"revoked: {', '.join(f'{one.name} ({one.id})' for one in gone)}")
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="access")
