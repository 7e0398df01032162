"""Which writes wait, for whom, and why."""

from __future__ import annotations

import pytest

from app.console.closures_view import ITEMS_SHOWN, closures_view, why
from tests.unit import views
from tests.unit.views import ago, edited


def test_the_sentence_counts_and_names_whom_is_waited_for() -> None:
    shown = closures_view(views.degraded())
    assert shown.sentence == "118 writes wait, oldest 640 ms; need 1 of n1, n2, n4 or 2 of n0, n1, n2, n4."
    assert shown.known and shown.percent == 1.18 and shown.tone == ""


def test_a_row_says_why_count_range_oldest_and_when_it_times_out() -> None:
    first, second = closures_view(views.degraded()).rows
    assert first.need == "1 of 3" and first.peers == "n1, n2, n4" and first.count == "110"
    assert "n1 fsync 640 ms" in first.why and "n2 in INSTALL_SNAPSHOT 38 s" in first.why
    assert first.range == "1,204,992,900–1,204,993,009" and first.times_out == "1.4 s"
    assert second.times_out == "unknown", "nobody told"


def test_it_expands_to_fifty() -> None:
    shown = closures_view(views.degraded())
    assert len(shown.items) == ITEMS_SHOWN == 50 and shown.more == 68


@pytest.mark.parametrize(("pending", "tone"), [(7_999, ""), (8_000, "attention"), (10_000, "critical")])
def test_the_bar_warns_at_eighty_percent_and_at_the_limit(pending: int, tone: str) -> None:
    view = views.degraded()
    assert closures_view(edited(view, lambda made: made["closures"].update(pending=pending))).tone == tone


def test_empty_says_what_completed_last() -> None:
    assert closures_view(views.healthy()).sentence == "No write is waiting; the last completed 14:03:47 in 0.9 ms."
    view = views.healthy().model_copy(update={"last_completed": None})
    assert closures_view(view).sentence == "No write is waiting."


def test_without_a_leader_it_is_unknown_and_never_zero() -> None:
    shown = closures_view(views.no_leader())
    assert not shown.known and "unknown" in shown.sentence and shown.pending == ""


def test_why_takes_the_worst_that_is_known() -> None:
    view = views.degraded()
    assert why(view, "n0", 12) == "n0 fsync 12 ms"
    assert why(view, "n3", 5) == "n3 silent 41 s"
    assert why(view, "n6", 5) == "n6 for a reason that is unknown"
    assert why(view, "n9", 5) == "n9 is no member any more"
    n1 = 1
    end = view.members[n1].log.end_index
    view = edited(view, lambda made: made["members"][n1]["state"]["log"].update(durable_index=end))
    assert why(view, "n1", 5) == "n1 on its way"
    view = edited(view, lambda made: made["members"][n1]["watermark"].update(lag_entries=5_000))
    assert why(view, "n1", 5) == "n1 5,000 entries behind"
    view = edited(view, lambda made: made["members"][n1]["dispatcher"].update(state="COMPARE", since=ago(2)))
    assert why(view, "n1", 5) == "n1 in COMPARE 2.0 s"
