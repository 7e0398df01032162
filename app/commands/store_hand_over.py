"""`store hand-over --to java`: a stopped member's directory of a broker group becomes a Java broker's.

Invariants: a dry run changes nothing and refuses what the hand-over would refuse; what is done is in the node's trail
before it is done, with its end behind it.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.commands.directories import existing_directory
from app.commands.endings import Exit, Failure
from app.commands.output import JsonOption, show_json, show_lines
from app.commands.store import DryRunOption, Progress, commands, recorded

if TYPE_CHECKING:
    from collections.abc import Callable

    from node.hand_over.report import Report

DataDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="DATA: it holds dledger-<id>/.")]
PeersText = Annotated[
    str, typer.Option("--peers", metavar="PEERS", help="For the broker.conf lines: n0-HOST:PORT;n1-HOST:PORT;…")
]
Number = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Where this member never dispatched: of the files to write.")
]


def hand_over(
    directory: DataDirectory,
    to: Annotated[str, typer.Option("--to", metavar="java", help="Whom it is for: java.")] = "",
    dry_run: DryRunOption = False,
    peers: PeersText = "",
    queue_file_bytes: Number = None,
    index_slots: Number = None,
    index_entries: Number = None,
    as_json: JsonOption = False,
) -> int:
    """Make a stopped member's directory of a broker group a Java broker's."""
    from node.hand_over.hand_over import hand_over as hand_it_over
    from node.message_store.dispatch_mark import DerivedSizes

    if to != "java":
        raise Failure(Exit.USAGE, "--to java: there is nobody else to hand it to")
    sizes = None
    if queue_file_bytes or index_slots or index_entries:
        default = DerivedSizes()
        sizes = DerivedSizes(
            queue_file_bytes or default.queue_file_bytes, index_slots or default.index_slots,
            index_entries or default.index_entries,
        )  # fmt: skip
    progress = Progress("messages", "hand-over")
    return performed(
        directory, ["--to", "java"], "store hand-over", dry_run=dry_run, as_json=as_json,
        work=lambda: hand_it_over(directory, dry_run=dry_run, sizes=sizes, peers=peers, progress=progress),
    )  # fmt: skip


def adopt_broker(
    directory: Path, group: str, token: str, *, node_id: str | None, old_log: Path | None, drop_timers: bool,
    conf: Path | None, dry_run: bool, as_json: bool,
) -> int:  # fmt: skip
    """`store adopt --broker`. Raises Failure."""
    from app.broker_conf import PROPERTIES_BYTES_MAX, BrokerConfError, read_properties
    from node.hand_over.adopt import adopt_broker as take_over
    from node.regular_file import read_regular

    arguments = ["--broker", "--group", group, *(["--group-token", token] if token else [])]
    arguments += ["--id", node_id] if node_id is not None else []
    arguments += ["--old-log", str(old_log)] if old_log is not None else []
    arguments += ["--drop-timers"] * drop_timers
    arguments += [] if conf is None else ["--broker-conf", str(conf)]
    try:
        properties = b"" if conf is None else read_regular(conf, PROPERTIES_BYTES_MAX)
        levels = read_properties(properties).get("messageDelayLevel", "")
    except OSError as error:
        raise Failure(Exit.USAGE, f"{conf}: {error.strerror}") from error
    except BrokerConfError as error:
        raise Failure(Exit.USAGE, f"{conf}: {error}") from error
    progress = Progress("messages", "adopt")
    return performed(
        directory, arguments, "store adopt", dry_run=dry_run, as_json=as_json,
        work=lambda: take_over(
            directory, group, token=token, dry_run=dry_run, drop_timers=drop_timers, node_id=node_id,
            other_old_log=old_log, progress=progress, delay_levels=levels,
        ),
    )  # fmt: skip


def performed(
    directory: Path, arguments: list[str], name: str, *, dry_run: bool, as_json: bool, work: Callable[[], Report]
) -> int:
    """Does it, on record; a refusal is this command's. Raises Failure."""
    from node.hand_over.report import Refused
    from node.message_store.errors import MessageFormatError, MessageStoreError
    from node.store.errors import StoreError

    existing_directory(directory)
    with nullcontext(lambda _status: None) if dry_run else recorded(directory, arguments, name) as note:
        try:
            report = work()
        except (Refused, StoreError, MessageStoreError, MessageFormatError, OSError) as error:
            note(Exit.FINDING)
            raise Failure(Exit.FINDING, str(error)) from error
        note(Exit.FINE)
    if as_json:
        show_json(report.as_json())
    else:
        show_lines(report.as_text().split("\n"))
    return Exit.FINE


def register(_app: typer.Typer) -> None:
    """Adds it to the others of `store`."""
    commands.command("hand-over")(hand_over)
