"""Who keeps old files of a classic broker's log for a bounded time: an audit, while it reads them.

PIN is the request by which the broker's own control plane asks for it: {key, owner, from_offset, for_s}; without
`from_offset` the owner needs nothing any more.

Invariants: a pin ends by itself; there are PINS_MAX at most; a place that is gone already is refused. A disk that is so
full that files go whatever their age heeds no pin.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from node.broker.classic.control_key import is_key
from node.ha.sockets import now_ms
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Call, Reply

PINS_MAX: Final = 64
PIN_S_MAX: Final = 24 * 3600
OWNER_LETTERS_MAX: Final = 100
BODY_BYTES_MAX: Final = 4096


class Pins:
    """By owner: the first place that is needed, and until when."""

    def __init__(self, clock_ms: Callable[[], int] = now_ms) -> None:
        self._clock_ms = clock_ms
        self._pins: dict[str, tuple[int, int]] = {}

    def keep(self, owner: str, from_offset: int, for_s: int) -> bool:
        """The owner's next one replaces this. False: there are too many."""
        self._end_late()
        if owner not in self._pins and len(self._pins) >= PINS_MAX:
            return False
        self._pins[owner] = from_offset, self._clock_ms() + for_s * 1000
        return True

    def release(self, owner: str) -> None:
        self._pins.pop(owner, None)

    def lowest(self) -> int | None:
        """The first place that anybody needs; None: nobody needs any."""
        self._end_late()
        return min((offset for offset, _ends_ms in self._pins.values()), default=None)

    def as_said(self) -> list[dict[str, Any]]:
        self._end_late()
        now = self._clock_ms()
        return [
            {"owner": owner, "from_offset": offset, "expires_in_ms": ends_ms - now}
            for owner, (offset, ends_ms) in sorted(self._pins.items())
        ]

    def _end_late(self) -> None:
        now = self._clock_ms()
        for owner in [one for one, (_offset, ends_ms) in self._pins.items() if ends_ms <= now]:
            del self._pins[owner]


class PinRequests:
    """See the module's docstring. `begin`: where the log begins."""

    def __init__(self, pins: Pins, key: str, begin: Callable[[], int]) -> None:
        self._pins, self._key, self._begin = pins, key, begin

    def handle(self, call: Call) -> Reply:
        try:
            asked = json.loads(bytes(call.request.body[:BODY_BYTES_MAX]))
            shown, owner, offset = asked["key"], str(asked["owner"])[:OWNER_LETTERS_MAX], asked["from_offset"]
            offset = None if offset is None else int(offset)
            for_s = max(1, min(int(asked["for_s"]), PIN_S_MAX))
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return Reply(Answer.SYSTEM_ERROR, None, "no pin that can be read")
        if not is_key(self._key, shown):
            return Reply(Answer.NO_PERMISSION, None, "that is not the key of this broker's directory")
        if offset is None:
            self._pins.release(owner)
        elif offset < self._begin():
            return Reply(Answer.QUERY_NOT_FOUND, None, f"the log begins at {self._begin()}")
        elif not self._pins.keep(owner, offset, for_s):
            return Reply(Answer.SYSTEM_BUSY, None, f"{PINS_MAX} pins are held already")
        return Reply()
