"""History: packing is exact and small, buckets keep the worst, gaps stay gaps, restarts lose nothing that was saved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.console import history as history_module
from app.console.errors import NotFound
from app.console.history import History
from app.console.packing import NULL, pack, unpack
from app.console.tiers import COLUMNS, TIERS, Buckets, T, bucketed, row_of, to_columns, to_rows
from app.db.engine import open_engine, open_sessions, upgrade
from app.health.group_view import GroupView, MemberView
from app.times import rfc3339
from node.views.reading import read
from node.views.replication import WatermarkView
from tests.databases import database_url
from tests.unit.console_kit import run

NOW = datetime(2026, 1, 1, 12, 0, tzinfo=UTC)
INT64 = st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1)


@given(st.lists(st.tuples(INT64, INT64), max_size=50))
@settings(max_examples=100, deadline=None)
def test_packing_is_exact(rows: list[tuple[int, int]]) -> None:
    columns = {"a": np.array([r[0] for r in rows], np.int64), "b": np.array([r[1] for r in rows], np.int64)}
    back = unpack(pack(columns))
    assert {name: column.tolist() for name, column in back.items()} == {k: v.tolist() for k, v in columns.items()}


@pytest.mark.parametrize("spoilt", [b"", b"QSH1", b"nope" + bytes(20), pack({"a": np.arange(9)})[:-4]])
def test_what_pack_did_not_write_is_refused(spoilt: bytes) -> None:
    with pytest.raises(ValueError, match="packed hour"):
        unpack(spoilt)


def test_an_hour_of_a_busy_log_takes_few_bytes_a_sample() -> None:
    rng = np.random.default_rng(1)
    ends = np.cumsum(2000 + rng.integers(0, 50, 360))
    rows = [
        row_of(10 * n, member("FOLLOWER", end=int(end), committed=int(end) - 3), lag=3) for n, end in enumerate(ends)
    ]
    assert len(pack(to_columns(rows))) / len(rows) < 12


def member(role: str | None = "FOLLOWER", *, end: int = 100, committed: int = 100, reach: str = "ok") -> MemberView:
    log = {"begin_index": 0, "applied_index": committed, "committed_index": committed, "durable_index": end}
    state = {"engine": "ok", "self_id": "n1", "term": 4, "role": role, "log": {**log, "end_index": end}}
    return read(MemberView, {"id": "n1", "role": role, "reach": reach, "state": state, "watermark": None})


def named(one: MemberView, node_id: str) -> MemberView:
    return one.model_copy(update={"id": node_id})


def test_a_bucket_keeps_the_worst_lag_and_the_last_of_the_rest() -> None:
    rows = [row_of(at, member(end=100 + at), lag) for at, lag in [(0, 5), (1, 900), (2, None), (3, 7)]]
    (bucket,) = bucketed(rows, 10)
    reported = dict(zip(COLUMNS, bucket, strict=True))
    assert (reported["lag"], reported["lag_min"], reported["lag_max"], reported["end"], reported["t"]) == (
        900,
        5,
        900,
        103,
        0,
    )


def test_unknown_stays_unknown_in_a_bucket() -> None:
    (bucket,) = bucketed([row_of(at, member(), None) for at in range(3)], 10)
    assert [bucket[COLUMNS.index(name)] for name in ("lag", "lag_min", "lag_max")] == [NULL] * 3


def test_rows_survive_columns() -> None:
    rows = [row_of(at, member("LEADER"), at) for at in range(5)]
    assert to_rows(unpack(pack(to_columns(rows)))) == rows


def test_a_clock_that_steps_back_does_not_turn_time_around() -> None:
    buckets = Buckets(TIERS[0])
    for at in (100, 101, 90, 91, 102):
        buckets.add(row_of(at, member(end=at), 1))
    assert [row[T] for row in buckets.rows] == [100, 101, 102]


def test_a_clock_that_was_ahead_ends_no_history() -> None:
    """All that was sampled since was one point in the year to come, until the console was started again."""
    for tier in TIERS:
        buckets = Buckets(tier)
        for at in (30_000, 30_600, 31_200, 32_000_000, 31_800, 32_400):
            buckets.add(row_of(at, member(end=at), 1))
        assert [row[T] for row in buckets.rows] == [30_000, 30_600, 31_200, 31_800, 32_400]
        assert buckets.dirty_from_s == 30_000


# --- the whole ---


def view(at: datetime, members: list[MemberView]) -> GroupView:
    made = {
        "cluster": {"id": "demo", "name": "demo", "group": "demo"},
        "as_of": rfc3339(at),
        "leader_id": "n0",
        "leader_end_index": 1000,
        "members": members,
        "quorum": {"size": 1, "needed": 1, "answering": 1, "standing": 1, "stands": True},
    }
    return read(GroupView, made)


def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[History, Any]:
    url = database_url(tmp_path / "history.db")
    upgrade(url)
    engine = open_engine(url)
    monkeypatch.setattr(history_module, "utc_now", lambda: NOW)
    return History(open_sessions(engine)), engine


def test_a_window_has_gaps_where_nobody_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        for second in range(60):
            reach = "stale" if 20 <= second < 40 else "ok"
            kept.record(view(NOW - timedelta(seconds=60 - second), [member(end=900, reach=reach)]))
        found = await kept.query("demo", ["n1", "n2"], NOW - timedelta(minutes=1), NOW, 600)
        assert found["step_s"] == 1 and not found["downsampled"]
        lags = found["replicas"]["n1"]["lag"]
        assert set(lags) == {100, None} and lags.count(None) == 1, "one break in the line, none invented"
        assert set(found["replicas"]["n2"]["lag"]) == {None}
        await engine.dispose()

    run(work())


def test_how_far_behind_a_silent_member_is_comes_from_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a demo: the chart broke off at 92 while the page's own table said that n1 was 1,898 behind."""

    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        for second in range(60):
            silent = second >= 20
            lag = {"id": "n1", "lag_entries": 200 * (second - 20), "lag_bytes": 1000 * (second - 20), "lag_ms": 7}
            one = member(end=1000, reach="stale" if silent else "ok")
            one = one.model_copy(update={"watermark": read(WatermarkView, lag) if silent else None})
            kept.record(view(NOW - timedelta(seconds=60 - second), [named(member("LEADER", end=1000), "n0"), one]))
        n1 = (await kept.query("demo", ["n1"], NOW - timedelta(minutes=1), NOW, 600))["replicas"]["n1"]
        assert n1["lag"] == [0] * 20 + [200 * one for one in range(40)] and n1["lag_bytes"][-1] == 39_000
        assert n1["end"] == [1000] * 20 + [None] * 40, "what it does not say is not made up"
        assert n1["role"] == ["FOLLOWER"] * 20 + [None] * 40
        live = view(NOW, [named(member("LEADER", end=1000), "n0"), member()])
        then = (await kept.view_at(live, NOW - timedelta(seconds=10))).members[1]
        assert (then.reach, then.state, then.mark.lag_entries) == ("stale", None, 200 * 30)
        await engine.dispose()

    run(work())


