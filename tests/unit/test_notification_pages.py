"""The pages about messages without JavaScript: each form posts, each role sees its buttons, a key is shown once."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from app.notify.notifier import Notifier
from app.times import utc_now
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.receivers import http_receiver

PAGE = "/notifications"
INLINE = re.compile(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=", re.IGNORECASE)
HTML = {"accept": "text/html"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.notify.notifier.OPENS_AFTER_S", 0.0)
    monkeypatch.setattr("app.notify.notifier.TICK_S", 0.05)


async def post(person: Person, path: str, **fields: str) -> tuple[int, str, str]:
    """A plain form: (status, where it leads, text)."""
    answer = await person.client.post(PAGE + path, data={"csrf_token": person.csrf, **fields}, headers=HTML)
    return answer.status_code, answer.headers.get("location", ""), answer.text


async def shown(person: Person, path: str = "") -> str:
    answer = await person.get(PAGE + path, headers=HTML)
    assert answer.status_code == 200, answer.text
    assert INLINE.search(answer.text) is None
    return answer.text


async def silent_n2(kit: Kit) -> str:
    """n2 falls silent; the path of its page."""
    notifier: Notifier = kit.app.state.notifier
    await kit.watched()
    kit.group.nodes["n2"].alive = False
    await kit.until(lambda: any(key.problem_id == "replica_silent:n2" for key in notifier.memory))
    return "/problems/demo/replica_silent%3An2"


def test_a_route_is_made_tried_changed_and_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            assert "There is no route" in await shown(ann) and "Make the webhook" in await shown(ann, "/new")
            made = {"kind": "webhook", "name": "ops", "url": receiver.url, "hold_s": "30", "reminder_s": ""}
            status, _, text = await post(ann, "/routes", **made)
            key = re.search(r"<pre><code>([\w-]{43})</code>", text)
            assert status == 201 and key is not None and "shown this once" in text
            page = await shown(ann)
            assert key[1] not in page and "never used" in page and "after 30 s" in page
            status, location, _ = await post(ann, "/routes/ops/test")
            assert status == 303 and "?tested=" in location
            page = await shown(ann, location.removeprefix(PAGE).partition("#")[0])
            assert "Test of ops: <b>delivered</b>, answered 204" in page and "The route delivers." in page
            assert len(receiver.got) == 1
            receiver.mode = 500
            location = (await post(ann, "/routes/ops/test"))[1]
            page = await shown(ann, location.removeprefix(PAGE).partition("#")[0])
            assert "<b>not delivered</b>, answered 500" in page and "has not delivered since" in page
            changed = {"severity": "critical", "hold_s": "5", "reminder_s": "600"}
            assert (await post(ann, "/routes/ops/change", **changed))[:2] == (303, f"{PAGE}#routes")
            page = await shown(ann)
            assert "critical, after 5.0 s, again every 10 min<" in page and "All routes are switched off" in page
            assert (await post(ann, "/routes/ops/change", hold_s="-1"))[0] == 422
            assert (await post(ann, "/routes/ops/remove"))[0] == 303
            assert "There is no route" in await shown(ann)

    run(work())


def test_what_is_wrong_comes_back_in_the_form_without_the_secret(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            mail = {
                "kind": "mail", "name": "m", "host": "smtp.example", "port": "587", "security": "plain", "user": "u",
                "secret": "hunter2-hunter2", "sender": "a@b.c", "recipients": "x@y.z, w@y.z",
            }  # fmt: skip
            status, _, text = await post(ann, "/routes", **mail)
            assert status == 422 and "in the clear" in text and 'value="smtp.example"' in text
            assert "hunter2" not in text
            hook = {"kind": "webhook", "name": "h", "url": "ftp://h/<b>", "secret": "short"}
            status, _, text = await post(ann, "/routes", **hook)
            assert status == 422 and "begins with http" in text and "ftp://h/&lt;b&gt;" in text
            assert kit.app.state.notifier.routes == {}

    run(work())


def test_an_operator_takes_a_problem_on_and_everybody_sees_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            path = await silent_n2(kit)
            olga, vic = await kit.person("olga", "operator"), await kit.person("vic", "viewer")
            assert "Acknowledge or mute" in (await olga.get("/clusters/demo")).text
            assert "Acknowledge or mute" not in (await vic.get("/clusters/demo")).text
            assert "n2 is silent" in await shown(olga) and "routes report it as they are set" in await shown(olga, path)
            assert (await post(olga, f"{path}/acknowledge"))[:2] == (303, PAGE + path)
            assert "olga has taken it on" in await shown(vic, path)
            await kit.until(lambda: kit.console.notes)
            await kit.until(lambda: any(one.acknowledged_by for one in kit.console.group_view("demo").problems))
            assert "by olga; no message is sent about it" in (await vic.get("/clusters/demo")).text
            assert (await post(olga, f"{path}/unacknowledge"))[0] == 303
            assert (await post(olga, f"{path}/mute", hours="4"))[0] == 303
            assert "muted by olga until" in await shown(vic, path)
            assert (await post(olga, f"{path}/unmute"))[0] == 303
            later = (utc_now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")
            assert (await post(olga, f"{path}/mute", until=later))[0] == 303
            assert f"{later}:00.000Z" in await shown(vic, path)
            assert (await post(olga, f"{path}/mute", until="tomorrow"))[0] == 422
            assert (await post(olga, "/problems/demo/none%3An1/acknowledge"))[0] == 404

    run(work())


def test_maintenance_is_announced_and_ended(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            assert (await post(olga, "/windows", hours="2", group="demo", reason="new <disks>"))[0] == 303
            later = (utc_now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
            assert (await post(olga, "/windows", hours="8", begin=later))[0] == 303
            page = await shown(olga)
            assert "new &lt;disks&gt;" in page and ">open<" in page and ">announced<" in page and "everything" in page
            for window_id in (1, 2):
                assert (await post(olga, f"/windows/{window_id}/remove"))[0] == 303
            assert ">announced<" not in await shown(olga)
            assert (await post(olga, "/windows", hours="2", group="nowhere"))[0] == 404
            for none in ("soon", "9999-12-31T23:59", "0001-01-01T00:00+14:00"):  # beyond the years that there are
                assert (await post(olga, "/windows", hours="2", begin=none))[0] == 422, none

    run(work())


def test_roles_and_the_form_s_token(tmp_path: Path) -> None:
    async def work() -> None:
        async with http_receiver() as receiver, running(tmp_path) as kit:
            path = await silent_n2(kit)
            ann = await kit.person()
            made = {"kind": "webhook", "name": "ops", "url": f"{receiver.url}?s3cret", "secret": "0123456789abcdef"}
            assert (await post(ann, "/routes", **made))[:2] == (303, f"{PAGE}#routes")
            assert "s3cret" in await shown(ann)
            olga, vic = await kit.person("olga", "operator"), await kit.person("vic", "viewer")
            for person in (olga, vic):
                page = await shown(person)
                assert "s3cret" not in page and "New route" not in page and ">Test<" not in page
                assert "This needs the role admin" in await shown(person, "/new")
                for form in ("/routes", "/routes/ops/test", "/routes/ops/change", "/routes/ops/remove"):
                    assert (await post(person, form, **made))[0] == 403, form
            assert "Announce" in await shown(olga) and "Announce" not in await shown(vic)
            assert "This needs the role operator" in await shown(vic, path)
            for form in (f"{path}/acknowledge", f"{path}/mute", f"{path}/unmute", "/windows", "/windows/1/remove"):
                assert (await post(vic, form, hours="1"))[0] == 403, form
            for form in (f"{path}/acknowledge", "/windows", "/routes", "/routes/ops/remove"):
                forged = await ann.client.post(PAGE + form, data={**made, "hours": "1", "csrf_token": "another"})
                assert forged.status_code == 403, form
            assert receiver.got == [] and len(kit.app.state.notifier.routes) == 1

    run(work())
