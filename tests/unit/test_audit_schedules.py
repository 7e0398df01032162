"""Audits that the console starts by itself: when they are due, one at most for each time, and who may say so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.api import schedules as api
from app.audit.runner import AuditRunner
from app.console import schedules
from app.console.errors import Invalid
from app.console.schedule_pages import next_time
from app.console.schedules import NOT_ENDED, bring_back, following, start_one, start_what_is_due
from app.console.settings import Seed
from app.db.audits import FINAL, AuditRow
from app.db.schedules import ScheduleRow, Schedules
from app.times import parse_time, rfc3339, utc_now
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.fake_pair import FakePair

Json = dict[str, Any]
URL = "/api/v1/schedules"
PAGE = "/clusters/demo/audits"
DAY_S = 86_400
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            runner_of(kit)._slots = asyncio.Semaphore(0)  # they wait for their turn: no job is started
            await work(kit)

    run(all_of_it())


def runner_of(kit: Kit) -> AuditRunner:
    runner: AuditRunner = kit.app.state.audit_runner
    return runner


def kept_of(kit: Kit) -> Schedules:
    kept: Schedules = kit.app.state.schedules
    return kept


async def add(person: Person, **more: Any) -> Json:
    answer = await person.change("POST", URL, json={"cluster": "demo", "every_s": DAY_S, **more})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{URL}/{answer.json()['id']}"
    made: Json = answer.json()
    return made


async def make_due(kit: Kit, schedule_id: int, ago: timedelta) -> datetime:
    at = utc_now().replace(microsecond=0) - ago
    async with kit.app.state.sessions.begin() as db:
        await db.execute(update(ScheduleRow).where(ScheduleRow.id == schedule_id).values(next_at=at))
    return at


async def carry_out(kit: Kit, row: ScheduleRow) -> None:
    view = kit.console.watches["demo"].view
    await start_one(kit.console, runner_of(kit), kept_of(kit), row, view, utc_now())


async def row_of(kit: Kit, schedule_id: int) -> ScheduleRow:
    row = await kept_of(kit).get(schedule_id)
    assert row is not None
    return row


def test_a_schedule_is_made_listed_and_removed(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        first = await add(ann, depth="digest")
        assert first == first | {"cluster_id": "demo", "depth": "digest", "every_s": DAY_S, "created_by": "ann"}
        assert first["last_at"] is first["last_audit_id"] is first["skipped"] is None
        assert timedelta(0) <= parse_time(first["next_at"]) - parse_time(first["created_at"]) - timedelta(days=1)
        at = rfc3339(utc_now().replace(microsecond=0) + timedelta(hours=3))
        second = await add(ann, first_at=at)
        assert parse_time(second["next_at"]) == parse_time(at) and second["depth"] == "bytes"
        page = (await ann.get(f"{URL}?limit=1")).json()
        assert page == {"items": [second], "next": str(second["id"])}
        assert (await ann.get(f"{URL}?limit=1&cursor={page['next']}")).json() == {"items": [first], "next": None}
        assert (await ann.get(f"{URL}?cluster=other")).json()["items"] == []
        assert (await ann.get(f"{URL}/{first['id']}")).json() == first
        assert (await ann.change("DELETE", f"{URL}/{first['id']}")).status_code == 204
        assert (await ann.get(f"{URL}/{first['id']}")).status_code == 404
        root = await kit.person("root", "admin")
        assert (await root.change("DELETE", "/api/v1/clusters/demo")).status_code == 204
        assert (await root.get(URL)).json()["items"] == [], "a schedule goes with its group"

    over(tmp_path, work)


def test_what_cannot_be_is_refused_and_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "SCHEDULES_MAX", 1)

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        long_ago, far = "2020-01-01T00:00:00Z", rfc3339(utc_now() + timedelta(days=400))
        for said, status in (
            ({"every_s": 599}, 422), ({"every_s": 40 * DAY_S}, 422), ({"every_s": True}, 422), ({"depth": "all"}, 422),
            ({"cluster": "none"}, 404), ({"first_at": long_ago}, 422), ({"first_at": far}, 422),
            ({"first_at": "tomorrow"}, 422), ({"more": 1}, 422),
        ):  # fmt: skip
            body = {"cluster": "demo", "every_s": DAY_S} | said
            assert (await ann.change("POST", URL, json=body)).status_code == status, said
        assert (await ann.get(URL)).json()["items"] == []
        await add(ann)
        full = await ann.change("POST", URL, json={"cluster": "demo", "every_s": DAY_S})
        assert full.status_code == 409 and "remove one first" in full.json()["detail"]
        bob = await kit.person("bob", "viewer")
        assert len((await bob.get(URL)).json()["items"]) == 1
        for method, path in (("POST", URL), ("DELETE", f"{URL}/1"), ("POST", f"{PAGE}/schedules")):
            assert (await bob.change(method, path, json={"cluster": "demo", "every_s": DAY_S})).status_code == 403, path
        assert len((await ann.get(URL)).json()["items"]) == 1

    over(tmp_path, work)


def test_for_one_due_time_one_audit_is_started_whoever_tries(tmp_path: Path) -> None:
    """Also where the console ends between the start of the audit and the note of it."""

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        made = await add(ann, depth="chain")
        due = await make_due(kit, made["id"], timedelta(days=2, hours=5))
        row = await row_of(kit, made["id"])
        await carry_out(kit, row)
        await carry_out(kit, row)  # as another one who read it before
        found = await runner_of(kit).kept.newest("demo", 10)
        assert [(one.depth, one.requested_by, one.state) for one in found] == [
            ("chain", f"schedule {made['id']}", "queued")
        ]
        after = await row_of(kit, made["id"])
        assert (after.last_at, after.last_audit_id, after.skipped) == (due, found[0].id, None)
        assert after.next_at == due + timedelta(days=3), "what was missed is made up for once"
        assert not await kept_of(kit).due(utc_now())

    over(tmp_path, work)


def test_none_is_started_beside_one_that_has_not_ended(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        made = await add(ann)
        by_hand = (await ann.change("POST", "/api/v1/audits", json={"cluster": "demo"})).json()
        await make_due(kit, made["id"], timedelta(minutes=1))
        await carry_out(kit, await row_of(kit, made["id"]))
        assert [one.id for one in await runner_of(kit).kept.newest("demo", 10)] == [by_hand["id"]]
        said = (await ann.get(f"{URL}/{made['id']}")).json()
        assert said["skipped"] == NOT_ENDED and said["last_audit_id"] is None
        assert "nothing was started: the audit before it had not ended" in (await ann.get(PAGE)).text

    over(tmp_path, work)


def test_a_pair_is_audited_by_schedule_as_a_pair(tmp_path: Path) -> None:
    """Master against slaves, every byte: nobody chooses a depth."""

    async def work() -> None:
        pair = FakePair()
        async with running(tmp_path, pair, seeds=tuple(Seed(url) for url in pair.urls.values())) as kit:  # type: ignore[arg-type]
            watches = kit.console.watches
            await kit.until(lambda: "pair" in watches and len(watches["pair"].view.members) == 3)
            runner_of(kit)._slots = asyncio.Semaphore(0)
            made = await add(await kit.person("ann", "operator"), cluster="pair")
            await make_due(kit, made["id"], timedelta(minutes=1))
            row = await row_of(kit, made["id"])
            await start_one(kit.console, runner_of(kit), kept_of(kit), row, watches["pair"].view, utc_now())
            (found,) = await runner_of(kit).kept.newest("pair", 10)
            assert (found.depth, found.requested_by, found.state) == ("bytes", f"schedule {made['id']}", "queued")
            assert (await row_of(kit, made["id"])).last_audit_id == found.id

    run(work())


def test_the_console_looks_by_itself_and_waits_for_a_group_that_it_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "LOOK_EVERY_S", 0.02)

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        made = await add(ann)
        watch = kit.console.watches.pop("demo")
        await make_due(kit, made["id"], timedelta(minutes=1))
        await asyncio.sleep(0.1)
        assert not await runner_of(kit).kept.newest("demo", 1)
        kit.console.watches["demo"] = watch
        async with asyncio.timeout(60):
            while not await runner_of(kit).kept.newest("demo", 1):  # noqa: ASYNC110 (the console does it by itself)
                await asyncio.sleep(0.01)
            while (await row_of(kit, made["id"])).last_audit_id is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    over(tmp_path, work)


def test_the_forms_add_and_remove_and_come_back_with_what_is_wrong(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        assert "No audit starts by itself." in (await ann.get(PAGE)).text
        wrong = await ann.change("POST", f"{PAGE}/schedules", data={"every": "day", "at": "25:00", "depth": "digest"})
        assert wrong.status_code == 422 and "no time of day like 03:30" in wrong.text
        assert "<option selected>digest</option>" in wrong.text and 'value="25:00"' in wrong.text
        answer = await ann.change("POST", f"{PAGE}/schedules", data={"every": "6 hours", "at": "03:30"})
        assert answer.status_code == 303 and answer.headers["location"] == f"{PAGE}#schedules"
        (made,) = (await ann.get(URL)).json()["items"]
        assert made["every_s"] == 6 * 3600 and made["next_at"][14:19] == "30:00"
        text = (await ann.get(PAGE)).text
        assert ">6 hours<" in text and "not yet" in text
        bob = await kit.person("bob", "viewer")
        assert f"{PAGE}/schedules" not in (await bob.get(PAGE)).text
        assert (await ann.change("POST", f"/clusters/other/audits/schedules/{made['id']}/remove")).status_code == 404
        gone = await ann.change("POST", f"{PAGE}/schedules/{made['id']}/remove")
        assert gone.status_code == 303 and (await ann.get(URL)).json()["items"] == []

    over(tmp_path, work)


@pytest.mark.parametrize(("now_s", "wanted_s"), [(-5, 0), (0, 600), (1, 600), (599, 600), (600, 1200), (6001, 6600)])
def test_times_stay_whole_periods_apart(now_s: int, wanted_s: int) -> None:
    assert following(NOON, 600, NOON + timedelta(seconds=now_s)) == NOON + timedelta(seconds=wanted_s)


def test_a_time_of_day_is_the_next_one() -> None:
    assert next_time(" ", DAY_S, NOON) is None
    assert next_time("12:01", DAY_S, NOON) == NOON + timedelta(minutes=1)
    assert next_time("12:00", 7 * DAY_S, NOON) == NOON + timedelta(days=1)
    assert next_time("03:30", 3600, NOON) == NOON + timedelta(minutes=30)
    with pytest.raises(Invalid, match="no time of day"):
        next_time("noon", DAY_S, NOON)


def test_members_that_never_say_the_time_stop_no_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was planned while the clock was ahead waited for them, for as long as it had been ahead."""

    async def work(kit: Kit) -> None:
        went = await add(await kit.person("ann", "operator"))
        year = timedelta(days=365)
        async with kit.app.state.sessions.begin() as db:
            values = {"created_at": utc_now() + year, "next_at": utc_now() + year}
            await db.execute(update(ScheduleRow).where(ScheduleRow.id == went["id"]).values(**values))
        for name, value in (("ours_is_behind", lambda _: None), ("LOOK_EVERY_S", 0.01), ("HEARD_WITHIN_S", 0.3)):
            monkeypatch.setattr(f"app.console.schedules.{name}", value)
        looking = asyncio.create_task(start_what_is_due(kit.console, runner_of(kit), kept_of(kit)))
        await asyncio.sleep(0.1)
        assert (await row_of(kit, went["id"])).next_at > utc_now() + timedelta(days=300), "they may say it yet"
        await asyncio.sleep(0.6)
        assert (await row_of(kit, went["id"])).next_at <= utc_now() + timedelta(days=1)
        looking.cancel()

    over(tmp_path, work)


