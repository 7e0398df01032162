"""`store inspect|verify`: a stopped member's store, read-only; `store repair|adopt|recover-members`: what only an
operator may decide.

Invariants: `inspect` and `verify` write nothing, also not a lock, and a directory of the Java original is as welcome as
ours, and so is a RocketMQ broker's (`app/commands/message_stores.py`); `verify` ends with 1 when it found a problem.
The others run in a process of their own that takes the store's lock; they end with 1 when something is (still) wrong,
or when it refused.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.directories import check_file_sizes, check_state_files, existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, say, show, show_json, show_lines
from app.commands.targets import PeersOption
from node.children import dying_with_parent, environment, python, why_failed
from node.config import parse_peers
from node.operator_trail import NAME as TRAIL_NAME
from node.operator_trail import OperatorTrail, login_name

if TYPE_CHECKING:
    from node.protocol.entry import Entry
    from node.store.reader import StoreReader

PROGRESS_EVERY_S: Final = 2.0
OF_A_MEMBER: Final = "DATA/dledger-<id>, or DATA itself if it holds one"
Directory = Annotated[Path, typer.Argument(metavar="DIR", help=f"{OF_A_MEMBER}.")]
AnyDirectory = Annotated[
    Path, typer.Argument(metavar="DIR", help=f"{OF_A_MEMBER}; or a RocketMQ broker's store (storePathRootDir).")
]
SizeOption = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only where the files do not show it.")]

DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what it would do, what it would keep and what may be lost; change nothing."),
]

commands = typer.Typer(help="Look at a store's files.", no_args_is_help=True, rich_markup_mode=None)


def store_directory(directory: Path) -> Path:
    """The directory that holds `data/` and `index/`, with all of its path: beside it lie its node's lock and trail.

    Raises Failure with what was looked for.
    """
    from node.store.files.identity import IDENTITY

    directory = existing_directory(directory).absolute()
    if (directory / "data").is_dir():
        if not any((directory / "data").iterdir()) and not (directory / IDENTITY).exists():
            raise Failure(Exit.USAGE, f"{directory} is no store: there is nothing in data/ and no {IDENTITY}")
        return directory
    found = sorted(path for path in directory.glob("dledger-*") if (path / "data").is_dir())
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(Exit.USAGE, f"{directory} holds several stores: name one of {', '.join(map(str, found))}")
    raise Failure(Exit.USAGE, f"{directory} is no store: there is no data/ in it and no dledger-<id>/")


@contextmanager
def _reading(directory: Path, data_file_size: int | None, index_file_size: int | None) -> Iterator[StoreReader]:
    """A reader; whatever keeps it from reading means that nothing could be determined."""
    from node.store.errors import StoreError
    from node.store.reader import StoreReader

    store = store_directory(directory)
    try:
        check_state_files(store)
        reader = StoreReader(store, data_file_size=data_file_size, index_file_size=index_file_size)
        check_file_sizes(store, (data_file_size, index_file_size), reader.identity)
        yield reader
    except (StoreError, OSError) as error:
        raise Failure(Exit.UNDETERMINED, f"{store}: {error}") from error


@commands.command()
def inspect(
    directory: AnyDirectory,
    data_file_size: SizeOption = None,
    index_file_size: SizeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a store holds."""
    from app.commands.message_stores import inspected, is_message_store

    if is_message_store(directory):
        found = inspected(directory, (data_file_size, index_file_size))
    else:
        with _reading(directory, data_file_size, index_file_size) as reader:
            found = reader.inspect()
    if as_json:
        show_json(found)
    else:
        show_lines(described(found))
    return Exit.FINE


def term_and_chain(entry: Entry | None) -> tuple[int, int | None] | None:
    return None if entry is None else (entry.term, entry.chain_crc)


