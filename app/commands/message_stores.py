"""`store inspect|verify` of a RocketMQ directory: commit log, queues and index, and the replicated log below them.

Invariants: nothing is written, not even a lock; where a replicated log holds the messages it is inspected and verified
too, and its problems stand among the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from app.commands.endings import Exit, Failure
from app.commands.messages import opened_store
from app.commands.output import show_json, show_lines
from node.message_store.described import in_time

if TYPE_CHECKING:
    from node.message_store.message_store import MessageStore
    from node.store.reader import StoreReader

PROBLEMS_MAX: Final = 1000
LEDGER_FIELDS: Final = ("entries", "begin_index", "end_index", "end_term", "terms", "sealed")
Sizes = tuple[int | None, int | None]


def is_message_store(directory: Path) -> bool:
    """Whether this is a broker's directory, whatever form its log has."""
    from node.message_store.message_store import CONSUME_QUEUE, kind_of

    if (directory / "data").is_dir() and (directory / "index").is_dir():
        return False  # a replicated log's own directory
    return kind_of(directory) is not None or (directory / CONSUME_QUEUE).is_dir()


def _ledger_reader(store: MessageStore, sizes: Sizes) -> StoreReader | None:
    """Raises Failure."""
    from node.store.errors import StoreError
    from node.store.reader import StoreReader

    if store.ledger is None:
        return None
    try:
        return StoreReader(store.ledger, data_file_size=sizes[0], index_file_size=sizes[1])
    except (StoreError, OSError) as error:
        raise Failure(Exit.UNDETERMINED, f"{store.ledger}: {error}") from error


def inspected(directory: Path, sizes: Sizes) -> dict[str, Any]:
    """What a broker's directory holds. Raises Failure."""
    from node.message_store.errors import MessageFormatError

    with opened_store(directory) as store:
        queues = list(store.queues())
        running_in = store.running_in
        checkpoint: dict[str, Any] | str | None
        try:
            found = store.checkpoint()
            checkpoint = None if found is None else {
                "commit_log_on_disk_until": in_time(found.physic_msg_timestamp_ms),
                "queues_on_disk_until": in_time(found.logics_msg_timestamp_ms),
                "index_on_disk_until": in_time(found.index_msg_timestamp_ms),
                "confirm_offset": found.confirm_offset,
            }  # fmt: skip
        except MessageFormatError as error:
            checkpoint = f"cannot be read: {error}"
        reader = _ledger_reader(store, sizes)
        files = [
            {"file": f"{queue.folder.relative_to(directory)}/{one.name}", "size_bytes": one.size_bytes}
            for queue, one in store.log.files
        ]
        return {
            "directory": str(directory),
            "kind": store.kind.value,
            "commit_log": {
                "min_offset": store.log.min_offset,
                "max_offset": store.max_offset(),
                "divided_offset": store.divided_offset,
                "files": len(files),
            },
            "topics": len(store.topics()),
            "queues": len(queues),
            "units": sum(one.max_offset() - one.min_offset(store.log.min_offset) for one in queues),
            "index": [
                {
                    "file": f"index/{name}", "entries": one.head.entries, "slots": one.slot_count,
                    "begin_at": in_time(one.head.begin_timestamp_ms), "end_at": in_time(one.head.end_timestamp_ms),
                    "begin_offset": one.head.begin_offset, "end_offset": one.head.end_offset,
                }
                for name, one in store.index_files()
            ],
            "checkpoint": checkpoint,
            "running_in_process": running_in,
            "clean_stop": None if running_in is not None or store.is_broker_group else not store.has_abort,
            "configuration": [name for name in store.files.names(directory / "config") if name.endswith(".json")],
            "segments": files,
            "ledger": reader.inspect() if reader is not None else None,
        }  # fmt: skip


def verify_messages(directory: Path, sizes: Sizes, as_json: bool, progress: Callable[[int], None]) -> int:
    """Reads every byte of a broker's directory; prints what is wrong. Raises Failure."""
    from node.message_store.checking.verify import verify

    with opened_store(directory) as store:
        found = verify(store, progress)
        is_running = store.running_in is not None
        reader = _ledger_reader(store, sizes)
        ledger = reader.verify(progress=progress).as_json() if reader is not None else {}
        below = str(store.ledger.name) if store.ledger is not None else ""
    report: dict[str, Any] = {name: ledger.get(name) for name in LEDGER_FIELDS} | found.as_json()
    problems = [one | {"file": f"{below}/{one['file']}"} for one in ledger.get("problems", [])]
    problems += [one.as_json() for one in found.findings]
    report |= {
        "running": is_running,
        "problems": problems[:PROBLEMS_MAX],
        "problems_truncated": len(problems) > PROBLEMS_MAX,
    }
    if as_json:
        show_json(report)
    else:
        show_lines(verified_lines(report, len(problems)))
    return Exit.FINDING if problems else Exit.FINE


def verified_lines(report: dict[str, Any], problems: int) -> list[str]:
    """The report for people."""
    spans = f"{report['queues']:,} queues with {report['units']:,} units, {report['index_entries']:,} index entries"
    lines = [
        f"{report['kind']}: offsets {report['min_offset']:,} to {report['max_offset']:,},"
        f" {report['messages']:,} messages; {spans}"
    ]
    if report["entries"] is not None:
        lines.append(
            f"replicated log: {report['entries']:,} entries, indexes {report['begin_index']} to {report['end_index']}"
        )
    if report["running"]:
        lines.append("a broker runs here: what it wrote meanwhile was not looked at")
    if report["not_dispatched"]:
        when = " yet" if report["running"] else ": the broker does that when it starts"
        lines.append(f"{report['not_dispatched']:,} messages are not dispatched{when}")
    for one in report["problems"]:
        lines += _problem_lines(one)
    if report["problems_truncated"]:
        lines.append(f"... and {problems - PROBLEMS_MAX:,} more")
    start = report["next_start"] if not report["running"] else None
    if start is not None and start["cut_at_offset"] is not None:
        way = "after a crash (abort is there)" if start["after_crash"] else "after a clean stop"
        lines.append(
            f"If RocketMQ starts here, {way}, it looks from offset {start['looks_from_offset']} on and cuts the log at"
            f" {start['cut_at_offset']}: {start['messages_left']:,} messages stay, {start['messages_lost']:,} are gone."
            " Take a copy of the directory first."
        )
    count = f"{problems:,} problem{'s' if problems > 1 else ''}"
    return [*lines, count if problems else "no problem found; every message, unit and index entry was read"]


def _problem_lines(one: dict[str, Any]) -> list[str]:
    where = f" at offset {one['offset']}" if one.get("offset") is not None else ""
    if one.get("queue_id") is not None:
        low, high = one["queue_offset"], one["last_queue_offset"]
        span = f", queue offset {low}" + (f" to {high}" if high != low else "") if low is not None else ""
        where += f" (topic {one['topic']}, queue {one['queue_id']}{span})"
    elif one.get("index") is not None:
        where += f" at index {one['index']}"
    lines = [f"! {one['class']}{where} in {one['file']}: {one['detail']}"]
    return [*lines, f"  means: {one['means']}"] if one.get("means") else lines
