"""Numbers, bytes, durations and times as an operator reads them. Unknown is a word, never 0."""

from __future__ import annotations

from datetime import datetime

from app import times

UNKNOWN = "unknown"


def count(value: int | None) -> str:
    """1,204,993,017."""
    return UNKNOWN if value is None else f"{value:,}"


def index(value: int | None) -> str:
    """An index; -1 is known to be empty."""
    return "empty" if value == -1 else count(value)


def span(first: int | None, last: int | None) -> str:
    """1,001–1,118; one entry is one number, a range that ends before it begins none (a repair that cut nothing)."""
    if first is not None and last is not None and last < first:
        return "no entry"
    return count(first) if first == last else f"{count(first)}–{count(last)}"


def size(value: float | None) -> str:
    """912 B, 14.6 MB (decimal units)."""
    if value is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(value) < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" or abs(value) >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration_ms(value: float | None) -> str:
    """4 ms, 1.2 s, 38 s, 2 h 14 min; 24 h."""
    if value is None:
        return UNKNOWN
    if value < 1000:
        return f"{value:.0f} ms"
    seconds = value / 1000
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if minutes < 120 and minutes != 60:
        return f"{minutes} min{rest(int(seconds % 60), 's')}"
    return f"{hours} h{rest(minutes % 60, 'min')}" if hours < 48 else f"{hours // 24} d{rest(hours % 24, 'h')}"


def rest(value: int, unit: str) -> str:
    """What is behind a whole number of the larger unit; nothing is not said."""
    return f" {value} {unit}" if value else ""


def time_of(text: str | datetime | None) -> datetime | None:
    return text if isinstance(text, datetime) else times.time_of(text)


def age(since: str | datetime | None, now: str | datetime | None) -> str:
    """How long ago `since` was at `now`."""
    begin, end = time_of(since), time_of(now)
    return UNKNOWN if begin is None or end is None else duration_ms(max(0.0, (end - begin).total_seconds() * 1000))


def clock(at: str | datetime | None) -> str:
    """14:03:07 (UTC; the browser shows its own zone)."""
    when = time_of(at)
    return UNKNOWN if when is None else when.strftime("%H:%M:%S")
