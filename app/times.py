"""Times as the console reckons, reads and writes them: UTC, with milliseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST: Final = datetime.min.replace(tzinfo=UTC)
SECOND_60: Final = re.compile(r"(.{10}.\d\d:\d\d:)60(.*)")
LATEST: Final = datetime.max.replace(tzinfo=UTC)
CENTURY_MS: Final = 100 * 365 * 86_400_000
CLOCKS_DIFFER: Final = timedelta(minutes=5)  # two consoles' clocks may, on one database; what differs by more is wrong


def utc_now() -> datetime:
    return datetime.now(UTC)


def written_ahead(at: datetime, now: datetime) -> bool:
    """Whether that was written while the clock was ahead: what is reckoned from it would last for as long as it was."""
    return at - now > CLOCKS_DIFFER


def rfc3339(at: datetime) -> str:
    """UTC with milliseconds, as every answer writes times."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """An RFC 3339 time; a leap second is the one behind it. ValueError without a zone, for a second 60 that ends no
    day in UTC, and where it is in no year that there is in UTC."""
    second_60 = SECOND_60.fullmatch(text)
    try:
        at = datetime.fromisoformat((f"{second_60[1]}59{second_60[2]}" if second_60 else text).upper())
        if at.tzinfo is None:
            raise ValueError("no zone")
        at = at.astimezone(UTC)
        if second_60 is None:
            return at
        if (at.hour, at.minute) != (23, 59):
            raise ValueError("no leap second")
        return at + timedelta(seconds=1)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no RFC 3339 time with a zone, such as 2026-01-31T13:45:00Z") from None


def time_of(text: str | None) -> datetime | None:
    """A time that somebody else wrote; None for anything else."""
    try:
        return None if text is None else parse_time(text)
    except ValueError:
        return None


def shifted(at: datetime, by_s: float) -> datetime:
    """So much later, within the years that there are: what members report may lead out of them."""
    try:
        return at + timedelta(seconds=by_s)
    except OverflowError:
        return LATEST if by_s > 0 else EARLIEST


def span_ms(ms: float) -> timedelta:
    """So many milliseconds, a century at most: what members report may be longer than any time there is."""
    return timedelta(milliseconds=max(-CENTURY_MS, min(ms, CENTURY_MS)))
