"""`db upgrade` and `user link`: the console's database, and the way in.

Invariant: a login link is printed once and stored only as a hash; it is good for one login within a day.
"""

from __future__ import annotations

from typing import Annotated

import typer

from app.commands.common import ConfigOption, Exit, Failure, JsonOption, say, settings_of, show_json
from node.config import Settings

DbOption = Annotated[str | None, typer.Option("--db", metavar="URL", help="The console's database.")]

db_commands = typer.Typer(help="The console's database.", no_args_is_help=True, rich_markup_mode=None)
user_commands = typer.Typer(help="The console's users.", no_args_is_help=True, rich_markup_mode=None)


def _settings(db: str | None, config: object) -> Settings:
    from pathlib import Path

    file = config if isinstance(config, Path) else None
    return settings_of({"console.db_url": db}, file, {"console.db_url": "--db"})


@db_commands.command()
def upgrade(db: DbOption = None, config: ConfigOption = None) -> int:
    """Bring the database's schema to this version."""
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    from app.db.engine import upgrade as upgrade_schema

    url = _settings(db, config).console.db_url
    try:
        upgrade_schema(url)
    except ArgumentError as error:
        raise Failure(Exit.USAGE, f"--db {url}: {error}") from error
    except (SQLAlchemyError, OSError) as error:
        raise Failure(Exit.UNREACHABLE, f"{url}: {error}") from error
    say(f"{url} is up to date")
    return Exit.FINE


@user_commands.command()
def link(
    name: Annotated[str, typer.Argument(help="The user; made if there is none of that name.")] = "admin",
    role: Annotated[
        str | None,
        typer.Option(metavar="viewer|operator|admin", help='Their role; a new user is a viewer, "admin" an admin.'),
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="The console's address, for the printed link.")] = None,
    db: DbOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Issue a one-time login link, for the first user or a lost password."""
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    from app.security.links import issue

    if role is not None and role not in ("viewer", "operator", "admin"):
        raise Failure(Exit.USAGE, f'--role "{role}": it is viewer, operator or admin')
    loaded = _settings(db, config)
    if role is None and name == "admin":
        role = "admin"
    try:
        path = issue(loaded.console.db_url, name, role)
    except ArgumentError as error:
        raise Failure(Exit.USAGE, f"--db {loaded.console.db_url}: {error}") from error
    except (SQLAlchemyError, OSError) as error:
        raise Failure(Exit.UNREACHABLE, f"{loaded.console.db_url}: {error}") from error
    scheme = "https" if loaded.console.tls_cert_file or loaded.console.behind_proxy else "http"
    address = (url or f"{scheme}://{loaded.console.address}").rstrip("/") + path
    if as_json:
        show_json({"user": name, "link": address})
    else:
        say("good for one login within a day:")
        print(address)
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(db_commands, name="db")
    app.add_typer(user_commands, name="user")
