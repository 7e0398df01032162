"""`pki demo`: an authority and certificates for a try-out of TLS (docs/tls.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show_json, show_lines
from app.commands.targets import PeersOption
from node.config import ConfigError, parse_peers, split_address
from node.protocol.peers import check_host

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
DAYS: Final = 30

family = typer.Typer(help="Certificates for a try-out of TLS.", no_args_is_help=True)


@family.command()
def demo(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for them.")],
    peers: PeersOption = None,
    clients: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="A client; repeatable. `client` by default.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", metavar="NAME", help="A host that every server answers for; repeatable."),
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Have the authority in there sign, as for renewals."),
    ] = None,
    days: Annotated[int, typer.Option(metavar="N", min=1, max=397, help="How long they are valid.")] = DAYS,
    as_json: JsonOption = False,
) -> int:
    """Make an authority, and certificates for members (n0, n1 and n2 by default), clients and the console."""
    from app.pki import PkiError, make, wanted_for

    try:
        members = {name: [split_address(at)[0]] for name, at in parse_peers(peers).items()} if peers else {}
        for host in hosts or ():
            check_host(host)
        for name in (*members, *(clients or ())):
            if NAME.fullmatch(name) is None:
                raise ValueError(f"{name!r} is no name: letters, digits, dots, dashes and underscores, 64 at most")
        wanted = wanted_for(members or {"n0": [], "n1": [], "n2": []}, clients or ["client"], "console", hosts or ())
        made = make(directory, wanted, days, authority)
    except (PkiError, ValueError, ConfigError) as error:
        raise Failure(Exit.USAGE, str(error)) from error
    except OSError as error:
        raise Failure(Exit.UNDETERMINED, f"{error.filename or directory}: {error.strerror}") from error
    if as_json:
        show_json({"directory": str(directory), "certificates": [str(path) for path in made], "days": days})
        return Exit.FINE
    show_lines(str(path) for path in made)
    say(f"each has its key beside it (.key); valid for {days} days; ca.key signs for all of them: for a try-out only")
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(family, name="pki")
