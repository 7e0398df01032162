"""What pages must not hide: each thing once, in words, in the chosen unit, and where it is seen."""

from __future__ import annotations

from typing import Any

from app.audit.entries import HeldEntry, hex_rows, row_bytes, suspects_first
from app.console.audit_pages import lines_of, sentence
from app.console.format import clock
from app.console.pages import change_words, lag_summary, operation_facts
from app.console.tiers import COLUMNS, fold, row_of
from app.console.waterline import waterline
from app.times import rfc3339
from tests.unit import views
from tests.unit.group_story import T0, Story


def test_a_silent_engine_was_not_seen_a_moment_ago_though_its_control_plane_was() -> None:
    story = Story()
    story.look()
    node, told = story.node("n2"), story.node("n2").state()
    since = rfc3339(T0)
    unheard = {"field": "state", "reason": "the engine is stale: no answer within 0.4 s", "since": since}
    node.state = lambda: told | {"engine": "stale", "unknown": [unheard]}  # type: ignore[method-assign]
    view = story.look(20)
    member = view.member("n2")
    assert member is not None and member.last_seen == view.as_of, "its control plane answers"
    lane = next(one for one in waterline(view).lanes if one.id == "n2")
    assert lane.sub == f"engine silent since {clock(since)} · 10 s"
    assert member.answered_at == since and view.problems[0].since == since

    node.alive = False
    silent = story.look(20).member("n2")
    assert silent is not None and silent.answered_at == silent.last_seen, "now nothing of it answers"
    lane = next(one for one in waterline(story.view).lanes if one.id == "n2")
    assert lane.sub == f"last seen {clock(silent.last_seen)} · 10 s ago"


def test_exactly_one_step_of_an_audit_is_the_present_one() -> None:
    steps = [
        {"name": "starting_jvm", "state": "done"},
        {"name": "fencing", "state": "done"},
        {"name": "reading", "state": "running"},
        {"name": "comparing", "state": "running"},
    ]
    lines = lines_of(steps)
    assert [(one["text"], one["state"]) for one in lines if one["state"] == "running"] == [
        ("Reading and comparing", "running")
    ]
    assert [one["text"] for one in lines] == ["Starting the JVM", "Fixing the fence", "Reading and comparing"]
    running: dict[str, Any] = {"state": "running", "progress": {"steps": steps}}
    assert sentence(running) == "Reading and comparing."
    assert len(lines_of([{**one, "state": "pending"} for one in steps])) == 4


def test_a_transfer_tells_each_thing_once_and_no_number_of_the_node() -> None:
    operation = {
        "progress": {"detail": "from n0 to n1", "node_operation_id": "6f1c-uuid"},
        "outcome": {"leader_id": "n1", "term": 5, "detail": "n1 leads", "took_ms": 84},
        "problem": None,
    }
    facts = operation_facts(operation)
    assert facts[:2] == [("what", "from n0 to n1"), ("how", "n1 leads")]
    assert dict(facts)["leads now"] == "n1" and dict(facts)["took"] == "84 ms"
    names = [name for name, _ in facts]
    assert len(names) == len(set(names)) and "detail" not in names and "6f1c-uuid" not in dict(facts).values()
    same = operation_facts({**operation, "problem": {"title": "Refused", "detail": "n1 leads", "status": 409}})
    assert [value for _, value in same].count("n1 leads") == 1


def test_a_change_of_the_members_says_what_was_changed_and_what_comes_next() -> None:
    def said(detail: str, state: str = "done", kind: str = "member_change") -> str:
        outcome = {"index": 12_555, "leader_id": "n0", "term": 4}
        return change_words({"kind": kind, "state": state, "progress": {"detail": detail}, "outcome": outcome})

    learns = "It learns first, and votes by itself once it has caught up."
    assert said("add n3 at h:1") == f"Add n3 at h:1. Entry 12,555 says so, and is committed. {learns}"
    assert said("add n3 at h:1 as a learner").endswith("is committed.")
    assert "the other one leaves" in said("replace n1 by n3 at h:1")
    assert said("remove n3").endswith("End its process on its machine: it would go on running.")
    assert said("take n2 to be at h:2").endswith("is committed.")
    assert said("add n3", state="failed") == said("from n0 to n1", kind="leadership_transfer") == ""
    facts = operation_facts({"progress": None, "outcome": {"index": 12_555}, "problem": None})
    assert facts == [("entry", "12,555")]


def test_the_chart_in_words_is_in_the_chosen_unit() -> None:
    view = views.degraded()
    member = view.member("n2")
    assert member is not None
    row = dict(zip(COLUMNS, row_of(0, member, view.lag_entries(member)), strict=True))
    assert (row["lag"], row["lag_bytes"], row["lag_ms"]) == (48_100, 14_622_400, 38_000)
    columns = {"lag": [48_100, 3], "lag_bytes": [14_622_400, 912], "lag_ms": [38_000, None]}
    history = {"replicas": {"n2": columns}}
    told = [lag_summary(history, unit)[0] for unit in ("entries", "bytes", "seconds")]
    assert [(one["now"], one["worst"]) for one in told] == [
        ("3", "48,100"),
        ("912 B", "14.6 MB"),
        ("unknown", "38 s"),
    ]


def test_a_bucket_keeps_the_worst_lag_in_every_unit() -> None:
    view = views.degraded()
    worse, better = view.member("n2"), view.member("n1")
    assert worse is not None and better is not None
    bucket = row_of(0, worse, 48_100)
    fold(bucket, row_of(1, better, 3))
    kept = dict(zip(COLUMNS, bucket, strict=True))
    assert (kept["lag"], kept["lag_bytes"], kept["lag_ms"]) == (48_100, 14_622_400, 38_000)


def test_the_replica_that_is_wrong_stands_first_and_all_fit_beside_it() -> None:
    held = [HeldEntry(name, b"0123456789", {}, 0, facts, None) for name, facts in (("n0", ()), ("n1", ("torn",)))]
    assert [one.replica for one in suspects_first(held)] == ["n1", "n0"]
    assert [row_bytes(count) for count in (1, 2, 3, 4, 5, 9)] == [16, 16, 8, 8, 4, 4]
    assert [row["offset"] for row in hex_rows(held, width=4)] == [0, 4, 8]
