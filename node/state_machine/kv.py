"""The key-value store that ships: get, put, delete, compare-and-set, range, watch, and a time to live by log time.

The example to copy (`docs/state-machines.md`). Its state is a dict, the keys in order, and a heap of what expires; all
members apply the same commands, and expire the same keys at the same entry, because time is what the log says.

Invariants: a key whose time is over is gone before a command of that time is applied; an item's `index` is that of the
entry that wrote it; events are those of the newest entries, none left out between the oldest kept and the last one.
"""

from __future__ import annotations

import heapq
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from node.protocol.kv import (
    ABSENT,
    NEVER,
    Ask,
    EventType,
    If,
    KvCommand,
    KvError,
    KvEvent,
    KvItem,
    KvResult,
    KvWatched,
    Op,
    Status,
    decode_command,
    decode_range,
    decode_watch,
    encode_got,
    encode_item,
    encode_items,
    encode_result,
    encode_watched,
    item_at,
)
from node.state_machine.interface import BadQuestion, Command, StateMachine, Write
from node.state_machine.sorted_keys import SortedKeys

MAGIC: Final = b"quorumscope kv 1\n"
EVENTS_MAX: Final = 100_000
EVENT_BYTES_MAX: Final = 64 * 1024 * 1024
ANSWER_BYTES: Final = 1024 * 1024  # an answer ends with the item that goes over it
ANSWER_BYTES_MAX: Final = 6 * 1024 * 1024  # one entry's events; what is longer has to be read
WATCHES_KEPT: Final = 16_384
STALE_MIN: Final = 1000  # of what expires, written anew since
WRITE_BYTES: Final = 1024 * 1024
_AT: Final = struct.Struct(">q")  # the last command that a snapshot holds
HEAD_BYTES: Final = len(MAGIC) + _AT.size


