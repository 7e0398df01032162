"""`db upgrade`, `user …`, `token …`, `trail …`: the console's database, and the ways in for people and scripts.

Invariant: a login link and a token are printed once and stored only as hashes; a link is good for one login in a day.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json
from app.commands.targets import ConfigOption, settings_of
from node.config import Settings
from node.hash_chain import Verified

DbOption = Annotated[str | None, typer.Option("--db", metavar="URL", help="The console's database.")]

ROLES = ("viewer", "operator", "admin")
GROUP_ROLES = ("none", "viewer", "operator")
db_commands = typer.Typer(help="The console's database.", no_args_is_help=True, rich_markup_mode=None)
token_commands = typer.Typer(help="API tokens of the console.", no_args_is_help=True, rich_markup_mode=None)
trail_commands = typer.Typer(help="The console's admin trail.", no_args_is_help=True, rich_markup_mode=None)
user_commands = typer.Typer(help="The console's users.", no_args_is_help=True, rich_markup_mode=None)


def _settings(db: str | None, config: Path | None) -> Settings:
    return settings_of({"console.db_url": db}, config, {"console.db_url": "--db"})


@contextmanager
def _database(url: str, *, made_here: bool = False) -> Iterator[None]:
    """Turns the database's errors within into one line and an exit code. Raises Failure.

    Only `db upgrade`, a console and a demo make one: a mistyped name must not pass for a database without users.
    """
    from sqlalchemy.exc import ArgumentError, SQLAlchemyError

    try:
        missing = None if made_here else _missing_file(url)
        if missing is not None:
            how = f"`quorumscope db upgrade --db {url}` or a console that starts with it makes one"
            raise Failure(Exit.USAGE, f"{missing}: there is no such database; {how}")
        yield
    except (ArgumentError, ImportError) as error:
        raise Failure(Exit.USAGE, f"--db {without_password(url)}: {error}") from error
    except LookupError as error:
        raise Failure(Exit.FINDING, str(error.args[0] if error.args else error)) from error
    except (SQLAlchemyError, OSError) as error:
        said = getattr(error, "strerror", None) or getattr(error, "orig", None) or error  # the driver's own words
        raise Failure(Exit.UNREACHABLE, f"{without_password(url)}: {str(said).splitlines()[0]}") from error


def without_password(url: str) -> str:
    """As it may be shown."""
    return re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", url)


def _missing_file(url: str) -> str | None:
    """The file that a SQLite URL names and that is not there; None for any other database."""
    from app.db.engine import normal_url

    parsed = normal_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database or Path(parsed.database).exists():
        return None
    return parsed.database


@db_commands.command()
def upgrade(db: DbOption = None, config: ConfigOption = None) -> int:
    """Bring the database's schema to this version."""
    url = _settings(db, config).console.db_url
    with _database(url, made_here=True):
        from app.db.engine import upgrade as upgrade_schema

        upgrade_schema(url)
    say(f"{without_password(url)} is up to date")
    return Exit.FINE


