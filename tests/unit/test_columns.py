"""Tables of the command line on a terminal that is too narrow for them, and what their cells say."""

from __future__ import annotations

import pytest

from app.commands import live_topics, messages
from app.commands.consumers import lag_text
from app.commands.targets import Target

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


def test_the_head_above_a_table_fits_a_narrow_terminal_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {
        "topic": "flights-EWR", "messages": 1_204_993, "size_bytes": 579_000_123, "size_is_estimated": True,
        "read_queues": 4, "write_queues": 4, "perm": "read and write",
    }  # fmt: skip
    monkeypatch.setattr(live_topics, "look", lambda *_: found)
    monkeypatch.setattr(live_topics, "all_items", lambda *_: [])
    monkeypatch.setattr(live_topics, "terminal_width", lambda: 60)
    live_topics.show_topic(Target({}, "g"), "flights-EWR", as_json=False)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60
