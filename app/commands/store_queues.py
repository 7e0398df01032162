"""`store rebuild-queues`: consume queues and index of a stopped broker's directory, written anew from its commit log.

Invariants: with `--dry-run`, and without `--yes`, nothing is written; a broker or member that runs there is refused,
and none can start meanwhile; what keeps the log from being read whole is named, and changes nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.messages import opened_store
from app.commands.output import JsonOption, show_json, show_lines
from app.commands.store import DryRunOption, Progress, commands

if TYPE_CHECKING:
    from node.message_store.dispatch_mark import DerivedSizes
    from node.message_store.message_store import MessageStore
    from node.message_store.rebuild import Rebuilt

StoreDirectory = Annotated[Path, typer.Argument(metavar="DIR", help="A broker's store: DATA, or its storePathRootDir.")]
Number = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of the new files; else as the old ones.")]
NO_END: Final = (1 << 62) - 1


def rebuild_queues(
    directory: StoreDirectory,
    dry_run: DryRunOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without it nothing is changed, and all is said.")] = False,
    queue_file_bytes: Number = None,
    index_slots: Number = None,
    index_entries: Number = None,
    as_json: JsonOption = False,
) -> int:
    """Write consume queues and index anew from the commit log of a stopped broker."""
    from node.message_store.rebuild import rebuild
    from node.store.errors import StoreError
    from node.store.files.data_lock import DataLock

    if dry_run and yes:
        raise Failure(Exit.USAGE, "--dry-run and --yes: one of them")
    with opened_store(directory) as store:
        sizes = _sizes(store, queue_file_bytes, index_slots, index_entries)
        upto_index = _upto_index(store)
        try:
            lock = DataLock(directory.absolute(), alone=True) if yes else None  # whoever runs here keeps it
        except StoreError as error:
            raise Failure(Exit.FINDING, str(error)) from error
        try:
            progress = Progress("messages", "rebuild-queues")
            found = rebuild(store, upto_index, dry_run=not yes, sizes=sizes, progress=progress)
        finally:
            if lock is not None:
                lock.release()
    if as_json:
        show_json(as_rows(directory, found, sizes, done=yes))
    else:
        show_lines(_lines(directory, found, done=yes))
    return Exit.FINE


def _sizes(
    store: MessageStore, queue_file_bytes: int | None, index_slots: int | None, index_entries: int | None
) -> DerivedSizes:
    from node.message_store.dispatch_mark import DerivedSizes
    from node.message_store.rebuild import sizes_in

    there = sizes_in(store)
    return DerivedSizes(
        queue_file_bytes or there.queue_file_bytes, index_slots or there.index_slots,
        index_entries or there.index_entries,
    )  # fmt: skip


def _upto_index(store: MessageStore) -> int:
    """The last entry that is known to be committed; all of RocketMQ's where its checkpoint does not say."""
    from node.store.errors import StoreError
    from node.store.files.java_files import java_committed_index
    from node.store.reader import StoreReader

    if store.ledger is None:
        return NO_END
    try:
        reader = StoreReader(store.ledger)
        if reader.is_java:
            committed = java_committed_index(store.ledger)
            return min(committed, reader.end_index) if committed >= 0 else reader.end_index
        return -1 if reader.committed_index is None else reader.committed_index
    except (StoreError, OSError) as error:
        raise Failure(Exit.UNDETERMINED, f"{store.ledger}: {error}") from error


def as_rows(directory: Path, found: Rebuilt, sizes: DerivedSizes, *, done: bool) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "done": done,
        "messages": found.messages,
        "queues": found.queues,
        "index_entries": found.index_entries,
        "repeats": found.repeats,
        "queues_without_messages": found.kept_places,
        "end_offset": found.end.position,
        "end_index": found.end.index if found.end.index >= 0 else None,
        "queue_file_bytes": sizes.queue_file_bytes,
        "index_slots": sizes.index_slots,
        "index_entries_a_file": sizes.index_entries,
        "seconds": round(found.seconds, 3),
    }


def _lines(directory: Path, found: Rebuilt, *, done: bool) -> list[str]:
    what = "written" if done else "Nothing was changed (--yes does it). It would write:"
    entry = f", entry {found.end.index}" if found.end.index >= 0 else ""
    lines = [
        f"{directory}: {what}",
        f"  {found.messages:,} messages in {found.queues} queues, {found.index_entries:,} index entries,"
        f" up to offset {found.end.position}{entry}, in {found.seconds:.1f} s",
    ]
    if found.kept_places:
        lines.append(f"  {found.kept_places} queues hold no message any more, and go on with the offset that they had")
    if found.repeats:
        lines.append(f"  {found.repeats} messages have a queue offset that was given before: they are in no queue")
    return lines


def register(_app: typer.Typer) -> None:
    """Adds it to the others of `store`."""
    commands.command("rebuild-queues")(rebuild_queues)
