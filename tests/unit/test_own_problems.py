"""The console's own problems: by table over facts, and the facts from a real database, real files and fake clocks."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from app.console import own_rules as own
from app.console.docs_pages import anchor
from app.console.own_facts import (
    CertificateFacts,
    ClockFacts,
    DatabaseFacts,
    DiskFacts,
    OwnFacts,
    TokenFacts,
)
from app.console.own_rules import AUTHORITIES, OURS, OwnProblems
from app.console.own_watch import OwnWatch
from app.db.engine import open_engine, open_sessions
from app.db.models import ApiToken
from app.db.opened_file import OpenedFile
from app.times import utc_now
from node.certificates import ends_of, not_after
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.receivers import Receiver, http_receiver

T0 = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)
DAY = timedelta(days=1)
GB = 1_000_000_000


def facts(**more: Any) -> OwnFacts:
    return OwnFacts(as_of=T0, **more)


def disk(free: int, total: int = 100 * GB) -> OwnFacts:
    return facts(disk=DiskFacts(path="/var/lib/q", free_bytes=free, total_bytes=total))


def certificate(left: timedelta | None, what: str = OURS) -> OwnFacts:
    ends = None if left is None else T0 + left
    error = "FileNotFoundError" if left is None else None
    return facts(certificates=(CertificateFacts(what=what, path="/etc/q.pem", ends_at=ends, error=error),))


def token(left: timedelta, used_ago: timedelta | None = DAY) -> OwnFacts:
    used = None if used_ago is None else T0 - used_ago
    return facts(tokens=(TokenFacts(id=3, name="ci", user="ann", ends_at=T0 + left, used_at=used),))


def test_a_file_that_could_not_be_read_again_is_a_problem_until_it_was() -> None:
    rules = OwnProblems()
    (found,) = rules.judge(facts(not_reread="the console's certificate: gone", not_reread_since=T0 - DAY))
    assert (found.code, found.severity, found.since) == ("file_not_reread", "attention", "2026-11-21T03:00:00.000Z")
    assert "the console's certificate: gone" in found.text and "SIGHUP" in found.next_step
    assert rules.judge(facts()) == []


def clocks(*offsets_s: float, margin_ms: float = 600.0) -> OwnFacts:
    found = [
        ClockFacts(scope="demo", group="demo", node_id=f"n{n}", offset_ms=one * 1000, margin_ms=margin_ms)
        for n, one in enumerate(offsets_s)
    ]
    return facts(clocks=tuple(found))


LOCKED = DatabaseFacts(failing_since=T0 - 3 * DAY, error="database is locked", place="/q.db", size_bytes=9)


@pytest.mark.parametrize(
    ("known", "found"),
    [
        (facts(), []),
        (facts(database=DatabaseFacts(write_ms=3.0, size_bytes=10**6)), []),
        (facts(database=LOCKED), [("critical", "The console's database cannot be written: database is locked.")]),
        (facts(database=DatabaseFacts(write_ms=1500.0)),
         [("attention", "The console's database takes 1.5 s for one write.")]),
        (facts(database=DatabaseFacts(write_ms=1.0, size_bytes=5 * GB)),
         [("attention", "The console's database has 5.0 GB.")]),
        (disk(6 * GB), []),
        (disk(4 * GB), [("attention", "The disk of this console has 4.00 GB of 100 GB left.")]),
        (disk(GB // 10), [("critical", "The disk of this console has 0.10 GB of 100 GB left.")]),
        (disk(6 * GB, 10_000 * GB), []),
        (certificate(22 * DAY), []),
        (certificate(20 * DAY), [("attention", "The certificate of this console ends in 20 d.")]),
        (certificate(2 * DAY), [("critical", "The certificate of this console ends in 2 d.")]),
        (certificate(-DAY),
         [("critical", "The certificate of this console is not valid any more; it ended 24 h ago.")]),
        (certificate(None), [("attention", "The certificate of this console cannot be read: FileNotFoundError.")]),
        (certificate(5 * DAY, AUTHORITIES), [("attention", "The last authority for control planes ends in 5 d.")]),
        (token(8 * DAY), []),
        (token(6 * DAY), [("info", "The API token ci of ann ends in 6 d.")]),
        (token(DAY / 2), [("attention", "The API token ci of ann ends in 12 h.")]),
        (token(-DAY, 2 * DAY), [("attention", "The API token ci of ann ended 24 h ago.")]),
        (token(DAY / 2, None), []),
        (token(DAY / 2, 30 * DAY), []),
        (clocks(0.1, -0.1, 1.9), []),
        (clocks(2.5, margin_ms=600.0), []),
        (clocks(0.0, 41.0, 0.1), [("attention", "The clock of n1 (demo) is 41 s ahead of this console's.")]),
        (clocks(0.0, -3.5, 0.1), [("attention", "The clock of n1 (demo) is 3.5 s behind this console's.")]),
        (clocks(41.0, 41.2, 40.9),
         [("attention", "The clock of this console is 41 s behind those of all 3 members that it asks.")]),
        (clocks(-41.0, -41.2),
         [("attention", "The clock of this console is 41 s ahead of those of all 2 members that it asks.")]),
        (clocks(41.0, -41.0), [("attention", "The clock of n0 (demo) is 41 s ahead of this console's."),
                               ("attention", "The clock of n1 (demo) is 41 s behind this console's.")]),
        (clocks(41.0), [("attention", "The clock of n0 (demo) is 41 s ahead of this console's.")]),
    ],
)  # fmt: skip
def test_each_rule(known: OwnFacts, found: list[tuple[str, str]]) -> None:
    rules = OwnProblems()
    rules.judge(known.model_copy(update={"as_of": T0 - timedelta(seconds=20)}))
    later = rules.judge(known)
    assert [(one.severity, one.text) for one in later] == found
    for one in later:
        assert one.means and one.at_stake and one.next_step and "/" not in one.id and one.docs == own.DOCS


def test_a_finding_is_worth_a_word_once_it_has_stood_for_its_grace() -> None:
    rules = OwnProblems()
    assert rules.judge(clocks(41.0)) == []
    (later,) = rules.judge(clocks(41.0).model_copy(update={"as_of": T0 + timedelta(seconds=15)}))
    assert later.since == "2026-11-22T03:00:00.000Z"
    assert rules.judge(clocks(0.0)) == [] and rules.judge(clocks(41.0)) == [], "it begins anew"
    (locked,) = rules.judge(facts(database=LOCKED))
    assert locked.since == "2026-11-19T03:00:00.000Z"


def test_the_documentation_has_the_section() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text()
    name, _, section = own.DOCS.partition("#")
    assert name == "docs/notifications.md"
    assert section in {anchor(line.lstrip("# ")) for line in page.splitlines() if line.startswith("## ")}
    codes = {"database_not_writable", "database_slow", "database_large", "console_disk_low", "certificate_ends",
             "token_ends", "clock_differs"}  # fmt: skip
    source = Path(own.__file__).read_text()
    for code in codes:
        assert f"`{code}`" in page and f'"{code}"' in source


# --- certificates ---


def made(place: Path, days: int, name: str = "crt") -> Path:
    path = place / name
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", str(days), "-subj", "/CN=localhost",
         "-keyout", place / f"{name}.key", "-out", path],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


def openssl_s_word(path: Path) -> datetime:
    said = subprocess.run(
        ["openssl", "x509", "-noout", "-enddate", "-in", path], check=True, capture_output=True, text=True
    )
    return datetime.strptime(said.stdout.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)


@pytest.mark.parametrize("days", [1, 400, 20_000])
def test_the_end_of_a_certificate_is_what_openssl_says(tmp_path: Path, days: int) -> None:
    """From 2050 on it is written otherwise."""
    path = made(tmp_path, days)
    assert ends_of(path) == [openssl_s_word(path)]


def test_a_file_of_several_certificates(tmp_path: Path) -> None:
    paths = [made(tmp_path, days, f"c{days}") for days in (3, 9)]
    both = tmp_path / "both"
    both.write_text("a comment\n" + "".join(one.read_text() for one in paths))
    assert ends_of(both) == [openssl_s_word(one) for one in paths]
    with pytest.raises(ValueError, match="holds no certificate"):
        ends_of(tmp_path / "c3.key")


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        not_after(data)


@given(st.integers(0, 60), st.binary(min_size=1, max_size=3))
def test_a_damaged_certificate_is_a_time_or_an_error(at: int, junk: bytes) -> None:
    tbs = b"\xa0\x03\x02\x01\x02" + b"\x02\x01\x01" + b"\x30\x00" + b"\x30\x00"
    tbs += b"\x30\x1e" + b"\x17\x0d261122030000Z" + b"\x17\x0d271122030000Z"
    der = b"\x30" + bytes([len(tbs) + 2]) + b"\x30" + bytes([len(tbs)]) + tbs
    assert not_after(der) == datetime(2027, 11, 22, 3, 0, tzinfo=UTC)
    damaged = der[:at] + junk + der[at + len(junk) :]
    with suppress(ValueError):
        assert not_after(damaged).tzinfo is UTC


# --- the facts ---


def test_a_locked_database_is_found_reported_and_so_is_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.db.engine.BUSY_S", 1.0)
    monkeypatch.setattr("app.console.own_watch.LOOK_EVERY_S", 0.3)
    monkeypatch.setattr("app.notify.notifier.TICK_S", 0.1)
    for name in ("notifier.OPENS_AFTER_S", "notifier.OVER_AFTER_START_S", "rules.OVER_AFTER_S"):
        monkeypatch.setattr(f"app.notify.{name}", 0.0)

    def reported(receiver: Receiver) -> list[str]:
        sent = [json.loads(body) for _, body in receiver.got]
        return [one["kind"] for one in sent if one["problem"]["code"] == "database_not_writable"]

    async def work() -> None:
        async with http_receiver() as receiver, running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            watch: OwnWatch = kit.app.state.own_watch
            body = {"name": "ops", "webhook": {"url": receiver.url}, "hold_s": 0}
            async with asyncio.timeout(60):  # a machine that is slow now may let a writer wait for more than BUSY_S
                while (await ann.change("POST", "/api/v1/alerts/routes", json=body)).status_code not in (201, 409):
                    pass
            await kit.until(lambda: watch.facts.database.write_ms is not None)
            with sqlite3.connect(tmp_path / "console.db", isolation_level=None) as other:
                other.execute("BEGIN IMMEDIATE")
                await kit.until(lambda: reported(receiver)[-1:] == ["opened"])
                await kit.until(lambda: watch.facts.database.error is not None)
                found = (await ann.get("/api/v1/problems")).json()["console"]
                assert found[0]["code"] == "database_not_writable" and "database is locked" in found[0]["text"]
                page = (await ann.get("/")).text
                assert "This console" in page and "The console's database cannot be written" in page.replace(
                    "&#39;", "'"
                )
                other.execute("ROLLBACK")
            other.close()
            await kit.until(lambda: reported(receiver)[-1] == "over")

    run(work())


def test_a_database_whose_directory_is_none_any_more_is_refused_as_one_whose_file_is_gone(tmp_path: Path) -> None:
    """Any other error is one that nobody who writes expects."""
    (directory := tmp_path / "db").mkdir()
    file = OpenedFile(directory / "console.db")
    file.path.touch()
    file.connected()
    file.check()
    directory.rename(tmp_path / "aside")
    directory.touch()
    with pytest.raises(sqlite3.OperationalError, match="removed or replaced"):
        file.check()


@asynccontextmanager
async def removed(kit: Kit, ann: Person, file: Path, said: str) -> AsyncIterator[None]:
    """A file of the database is moved away, and put back at the end: the problem is `said`, and no change is taken."""
    watch: OwnWatch = kit.app.state.own_watch
    body = {"name": "ops", "webhook": {"url": "http://127.0.0.1:9/"}, "hold_s": 0}
    await kit.until(lambda: watch.facts.database.write_ms is not None)
    aside = file.rename(file.with_name("aside"))
    await kit.until(lambda: watch.facts.database.error is not None)
    (found,) = (await ann.get("/api/v1/problems")).json()["console"]
    assert found["code"] == "database_not_writable" and said in found["text"]
    answer = await ann.change("POST", "/api/v1/alerts/routes", json=body)
    assert answer.status_code == 503, answer.text
    yield
    aside.rename(file)
    await kit.until(lambda: watch.facts.database.error is None)
    assert (await ann.change("POST", "/api/v1/alerts/routes", json=body)).status_code == 201


@pytest.mark.sqlite
def test_a_write_ahead_log_that_was_removed_alone_is_found_and_nothing_is_written_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections that had it open wrote on into it, and all of it went with a console that was killed."""
    monkeypatch.setattr("app.console.own_watch.LOOK_EVERY_S", 0.05)

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            async with removed(kit, ann, tmp_path / "console.db-wal", "write-ahead log (-wal) was removed"):
                pass

    run(work())


