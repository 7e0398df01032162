"""Which messages are due: by table, and over random histories of problems, mutes, windows and acknowledgements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.health.group_view import Problem
from app.notify.rules import (
    OVER_AFTER_S,
    Alert,
    Due,
    Key,
    OpenProblem,
    Route,
    Silence,
    Window,
    beginnings,
    key_of,
    step,
    weaker,
)
from app.times import rfc3339

T0 = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
N2 = Key("demo", "cut_off:n2")
Script = list[tuple[float, str | None]]  # (second, severity or None while it does not stand)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def problem(key: Key = N2, severity: str = "attention", since: datetime = T0, not_to: int | None = None) -> OpenProblem:
    code, _, node = key.problem_id.partition(":")
    found = Problem(
        id=key.problem_id, code=code, severity=severity, node_id=node, text="t", what=f"{node} is cut off.",
        since=rfc3339(since), next_step="look",
    )  # fmt: skip
    return OpenProblem(key, key.scope, found, not_to)


def play(
    seconds: list[tuple[float, str | None]], route: Route, silence: Silence | None = None, acked_at: float | None = None
) -> list[tuple[float, str]]:
    """(second, kind) of each message about one problem that began with its first look."""
    memory: dict[Key, Alert] = {}
    sent: list[tuple[float, str]] = []
    for second, severity in seconds:
        if acked_at is not None and second >= acked_at and N2 in memory:
            memory[N2] = replace(memory[N2], acknowledged_by="ann")
        stands = [] if severity is None else [problem(severity=severity, since=at(seconds[0][0]))]
        memory, due = step(stands, memory, [route], silence or Silence(), at(second))
        sent += [(second, one.kind) for one in due]
    return sent


HELD = Route(1, hold_s=60)
STANDS: Script = [(float(n), "attention") for n in (0, 30, 59, 60, 61, 300)]
ENDS: Script = [*STANDS, (310.0, None), (319.9, None), (320.0, None), (400.0, None)]


@pytest.mark.parametrize(
    ("name", "seconds", "route", "silence", "acked_at", "sent"),
    [
        ("held, once, and over once", ENDS, HELD, Silence(), None, [(60.0, "opened"), (310.0, "over")]),
        ("gone before the hold time is nothing", [(0.0, "critical"), (59.0, "critical"), (80.0, None)], HELD,
         Silence(), None, []),
        ("a lesser severity is nothing", ENDS, Route(1, severity="critical"), Silence(), None, []),
        ("no notice counts as attention", [(0.0, "info"), (90.0, "info")], HELD, Silence(), None, []),
        ("unknown is worth a message", [(0.0, "unknown"), (90.0, "unknown")], HELD, Silence(), None,
         [(90.0, "opened")]),
        ("worse is said, better is not", [(0.0, "attention"), (60.0, "attention"), (61.0, "critical"),
         (62.0, "attention"), (63.0, "critical")], HELD, Silence(), None, [(60.0, "opened"), (61.0, "worse")]),
        ("reminders where the route wants them", STANDS, replace(HELD, reminder_s=200), Silence(), None,
         [(60.0, "opened"), (300.0, "reminder")]),
        ("acknowledged before its hold is over", ENDS, HELD, Silence(), 30.0, []),
        ("acknowledged after it was sent: no reminder, and one when it is over", ENDS, replace(HELD, reminder_s=1),
         Silence(), 61.0, [(60.0, "opened"), (310.0, "over")]),
        ("muted for a while", ENDS, HELD, Silence(mutes={N2: at(200)}), None, [(300.0, "opened"), (310.0, "over")]),
        ("muted to its end", ENDS, HELD, Silence(mutes={N2: at(999)}), None, []),
        ("another one is muted", ENDS, HELD, Silence(mutes={Key("demo", "cut_off:n1"): at(999)}), None,
         [(60.0, "opened"), (310.0, "over")]),
        ("a window of this group", ENDS, HELD, Silence(windows=[Window(at(0), at(300), "demo")]), None,
         [(300.0, "opened"), (310.0, "over")]),
        ("a window of everything", ENDS, HELD, Silence(windows=[Window(at(0), at(999))]), None, []),
        ("a window of another group", ENDS, HELD, Silence(windows=[Window(at(0), at(999), "other")]), None,
         [(60.0, "opened"), (310.0, "over")]),
        ("a window that begins later hides no end", ENDS, HELD, Silence(windows=[Window(at(100), at(999))]), None,
         [(60.0, "opened"), (310.0, "over")]),
        ("away for less than it takes to be over", [(0.0, "critical"), (60.0, "critical"), (65.0, None),
         (69.9, "critical"), (75.0, None), (80.0, None)], HELD, Silence(), None, [(60.0, "opened"), (80.0, "over")]),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_one_problem_and_one_route(
    name: str, seconds: Script, route: Route, silence: Silence, acked_at: float | None, sent: list[tuple[float, str]]
) -> None:
    assert play(seconds, route, silence, acked_at) == sent


def test_a_problem_that_began_before_it_was_seen_is_held_from_its_beginning() -> None:
    _, due = step([problem(since=at(-120))], {}, [HELD], Silence(), T0)
    assert [one.kind for one in due] == ["opened"]
    _, later = step([problem(since=at(+600))], {}, [HELD], Silence(), T0)
    assert later == [], "a time of the future begins now"


def test_a_route_is_not_sent_that_it_does_not_deliver() -> None:
    routes = [Route(1, hold_s=0), Route(2, hold_s=0)]
    _, due = step([problem(not_to=1)], {}, routes, Silence(), T0)
    assert [one.route_id for one in due] == [2]


def test_a_route_that_is_gone_gets_nothing_any_more_and_a_new_one_hears_of_what_stands() -> None:
    memory, _ = step([problem()], {}, [Route(1, hold_s=0)], Silence(), T0)
    memory, due = step([problem()], memory, [Route(2, hold_s=0)], Silence(), at(1))
    assert [(one.route_id, one.kind) for one in due] == [(2, "opened")]
    memory, due = step([], memory, [Route(2, hold_s=0)], Silence(), at(60))
    assert [(one.route_id, one.kind, one.until) for one in due] == [(2, "over", at(1))] and memory == {}


def test_a_console_that_has_just_started_takes_nothing_to_be_over() -> None:
    memory, _ = step([problem()], {}, [Route(1, hold_s=0)], Silence(), T0)
    for second, kinds in ((59.0, []), (60.0, ["over"])):
        _, due = step([], memory, [Route(1)], Silence(), at(second), over_from=at(60))
        assert [one.kind for one in due] == kinds


def test_what_a_restarted_console_calls_otherwise_is_the_same_alert() -> None:
    assert key_of("demo", "never_reached:n2") == key_of("demo", "replica_silent:n2") == Key("demo", "replica_silent:n2")
    assert key_of("demo", "never_reached:") == key_of("demo", "all_silent:") == Key("demo", "all_silent:")
    assert key_of("demo", "cut_off:n2") == N2


def test_what_stood_when_the_console_ended_began_then_by_whatever_name() -> None:
    silent = problem(Key("demo", "replica_silent:n2"), since=at(-60))
    everything = problem(Key("demo", "all_silent:"), since=at(-5))
    assert beginnings(Alert(one, T0, T0) for one in (problem(), silent, everything)) == {
        "demo": {"cut_off:n2": T0}
        | dict.fromkeys(("replica_silent:n2", "never_reached:n2"), at(-60))
        | dict.fromkeys(("all_silent:", "never_reached:", "engines_silent:"), at(-5))
    }


def test_the_order_of_severities() -> None:
    order = ["no such word", "info", "attention", "unknown", "critical"]
    for n, one in enumerate(order):
        assert [weaker(one, other) for other in order] == [n < m for m in range(len(order))]


# --- random histories ---

KEYS = (N2, Key("demo", "lagging:n1"), Key("other", "no_leader:"))
ROUTES = (Route(1, "critical", 0.0), Route(2, "attention", 5.0), Route(3, "attention", 20.0, reminder_s=30.0))
SEVERITIES = (None, None, "info", "attention", "unknown", "critical")
Look = tuple[float, tuple[str | None, ...], int, bool]
looks = st.tuples(
    st.floats(0.25, 20.0), st.tuples(*(st.sampled_from(SEVERITIES) for _ in KEYS)), st.integers(0, 12), st.booleans()
)


@settings(max_examples=300)
@given(st.lists(looks, max_size=60), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 200)), max_size=3))
def test_over_random_histories(history: list[Look], spans: list[tuple[int, int]]) -> None:
    windows = tuple(Window(at(a), at(a + b), KEYS[n % 3].scope if n else None) for n, (a, b) in enumerate(spans))
    memory: dict[Key, Alert] = {}
    mutes: dict[Key, datetime] = {}
    began: dict[Key, float] = {}
    log: dict[tuple[Key, int], list[str]] = defaultdict(list)
    now_s = 0.0
    for pause_s, severities, what, acks in history:
        now_s += pause_s
        now = at(now_s)
        key = KEYS[what % 3]
        if what < 3 and acks and key in memory:
            memory[key] = replace(memory[key], acknowledged_by="ann", acknowledged_at=now)
        elif what < 6:
            mutes[key] = at(now_s + 40)
        for one, severity in zip(KEYS, severities, strict=True):
            if severity is not None and one not in memory:
                began[one] = now_s
        stands = [problem(k, s, at(began[k])) for k, s in zip(KEYS, severities, strict=True) if s is not None]
        silence = Silence(dict(mutes), windows)
        before = dict(memory)
        memory, due = step(stands, memory, ROUTES, silence, now)
        assert (memory, due) == step(stands, before, ROUTES, silence, now), "it can be repeated"
        check(before, memory, due, silence, now, now_s, began, log)
    for (key, route_id), kinds in log.items():
        assert all(one == "opened" for one, before in pairs(kinds) if before in (None, "over")), kinds
        assert all(one != "opened" for one, before in pairs(kinds) if before not in (None, "over")), kinds
        assert (kinds[-1] != "over") == (key in memory and route_id in memory[key].sent)


def pairs(kinds: list[str]) -> Iterator[tuple[str, str | None]]:
    return zip(kinds, [None, *kinds], strict=False)


def check(
    before: dict[Key, Alert], after: dict[Key, Alert], due: list[Due], silence: Silence, now: datetime, now_s: float,
    began: dict[Key, float], log: dict[tuple[Key, int], list[str]],
) -> None:  # fmt: skip
    routes = {one.id: one for one in ROUTES}
    assert len({(one.route_id, one.alert.open.key) for one in due}) == len(due), "one at a time"
    for one in due:
        key, route = one.alert.open.key, routes[one.route_id]
        log[key, one.route_id].append(one.kind)
        if one.kind == "over":
            assert key not in after and (now - before[key].seen_at).total_seconds() >= OVER_AFTER_S
            continue
        assert silence.why(one.alert, now) is None
        assert not weaker(one.alert.open.problem.severity, route.severity)
        assert now_s - began[key] >= route.hold_s - 1e-3
        assert one.kind != "reminder" or route.reminder_s is not None
    for key, alert in after.items():
        stands = alert.seen_at == now
        if not stands or silence.why(alert, now) is not None:
            continue
        for route in ROUTES:
            ripe = now_s - began[key] >= route.hold_s + 1e-3
            if ripe and not weaker(alert.open.problem.severity, route.severity):
                assert route.id in alert.sent, "what stands long enough and is not silenced has been sent"
