"""A whole store, read once and compared with itself: what `store verify` reports of any RocketMQ directory.

Beside a broker that runs nothing is called a fault that is only not done yet: the commit log is read first, then queues
and index, and its end again where they name what was stored meanwhile.

Invariants: nothing is written; every byte of the commit log, every unit and every index entry is looked at; the
findings come in the order of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from node.message_store.checking.facts import Facts, facts_of
from node.message_store.checking.findings import Fault, Finding
from node.message_store.checking.index import check_index, rows_of
from node.message_store.checking.metadata import check_metadata
from node.message_store.checking.queues import EndNow, Span, check_numbers, check_queue, numbers_in_damage
from node.message_store.checking.recovery import Recovery, next_start
from node.message_store.commit_log import COMMIT_LOG, Item, JoinedCommitLog, Placed
from node.message_store.dispatch_mark import MARK, OURS, read_mark
from node.message_store.errors import MessageFormatError, MessageStoreError
from node.message_store.kept_conf import delay_levels_of
from node.message_store.message_store import INDEX, MessageStore, StoreKind
from node.protocol.entry import HEAD_BYTES

PROGRESS_EVERY: Final = 50_000


@dataclass(slots=True)
class Verified:
    """What was read, what is wrong with it, and what RocketMQ's next start would do about it."""

    kind: StoreKind
    min_offset: int
    max_offset: int
    messages: int
    queues: int
    units: int
    index_entries: int
    findings: list[Finding] = field(default_factory=list)
    recovery: Recovery | None = None
    not_dispatched: int = 0

    def as_json(self) -> dict[str, Any]:
        """Beside the fields of every `store verify --json`."""
        return {
            "kind": self.kind.value,
            "min_offset": self.min_offset,
            "max_offset": self.max_offset,
            "messages": self.messages,
            "queues": self.queues,
            "units": self.units,
            "index_entries": self.index_entries,
            "not_dispatched": self.not_dispatched,
            "next_start": self.recovery.as_json() if self.recovery is not None else None,
        }


def verify(store: MessageStore, progress: Callable[[int], None] = lambda _messages: None) -> Verified:
    """Reads everything; `progress` is called with how many messages are done."""
    facts = facts_of(_counted(store.log.scan(), progress), delay_levels_of(store.root, store.files))
    dispatched = dispatched_upto(store)
    queues = {(one.topic, one.queue_id): one for one in store.queues()}
    found = about_files(store) + about_records(store, facts, whose_of(facts))
    head_bytes = 0 if store.kind is StoreKind.LOCAL else HEAD_BYTES
    by_queue = {name: facts.units[facts.units["queue"] == at] for at, name in enumerate(facts.queues)}
    per_file, bad_index = _index_rows(store)
    span = Span(store.log.min_offset, facts.end, dispatched)
    end_now = end_finder(store)
    units = 0
    for topic, queue_id in sorted(set(queues) | set(by_queue)):
        due = by_queue.get((topic, queue_id), facts.units[:0])
        queue = queues.get((topic, queue_id))
        units += queue.max_offset() - queue.min_offset(span.begin) if queue is not None else 0
        if topic.startswith(MULTI_DISPATCHED):
            continue  # filled from messages of other topics
        damaged = numbers_in_damage(queue, facts.damage, head_bytes)
        found += check_numbers(topic, queue_id, due, lambda offset: name_at(store, offset), damaged)
        found += check_queue(queue, topic, queue_id, due, span, end_now, facts.damage, head_bytes)
    found += bad_index + check_index(facts.keys, per_file, span, end_now, facts.damage, head_bytes)
    found += check_metadata(store, queues)
    waiting = 0 if dispatched is None else int((facts.units["offset"] >= dispatched).sum())
    return Verified(
        store.kind, store.log.min_offset, facts.end or store.log.min_offset, facts.messages, len(queues), units,
        sum(map(len, per_file.values())), found, next_start(store, facts), waiting,
    )  # fmt: skip


MULTI_DISPATCHED: Final = "%LMQ%"


def _counted(items: Iterator[Item], progress: Callable[[int], None]) -> Iterator[Item]:
    count = 0
    for item in items:
        count += isinstance(item, Placed)
        if count % PROGRESS_EVERY == 0:
            progress(count)
        yield item


def end_finder(store: MessageStore) -> EndNow:
    """Looks where the store's commit log ends now; its files are listed anew, for it may have begun another one."""
    return lambda near: MessageStore(store.root, store.files).log.find_end(near)


