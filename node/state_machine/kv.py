"""The key-value store that ships: get, put, delete, compare-and-set, range, watch, and a time to live by log time.

The example to copy (`docs/state-machines.md`). Its state is a dict, the keys in order, and a heap of what expires; all
members apply the same commands, and expire the same keys at the same entry, because time is what the log says. It is
saved in steps, beside what is applied (`kv_saving.py`).

Items are plain tuples of bytes and numbers, and the event of a put is its item: the garbage collector drops such tuples
from its lists when it first sees them, so that a million keys are no work for it.

Invariants: a key whose time is over is gone before a command of that time is applied; an item's `index` is that of the
entry that wrote it; events are those of the newest entries, none left out between the oldest kept and the last one;
whatever changes a key tells a save that is under way first.
"""

from __future__ import annotations

import heapq
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from node.protocol.kv import (
    ABSENT,
    COMMAND,
    KEY_BYTES_MAX,
    NEVER,
    NOTHING,
    VALUE_BYTES_MAX,
    Ask,
    EventType,
    If,
    KvCommand,
    KvError,
    KvEvent,
    KvResult,
    KvWatched,
    Op,
    Status,
    decode_command,
    decode_range,
    decode_watch,
    done_all,
    done_at,
    encode_item,
    encode_items,
    encode_result,
    encode_watched,
    got,
    item_at,
)
from node.protocol.packed_bodies import PackedBodies
from node.state_machine.interface import (
    LONG_RESULTS_BYTES_MAX,
    SHORT_RESULT_BYTES,
    BadQuestion,
    Command,
    Run,
    StateMachine,
    Write,
)
from node.state_machine.kv_events import Events
from node.state_machine.kv_runs import puts_in
from node.state_machine.kv_saving import Held, Saving
from node.state_machine.sorted_keys import SortedKeys

MAGIC: Final = b"quorumscope kv 1\n"
ANSWER_BYTES: Final = 1024 * 1024  # an answer ends with the item that goes over it
ANSWER_BYTES_MAX: Final = 6 * 1024 * 1024  # one entry's events; what is longer has to be read
WATCHES_KEPT: Final = 16_384
NEW_KEYS_KEPT: Final = 64
STALE_MIN: Final = 1000  # of what expires, written anew since
_AT: Final = struct.Struct(">q")  # the last command that a snapshot holds
HEAD_BYTES: Final = len(MAGIC) + _AT.size
_PUT: Final = int(Op.PUT)
_ALWAYS: Final = int(If.ALWAYS)


