"""The log of a process, on stderr: one line for each event, readable ("console") or JSON ("json").

Every line has `time` (RFC 3339, UTC, milliseconds), `level`, `event` and `process`, a member's also `member` and
`group`; the rest are the event's own fields, `reason` first. What goes to Python's `logging` comes out here too.

Invariants: nobody waits for stderr (a bounded queue and a thread of its own; what finds no room is counted and said);
the same thing about the same peer is written BURST times in WINDOW_S at most, then the next line says how often it was
`suppressed`. Bodies, tokens and secrets are never given to this module; text from outside cannot begin a line.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from node.printable import escaped, escaped_json, print_line

# structlog has rich draw tracebacks, which are text here before it sees them. Without it each process of a node starts
# with 0.1 s of a core and 4 MB less. Where it is loaded already, and for whoever imports it later, nothing changes.
_rich = sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
import structlog  # noqa: E402

if _rich is None:
    del sys.modules["rich"]

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["console", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
OF_SEVERITY: Final = {"critical": "error"}  # an event's severity -> its level, where they are called differently
BURST: Final = 10
WINDOW_S: Final = 10.0
KEYS_MAX: Final = 512
WAITING_MAX: Final = 2000
TEXT_MAX: Final = 600
TRACE_MAX: Final = 4000  # of a traceback its end: what failed is in its last line
END_WITHIN_S: Final = 1.0
FIRST: Final = ("level", "event", "process", "member", "group", "reason")
Fields = MutableMapping[str, Any]


class Repeats:
    """Which of many equal lines are written."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._seen: dict[object, list[float]] = {}  # key -> [window's begin, written in it, suppressed since]

    def admits(self, key: object) -> int | None:
        """How many lines of this key were suppressed before this one; None: this one is, too."""
        now = self._now_s()
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= KEYS_MAX:
                del self._seen[next(iter(self._seen))]
            self._seen[key] = seen = [now, 0, 0]
        if now - seen[0] >= WINDOW_S:
            seen[0], seen[1] = now, 0
        if seen[1] >= BURST:
            seen[2] += 1
            return None
        suppressed, seen[2] = int(seen[2]), 0
        seen[1] += 1
        return suppressed


class Stderr:
    """Writes lines in a thread of its own."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[str | None] = queue.Queue(WAITING_MAX)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def msg(self, line: str) -> None:
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        """Waits for what is on its way, but not for ever."""
        try:
            self._waiting.put(None, timeout=END_WITHIN_S)
        except queue.Full:
            return
        self._thread.join(END_WITHIN_S)

    def _write(self) -> None:
        while (line := self._waiting.get()) is not None:
            lost, self._lost = self._lost, 0
            more = f"\n({lost} lines were lost: nobody read them in time)" if lost else ""
            try:
                sys.stderr.write(f"{line}{more}\n")
                sys.stderr.flush()
            except (OSError, ValueError):
                return  # nobody listens any more


class Log:
    """One per process. `note` is cheap where the level says no, and never waits."""

    def __init__(self, process: str, level: Level, form: Format, out: Any = None, **bound: Any) -> None:
        self._out = Stderr() if out is None else out
        self.form = form
        self._from = LEVELS.index(level)
        self._repeats = Repeats()
        self._logger = structlog.wrap_logger(
            self._out, processors=[_stamped, _renderer(form)], wrapper_class=structlog.BoundLogger, **bound,
            process=process,
        )  # fmt: skip

    def set_level(self, level: str) -> None:
        """What is said from now on: this and what is graver."""
        self._from = LEVELS.index(level)

    def note(self, event: str, severity: str = "info", **fields: Any) -> None:
        """One event; fields that are None are left out."""
        level = OF_SEVERITY.get(severity, severity)
        if LEVELS.index(level) < self._from:
            return
        suppressed = self._repeats.admits((event, fields.get("peer"), fields.get("code"), fields.get("phase")))
        if suppressed is None:
            return
        named = {
            name: _clean(value, TRACE_MAX if name == "exception" else 0)
            for name, value in fields.items()
            if value is not None
        }
        if suppressed:
            named["suppressed"] = suppressed
        self._logger.msg(event, level=level, **named)

    def take_over(self) -> None:
        """Python's own logging comes out here."""
        root = logging.getLogger()
        root.handlers[:] = [_Foreign(self)]
        root.setLevel(logging.WARNING)

    def close(self) -> None:
        """All is written, or as good as; nothing is, afterwards."""
        if isinstance(self._out, Stderr):
            self._out.close()

    def last_word(self, line: str, **fields: Any) -> None:
        """Why a process ends: a line for people as it is, after everything else; an event for machines."""
        if self.form == "json":
            self.note("ended", "error", **fields)
            self.close()
        else:
            self.close()
            print_line(escaped(line), sys.stderr)


class _Foreign(logging.Handler):
    """What libraries, and background tasks that failed, tell `logging`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = self.format(record).partition("\n")[2] if record.exc_info else None
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._log.note("log", level, code=record.name, reason=record.getMessage(), exception=trace)


def _clean(value: Any, end_max: int = 0) -> Any:
    """Bounded, and with control characters and line breaks escaped (`node/printable.py`); `end_max`: only its end is
    kept."""
    if not isinstance(value, str):
        return value
    if end_max:
        return escaped(value if len(value) <= end_max else f"…{value[-end_max:]}")
    return escaped(value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}…")


def _stamped(_logger: Any, _method: str, fields: Fields) -> Fields:
    at = fields.pop("time", None) or datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    first = {name: fields.pop(name) for name in FIRST if name in fields}
    return {"time": at, **first, **fields}


def _renderer(form: Format) -> Any:
    if form == "json":
        written = structlog.processors.JSONRenderer(ensure_ascii=False, default=str)
        return lambda logger, method, fields: escaped_json(str(written(logger, method, fields)))
    return structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), timestamp_key="time", pad_event_to=18, sort_keys=False
    )
