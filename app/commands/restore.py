"""`restore DIR`: stores made of a back-up: the members of a new group, one member, or the console's database.

Invariants: a target that holds anything is refused; a new group has an id of its own, and nothing of the old group's
members comes along; a member of the old group has no vote until it holds what the group has since.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from app.commands.backup import carried_out
from app.commands.directories import existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json, show_lines
from node.config import ConfigError, parse_peers
from node.config_models import GROUP_NAME
from node.protocol.group_id import check_group_token
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME
from node.protocol.peers import MEMBER_ID
from node.state_machine.kind import SHIPPED

Json = dict[str, Any]
GAP: Final = "HOST:PORT"  # of an address that nobody here knows


def restore(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The back-up; of several below it, the newest.")],
    into: Annotated[
        Path | None, typer.Option("--into", metavar="DATA", help="Where to; it must be empty, or not there yet.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="NAME", help="A new group, of this name.")] = None,
    one_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Of the new group this member alone; DATA is its own.")
    ] = None,
    group_token: Annotated[
        str | None, typer.Option("--group-token", metavar="TOKEN", help="Makes the new group's id; random otherwise.")
    ] = None,
    as_id: Annotated[
        str | None,
        typer.Option("--as", metavar="ID", help="A member of the old group; DATA is its own."),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option("--peers", metavar="ID-HOST:PORT;…", help="The members; the back-up's otherwise."),
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="Instead: the console's database, to this file.")
    ] = None,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="With --db: the API tokens of that day count, revoked ones as well.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Make a new group, or a member, of a back-up."""
    existing_directory(directory)
    if db is not None:
        if into or group or one_id or group_token or as_id or peers:
            raise Failure(Exit.USAGE, "--db restores the console's database alone")
        return _database(directory, db, keep_tokens, as_json)
    if keep_tokens:
        raise Failure(Exit.USAGE, "--keep-tokens is of a console's database: --db FILE")
    if into is None or (group is None) == (as_id is None):
        text = "--group NAME makes a new group, --as ID a member of the old one; both need --into DATA"
        raise Failure(Exit.USAGE, f"restore to what? {text}; --db FILE restores the console's database")
    addresses = _addresses(peers)
    if as_id is not None:
        if one_id or group_token:
            raise Failure(Exit.USAGE, "--id and --group-token are of a new group: --group NAME")
        return _member(directory, into, as_id, addresses, as_json)
    assert group is not None
    if one_id is not None and group_token is None:
        raise Failure(Exit.USAGE, "--id needs --group-token: the same one for each member makes them one group")
    return _group(directory, into, group, one_id, group_token, addresses, as_json)


def _addresses(peers: str | None) -> dict[str, str]:
    if peers is None:
        return {}
    try:
        return dict(parse_peers(peers))
    except (ConfigError, ValueError) as error:
        raise Failure(Exit.USAGE, f"--peers: {error}") from error


def _id(text: str, option: str) -> str:
    if not MEMBER_ID.fullmatch(text):
        raise Failure(Exit.USAGE, f'{option}: "{text}" is no member id: letters, digits, "_" and "." only')
    return text


def _group(
    directory: Path, into: Path, group: str, one_id: str | None, token: str | None, addresses: Mapping[str, str],
    as_json: bool,
) -> int:  # fmt: skip
    from node.store.backup.command import GROUP, MEMBER
    from node.store.backup.restoring import voters_of

    if not group or not GROUP_NAME.fullmatch(group):
        raise Failure(Exit.USAGE, f'--group: "{group}" is no group name: {GROUP_NAME.pattern} is allowed')
    token = secrets.token_hex(16) if token is None else token
    try:
        check_group_token(token)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--group-token: {error}") from error
    source, log = _log_of(directory)
    voters = sorted(addresses) or voters_of(log)
    if not voters:
        raise Failure(Exit.USAGE, "the back-up does not say who the members were: name them with --peers")
    if one_id is not None and _id(one_id, "--id") not in voters:
        raise Failure(Exit.USAGE, f"--id {one_id}: the members are {', '.join(voters) or 'not known'}; see --peers")
    order = {
        "action": GROUP if one_id is None else MEMBER, "source": str(source), "into": str(into.absolute()),
        "id": one_id, "group": group, "token": token, "voters": voters,
    }  # fmt: skip
    result = _restored(order, log) | {"group": group, "group_token": token, "voters": voters}
    known = addresses or dict(log.peers)
    starts = {one["node_id"]: _start(one, group, log, voters, known) for one in result["restored"]}
    result |= {"start": starts}
    if as_json:
        show_json(result)
        return Exit.FINE
    _say_restored(result, f"a new group {group}, id {result['group_id']}", log)
    show(f"its token: {token} (for the other members of a restore with --id; then never again)")
    show("move each directory to its member's machine, then start all of them, without --init:")
    show_lines(f"  {line}" for line in starts.values())
    if not addresses and any(known.get(one) for one in voters):
        show("at the addresses of the group that was backed up: where that one still runs, name others with --peers")
    _say_gaps(starts.values())
    return Exit.FINE


