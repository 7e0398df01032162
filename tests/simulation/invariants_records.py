"""What a broker group's log promises to a Java broker that takes it over: every entry of every member is a record.

Judged as the entries get into the logs, also those that are cut again: a crash may come at any moment, and Java reads
what is there. What rotted is another story: `store.get` does not give it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from node.message_store.record import decode_record
from node.message_store.record_check import RecordInvalid, judge
from node.protocol.entry import HEAD_BYTES, Entry, Magic
from node.protocol.group_kind import BROKER_NAME, Channel
from node.protocol.inert_records import TOPICS, is_reserved
from node.store.errors import StoreError
from tests.simulation.damage import DAMAGE
from tests.simulation.mirror import Mirror, Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

RECORD_INVARIANTS: Final[Mapping[str, str]] = {
    "begins_with_a_file": "a broker group's log begins with a data file",
    "every_entry_a_record": "every entry of a broker group is a valid record, with magic 1",
    "record_says_its_place": "a record says where it lies, on every member",
    "channel_and_record_agree": "messages have no topic of ours, inert records their channel's and nothing else",
    "engines_own_channels": "channel 1 says nothing and begins each term, 2 is about the group; no client has them",
    "time_goes_on": "no record was stored before the one before it",
}


class Records(Observer):
    """Comes after `Mirrors`."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._times: dict[tuple[int, tuple[int, int]], int] = {}  # by index and key: when that record was stored
        self._rots = False

    def started(self, world: World) -> None:
        self._rots = any(getattr(world.config, kind) for kind in DAMAGE)

    def stepped(self, world: World) -> None:
        for mirror in self._mirrors.touched if world.config.broker else ():
            self._judge(mirror)

    def _judge(self, mirror: Mirror) -> None:
        store = mirror.member.store
        if store is None:
            return
        if store.kind != BROKER_NAME or store.files.begin_pos % store.data_file_size:
            text = f"{mirror.member.id}: a log of kind {store.kind} begins at {store.files.begin_pos}"
            raise Violation("begins_with_a_file", text)
        for index in range(max(mirror.changed_from, store.begin_index), mirror.entries.end):
            try:
                entry = store.get(index)
            except StoreError:
                continue
            if entry is not None:
                self._entry(mirror, entry)

    def _entry(self, mirror: Mirror, entry: Entry) -> None:
        who = f"{mirror.member.id}: entry {entry.index} of term {entry.term}, channel {entry.channel}"
        try:
            found = judge(entry.body)
        except RecordInvalid as error:
            raise Violation("every_entry_a_record", f"{who}: {error}") from error
        if entry.magic != Magic.NORMAL:
            raise Violation("every_entry_a_record", f"{who}: magic {entry.magic}, which ends Java's recovery")
        record = decode_record(entry.body)
        if record.physical_offset != entry.pos + HEAD_BYTES and not self._rots:  # no checksum covers a head's place
            text = f"{who} lies at {entry.pos}, its record says {record.physical_offset}"
            raise Violation("record_says_its_place", text)
        before, held = mirror.at(entry.index - 1), mirror.at(entry.index)
        is_first = before is not None and before.term != entry.term
        expected = TOPICS.get(entry.channel)
        if (record.topic != expected) if expected else is_reserved(record.topic):
            raise Violation("channel_and_record_agree", f"{who}: topic {record.topic}")
        if expected and (record.sys_flag, record.queue_id, record.queue_offset) != (0xC, 0, 0):
            raise Violation("channel_and_record_agree", f"{who}: sysFlag {record.sys_flag:#x}")
        if is_first and entry.channel != Channel.FIRST_OF_TERM:
            raise Violation("engines_own_channels", f"{who}, and the entry before it is of an earlier one")
        if entry.channel == Channel.FIRST_OF_TERM and record.body:
            raise Violation("engines_own_channels", f"{who}: it says {record.body[:24]!r}")
        if entry.channel == Channel.CONFIG_CHANGE and not record.body.startswith(b"{"):
            raise Violation("engines_own_channels", f"{who}: it says {record.body[:24]!r} of the group")
        if held is not None:
            self._times[entry.index, held.key] = found.store_timestamp_ms
        last = self._times.get((entry.index - 1, before.key)) if before is not None else None
        if last is not None and found.store_timestamp_ms < last:
            text = f"{who} was stored at {found.store_timestamp_ms}, the entry before it at {last}"
            raise Violation("time_goes_on", text)