def dispatched_upto(store: MessageStore) -> int | None:
    """Behind the newest message that any queue has, or that our mark vouches for: what lies behind it has yet to be
    dispatched. None: everything has to be in queues and index."""
    if not store.may_lag:
        return None
    ends = [0]
    try:
        mark = read_mark(store.root, store.files)
        ends += [mark.point.position] if mark is not None else []
    except MessageStoreError:
        pass  # a finding of its own (`about_files`)
    for queue in store.queues():
        last = queue.units(queue.max_offset() - 1, 1)
        ends += [int(last[0]["offset"]) + int(last[0]["size"])] if len(last) else []
    return max(ends)


def _index_rows(store: MessageStore) -> tuple[dict[str, Any], list[Finding]]:
    return {name: rows_of(one.entries) for name, one in store.index_files()}, index_faults(store)


def index_faults(store: MessageStore) -> list[Finding]:
    """Index files that cannot be read."""
    found: list[Finding] = []
    for name in store.index_names():
        try:
            store.index_file(name)
        except MessageFormatError as error:
            found.append(Finding(Fault.FILE_INVALID, f"{INDEX}/{name}", str(error)))
    return found


def name_at(store: MessageStore, offset: int) -> str:
    """The file of the commit log in which an offset lies, as seen from the store's directory."""
    for queue, file in store.log.files:
        if file.start <= offset < file.end:
            return f"{queue.folder.relative_to(store.root)}/{file.name}"
    log = store.log
    ledger = isinstance(log, JoinedCommitLog) and offset >= log.divided_offset
    beside_ledger = store.ledger is not None and (ledger or store.kind is StoreKind.LEDGER)
    return f"{store.ledger.name}/data/" if beside_ledger and store.ledger is not None else f"{COMMIT_LOG}/"


def about_files(store: MessageStore) -> list[Finding]:
    """Files that are in a row of files and do not belong there; sizes that a start refuses."""
    rows = {queue.folder: queue for queue, _ in store.log.files} | {
        one.queue.folder: one.queue for one in store.queues()
    }
    found = [
        Finding(Fault.FILE_INVALID, f"{folder.relative_to(store.root)}/{name}", f"it {why}")
        for folder, queue in rows.items()
        for name, why in queue.odd_files
    ]
    try:
        store.checkpoint()
    except MessageFormatError as error:
        found.append(Finding(Fault.FILE_INVALID, "checkpoint", str(error)))
    try:
        read_mark(store.root, store.files)
    except MessageStoreError as error:
        found.append(Finding(Fault.FILE_INVALID, f"{OURS}/{MARK}", str(error)))
    return found


Whose = Mapping[int, tuple[str, int, int]]
"""Topic, queue and queue offset of messages by their offset."""


def about_records(store: MessageStore, facts: Facts, whose: Whose) -> list[Finding]:
    """Damage, bodies that are not sound, records that say that they lie elsewhere."""
    found: list[Finding] = []
    for one in facts.damage:
        end = one.offset + one.size_bytes
        units = sum(_units_within(store, one.offset, end))
        knows = f"; the queues know {units} message{'s' if units > 1 else ''} there" if units else ""
        fault = Fault.TORN_END if one.is_last and store.has_abort and not units else Fault.RECORD_INVALID
        detail = f"{one.size_bytes} bytes up to {end}: {one.why}{knows}"
        found.append(Finding(fault, name_at(store, one.offset), detail, one.offset, count=max(units, 1)))
    faults = [
        (Fault.BODY_CRC_INVALID, offset, "crc32(body) & 0x7FFFFFFF is not the bodyCRC in the record")
        for offset in facts.bad_bodies
    ]
    faults += [
        (Fault.PHYSICAL_OFFSET_MISMATCH, offset, f"the record says physicalOffset {says}")
        for offset, says in facts.out_of_place
    ]
    for fault, offset, detail in faults:
        topic, queue_id, number = whose.get(offset, (None, None, None))
        found.append(Finding(fault, name_at(store, offset), detail, offset, topic, queue_id, number, number))
    return sorted(found, key=lambda one: one.offset or 0)


def whose_of(facts: Facts) -> dict[int, tuple[str, int, int]]:
    """Of the messages that something is wrong with; one that is in no queue is left out."""
    found: dict[int, tuple[str, int, int]] = {}
    known = facts.units["offset"]
    for offset in [*facts.bad_bodies, *(offset for offset, _ in facts.out_of_place)]:
        at = int(np.searchsorted(known, offset))
        if at < len(known) and int(known[at]) == offset:
            topic, queue_id = facts.queues[int(facts.units[at]["queue"])]
            found[offset] = (topic, queue_id, int(facts.units[at]["number"]))
    return found


def _units_within(store: MessageStore, low: int, high: int) -> Iterator[int]:
    """How many units of each queue point into damaged bytes."""
    for queue in store.queues():
        for _at, units in queue.pieces():
            offsets = units["offset"].astype("i8")
            yield int(((offsets >= low) & (offsets < high)).sum())