@commands.command()
def verify(
    directory: AnyDirectory,
    data_file_size: SizeOption = None,
    index_file_size: SizeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read every byte, and check every record and every snapshot."""
    from app.commands.message_stores import is_message_store, verify_messages
    from node.snapshots.directory import damaged_in, foreign_in

    if is_message_store(directory):
        messages = Progress("messages")
        return verify_messages(directory, (data_file_size, index_file_size), as_json, messages)
    with _reading(directory, data_file_size, index_file_size) as reader:
        report = reader.verify(progress=Progress()).as_json()
        report["problems"] += [
            {
                "class": "snapshot_damaged", "index": one.index, "last_index": one.index, "file": one.file,
                "detail": f"{one.detail}; at its start the member puts it aside, and takes an older or the leader's",
            }
            for one in damaged_in(reader.directory)
        ] + [
            {
                "class": "snapshot_foreign", "index": one.index, "last_index": one.index, "file": one.file,
                "detail": f"{one.detail}: it is of another history, and its state would not be believed; move it away",
            }
            for one in foreign_in(reader.directory, lambda index: term_and_chain(reader.entry(index)))
        ]  # fmt: skip
    if as_json:
        show_json(report)
    else:
        problems = report["problems"]
        span = f"indexes {report['begin_index']} to {report['end_index']}" if report["entries"] else "empty"
        # A store of the Java original has no seals at all; a broken seal is a problem of its own below.
        sealed = "sealed" if report["sealed"] else "not sealed throughout"
        show(f"{report['entries']:,} entries, {span}, end term {report['end_term']}, {sealed}")
        for problem in problems:
            where = "?" if problem["index"] is None else f"{problem['index']}"
            where += f" to {problem['last_index']}" if problem["last_index"] != problem["index"] else ""
            show(f"! {problem['class']} at index {where} in {problem['file']}: {problem['detail']}")
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        show(count if problems else "no problem found; every record and every snapshot was read")
    return Exit.FINDING if report["problems"] else Exit.FINE


@commands.command()
def repair(
    directory: Directory,
    sources: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="OTHER_DIR", help="Heal damaged entries from another member's directory."),
    ] = None,
    set_term: Annotated[
        int | None, typer.Option("--set-term", metavar="N", min=0, help="The group's highest term; no vote up to it.")
    ] = None,
    reset_term: Annotated[
        int | None,
        typer.Option("--reset-term", metavar="N", min=0, help="Go back to term N, on all members of a stopped group."),
    ] = None,
    group_token: Annotated[
        str, typer.Option("--group-token", metavar="TOKEN", help="With --reset-term: makes the group's new id.")
    ] = "",
    discard_from: Annotated[
        int | None, typer.Option("--discard-from", metavar="N", min=0, help="Drop entry N and all behind it; rejoin.")
    ] = None,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Vote again with what is here; only if no majority of voters is left.")
    ] = False,
    term: Annotated[
        int | None, typer.Option("--term", metavar="N", min=0, help="With --accept-loss: the group's highest term.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Say what is wrong with a stopped member's store, or settle it."""
    chosen = [name for name, is_chosen in (
        ("--from", bool(sources)), ("--set-term", set_term is not None), ("--reset-term", reset_term is not None),
        ("--discard-from", discard_from is not None),
        ("--accept-loss", accept_loss),
    ) if is_chosen]  # fmt: skip
    if len(chosen) > 1:
        raise Failure(Exit.USAGE, f"{' and '.join(chosen)}: one at a time")
    if term is not None and not accept_loss:
        raise Failure(Exit.USAGE, "--term goes with --accept-loss only")
    if dry_run and not chosen:
        raise Failure(Exit.USAGE, "--dry-run of what? Without an option nothing is changed anyway")
    arguments = [word for source in sources or [] for word in ("--from", str(store_directory(source)))]
    if bool(group_token) != (reset_term is not None):
        raise Failure(Exit.USAGE, "--reset-term and --group-token go together")
    if group_token:
        _check_token(group_token)
        arguments += ["--group-token", group_token]
    for name, value in (
        ("--set-term", set_term),
        ("--reset-term", reset_term),
        ("--discard-from", discard_from),
        ("--term", term),
    ):
        arguments += [name, str(value)] if value is not None else []
    arguments += ["--accept-loss"] if accept_loss else []
    return _decided(directory, arguments, dry_run=dry_run, as_json=as_json)


def _check_token(token: str) -> None:
    from node.protocol.group_id import check_group_token

    try:
        check_group_token(token)
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--group-token: {error}") from error


@commands.command()
def adopt(
    directory: Directory,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Where quorumscope.json is lost: the group's name.")
    ] = None,
    node_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Where no quorumscope.json or dledger-<id>/ says it.")
    ] = None,
    broker: Annotated[
        bool, typer.Option("--broker", help="DIR is a RocketMQ broker's (DLedger mode): a member of a broker group.")
    ] = False,
    group_token: Annotated[
        str, typer.Option("--group-token", metavar="TOKEN", help="With --broker: makes the group's id; on all members.")
    ] = "",
    old_log: Annotated[
        Path | None,
        typer.Option("--old-log", metavar="FILE", help="With --broker: another member's quorumscope/old-log.json."),
    ] = None,
    drop_timers: Annotated[
        bool, typer.Option("--drop-timers", help="With --broker: what waits in RocketMQ 5's timer wheel is lost.")
    ] = False,
    broker_conf: Annotated[
        Path | None, typer.Option("--broker-conf", metavar="FILE", help="With --broker: the Java broker's broker.conf.")
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> int:
    """Take over a stopped store that a Java node wrote to, or whose quorumscope.json is lost."""
    if broker:
        from app.commands.store_hand_over import adopt_broker

        if group is None:
            raise Failure(Exit.USAGE, "--broker: give --group NAME; the id is that of DIR/dledger-<id>, else --id n0")
        if group_token:
            _check_token(group_token)
        return adopt_broker(
            directory, group, group_token, node_id=node_id, old_log=old_log, drop_timers=drop_timers, conf=broker_conf,
            dry_run=dry_run, as_json=as_json,
        )  # fmt: skip
    if group_token or drop_timers or broker_conf is not None or old_log is not None:
        raise Failure(Exit.USAGE, "--group-token, --old-log, --drop-timers and --broker-conf go with --broker only")
    arguments = ["--adopt"]
    for name, value in (("--group", group), ("--id", node_id)):
        arguments += [name, value] if value is not None else []
    return _decided(directory, arguments, dry_run=dry_run, as_json=as_json)


@commands.command("recover-members")
def recover_members(
    directory: Directory,
    keep: Annotated[
        list[str],
        typer.Option(
            "--keep",
            metavar="ID[=TERM:END_TERM:END]",
            help="A survivor; all of them are named, the others than this one with what their own dry run says.",
        ),
    ],
    group_token: Annotated[
        str,
        typer.Option(
            "--group-token", metavar="TOKEN", help="Makes the new group id; with several survivors, the same."
        ),
    ] = "",
    log_of: Annotated[
        str | None, typer.Option("--log-of", metavar="ID", help="Go on with this survivor's log though one is newer.")
    ] = None,
    peers: PeersOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it nothing is changed, and all is said.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Go on with the survivors alone, where a majority of the members was lost for good."""
    arguments = [word for one in keep for word in ("--keep", one)]
    if peers:
        try:
            arguments += [word for one in parse_peers(peers) for word in ("--peer", one)]
        except ValueError as error:
            raise Failure(Exit.USAGE, f"--peers: {error}") from error
    if log_of is not None:
        arguments += ["--log-of", log_of]
    if group_token:
        _check_token(group_token)
        arguments += ["--group-token", group_token]
    return _decided(directory, arguments, dry_run=not yes, as_json=as_json, name="store recover-members")


@contextmanager
def recorded(directory: Path, arguments: list[str], name: str) -> Iterator[Callable[[int], None]]:
    """What is decided about a store is in the node's trail, before it is done and with its exit code after.

    Raises Failure.
    """
    store = store_directory(directory)
    trail = OperatorTrail(store.parent / TRAIL_NAME)
    secret = arguments.index("--group-token") + 1 if "--group-token" in arguments else -1
    said = " ".join("…" if place == secret else word for place, word in enumerate(arguments))
    try:
        row = trail.begin(
            user_name=login_name(), role="-", via="command line", credential="", address="", method="", path="",
            action=f"{name} {said}", target=store.name,
        )  # fmt: skip
    except OSError as error:
        text = f"{trail.path}: {error.strerror or error}; what cannot be recorded is not done"
        raise Failure(Exit.FINDING, text) from error

    def note(status: int) -> None:
        try:
            trail.end(row, status)
        except OSError as error:
            say(f"{trail.path}: {error.strerror or error}; how it ended is not in the trail")

    yield note


def _decided(
    directory: Path, arguments: list[str], *, dry_run: bool, as_json: bool, name: str = "store"
) -> int:  # fmt: skip
    """Runs the process that takes the store's lock; its result is printed as it is, a refusal is this command's."""
    command = python("-m", "node.store.repair", str(store_directory(directory)), *arguments)
    command += ["--dry-run"] * dry_run + ["--json"] * as_json
    if dry_run or not arguments:
        done = _done(command)
    else:
        with recorded(directory, arguments, name) as note:
            done = _done(command)
            note(done.returncode)
    if not done.stdout or done.returncode < 0:
        raise Failure(Exit.FINDING, why_failed(done, "repair"))
    if as_json:
        show_json(json.loads(done.stdout))
    else:
        show_lines(done.stdout.rstrip("\n").split("\n"))
    return Exit.FINDING if done.returncode else Exit.FINE


def _done(command: list[str]) -> subprocess.CompletedProcess[str]:
    """It ends with this process, however that ends: who sees the command killed takes the store for one that nobody
    changes any more."""
    dying = dying_with_parent(signal.SIGKILL)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), preexec_fn=dying)


class Progress:
    """Says now and then how far a long reading is."""

    def __init__(self, what: str = "entries", doing: str = "verify") -> None:
        self.what, self.doing = what, doing
        self.said_at = time.monotonic()

    def __call__(self, count: int) -> None:
        if time.monotonic() - self.said_at >= PROGRESS_EVERY_S:
            self.said_at = time.monotonic()
            say(f"{self.doing}: {count:,} {self.what}")


def described(value: dict[str, Any], indent: str = "") -> list[str]:
    """A nested dictionary, one `key: value` a line."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            lines += [f"{indent}{key}:", *described(item, indent + "  ")]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(f"{indent}{key}:")
            lines += [f"{indent}  - " + ", ".join(f"{name}={part}" for name, part in row.items()) for row in item]
        else:
            shown = "unknown" if item is None else item if isinstance(item, str) else json.dumps(item)
            lines.append(f"{indent}{key}: {shown}")
    return lines


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="store")
