"""RFC 3339 times as others write them."""

from __future__ import annotations

import pytest

from app.api.common import time_or_none
from app.console.errors import Invalid
from app.times import parse_time, rfc3339


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-31T13:45:00Z", "2026-01-31T13:45:00.000Z"),
        ("2026-01-31t13:45:00.5z", "2026-01-31T13:45:00.500Z"),
        ("2026-01-31 13:45:00+01:00", "2026-01-31T12:45:00.000Z"),
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00.000Z"),
        ("1990-12-31T15:59:60.25-08:00", "1991-01-01T00:00:00.250Z"),
    ],
)
def test_what_rfc_3339_allows_is_read(text: str, at: str) -> None:
    """Lower case (5.6), and a leap second (5.7), which counts as the second behind it."""
    assert rfc3339(parse_time(text)) == at


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2026-01-31T13:45:00", "2026-01-31T13:45:61Z", "2026-01-31T13:45:60Z", "9999-12-31T23:59:60Z",
        "0001-01-01T00:00:00+01:00", "1751371200",
    ],
)  # fmt: skip
def test_what_is_none_is_told_the_form(text: str) -> None:
    with pytest.raises(ValueError, match="is no RFC 3339 time with a zone, such as 2026-01-31T13:45:00Z"):
        parse_time(text)
    with pytest.raises(Invalid, match=r"^since: .*such as 2026-01-31T13:45:00Z"):
        time_or_none(text, "since")