@pytest.mark.sqlite
def test_a_write_ahead_log_that_goes_with_its_last_connection_is_no_loss(tmp_path: Path) -> None:
    async def work() -> None:
        engine = open_engine(f"sqlite:///{tmp_path / 'console.db'}")
        sessions = open_sessions(engine)
        for number in range(3):
            async with sessions() as db, db.begin():
                await db.execute(text(f"CREATE TABLE t{number} (n INTEGER)"))
            await engine.dispose()
            assert not (tmp_path / "console.db-wal").exists()

    run(work())


@pytest.mark.sqlite
def test_a_database_whose_file_was_removed_is_found_and_takes_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite goes on writing into a file that has no name any more, and all of it is gone with the console."""
    monkeypatch.setattr("app.console.own_watch.LOOK_EVERY_S", 0.05)

    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            file = tmp_path / "console.db"
            async with removed(kit, ann, file, "removed or replaced"):
                answers = await asyncio.gather(*(ann.get("/api/v1/clusters") for _ in range(12)))
                assert {one.status_code for one in answers} <= {200, 503} and not file.exists()

    run(work())


def test_the_console_tells_of_its_disk_certificate_tokens_and_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.console.own_watch.LOOK_EVERY_S", 0.05)
    monkeypatch.setattr("app.console.own_watch.fresh", lambda seen, _now: seen is not None)
    path = made(tmp_path, 2)

    async def work() -> None:
        base = "https://127.0.0.1:8421"
        tls = {"tls_cert_file": path, "tls_key_file": tmp_path / "crt.key"}
        async with running(tmp_path, base=base, **tls) as kit:
            kit.group.nodes["n1"].clock_s = 41.0
            ann = await kit.person()
            now = utc_now()
            async with kit.app.state.sessions() as db, db.begin():
                for name, ends, used in (("ci", now + DAY, now), ("old", now + DAY, now - 30 * DAY)):
                    db.add(
                        ApiToken(user_id=1, name=name, prefix="qsc_", token_hash=name, role="viewer", expires_at=ends,
                                 last_used_at=used)
                    )  # fmt: skip
            await kit.watched()

            def seen() -> bool:
                found = {one.node_id: one.offset_ms for one in kit.app.state.own_watch.facts.clocks}
                tokens = kit.app.state.own_watch.facts.tokens
                return len(found) == 3 and found["n1"] > 30_000 and len(tokens) == 2

            await kit.until(seen)
            answer = (await ann.get("/api/v1/console")).json()
            assert answer["disk"]["free_bytes"] > 0 and answer["database"]["size_bytes"] > 0
            codes = [one["code"] for one in answer["problems"]]
            assert {"certificate_ends", "token_ends"} <= set(codes)
            texts = " ".join(one["text"] for one in answer["problems"])
            assert "The certificate of this console ends in" in texts and "ci of ann ends in" in texts
            assert "old" not in texts
            page = (await ann.get("/notifications")).text
            assert "API tokens" in page and "2 near their end" in page

    run(work())