def test_a_clock_that_was_ahead_and_came_back_stops_no_schedule(tmp_path: Path) -> None:
    """Nor does the time that comes a second time find the audit of the first."""

    async def work(kit: Kit) -> None:
        ann = await kit.person("ann", "operator")
        chosen = await add(ann, first_at=rfc3339(utc_now() + timedelta(days=300)))
        went, made_ahead = await add(ann), await add(ann)
        due = await make_due(kit, went["id"], timedelta(hours=5))
        row = await row_of(kit, went["id"])
        year = timedelta(days=365)
        async with kit.app.state.sessions.begin() as db:
            values = {"created_at": utc_now() + year, "next_at": utc_now() + year + timedelta(days=1)}
            await db.execute(update(ScheduleRow).where(ScheduleRow.id == made_ahead["id"]).values(**values))
        view = kit.console.watches["demo"].view
        await start_one(kit.console, runner_of(kit), kept_of(kit), row, view, utc_now() + year)
        assert (await row_of(kit, went["id"])).next_at > utc_now() + timedelta(days=364)
        await bring_back(kept_of(kit), utc_now())
        after = await row_of(kit, went["id"])
        assert after.next_at == due + timedelta(days=1), "the next of its own times"
        assert utc_now() < (await row_of(kit, made_ahead["id"])).next_at <= utc_now() + timedelta(days=1)
        assert parse_time(chosen["next_at"]) == (await row_of(kit, chosen["id"])).next_at, "somebody chose that"
        assert await kept_of(kit).ahead(utc_now()) == [], "what is due within its period is as it should be"
        await bring_back(kept_of(kit), utc_now())
        assert (await row_of(kit, went["id"])).next_at == after.next_at

        (first,) = await runner_of(kit).kept.newest("demo", 10)
        async with kit.app.state.sessions.begin() as db:
            await db.execute(update(AuditRow).where(AuditRow.id == first.id).values(state=min(FINAL)))
            await db.execute(update(ScheduleRow).where(ScheduleRow.id == went["id"]).values(next_at=due))
        await carry_out(kit, await row_of(kit, went["id"]))
        assert len(await runner_of(kit).kept.newest("demo", 10)) == 2

    over(tmp_path, work)


def test_a_page_that_lists_an_audit_adds_nothing_to_it(tmp_path: Path) -> None:
    """What was said of it when somebody looked at the list was in all later answers, to whoever asked for it."""

    async def work(kit: Kit) -> None:
        person = await kit.person()
        begun = (await person.change("POST", "/api/v1/audits", json={"cluster": "demo"})).json()
        before = (await person.get(f"/api/v1/audits/{begun['id']}")).json()
        assert (await person.get("/audits")).status_code == 200
        assert (await person.get(f"/api/v1/audits/{begun['id']}")).json().keys() == before.keys()

    over(tmp_path, work)
