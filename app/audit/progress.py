"""A running audit's progress: JSON lines, one event each, that a CLI prints and a console stores.

Events: `progress` (the whole state each time, so that any one line suffices), then exactly one of `result`, `failed`
{code, detail}, `cancelled`. Steps run in the order of STEPS; reading and comparing run together.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final, TextIO

from app.audit.fencing import utc_text

STEPS: Final = ("starting_jvm", "fencing", "reading", "comparing")
FINAL_EVENTS: Final = frozenset({"result", "failed", "cancelled"})


@dataclass
class Progress:
    """Thread-safe. `mark` moves a step, `count` the numbers; each emits a line where something changed."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    started_s: float = field(default_factory=time.monotonic)
    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(STEPS, "pending"))
    blocks_done: int = 0
    blocks_total: int | None = None
    bytes_done: int = 0
    bytes_total: int | None = None
    rows_done: int = 0
    comparing_since_s: float | None = None
    waits_for: str | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _finished: bool = False

    def mark(self, step: str, state: str) -> None:
        with self._lock:
            self.states[step] = state
            if step == "comparing" and state == "running":
                self.comparing_since_s = time.monotonic()
        self.emit()

    def wait(self, reason: str | None) -> None:
        """Says why nothing moves; None: it moves again."""
        with self._lock:
            self.waits_for = reason
        self.emit()

    def totals(self, blocks: int, size_bytes: int | None) -> None:
        with self._lock:
            self.blocks_total, self.bytes_total = blocks, size_bytes
        self.emit()

    def count(self, blocks: int, rows: int, size_bytes: int) -> None:
        with self._lock:
            if (blocks, rows, size_bytes) == (self.blocks_done, self.rows_done, self.bytes_done):
                return
            self.blocks_done, self.rows_done, self.bytes_done = blocks, rows, size_bytes
        self.emit()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def eta_s(self) -> float | None:
        """From the blocks done so far; None before there is anything to go by."""
        if not self.blocks_total or not self.blocks_done or self.comparing_since_s is None:
            return None
        spent = time.monotonic() - self.comparing_since_s
        return round(spent * (self.blocks_total - self.blocks_done) / self.blocks_done, 1)

    def state(self) -> dict[str, Any]:
        running = [step for step in STEPS if self.states[step] == "running"]
        return {
            "event": "progress",
            "at": utc_text(),
            "step": running[0] if running else None,
            "steps": [{"name": step, "state": self.states[step]} for step in STEPS],
            "blocks_done": self.blocks_done,
            "blocks_total": self.blocks_total,
            "bytes_done": self.bytes_done,
            "bytes_total": self.bytes_total,
            "rows_done": self.rows_done,
            "eta_s": self.eta_s(),
            "waits_for": self.waits_for,
            "elapsed_s": round(self.elapsed_s, 1),
        }

    def emit(self) -> None:
        with self._lock:
            if not self._finished:
                self._line(self.state())

    def finish(self, event: str, **data: Any) -> bool:
        """The last line; False where another thread has already written one. Raises ValueError."""
        if event not in FINAL_EVENTS:
            raise ValueError(f"{event} does not end an audit")
        with self._lock:
            if self._finished:
                return False
            self._finished = True
            self._line({"event": event, "at": utc_text(), **data})
            return True

    def _line(self, data: dict[str, Any]) -> None:
        self.out.write(json.dumps(data, separators=(",", ":")) + "\n")
        self.out.flush()
