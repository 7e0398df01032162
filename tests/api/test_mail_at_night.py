"""A real member dies at night: which mails a real mail server gets of it, and which it does not.

A group of three processes, the console over it, an SMTP server. The dead member is killed with its engine and started
again; only the waits of the console (an hour until a reminder) are shorter than they would be.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from email.message import EmailMessage
from pathlib import Path

import psutil
import pytest

from app.console.app import create_app
from app.console.settings import ConsoleSettings, Seed
from app.notify.notifier import Notifier
from app.times import rfc3339, utc_now
from node.children import apart
from tests.api.group import ROOT, Group, running_group
from tests.unit.console_kit import Kit, Person, run
from tests.unit.fake_control import FakeGroup
from tests.unit.test_notify_mail import Box, server

pytestmark = [pytest.mark.process, pytest.mark.long]
WITHIN_S = 90.0
HOLD_S = 2
QUIET_S = 6.0  # the hold time, and four of the reminders that would come


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.notify.notifier.OVER_AFTER_START_S", 0.0)


def route_to(port: int) -> dict[str, object]:
    mail = {"host": "127.0.0.1", "port": port, "security": "plain", "sender": "q@example.org",
            "recipients": ["ops@example.org"]}  # fmt: skip
    return {"name": "night", "severity": "attention", "hold_s": HOLD_S, "mail": mail}


class Night:
    """The group, its console and the mail server, in one hand."""

    def __init__(self, kit: Kit, group: Group, box: Box) -> None:
        self.kit, self.group, self.box = kit, group, box
        self.notifier: Notifier = kit.app.state.notifier
        self.victim = ""

    async def in_step(self) -> None:
        def said() -> bool:
            watch = self.kit.console.watches.get("api")
            return watch is not None and "All 3 replicas are in step" in watch.view.sentence.headline

        await self.kit.until(said, WITHIN_S)

    def kill(self) -> None:
        """A follower with all its processes, its control plane first: as one whose machine lost its power."""
        leader = self.group.leader()
        self.victim = self.victim or next(one for one in self.group.ids if one != leader)
        node = psutil.Process(self.group.processes[self.victim].pid)
        node.suspend()  # or it would start again what is killed first
        engine = self.group.engine_pid(self.victim)
        for process in sorted(node.children(recursive=True), key=lambda one: one.pid == engine):
            with suppress(psutil.NoSuchProcess):  # its parent's end was its own
                process.kill()
        node.kill()
        self.group.processes[self.victim].wait(60)

    def start_again(self) -> None:
        """By the command that the first mail prints."""
        lines = [line.strip() for line in self.mails("opened")[0].get_content().splitlines()]
        (printed,) = (line for line in lines if line.startswith("quorumscope node "))
        command = [sys.executable, "-m", "app.cli", *shlex.split(printed)[1:]]
        with (self.group.place / f"{self.victim}.log").open("ab") as log:
            self.group.processes[self.victim] = subprocess.Popen(
                command, cwd=ROOT, stdout=log, stderr=log, preexec_fn=apart(signal.SIGTERM)
            )

    @property
    def problem_id(self) -> str:
        return f"replica_silent:{self.victim}"

    async def stands(self) -> None:
        await self.kit.until(lambda: self.problem_id in self.standing(), WITHIN_S)

    async def over(self) -> None:
        """Nothing stands any more, and what was to be said of it has gone out."""
        await self.in_step()
        await self.kit.until(lambda: not self.standing(), WITHIN_S)
        await self.sent()

    def standing(self) -> set[str]:
        return {key.problem_id for key in self.notifier.memory if key.scope == "api"}

    async def sent(self) -> None:
        await self.kit.until(lambda: not self.notifier.outbox.messages, WITHIN_S)

    async def quiet(self) -> None:
        """No mail, for as long as several reminders take."""
        await self.sent()
        before = len(self.mails())
        await asyncio.sleep(QUIET_S)
        await self.sent()
        self.none_since(before)

    def none_since(self, before: int) -> None:
        assert [one["Subject"] for one in self.mails()[before:]] == []

    def mails(self, *kinds: str) -> list[EmailMessage]:
        """About the victim; without `kinds` all of them."""
        about = [one for one in self.box.mails if self.victim in one["Subject"]]
        return [one for one in about if not kinds or one["X-Quorumscope-Kind"] in kinds]

    async def change(self, who: Person, what: str, **body: str) -> None:
        path = f"/api/v1/alerts/problems/api/{self.problem_id}/{what}"
        answer = await who.change("POST", path, json=body or None)
        assert answer.status_code in (200, 204), answer.text


async def one_mail_and_one_when_it_is_over(night: Night, olga: Person) -> None:
    await asyncio.to_thread(night.kill)
    await night.stands()
    await night.kit.until(lambda: night.mails("opened"), WITHIN_S)
    (mail,) = night.mails("opened")
    text = mail.get_content()
    assert f"{night.victim} is silent" in mail["Subject"], mail["Subject"]
    (shown,) = (one for one in night.kit.console.group_view("api").problems if one.id == night.problem_id)
    for what in (shown.means, shown.at_stake, shown.command, shown.curl, "start it again", "/clusters/api"):
        assert what and what.casefold() in text.casefold(), (what, text)
    await night.kit.until(lambda: len(night.mails("reminder")) >= 2, WITHIN_S)
    await night.change(olga, "acknowledge")
    await night.quiet()
    await asyncio.to_thread(night.start_again)
    await night.over()
    assert len(night.mails("opened")) == 1, [one["Subject"] for one in night.mails()]
    (over,) = night.mails("over")
    assert night.victim in over["Subject"] and "over after" in over["Subject"]
    assert over["References"] == mail["References"], "a mail program shows them as one thread"


async def none_while_muted(night: Night, olga: Person) -> None:
    """A mute holds also for the same problem when it comes back."""
    await asyncio.to_thread(night.kill)
    await night.stands()
    await night.change(olga, "mute", until=rfc3339(utc_now() + timedelta(hours=1)))
    await night.quiet()
    await asyncio.to_thread(night.start_again)
    await night.over()
    before = len(night.mails())
    await asyncio.to_thread(night.kill)
    await night.stands()
    await night.quiet()
    await asyncio.to_thread(night.start_again)
    await night.over()
    night.none_since(before)
    await night.change(olga, "unmute")


async def none_in_a_maintenance_window(night: Night, olga: Person) -> None:
    before, heard = len(night.mails()), len(night.mails("opened"))
    asked = {"group": "api", "until": rfc3339(utc_now() + timedelta(hours=1)), "reason": "a new disk"}
    made = await olga.change("POST", "/api/v1/alerts/windows", json=asked)
    assert made.status_code == 201, made.text
    await asyncio.to_thread(night.kill)
    await night.stands()
    await night.quiet()
    night.none_since(before)
    removed = await olga.change("DELETE", f"/api/v1/alerts/windows/{made.json()['id']}")
    assert removed.status_code == 204, removed.text
    await night.kit.until(lambda: len(night.mails("opened")) > heard, WITHIN_S)  # it still stands
    await asyncio.to_thread(night.start_again)
    await night.over()


def test_who_is_woken_when_a_member_dies(tmp_path: Path) -> None:
    async def work(group: Group, box: Box, port: int) -> None:
        seed = Seed(group.urls["n1"])
        app = create_app(ConsoleSettings(db_url=str(tmp_path / "console.db"), seeds=(seed,), sample_interval_ms=200))
        async with app.router.lifespan_context(app):
            night = Night(Kit(app, FakeGroup()), group, box)
            ann, olga = await night.kit.person(), await night.kit.person("olga", "operator")
            made = await ann.change("POST", "/api/v1/alerts/routes", json=route_to(port))
            assert made.status_code == 201, made.text
            await night.in_step()
            for row in night.notifier.routes.values():
                row.reminder_s = 1
            await one_mail_and_one_when_it_is_over(night, olga)
            await none_while_muted(night, olga)
            await none_in_a_maintenance_window(night, olga)

    box = Box()
    with running_group(tmp_path) as group, server(box) as port:
        run(work(group, box, port))