def _member(directory: Path, into: Path, as_id: str, addresses: Mapping[str, str], as_json: bool) -> int:
    from node.store.backup.command import MEMBER
    from node.store.backup.restoring import voters_of

    source, log = _log_of(directory)
    _id(as_id, "--as")
    if addresses and as_id not in addresses:
        raise Failure(Exit.USAGE, f"--peers does not say where {as_id} is to be reached")
    order = {
        "action": MEMBER, "source": str(source), "into": str(into.absolute()), "id": as_id, "group": log.group,
        "token": None, "voters": [],
    }  # fmt: skip
    voters = voters_of(log)
    is_new = as_id not in voters
    result = _restored(order, log) | {"group": log.group}
    known = sorted({*addresses} or {*voters, as_id})
    line = _start(result["restored"][0], log.group, log, known, addresses or dict(log.peers), join=is_new)
    result |= {"start": {as_id: line}}
    if as_json:
        show_json(result)
        return Exit.FINE
    _say_restored(result, f"{as_id} of group {log.group}; it has no vote until it holds what the group has since", log)
    show(
        "start it, without --init"
        + (f", and add it: quorumscope members add {as_id} {addresses.get(as_id, GAP)}" if is_new else "")
    )
    show(f"  {line}")
    _say_gaps([line])
    return Exit.FINE


def _say_gaps(lines: Iterable[str]) -> None:
    """What to put in place of what no back-up knows."""
    words = [word for line in lines for word in shlex.split(line)]
    if any(f"-{GAP}" in word for word in words):
        show(f"{GAP}: the back-up does not say where these members are reached; restore with --peers prints it")
    if GAP in words:
        show(f"--broker {GAP}: where that member's broker is to listen for RocketMQ's clients")
    show(
        "add what no back-up holds, as each member had it: --control, --secret-file, or its --config with all the rest"
    )


def _log_of(directory: Path) -> tuple[Path, Any]:
    """The back-up's directory and its log. Raises Failure."""
    from app.backup.sets import newest_in
    from node.store.backup.manifest import read_manifest

    def look() -> Json:
        source = newest_in(directory)
        return {"source": source, "manifest": read_manifest(source)}

    found = carried_out(look)
    if found["manifest"].log is None:
        raise Failure(Exit.FINDING, f"{directory} holds no log, only the console's database: restore DIR --db FILE")
    return found["source"].absolute(), found["manifest"].log


def _restored(order: Json, log: Any) -> Json:
    from app.backup.run import in_process

    entries = log.end_index - log.begin_index + 1
    say(f"restore: writing and checking {entries:,} entries; a large back-up takes some time")
    return carried_out(lambda: in_process(order))


def _start(
    one: Mapping[str, Any], group: str, log: Any, members: list[str], addresses: Mapping[str, str], join: bool = False
) -> str:
    """What starts that member, as far as the back-up knows."""
    peers = ";".join(f"{member}-{addresses.get(member) or GAP}" for member in members)
    words = ["quorumscope", "node", *(["--join"] if join else []), "--id", one["node_id"], "--group", group]
    words += ["--data", str(Path(one["directory"]).parent), "--peers", peers]
    words += ["--flush", log.flush] if log.flush not in ("", "sync") else []
    if log.kind == BROKER_NAME:
        words += ["--broker", GAP]
    elif log.kind != PLAIN_NAME:
        # Of one that does not ship the kind is its class's name in small letters: who wrote it knows where it is.
        words += ["--state-machine", log.kind if log.kind in SHIPPED else "PACKAGE.MODULE:CLASS"]
    if (log.data_file_size, log.index_file_size) != (1 << 30, 5 * 32 << 20):
        words += ["--set", f"store.mapped_file_size_for_entry_data_bytes={log.data_file_size}"]
        words += ["--set", f"store.mapped_file_size_for_entry_index_bytes={log.index_file_size}"]
    return shlex.join(words)


def _say_restored(result: Json, what: str, log: Any) -> None:
    first = result["restored"][0]
    show(f"entries {first['begin_index']} to {first['end_index']}: {what}")
    for one in result["restored"]:
        show(f"  {one['directory']}  store id {one['store_id']}")
    if log.kind not in (*SHIPPED, BROKER_NAME, PLAIN_NAME):
        show(f"its state machine is of the kind {log.kind!r}: name its own class as PACKAGE.MODULE:CLASS below")


def _database(directory: Path, target: Path, keep_tokens: bool, as_json: bool) -> int:
    from app.backup.console_db import made_at, restore_database
    from app.backup.sets import newest_in
    from node.store.backup.manifest import read_manifest

    def copy() -> Json:
        source = newest_in(directory)
        manifest = read_manifest(source)
        if manifest is None or manifest.console_db is None:
            raise Failure(Exit.FINDING, f"{source} holds no database of a console")
        revoked = restore_database(source, manifest.console_db, target, keep_tokens=keep_tokens)
        return {"database": str(target), "made_at": made_at(manifest), "tokens_revoked": revoked}

    result = carried_out(copy)
    if as_json:
        show_json(result)
    else:
        show(f"{target}: the console's database of {result['made_at']}; its key file is not in the back-up")
        show("sessions and login links of that day open nothing; passwords, second factors and roles are that day's:")
        show("what was changed, disabled or taken away since counts again until that is done once more")
        if keep_tokens:
            show("its API tokens count, also those that were revoked since: look at `quorumscope token list`")
        elif result["tokens_revoked"]:
            show(f"its API tokens, {result['tokens_revoked']}, are revoked (--keep-tokens keeps them): issue new ones")
        show(f"start it: quorumscope console --db {shlex.quote(str(target))}")
    return Exit.FINE


def register(app: typer.Typer) -> None:
    """Adds this family's command."""
    app.command()(restore)
