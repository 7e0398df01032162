"""Metadata of the group: changes that a master asks for, and what the log says of them.

A change is an entry of the log (channel 3) over the master's lane, so it lies before every message that is put after
it. It is in effect for others once it is committed and dispatched. Whatever ends a lane: when the next one is open,
what of earlier changes is in the log has been applied; the rest is sent again, in its order.

    done = broker.metadata.change({TOPICS: {"Orders": {...}}})   # at the master; None for a value: the key is gone
    await done                                                   # committed, and applied here
    broker.metadata.value(DELAY_OFFSETS, "3")                    # as it is committed

Invariants: changes are in the log in the order in which they were asked for; each is there once, or its future ends
with `NotKept`; a full window refuses a change before anything of it counts.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from node.message_store.broker_tables import TOPICS
from node.message_store.metadata_state import Applied, MetadataState
from node.protocol.broker_state import Tables, apply_metadata, encode_metadata
from node.protocol.group_kind import Channel

CONTENT_BYTES: Final = 256 * 1024  # of one entry; one key with a larger value is an entry of its own
AGAIN_S: Final = 0.02
_KEY_BYTES: Final = 16  # what JSON has around a key


class NotKept(Exception):
    """This member stopped leading before the change was seen in the log: it may be, or become, part of it."""


class NotNow(Exception):
    """Nothing was changed: this member does not lead, or its lane has no room."""


class Lane(Protocol):
    """What is needed of the lane that puts go over."""

    on_open: list[Callable[[], None]]
    on_left: list[Callable[[], None]]

    @property
    def is_open(self) -> bool: ...
    @property
    def is_master(self) -> bool: ...
    def append_own(self, channel: Channel, content: bytes, restarted: Sequence[str] = ()) -> bool: ...


class Log(Protocol):
    """The committed log, as this broker has it."""

    state: MetadataState | None
    on_applied: list[Callable[[Applied], None]]
    on_state: list[Callable[[], None]]


@dataclass(slots=True, eq=False)
class _Asked:
    """One entry of a change. `done` is that of the whole change, and ends with its last entry."""

    content: bytes
    change: Tables
    done: asyncio.Future[None] | None
    was_sent: bool = False


class Metadata:
    """One per broker. `on_change` hears each change that is committed; `on_reset`: all tables are to be read anew;
    `on_replaced`: a snapshot said them all, and what was asked for and is not committed counts on."""

    def __init__(self, lane: Lane, log: Log, content_bytes: int = CONTENT_BYTES) -> None:
        self._lane, self._log, self._content_bytes = lane, log, content_bytes
        self._asked: deque[_Asked] = deque()
        self._open_keys: dict[tuple[str, str], int] = {}  # how many changes of each are not committed
        self._timer: asyncio.TimerHandle | None = None
        self.asked = 0  # changes so far
        self.on_change: list[Callable[[Tables], None]] = []
        self.on_reset: list[Callable[[], None]] = []
        self.on_replaced: list[Callable[[], None]] = []
        lane.on_open.append(self._lane_open)
        lane.on_left.append(self._left)
        log.on_applied.append(self._applied)
        log.on_state.append(self._reset)

    # --- reading ------------------------------------------------------------------------------------------------
    @property
    def is_known(self) -> bool:
        return self._log.state is not None

    def table(self, name: str) -> dict[str, Any]:
        """A table as the committed log has it. Callers do not change it."""
        state = self._log.state
        return {} if state is None else state.tables.get(name, {})

    def value(self, table: str, key: str) -> Any:
        """As it is committed; None: there is none."""
        return self.table(table).get(key)

    def as_asked(self, name: str) -> dict[str, Any]:
        """As it is once all that was asked for is committed; not to be changed."""
        asked = [one.change[name] for one in self._asked if name in one.change]
        if not asked:
            return self.table(name)
        tables = {name: dict(self.table(name))}
        for keys in asked:
            apply_metadata(tables, {name: keys})
        return tables.get(name, {})

    def is_asked(self, table: str, key: str) -> bool:
        """Whether a change of this key was asked for and is not committed yet."""
        return (table, key) in self._open_keys

    # --- changing -----------------------------------------------------------------------------------------------
    def change(self, change: Tables) -> asyncio.Future[None]:
        """Ends when it is committed and applied here, else with NotKept. Raises NotNow."""
        if not self._lane.is_master:
            raise NotNow("this broker is not the master now")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = [_Asked(encode_metadata(part), part, None) for part in self._parts(change)]
        if not asked:
            done.set_result(None)
            return done
        asked[-1].done = done
        done.add_done_callback(_seen)
        if self._lane.is_open:
            if self._asked and not self._asked[-1].was_sent:
                raise NotNow("the lane is full: earlier changes wait for it")
            if not self._send(asked[0]) and self._lane.is_open:
                raise NotNow("the lane is full: as much waits for its commit as is allowed")
        self.asked += 1
        self._asked.extend(asked)
        for name in _keys(change):
            self._open_keys[name] = self._open_keys.get(name, 0) + 1
        self._send_all()
        return done

    async def settled(self) -> None:
        """All that was asked for until now is committed and applied here. Raises NotKept."""
        last = next((one.done for one in reversed(self._asked) if one.done is not None), None)
        if last is not None:
            await asyncio.shield(last)

    def _parts(self, change: Tables) -> Iterator[Tables]:
        """The change, cut into pieces that an entry holds."""
        part: dict[str, dict[str, Any]] = {}
        size = 0
        for table, keys in change.items():
            for key, value in keys.items():
                more = len(encode_metadata({table: {key: value}})) + _KEY_BYTES
                if part and size + more > self._content_bytes:
                    yield part
                    part, size = {}, 0
                part.setdefault(table, {})[key] = value
                size += more
        if part:
            yield part

    def _send(self, one: _Asked) -> bool:
        topics = [name for name, value in one.change.get(TOPICS, {}).items() if value is None]
        one.was_sent = self._lane.append_own(Channel.METADATA, one.content, topics)
        return one.was_sent

    def _send_all(self) -> None:
        """What has not left yet, in its order, as far as there is room."""
        for one in self._asked:
            if not one.was_sent and not self._send(one):
                if self._lane.is_open and self._timer is None:
                    self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._send_later)
                return

    def _send_later(self) -> None:
        self._timer = None
        if self._lane.is_open:
            self._send_all()

    # --- what the log says ----------------------------------------------------------------------------------------
    def _lane_open(self) -> None:
        """Everything that an earlier lane appended has been applied: what is still here is not in the log."""
        for one in self._asked:
            one.was_sent = False
        self._send_all()

    def _applied(self, applied: Applied) -> None:
        own = self._asked[0] if self._asked else None
        if own is not None and own.was_sent and own.content == applied.entry.content:
            self._asked.popleft()
            self._closed(own)
            if own.done is not None and not own.done.done():
                own.done.set_result(None)
        if applied.is_replaced:
            for hear_all in self.on_replaced:
                hear_all()
        elif applied.is_new and applied.entry.change:
            for hear in self.on_change:
                hear(applied.entry.change)

    def _closed(self, one: _Asked) -> None:
        for name in _keys(one.change):
            left = self._open_keys.pop(name, 1) - 1
            if left > 0:
                self._open_keys[name] = left

    def _left(self) -> None:
        """What is not committed now may be by the next master; here it does not count until it is seen."""
        asked, self._asked = self._asked, deque()
        self._open_keys.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in asked:
            if one.done is not None and not one.done.done():
                one.done.set_exception(NotKept("this member stopped leading before the change was committed"))
        self._reset()

    def _reset(self) -> None:
        for hear in self.on_reset:
            hear()


def _keys(change: Tables) -> list[tuple[str, str]]:
    return [(table, key) for table, keys in change.items() for key in keys]


def _seen(done: asyncio.Future[None]) -> None:
    """Takes the error of a change for which nobody waits, or asyncio would report it as never retrieved."""
    if not done.cancelled():
        done.exception()
