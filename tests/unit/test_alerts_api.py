"""Alerts over REST, from a problem of a watched group to a real receiver, over restarts and a database that is away."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from app.console.sample import Clock, NodeSample
from app.console.their_clock import ours_is_behind
from app.db.alerts import Alerts
from app.db.models import AlertMessage
from app.health.clock_steps import WallClock
from app.notify.notifier import Notifier
from app.notify.rules import Key
from app.times import rfc3339, utc_now
from tests.databases import opened
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.receivers import Receiver, http_receiver

Json = dict[str, Any]
API = "/api/v1/alerts"
SILENT_N2 = f"{API}/problems/demo/replica_silent:n2"
KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem is over at once, also right after a start."""
    monkeypatch.setattr("app.notify.notifier.OVER_AFTER_START_S", 0.0)
    monkeypatch.setattr("app.notify.notifier.OPENS_AFTER_S", 0.0)
    monkeypatch.setattr("app.notify.notifier.TICK_S", 0.05)
    monkeypatch.setattr("app.notify.rules.OVER_AFTER_S", 0.5)


@asynccontextmanager
async def console(tmp_path: Path) -> AsyncIterator[tuple[Kit, Notifier]]:
    async with running(tmp_path) as kit:
        notifier: Notifier = kit.app.state.notifier
        await kit.watched()
        await kit.until(lambda: notifier.loaded)
        yield kit, notifier


def kinds(receiver: Receiver, member: str = "n2") -> list[str]:
    """What the receiver was sent in the newest alert about a member, each message once: a machine that stands still
    for seconds makes every member silent for a moment."""
    found: dict[str, tuple[str, str]] = {}
    for _, body in receiver.got:
        message = json.loads(body)
        if (message["problem"] or {}).get("member") == member:
            found.setdefault(message["id"], (message["thread"], message["kind"]))
    newest = list(found.values())[-1][0] if found else ""
    return [kind for thread, kind in found.values() if thread == newest]


def webhook(receiver: Receiver, **more: Any) -> Json:
    return {"name": "ops", "webhook": {"url": receiver.url}, "secret": KEY, "hold_s": 0, **more}


async def stands(kit: Kit, notifier: Notifier, code: str = "replica_silent") -> None:
    await kit.until(lambda: any(key.problem_id == f"{code}:n2" for key in notifier.memory))


async def with_route(kit: Kit, receiver: Receiver, **more: Any) -> Person:
    ann = await kit.person()
    made = await ann.change("POST", f"{API}/routes", json=webhook(receiver, **more))
    assert made.status_code == 201, made.text
    return ann