def test_a_new_leader_that_a_silent_member_has_not_answered_leaves_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on a demo: its leader was killed while n2 was stopped; the chart ended at 172 beside a lane at 1,283."""

    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        unmatched = read(WatermarkView, {"id": "n1", "match_index": -1, "lag_entries": None})
        for one in (
            member(end=400, reach="stale"),
            named(member(reach="stale").model_copy(update={"state": None}), "n2"),
        ):
            leader = named(member("LEADER", end=1000), "n0")
            kept.record(view(NOW, [leader, one.model_copy(update={"watermark": unmatched})]))
        found = (await kept.query("demo", ["n1", "n2"], NOW - timedelta(seconds=5), NOW, 600))["replicas"]
        assert found["n1"]["lag"][-1] == 600 and not any(found.get("n2", {}).get("lag", ()))
        await engine.dispose()

    run(work())


def test_a_coarse_window_shows_the_worst_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        for second in range(600):
            end = 100 if second == 333 else 1000
            kept.record(view(NOW - timedelta(seconds=600 - second), [member(end=end)]))
        found = await kept.query("demo", ["n1"], NOW - timedelta(minutes=10), NOW, 20)
        assert found["step_s"] == 30 and found["downsampled"] and found["note"] == "each point is the worst of 30 s"
        assert max(found["replicas"]["n1"]["lag"]) == max(found["replicas"]["n1"]["lag_max"]) == 900
        assert min(found["replicas"]["n1"]["lag_min"]) == 0
        await engine.dispose()

    run(work())


def test_stored_tiers_survive_a_restart_within_the_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        start = NOW - timedelta(hours=3)
        for minute in range(100):
            kept.record(view(start + timedelta(minutes=minute), [member(end=minute)]))
        await kept.save()
        again = History(open_sessions(engine))
        for minute in range(100, 180):
            again.record(view(start + timedelta(minutes=minute), [member(end=minute)]))
        await again.save()
        await again.save()
        for reader in (again, History(open_sessions(engine))):
            found = await reader.query("demo", ["n1"], start, NOW, 4000)
            ends = [end for end in found["replicas"]["n1"]["end"] if end is not None]
            assert found["tier"] == 10 and ends == list(range(180))
        month = await again.query("demo", ["n1"], NOW - timedelta(days=20), NOW, 600)
        assert month["tier"] == 300
        await engine.dispose()

    run(work())


def test_members_that_come_and_go_fill_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that had ever been a member was held, and written anew every minute, until the console ended."""

    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        for n in range(1000):
            kept.record(view(NOW - timedelta(seconds=1000 - n), [named(member(), f"x{n}"), member()]))
        assert len(kept.buckets) == history_module.NAMES_MAX * len(TIERS)
        await kept.save()
        assert len(kept.buckets) == history_module.NAMES_MAX * len(TIERS), "they were members a moment ago"
        kept.record(view(NOW, [member(reach="stale")]))
        await kept.save()
        assert {key[1] for key in kept.buckets} == {"n1"}, "who is silent stays"
        found = await kept.query("demo", ["x0", "n1"], NOW - timedelta(hours=2), NOW, 600)
        assert {100} <= set(found["replicas"]["x0"]["end"]), "it is stored"
        kept.record(view(NOW, [member(reach="stale")]))
        kept.forget("demo")
        assert not kept.buckets and not kept.seen
        await engine.dispose()

    run(work())


