"""Tables of the command line on a terminal that is too narrow for them, and what their cells say."""

from __future__ import annotations

import pytest

from app.commands import messages
from app.commands.consumers import lag_text

ROWS = [("QUEUES", "OLDEST", "TOPIC"), ("4", "2026-11-28T15:38:55.104Z", "flights-EWR"), ("1", "-", "orders")]


def test_rows_that_do_not_fit_become_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = messages.in_columns(ROWS)
    assert wide[1] == "4       2026-11-28T15:38:55.104Z  flights-EWR"
    monkeypatch.setattr(messages, "terminal_width", lambda: 60)
    assert messages.in_columns(ROWS) == wide, "there is room"
    monkeypatch.setattr(messages, "terminal_width", lambda: 40)
    assert messages.in_columns(ROWS) == [
        "QUEUES 4  OLDEST",
        "  2026-11-28T15:38:55.104Z  TOPIC",
        "  flights-EWR",
        "QUEUES 1  OLDEST -  TOPIC orders",
    ]


@pytest.mark.parametrize(
    ("messages_waiting", "queues", "said"),
    [
        (None, 0, "not known"),
        (0, 0, "0"),
        (512, 0, "512 (27.7 s)"),
        (512, 3, "512 (27.7 s), nothing committed in 3 queues"),
        (0, 1, "0, nothing committed in 1 queue"),
    ],
)
def test_a_lag_says_which_queues_it_does_not_count(messages_waiting: int | None, queues: int, said: str) -> None:
    one = {"lag_messages": messages_waiting, "lag_ms": 27_700, "queues_without_offset": queues}
    assert lag_text(one) == said