@user_commands.command()
def link(
    name: Annotated[str, typer.Argument(help="The user; made if there is none of that name.")] = "admin",
    role: Annotated[
        str | None,
        typer.Option(metavar="viewer|operator|admin", help='Their role; a new user is a viewer, "admin" an admin.'),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The console's address, where it is not the one that it noted itself."),
    ] = None,
    db: DbOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Issue a one-time login link, for the first user or a lost password."""
    if role is not None and role not in ROLES:
        raise Failure(Exit.USAGE, f'--role "{role}": it is viewer, operator or admin')
    loaded = _settings(db, config)
    with _database(loaded.console.db_url):
        from app.security.links import issue, noted_address

        try:
            path = issue(loaded.console.db_url, name, "admin" if role is None and name == "admin" else role)
        except ValueError as error:
            raise Failure(Exit.USAGE, str(error)) from error
        known = noted_address(loaded.console.db_url)
    scheme = "https" if loaded.console.tls_cert_file or loaded.console.behind_proxy else "http"
    address = (url or known or f"{scheme}://{loaded.console.address}").rstrip("/") + path
    if as_json:
        show_json({"user": name, "link": address})
    else:
        say("good for one login within a day:")
        show(address)
    if not (url or known):
        say("no console noted its address in this database yet: where it will be another one, give --url URL")
    return Exit.FINE


@user_commands.command("list")
def list_users(db: DbOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """List the users, their roles, and those on single groups."""
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.users import listing

        users = listing(url)
    if as_json:
        show_json({"items": users, "next": None})
    else:
        if not users:
            say("no users yet: quorumscope user link makes the first admin, and --db names another database")
        for one in users:
            on = ", ".join(f"{group}: {role}" for group, role in one["cluster_roles"].items())
            state = "  by the OpenID provider" if one["source"] == "oidc" else ""
            state += "  disabled" if one["disabled_at"] else ""
            show(f"{one['name']:<24}  {one['role']:<8}  {on}{state}")
    return Exit.FINE


@user_commands.command("role")
def user_role(
    name: Annotated[str, typer.Argument(help="The user.")],
    role: Annotated[str, typer.Argument(metavar="none|viewer|operator|admin|default", help="The role from now on.")],
    group: Annotated[
        str | None,
        typer.Option(metavar="ID", help='On this group alone; there, "default" takes it back, and there is no admin.'),
    ] = None,
    db: DbOption = None,
    config: ConfigOption = None,
) -> int:
    """Change what a user may do, everywhere or on one group."""
    known = (*GROUP_ROLES, "default") if group is not None else ("none", *ROLES)
    if role not in known:
        raise Failure(Exit.USAGE, f'"{role}": it is {", ".join(known[:-1])} or {known[-1]}')
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.grants import GrantError
        from app.security.users import give

        try:
            after = give(url, name, role, group)
        except GrantError as error:
            raise Failure(Exit.USAGE, str(error)) from error
    on = "".join(f", {role} on {one}" for one, role in after["cluster_roles"].items())
    say(f"{name}: {after['role']}{on}")
    return Exit.FINE


@user_commands.command()
def reset_second_factor(
    name: Annotated[str, typer.Argument(help="The user.")], db: DbOption = None, config: ConfigOption = None
) -> int:
    """Remove a user's second factor and end their sessions, for a lost app."""
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security import users

        had = users.reset_second_factor(url, name)
    say(f"{name}: {'the second factor is removed' if had else 'there was no second factor'}; their sessions are ended")
    return Exit.FINE


@token_commands.command("issue")
def issue_token(
    user: Annotated[str, typer.Argument(help="Whose token it is.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "command line",
    role: Annotated[str, typer.Option(metavar="viewer|operator|admin", help="What it may do.")] = "operator",
    days: Annotated[int, typer.Option(metavar="N", min=1, max=3650, help="How long it lives.")] = 90,
    group: Annotated[
        list[str] | None, typer.Option(metavar="ID=ROLE", help="Another role on this group; may be given again.")
    ] = None,
    db: DbOption = None,
    config: ConfigOption = None,
) -> int:
    """Issue an API token; it is shown once."""
    if role not in ("none", *ROLES):
        raise Failure(Exit.USAGE, f'--role "{role}": it is none, viewer, operator or admin')
    groups: dict[str, str | None] = {}
    for one in group or []:
        named, _, given = one.partition("=")
        if not named or given not in GROUP_ROLES:
            raise Failure(Exit.USAGE, f'--group "{one}": it is ID=ROLE, with {", ".join(GROUP_ROLES)}')
        groups[named] = given
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.grants import GrantError
        from app.security.tokens import issue

        try:
            token = issue(url, user, name, role, days, groups)
        except GrantError as error:
            raise Failure(Exit.USAGE, str(error)) from error
    say("shown once; put it into $QUORUMSCOPE_TOKEN:")
    print(token)
    return Exit.FINE


@token_commands.command("list")
def list_tokens(db: DbOption = None, config: ConfigOption = None, as_json: JsonOption = False) -> int:
    """List the tokens that live."""
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.tokens import listing

        tokens = listing(url)
    if as_json:
        show_json({"items": tokens, "next": None})
    else:
        if not tokens:
            say("no tokens")
        for token in tokens:
            until = token["expires_at"] or "for ever"
            show(
                f"{token['id']:>4}  {token['prefix']}…  {token['role']:<8}  {token['user']}: {token['name']}  {until}"
                + "".join(f"  {one}: {role}" for one, role in token["cluster_roles"].items())
            )
    return Exit.FINE


@token_commands.command()
def revoke(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="As `token list` shows it.")],
    db: DbOption = None,
    config: ConfigOption = None,
) -> int:
    """Revoke a token, at once and for good."""
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security import tokens

        if not tokens.revoke(url, token_id):
            raise LookupError(f"there is no live token {token_id}")
    say(f"token {token_id} is revoked")
    return Exit.FINE


def _verified_file(file: Path, head: str | None) -> Verified:
    from node.operator_trail import verify as verify_file

    try:
        return verify_file(file, head)
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: {error.strerror or error}") from error


def _verified_database(db: str | None, config: Path | None, head: str | None) -> Verified:
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.trail_files import verified

        return verified(url, head)


@trail_commands.command()
def verify(
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A hash that was noted elsewhere, and must be in the chain.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A node's trail, DATA/operator-trail.jsonl, or an export, instead."),
    ] = None,
    db: DbOption = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> int:
    """Recompute the trail's hash chain and compare every row with it."""
    done = _verified_file(file, head) if file is not None else _verified_database(db, config, head)
    if as_json:
        show_json(dataclasses.asdict(done))
    else:
        for problem in done.problems:
            show(problem)
        older = f", {done.older_rows} rows from before there was a chain" if done.older_rows else ""
        ends = f", {done.rows_without_end} of them without an end" if done.rows_without_end else ""
        whole = "intact" if head is not None else "intact as far as it goes"
        show(f"{'NOT intact' if done.problems else whole}: {done.entries} entries, {done.rows} rows{ends}{older}")
        if head is None:
            say("whether the newest entries were removed, or all were made anew, shows with --head only")
        show(f"newest hash {done.head}: keep it elsewhere, and give it with --head next time")
    return Exit.FINDING if done.problems else Exit.FINE


@trail_commands.command()
def export(db: DbOption = None, config: ConfigOption = None) -> int:
    """Print the whole trail with its hashes, one JSON object a line."""
    url = _settings(db, config).console.db_url
    with _database(url):
        from app.security.trail_files import print_all

        head = print_all(url)
    say(f"newest hash {head}")
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(db_commands, name="db")
    app.add_typer(user_commands, name="user")
    app.add_typer(token_commands, name="token")
    app.add_typer(trail_commands, name="trail")