class KeyValue(StateMachine):
    """See the module's docstring."""

    def __init__(self) -> None:
        self._items: dict[bytes, Held] = {}
        self._keys = SortedKeys()
        self._expiring: list[tuple[int, bytes]] = []  # a heap; an item that was written since is not meant any more
        self._events = Events()
        self._at = -1
        # Up to which entry nothing was found for a watch: it is asked for again behind every batch, and there may be
        # thousands of watches, and a hundred thousand events that are none of theirs.
        self._seen: dict[bytes, int] = {}
        self._new_keys: dict[int, list[bytes]] = {}  # what was touched behind an entry, up to `_new_keys_at`
        self._new_keys_at = -1
        self._saving: Saving | None = None

    # --- commands -------------------------------------------------------------------------------------------------
    def apply(self, commands: Sequence[Command]) -> Iterator[bytes | None]:
        long_bytes = 0
        expiring, keys, items, note = self._expiring, self._keys, self._items, self._events.add
        unpack, begin = COMMAND.unpack_from, COMMAND.size
        for command in commands:
            index, time_ms, body = command
            if expiring and expiring[0][0] <= time_ms:
                self._expire(command)
            self._at = index
            if body is None:
                yield b""
                continue
            if len(body) >= begin:  # the most common command, without an object for it
                op, condition, ttl_ms, _, key_bytes, expected_bytes = unpack(body)
                if op == _PUT and condition == _ALWAYS and not ttl_ms and not expected_bytes:
                    at = begin + key_bytes
                    if 0 < key_bytes <= KEY_BYTES_MAX and at <= len(body) <= at + VALUE_BYTES_MAX:
                        key = body[begin:at]
                        if self._saving is not None:
                            self._saving.changes(key, items.get(key))
                        if key not in items:
                            keys.add(key)
                        items[key] = item = (key, body[at:], index, NEVER)
                        note(item, len(body) - begin)
                        yield done_at(index)
                        continue
            try:
                result = self._one(command, decode_command(body))
            except KvError:
                result = KvResult(Status.BAD_COMMAND, False, ABSENT)
            if len(result.value) > SHORT_RESULT_BYTES:  # a copy of 1 MiB for each 30 bytes asked takes seconds
                long_bytes += len(result.value)
                if long_bytes > LONG_RESULTS_BYTES_MAX:
                    yield None
                    continue
            yield encode_result(result)

    def apply_run(self, run: Run) -> PackedBodies | None:
        """Plain puts, while nothing expires: what `apply` does with each, without a loop."""
        if self._expiring and self._expiring[0][0] <= run.time_ms:
            return None
        puts = puts_in(run)
        if puts is None:
            return None
        keys, items = puts.keys, self._items
        if self._saving is not None:
            self._saving.all_change(keys)
        held = len(items)
        items.update(zip(keys, puts.items, strict=True))
        for key in islice(reversed(items), len(items) - held):  # a dict has what is new at its end
            self._keys.add(key)
        self._at = run.first_index + run.count - 1
        self._events.add_run(puts.items, puts.size_bytes)
        return done_all(run.first_index, run.count)

    def _one(self, entry: Command, wanted: KvCommand) -> KvResult:
        key = wanted.key
        held = self._items.get(key)
        _, value, index, _ = held or (key, None, ABSENT, NEVER)
        fits = wanted.condition is If.ALWAYS
        if wanted.condition is If.VALUE_IS:
            fits = value == wanted.expected_value
        elif wanted.condition is If.INDEX_IS:
            fits = index == wanted.expected_index
        if not fits:
            return KvResult(Status.CONDITION_FAILED, held is not None, index, value or b"")
        if wanted.op is Op.DELETE:
            if held is None:
                return KvResult(Status.NOT_FOUND, False, ABSENT)
            self._remove(key, EventType.DELETE, entry.index)
            return KvResult(Status.DONE, False, ABSENT)
        expires_ms = entry.time_ms + wanted.ttl_ms if wanted.ttl_ms else NEVER
        if self._saving is not None:
            self._saving.changes(key, held)
        if held is None:
            self._keys.add(key)
        self._items[key] = item = (key, wanted.value, entry.index, expires_ms)
        if expires_ms != NEVER:
            heapq.heappush(self._expiring, (expires_ms, key))
            if len(self._expiring) > 2 * len(self._items) + STALE_MIN:  # the same key, written again and again
                self._forget_stale()
        self._events.add(item, len(key) + len(wanted.value))
        return KvResult(Status.DONE, True, entry.index)

    def _remove(self, key: bytes, why: EventType, index: int) -> None:
        held = self._items.pop(key)
        if self._saving is not None:
            self._saving.removed(key, held)
        self._keys.remove(key)
        self._events.add((key, None, index, why), len(key))

    def _expire(self, entry: Command) -> None:
        """What is over when this command comes."""
        expiring = self._expiring
        while expiring and expiring[0][0] <= entry.time_ms:
            expires_ms, key = heapq.heappop(expiring)
            held = self._items.get(key)
            if held is not None and held[3] == expires_ms:
                self._remove(key, EventType.EXPIRE, entry.index)

    def _forget_stale(self) -> None:
        self._expiring[:] = [(until, key) for key, _, _, until in self._items.values() if until != NEVER]
        heapq.heapify(self._expiring)

    def wake_at_ms(self) -> int | None:
        expiring = self._expiring
        while expiring:
            expires_ms, key = expiring[0]
            held = self._items.get(key)
            if held is not None and held[3] == expires_ms:
                return expires_ms
            heapq.heappop(expiring)
        return None

    # --- events ---------------------------------------------------------------------------------------------------
    def _watch(self, body: bytes) -> bytes | None:
        prefix, from_index, limit = decode_watch(body)
        seen = self._seen.pop(body, -1)
        if max(from_index, seen + 1) < self._events.from_index:
            return encode_watched(KvWatched(True, self._at + 1, ()))
        found: list[KvEvent] = []
        size_bytes, next_index = 0, self._at + 1
        if seen >= 0 and not self._touched(max(seen, from_index - 1), prefix):
            self._seen[body] = self._at
            return None
        for key, value, index, why in self._events.newer(max(from_index, seen + 1)):
            if found and index != found[-1].index and (len(found) >= limit or size_bytes > ANSWER_BYTES):
                next_index = index  # whole entries only: what one did is not torn apart
                break
            if key.startswith(prefix):
                kind = EventType(why) if value is None else EventType.PUT
                found.append(KvEvent(kind, key, index, value or b""))
                size_bytes += len(key) + len(value or b"")
        if not found:
            if len(self._seen) >= WATCHES_KEPT:
                self._seen.clear()
            self._seen[body] = self._at
            return None
        if size_bytes > ANSWER_BYTES_MAX:  # thousands of keys that went at the same time
            return encode_watched(KvWatched(True, self._at + 1, ()))
        return encode_watched(KvWatched(False, next_index, found))

    def _touched(self, seen: int, prefix: bytes) -> bool:
        """Whether anything behind entry `seen` was about a key that begins so. Many watches wait at the same entry, for
        thousands of events: the keys of those are put in order once for all of them."""
        if self._new_keys_at != self._at or len(self._new_keys) >= NEW_KEYS_KEPT:
            self._new_keys_at = self._at
            self._new_keys.clear()
        keys = self._new_keys.get(seen)
        if keys is None:
            keys = self._new_keys[seen] = sorted({event[0] for event in self._events.newer(seen + 1)})
        at = bisect_left(keys, prefix)
        return at < len(keys) and keys[at].startswith(prefix)

    # --- questions ------------------------------------------------------------------------------------------------
    def query(self, question: bytes) -> bytes | None:
        try:
            asked, body = (question[0] if question else 0), question[1:]
            if asked == Ask.GET:
                held = self._items.get(body)
                return NOTHING if held is None else got(held[1], held[2], held[3])
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
            found.append(encode_item(*self._items[key]))
            size_bytes += len(found[-1])
        return encode_items(found, has_more=False)

    # --- snapshots ------------------------------------------------------------------------------------------------
    def save(self, write: Write) -> None:
        write(MAGIC + _AT.pack(self._at))
        for piece in Saving(self._items, self._keys).pieces():
            write(piece)

    def save_in_steps(self) -> Iterator[bytes]:
        saving = self._saving = Saving(self._items, self._keys)
        return self._steps(MAGIC + _AT.pack(self._at), saving)

    def _steps(self, head: bytes, saving: Saving) -> Iterator[bytes]:
        try:
            yield head
            yield from saving.pieces()
        finally:
            if self._saving is saving:
                self._saving = None

    def load(self, pieces: Iterable[bytes]) -> None:
        items: dict[bytes, Held] = {}
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
                items[item.key] = (item.key, item.value, item.index, item.expires_ms)
            rest = rest[offset:]
        if rest or at is None:
            raise ValueError(f"the snapshot ends in the middle of an item: {len(rest)} bytes are left")
        self._items, self._saving = items, None
        self._keys = SortedKeys(items)  # they were saved in order
        self._forget_stale()
        self._events.clear(from_index=at + 1)
        self._seen.clear()
        self._new_keys_at = -1
        self._at = at