def test_a_problem_is_reported_and_so_is_its_end(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            ann = await with_route(kit, receiver)
            kit.group.nodes["n2"].alive = False
            await kit.until(lambda: kinds(receiver) == ["opened"])
            message = json.loads(receiver.got[-1][1])
            assert message["group"] == {"id": "demo", "name": "demo"} and message["problem"]["since"]
            assert message["problem"]["code"] == "replica_silent" and message["text"].startswith("demo: n2 ")
            assert message["problem"]["step"] and message["page"].endswith("/clusters/demo")
            item = next(one for one in (await ann.get(API)).json()["items"] if one["problem"]["node_id"] == "n2")
            assert item["sent"][0]["route"] == "ops" and item["silent"] is None
            kit.group.nodes["n2"].alive = True
            await kit.until(lambda: kinds(receiver) == ["opened", "over"])
            over = json.loads(receiver.got[-1][1])
            assert over["thread"] == message["thread"] and over["problem"]["until"] and over["problem"]["lasted_s"] > 0
            await kit.until(lambda: not notifier.outbox.messages)
            history = (await ann.get(f"{API}/messages?limit=1")).json()
            older = (await ann.get(f"{API}/messages?cursor={history['next']}")).json()
            kept = {one["id"]: one for one in history["items"] + older["items"]}
            assert len(history["items"]) == 1 and next(iter(kept)) == history["next"]
            for one in (message, over):
                assert (kept[one["id"]]["kind"], kept[one["id"]]["state"]) == (one["kind"], "delivered")
            route = (await ann.get(f"{API}/routes/ops")).json()
            assert route["delivered_at"] and route["failing_since"] is None

    run(work())


def test_right_after_the_clock_was_set_nothing_is_judged_by_views_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A problem that ended just then had begun in an hour, and lasted 0 s."""

    async def work() -> None:
        async with console(tmp_path) as (_, notifier):
            await notifier.background.stop()
            notifier.started_at -= timedelta(days=1)
            looked: list[datetime] = []
            monkeypatch.setattr(type(notifier), "look", lambda _self, now: looked.append(now))
            await notifier.tick()
            before = len(looked)
            monkeypatch.setattr("app.notify.notifier.utc_now", lambda: utc_now() - timedelta(hours=1))
            await notifier.tick()
            await notifier.tick()
            assert len(looked) == before == 1
            for _ in range(notifier.rests + 1):
                await notifier.tick()
            assert len(looked) == 2

    run(work())


def test_a_clock_that_is_set_back_an_hour_delays_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, _):
            await with_route(kit, receiver)
            kit.group.nodes["n2"].alive = False
            await kit.until(lambda: kinds(receiver) == ["opened"])
            for module in ("console.watch", "console.sampler", "notify.notifier"):
                monkeypatch.setattr(f"app.{module}.utc_now", lambda: utc_now() - timedelta(hours=1))
            kit.group.nodes["n2"].alive = True
            await kit.until(lambda: kinds(receiver) == ["opened", "over"])
            opened, over = (json.loads(body) for _, body in receiver.got[-2:])
            assert over["thread"] == opened["thread"]
            assert 0 < over["problem"]["lasted_s"] < 600, "by the clock as it was set, from beginning to end"
            kit.group.nodes["n1"].alive = False
            await kit.until(lambda: kinds(receiver, "n1") == ["opened"])

    run(work())


def test_a_clock_that_was_ahead_and_came_back_silences_nothing_for_longer_than_somebody_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with console(tmp_path) as (_, notifier):
            await notifier.background.stop()
            key, year = Key("demo", "replica_silent:n2"), timedelta(days=365)
            monkeypatch.setattr("app.notify.notifier.utc_now", lambda: utc_now() + year)
            await notifier.tick()
            await notifier.mute(key, utc_now() + year + timedelta(hours=1), "olga")
            monkeypatch.setattr("app.notify.notifier.utc_now", utc_now)
            await notifier.tick()
            assert key in notifier.silence(utc_now()).mutes
            later = utc_now() + timedelta(hours=1, minutes=1)
            assert key not in notifier.silence(later).mutes
            (stored,) = await notifier.kept.mutes()
            assert stored.until < later and stored.by == "olga"

    run(work())


def test_a_console_that_starts_with_its_clock_far_behind_shortens_no_mute_and_forgets_no_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine without a battery starts in 1970, and is set once it has a network."""
    behind = utc_now() - datetime(1970, 1, 2, tzinfo=UTC)
    key, until, since = Key("demo", "replica_silent:n2"), utc_now() + timedelta(hours=3), timedelta(hours=2)

    async def work() -> None:
        async with console(tmp_path) as (kit, notifier):
            await notifier.background.stop()
            await notifier.mute(key, until, "olga")
            kit.group.nodes["n2"].alive = False
            await kit.until(lambda: kit.console.group_view("demo").problems)
            await notifier.tick()
            alert = notifier.memory[key]
            before = replace(alert, noticed_at=alert.noticed_at - since, seen_at=alert.seen_at)
            notifier.memory[key] = before

            monkeypatch.setattr("app.notify.notifier.utc_now", lambda: utc_now() - behind)
            notifier.clock, notifier.started_at = WallClock(), utc_now() - behind  # as a console that starts
            for one in kit.console.samples:
                one.last_clock = Clock(behind.total_seconds() * 1000, 500.0)
            monkeypatch.setattr("app.notify.notifier.ours_is_behind", lambda _samples: True)
            await notifier.tick()
            assert notifier.mutes[key].until == until
            other = Key("demo", "cut_off:n1")
            await notifier.mute(other, utc_now() - behind + timedelta(hours=1), "olga")
            monkeypatch.setattr("app.notify.notifier.utc_now", utc_now)
            monkeypatch.setattr("app.notify.notifier.ours_is_behind", lambda _samples: False)
            await notifier.tick()
            assert notifier.mutes[key].until == until, "it was set by a clock that was right"
            assert timedelta(minutes=55) < notifier.mutes[other].until - utc_now() <= timedelta(hours=1)
            assert abs(notifier.memory[key].noticed_at - before.noticed_at) < timedelta(seconds=2)
            stored = {one.problem_id: one.until for one in await notifier.kept.mutes()}
            assert stored[key.problem_id] == until and stored[other.problem_id] == notifier.mutes[other].until

    run(work())


@pytest.mark.parametrize(
    ("offsets_s", "behind"),
    [((), False), ((None, None), None), ((1e9, 1e9, 0.0), True), ((1e9, 0.0, 0.0), False), ((-1e9, -1e9), False)],
)
def test_whose_clock_is_behind_is_what_most_members_say(
    offsets_s: tuple[float | None, ...], behind: bool | None
) -> None:
    samples = [NodeSample(f"n{at}", "", None) for at in range(len(offsets_s))]
    for one, offset_s in zip(samples, offsets_s, strict=True):
        one.last_clock = None if offset_s is None else Clock(offset_s * 1000, 1.0)
    assert ours_is_behind(samples) is behind


def test_what_was_not_taken_survives_the_console_and_a_restart_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with http_receiver() as receiver:
            receiver.mode = 503
            async with console(tmp_path) as (kit, _):
                await with_route(kit, receiver)
                kit.group.nodes["n2"].alive = False
                await kit.until(lambda: kinds(receiver) == ["opened"])
                group, (stood,) = kit.group, kit.console.group_view("demo").problems
            first = json.loads(receiver.got[-1][1])["id"]
            receiver.mode = 204
            monkeypatch.setattr("app.notify.notifier.OVER_AFTER_START_S", 120.0)
            async with running(tmp_path, group) as kit:
                notifier: Notifier = kit.app.state.notifier
                delivered = len(receiver.got)
                await kit.until(lambda: len(receiver.got) > delivered and not notifier.outbox.messages)
                assert first in [json.loads(body)["id"] for _, body in receiver.got[delivered:]]
                # It did not see how n2 fell silent, and says it as the console did that saw it.
                said = lambda: kit.console.group_view("demo").problems  # noqa: E731
                await kit.until(lambda: [(one.code, one.since) for one in said()] == [(stood.code, stood.since)])
                assert said()[0].text.startswith("n2 is silent (") and "never" not in said()[0].text
                assert kinds(receiver) == ["opened"], "what was sent before is not sent anew"
                monkeypatch.setattr("app.notify.notifier.OVER_AFTER_START_S", 0.0)
                group.nodes["n2"].alive = True
                await kit.until(lambda: kinds(receiver) == ["opened", "over"])

    run(work())


def test_a_problem_that_ends_while_the_console_is_down_lasted_until_the_console_last_saw_it(tmp_path: Path) -> None:
    """It was over when its last message had gone out: an outage of hours had lasted as long as the hold time."""

    async def work() -> None:
        async with http_receiver() as receiver:
            async with console(tmp_path) as (kit, notifier):
                await with_route(kit, receiver)
                kit.group.nodes["n2"].alive = False
                await kit.until(lambda: kinds(receiver) == ["opened"])
                key = Key("demo", "replica_silent:n2")
                first_at = notifier.memory[key].sent[next(iter(notifier.routes))].at
                await kit.until(lambda: notifier.memory[key].seen_at >= first_at + timedelta(milliseconds=100))
                await notifier.background.stop()
                seen_at, group = notifier.memory[key].seen_at, kit.group
            group.nodes["n2"].alive = True
            async with running(tmp_path, group) as kit:
                await kit.until(lambda: kinds(receiver) == ["opened", "over"])
            over = next(body for _, body in receiver.got if json.loads(body)["kind"] == "over")
            assert json.loads(over)["problem"]["until"] == rfc3339(seen_at)

    run(work())


def test_a_console_that_stops_stores_how_its_deliveries_went(tmp_path: Path) -> None:
    """It waited for the writer's turn that it held itself, and gave up: the last state was lost."""

    async def work() -> None:
        async with http_receiver() as receiver:
            receiver.mode = 503
            async with console(tmp_path) as (kit, notifier):
                await with_route(kit, receiver)
                kit.group.nodes["n2"].alive = False
                outbox = notifier.outbox
                # One was tried, and none is being tried: from here to the stop nothing else is heard of them.
                await kit.until(lambda: not outbox.busy and any(one.result for one in outbox.messages.values()))
                for health in outbox.health.values():
                    health.next_at = utc_now() + timedelta(hours=1)
                for message in outbox.messages.values():
                    message.result, message.dirty = "the last that was heard", True

    run(work())
    engine = opened(tmp_path / "console.db")
    with engine.connect() as database:
        stored = database.execute(select(AlertMessage.result)).scalars().all()
    engine.dispose()
    assert "the last that was heard" in stored


def test_acknowledged_and_muted_problems_are_silent_until_they_are_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            await with_route(kit, receiver, name="held", hold_s=3600)
            olga = await kit.person("olga", "operator")
            kit.group.nodes["n2"].alive = False
            await stands(kit, notifier)
            done = await olga.change("POST", f"{SILENT_N2}/acknowledge")
            assert done.status_code == 200 and done.json()["acknowledged_by"] == "olga"
            ann = await with_route(kit, receiver, name="ops", hold_s=0)
            until = rfc3339(utc_now() + timedelta(hours=1))
            assert (await olga.change("POST", f"{SILENT_N2}/mute", json={"until": until})).json()["muted_by"] == "olga"

            def noted() -> bool:
                found = [one for one in kit.console.group_view("demo").problems if one.node_id == "n2"]
                return [(one.acknowledged_by, one.muted_until) for one in found] == [("olga", until)]

            await kit.until(noted)
            assert (await olga.change("POST", f"{SILENT_N2}/unacknowledge")).json()["silent"] == "muted"
            assert kinds(receiver) == []
            assert (await olga.change("POST", f"{SILENT_N2}/unmute")).status_code == 204
            await kit.until(lambda: kinds(receiver) == ["opened"])
            await olga.change("POST", f"{SILENT_N2}/acknowledge")
            kit.group.nodes["n2"].alive = True
            await kit.until(lambda: kinds(receiver) == ["opened", "over"])
            trail = (await ann.get("/api/v1/admin-trail")).json()["items"]
            (muted,) = [one for one in trail if one["path"].endswith("/mute")]
            assert until in str(muted) and "problems/demo/replica_silent:n2" in str(muted)
            assert KEY not in str(trail) and receiver.url not in str(trail) and "http://127.0.0.1" in str(trail)
            acts = {(one["user"], one["path"].rpartition("/")[2]) for one in trail if "/problems/" in one["path"]}
            assert acts == {("olga", word) for word in ("acknowledge", "unacknowledge", "mute", "unmute")}

    run(work())


def test_a_maintenance_window_is_silent_and_what_stands_at_its_end_is_reported(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            olga = await kit.person("olga", "operator")
            body = {"group": "demo", "until": rfc3339(utc_now() + timedelta(hours=2)), "reason": "new disks"}
            window = (await olga.change("POST", f"{API}/windows", json=body)).json()
            assert (window["state"], window["by"], window["reason"]) == ("open", "olga", "new disks")
            await with_route(kit, receiver)
            kit.group.nodes["n2"].alive = False
            await stands(kit, notifier)
            item = next(one for one in (await olga.get(API)).json()["items"] if one["problem"]["node_id"] == "n2")
            assert item["silent"] == "maintenance" and kinds(receiver) == []
            assert (await olga.get(f"{API}/windows")).json()["items"] == [window]
            assert (await olga.change("DELETE", f"{API}/windows/{window['id']}")).status_code == 204
            await kit.until(lambda: kinds(receiver) == ["opened"])
            assert (await olga.change("DELETE", f"{API}/windows/{window['id']}")).status_code == 404

    run(work())


def test_a_route_that_fails_is_a_problem_and_goes_out_on_another(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as broken, http_receiver() as good, console(tmp_path) as (kit, _):
            broken.mode = 500
            ann = await with_route(kit, broken, name="broken")
            await ann.change("POST", f"{API}/routes", json=webhook(good, name="good"))
            kit.group.nodes["n2"].alive = False

            def of_the_route(receiver: Receiver) -> list[str]:
                sent = [json.loads(body) for _, body in receiver.got]
                return [one["text"] for one in sent if one["problem"]["code"] == "route_not_delivering"]

            await kit.until(lambda: of_the_route(good))
            assert of_the_route(good)[0].startswith("console: The route broken has not delivered since ")
            assert of_the_route(broken) == []
            own = (await ann.get("/api/v1/problems")).json()["console"]
            assert [one["code"] for one in own] == ["route_not_delivering"] and own[0]["next_step"]
            assert "The route broken has not delivered" in (await ann.get("/")).text
            route = (await ann.get(f"{API}/routes/broken")).json()
            assert route["error"] == "answered 500" and route["waiting"] >= 1 and route["failing_since"]
            off = await ann.change("PATCH", f"{API}/routes/broken", json={"enabled": False})
            assert off.json()["waiting"] == 0
            await kit.until(lambda: not kit.console.own_problems())
            assert (await ann.change("DELETE", f"{API}/routes/broken")).status_code == 204
            assert [one["name"] for one in (await ann.get(f"{API}/routes")).json()["items"]] == ["good"]

    run(work())


def test_messages_go_out_though_nothing_can_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            await with_route(kit, receiver)
            save = Alerts.save

            async def locked(*_: Any) -> None:
                raise OperationalError("UPDATE", {}, sqlite3.OperationalError("database is locked"))

            day, ahead = timedelta(days=1), Key("demo", "cut_off:n1")
            await notifier.mute(ahead, utc_now() + day, "olga")
            mute = Alerts.mute
            monkeypatch.setattr(Alerts, "save", locked)
            monkeypatch.setattr(Alerts, "mute", locked)
            notifier.mutes[ahead].at += day  # set by a clock that was ahead: it is shortened, and that is stored
            kit.group.nodes["n2"].alive = False
            await kit.until(lambda: kinds(receiver) == ["opened"])
            assert notifier.unsaved_since is not None
            monkeypatch.setattr(Alerts, "mute", mute)
            monkeypatch.setattr(Alerts, "save", save)
            await kit.until(lambda: notifier.unsaved_since is None and not notifier.outbox.messages)
            assert "opened" in [row.kind for row in await notifier.kept.messages(10)]

    run(work())


def test_a_route_made_after_another_was_removed_hears_of_what_stands(tmp_path: Path) -> None:
    """SQLite gave it the number of the removed one, whose messages counted as its own: it got nothing of a problem that
    stood, but that it was over."""

    async def work() -> None:
        async with http_receiver() as old, http_receiver() as new, console(tmp_path) as (kit, _):
            ann = await with_route(kit, old)
            kit.group.nodes["n2"].alive = False
            await kit.until(lambda: kinds(old) == ["opened"])
            assert (await ann.change("DELETE", f"{API}/routes/ops")).status_code == 204
            assert (await ann.change("POST", f"{API}/routes", json=webhook(new))).status_code == 201
            await kit.until(lambda: bool(kinds(new)))
            kit.group.nodes["n2"].alive = True
            await kit.until(lambda: kinds(new)[-1] == "over")
            assert kinds(new) == ["opened", "over"] and kinds(old) == ["opened"]

    run(work())


def test_the_test_says_what_came_of_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            ann = await with_route(kit, receiver, enabled=False)
            done = (await ann.change("POST", f"{API}/routes/ops/test")).json()
            assert (done["state"], done["result"]) == ("delivered", "answered 204") and done["took_ms"] >= 0
            assert json.loads(receiver.got[0][1])["text"].startswith("Test of the route ops, sent by ann.")
            receiver.mode = 401
            failed = (await ann.change("POST", f"{API}/routes/ops/test")).json()
            assert (failed["state"], failed["result"]) == ("failed", "answered 401")
            await kit.until(lambda: not notifier.outbox.messages)
            assert [row.state for row in await notifier.kept.messages(10)] == ["failed", "delivered"]
            assert (await ann.get(f"{API}/routes/ops")).json()["waiting"] == 0

    run(work())


def test_who_may_do_what(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            await with_route(kit, receiver, enabled=False)
            kit.group.nodes["n2"].alive = False
            await stands(kit, notifier)
            window = {"until": rfc3339(utc_now() + timedelta(hours=1))}
            cases: list[tuple[str, str, Json | None, int, int]] = [  # viewer's and operator's answers
                ("GET", API, None, 200, 200),
                ("GET", f"{API}/routes", None, 200, 200),
                ("GET", f"{API}/messages", None, 200, 200),
                ("POST", f"{SILENT_N2}/acknowledge", {}, 403, 200),
                ("POST", f"{SILENT_N2}/mute", window, 403, 200),
                ("POST", f"{API}/windows", window, 403, 201),
                ("POST", f"{API}/routes", webhook(receiver, name="mine"), 403, 403),
                ("PATCH", f"{API}/routes/ops", {"hold_s": 0}, 403, 403),
                ("POST", f"{API}/routes/ops/test", {}, 403, 403),
                ("DELETE", f"{API}/routes/ops", None, 403, 403),
            ]
            for role, column in (("viewer", 3), ("operator", 4)):
                person = await kit.person(role, role)
                for case in cases:
                    answer = await person.change(case[0], case[1], json=case[2]) if case[2] is not None else (
                        await person.change(case[0], case[1])
                    )  # fmt: skip
                    assert answer.status_code == case[column], (role, case[:2], answer.text)
                assert all("settings" not in one for one in (await person.get(f"{API}/routes")).json()["items"])
                foreign = await person.client.post(f"{SILENT_N2}/acknowledge", json={})
                assert foreign.status_code == 403, "no CSRF token"

    run(work())


def test_a_secret_is_shown_once_or_never(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, _):
            ann = await kit.person()
            made = await ann.change("POST", f"{API}/routes", json=webhook(receiver, secret=None))
            key = made.json()["secret"]
            assert len(key) >= 32
            given = await ann.change("POST", f"{API}/routes", json=webhook(receiver, name="given"))
            assert "secret" not in given.json() and given.json()["has_secret"] is True
            for path in (f"{API}/routes", f"{API}/routes/ops", API, f"{API}/messages", "/api/v1/admin-trail"):
                answer = await ann.get(path)
                assert answer.status_code == 200 and key not in answer.text and KEY not in answer.text, path
            assert (await ann.get(f"{API}/routes/ops")).json()["settings"] == {"url": receiver.url}
        for path in tmp_path.glob("console.db*"):
            assert key.encode() not in path.read_bytes() and KEY.encode() not in path.read_bytes(), path

    run(work())


def test_a_secret_goes_nowhere_but_to_the_target_that_it_was_given_for(tmp_path: Path) -> None:
    """Who can write the database cannot have the key shown to a server of his own; a key file that is lost is said."""

    async def work() -> None:
        async with http_receiver() as receiver, http_receiver() as stranger, console(tmp_path) as (kit, notifier):
            ann = await with_route(kit, receiver, enabled=False)
            (row,) = notifier.routes.values()
            row.settings = {"url": stranger.url}
            done = (await ann.change("POST", f"{API}/routes/ops/test")).json()
            assert done["state"] == "failed" and "the route's secret cannot be read" in done["result"]
            assert stranger.got == []
            row.settings = {"url": receiver.url}
            notifier.seal._key = None
            (tmp_path / "console.db.key").rename(tmp_path / "away")
            lost = (await ann.change("POST", f"{API}/routes/ops/test")).json()
            assert "console.db.key is missing" in lost["result"]
            (tmp_path / "away").rename(tmp_path / "console.db.key")
            assert (await ann.change("POST", f"{API}/routes/ops/test")).json()["state"] == "delivered"

    run(work())


def test_bad_input_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, console(tmp_path) as (kit, notifier):
            ann = await with_route(kit, receiver, enabled=False)
            mail = {"host": "mail", "sender": "a@b.c", "recipients": ["x@y.z"]}
            wrong_routes: list[Json] = [
                webhook(receiver), webhook(receiver, name="x/y"), webhook(receiver, name="n", secret="short"),
                webhook(receiver, name="n", hold_s=-1), webhook(receiver, name="n", reminder_s=1),
                webhook(receiver, name="n", mail=mail), {"name": "n"}, {"name": "n", "webhook": {"url": "ftp://x/"}},
                {"name": "n", "mail": mail | {"sender": "a b@c"}}, {"name": "n", "mail": mail | {"recipients": []}},
                {"name": "n", "mail": mail | {"host": "a b"}}, {"name": "n", "mail": mail | {"user": "u"}},
                {"name": "n", "mail": mail | {"user": "u", "security": "plain"}, "secret": "p"},
                {"name": "n", "mail": mail | {"sender": "a@b.c\r\nBcc: d@e.f"}}, webhook(receiver, name="n", more=1),
            ]  # fmt: skip
            for body in wrong_routes:
                answer = await ann.change("POST", f"{API}/routes", json=body)
                assert answer.status_code in (409, 422), (body, answer.text)
                assert answer.headers["content-type"] == "application/problem+json"
            for body in ({"hold_s": None}, {"severity": "awful"}, {"webhook": {"url": "http://h/"}}):
                assert (await ann.change("PATCH", f"{API}/routes/ops", json=body)).status_code == 422
            past, far = rfc3339(utc_now() - timedelta(seconds=1)), rfc3339(utc_now() + timedelta(days=31))
            soon = rfc3339(utc_now() + timedelta(hours=1))
            for window in ({"until": past}, {"until": far}, {"until": "tomorrow"}, {"begin": far, "until": soon}):
                assert (await ann.change("POST", f"{API}/windows", json=window)).status_code == 422, window
            unknown = {"until": soon, "group": "nowhere"}
            assert (await ann.change("POST", f"{API}/windows", json=unknown)).status_code == 404
            for path in (f"{API}/problems/demo/none:n2/acknowledge", f"{API}/routes/none/test"):
                assert (await ann.change("POST", path)).status_code == 404
            assert [row.name for row in notifier.routes.values()] == ["ops"] and notifier.windows == []

    run(work())