class KeyValue(StateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._items: dict[bytes, KvItem] = {}
        self._keys = SortedKeys()
        self._expiring: list[tuple[int, bytes]] = []  # a heap; an item that was written since is not meant any more
        self._events: deque[KvEvent] = deque()
        self._event_bytes = 0
        self._events_from = 0  # the first entry whose events are kept
        self._at = -1
        # Up to which entry nothing was found for a watch: it is asked for again behind every batch, and there may be
        # thousands of watches, and a hundred thousand events that are none of theirs.
        self._seen: dict[bytes, int] = {}

    # --- commands -------------------------------------------------------------------------------------------------
    def apply(self, commands: Sequence[Command]) -> Iterator[bytes]:
        for command in commands:
            self._expire(command)
            self._at = command.index
            if command.body is None:
                yield b""
                continue
            try:
                result = self._one(command, decode_command(command.body))
            except KvError:
                result = KvResult(Status.BAD_COMMAND, False, ABSENT)
            yield encode_result(result)

    def _one(self, entry: Command, wanted: KvCommand) -> KvResult:
        key = wanted.key
        item = self._items.get(key)
        fits = wanted.condition is If.ALWAYS
        if wanted.condition is If.VALUE_IS:
            fits = item is not None and item.value == wanted.expected_value
        elif wanted.condition is If.INDEX_IS:
            fits = (ABSENT if item is None else item.index) == wanted.expected_index
        if not fits:
            if item is None:
                return KvResult(Status.CONDITION_FAILED, False, ABSENT)
            return KvResult(Status.CONDITION_FAILED, True, item.index, item.value)
        if wanted.op is Op.DELETE:
            if item is None:
                return KvResult(Status.NOT_FOUND, False, ABSENT)
            self._remove(key, EventType.DELETE, entry.index)
            return KvResult(Status.DONE, False, ABSENT)
        expires_ms = entry.time_ms + wanted.ttl_ms if wanted.ttl_ms else NEVER
        if item is None:
            self._keys.add(key)
        self._items[key] = KvItem(key, wanted.value, entry.index, expires_ms)
        if expires_ms != NEVER:
            heapq.heappush(self._expiring, (expires_ms, key))
            if len(self._expiring) > 2 * len(self._items) + STALE_MIN:  # the same key, written again and again
                self._forget_stale()
        self._note(KvEvent(EventType.PUT, key, entry.index, wanted.value))
        return KvResult(Status.DONE, True, entry.index)

    def _remove(self, key: bytes, why: EventType, index: int) -> None:
        del self._items[key]
        self._keys.remove(key)
        self._note(KvEvent(why, key, index))

    def _expire(self, entry: Command) -> None:
        """What is over when this command comes."""
        expiring = self._expiring
        while expiring and expiring[0][0] <= entry.time_ms:
            expires_ms, key = heapq.heappop(expiring)
            item = self._items.get(key)
            if item is not None and item.expires_ms == expires_ms:
                self._remove(key, EventType.EXPIRE, entry.index)

    def _forget_stale(self) -> None:
        self._expiring = [(one.expires_ms, one.key) for one in self._items.values() if one.expires_ms != NEVER]
        heapq.heapify(self._expiring)

    def wake_at_ms(self) -> int | None:
        expiring = self._expiring
        while expiring:
            expires_ms, key = expiring[0]
            item = self._items.get(key)
            if item is not None and item.expires_ms == expires_ms:
                return expires_ms
            heapq.heappop(expiring)
        return None

    # --- events ---------------------------------------------------------------------------------------------------
    def _note(self, event: KvEvent) -> None:
        self._events.append(event)
        self._event_bytes += len(event.key) + len(event.value)
        while len(self._events) > EVENTS_MAX or self._event_bytes > EVENT_BYTES_MAX:
            gone = self._events.popleft()
            self._event_bytes -= len(gone.key) + len(gone.value)
            self._events_from = gone.index + 1

    def _watch(self, body: bytes) -> bytes | None:
        prefix, from_index, limit = decode_watch(body)
        seen = self._seen.pop(body, -1)
        if max(from_index, seen + 1) < self._events_from:
            return encode_watched(KvWatched(True, self._at + 1, ()))
        found: list[KvEvent] = []
        size_bytes, next_index = 0, self._at + 1
        for event in self._newer(max(from_index, seen + 1)):
            if found and event.index != found[-1].index and (len(found) >= limit or size_bytes > ANSWER_BYTES):
                next_index = event.index  # whole entries only: what one did is not torn apart
                break
            if event.key.startswith(prefix):
                found.append(event)
                size_bytes += len(event.key) + len(event.value)
        if not found:
            if len(self._seen) >= WATCHES_KEPT:
                self._seen.clear()
            self._seen[body] = self._at
            return None
        if size_bytes > ANSWER_BYTES_MAX:  # thousands of keys that went at the same time
            return encode_watched(KvWatched(True, self._at + 1, ()))
        return encode_watched(KvWatched(False, next_index, found))

    def _newer(self, from_index: int) -> Iterator[KvEvent]:
        """In order; looked for from the newest one back, where those who watch are."""
        count = 0
        for event in reversed(self._events):
            if event.index < from_index:
                break
            count += 1
        at = len(self._events) - count
        for number in range(at, len(self._events)):
            yield self._events[number]

    # --- questions ------------------------------------------------------------------------------------------------
    def query(self, question: bytes) -> bytes | None:
        try:
            asked, body = (question[0] if question else 0), question[1:]
            if asked == Ask.GET:
                return encode_got(self._items.get(body))
            if asked == Ask.RANGE:
                return self._range(*decode_range(body))
            if asked == Ask.WATCH:
                return self._watch(body)
        except KvError as error:
            raise BadQuestion(str(error)) from None
        raise BadQuestion(f"there is no question of number {asked}")

    def _range(self, from_key: bytes, to_key: bytes, limit: int) -> bytes:
        found: list[bytes] = []
        size_bytes = 0
        for key in self._keys.from_key(from_key):
            if to_key and key >= to_key:
                break
            if len(found) >= limit or size_bytes > ANSWER_BYTES:
                return encode_items(found, has_more=True)
            found.append(encode_item(self._items[key]))
            size_bytes += len(found[-1])
        return encode_items(found, has_more=False)

    # --- snapshots ------------------------------------------------------------------------------------------------
    def save(self, write: Write) -> None:
        piece = [MAGIC + _AT.pack(self._at)]
        size_bytes = 0
        for key in self._keys:
            piece.append(encode_item(self._items[key]))
            size_bytes += len(piece[-1])
            if size_bytes > WRITE_BYTES:
                write(b"".join(piece))
                piece, size_bytes = [], 0
        write(b"".join(piece))

    def load(self, pieces: Iterable[bytes]) -> None:
        items: dict[bytes, KvItem] = {}
        rest, at = b"", None
        for piece in pieces:
            rest += piece
            offset = 0
            if at is None and len(rest) >= HEAD_BYTES:
                if not rest.startswith(MAGIC):
                    raise ValueError("this is no snapshot of a key-value store of this version")
                (at,) = _AT.unpack_from(rest, len(MAGIC))
                offset = HEAD_BYTES
            while at is not None and (found := item_at(rest, offset)) is not None:
                item, offset = found
                items[item.key] = item
            rest = rest[offset:]
        if rest or at is None:
            raise ValueError(f"the snapshot ends in the middle of an item: {len(rest)} bytes are left")
        self._items = items
        self._keys = SortedKeys(items)  # they were saved in order
        self._forget_stale()
        self._events.clear()
        self._seen.clear()
        self._event_bytes = 0
        self._events_from, self._at = at + 1, at