def test_a_save_that_fails_forgets_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        kept.record(view(NOW - timedelta(seconds=30), [member()]))
        with monkeypatch.context() as patch:

            async def away(*_: Any) -> None:
                raise OSError("no disk")

            patch.setattr(kept, "save_hour", away)
            for _ in range(2):
                with pytest.raises(OSError, match="no disk"):
                    await kept.save()
        await kept.save()
        again = await History(open_sessions(engine)).query("demo", ["n1"], NOW - timedelta(hours=3), NOW, 4000)
        assert 100 in again["replicas"]["n1"]["end"]
        await engine.dispose()

    run(work())


def test_a_frozen_view_shows_the_marks_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        kept, engine = make(tmp_path, monkeypatch)
        for second in range(120):
            moment = NOW - timedelta(seconds=120 - second)
            leader = named(member("LEADER", end=5000 + second, committed=4000 + second), "n0")
            silent = "stale" if second > 50 else "ok"
            kept.record(view(moment, [leader, member(end=second, reach=silent)]))
        live = view(NOW, [named(member("FOLLOWER"), "n0"), member("LEADER")])
        then = await kept.view_at(live, NOW - timedelta(seconds=100))
        assert then.at and then.leader_id == "n0" and then.leader_end_index == 5020
        assert then.quorum_index == 4020 and then.term == 4
        assert then.members[1].log.end_index == 20 and then.members[1].reach == "ok"
        later = await kept.view_at(live, NOW - timedelta(seconds=10))
        assert later.members[1].reach == "stale" and later.members[1].state is None
        assert later.closures is None and later.quorum.stands is None
        assert live.leader_id == "n0" and live.members[0].role == "FOLLOWER", "the live view is untouched"
        with pytest.raises(NotFound):
            await kept.view_at(live, NOW - timedelta(days=2))
        await engine.dispose()

    run(work())
