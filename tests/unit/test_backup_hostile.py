"""Back-ups that somebody else wrote, places that hold somebody else's files, and members that name files oddly."""

from __future__ import annotations

import asyncio
import copy
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.backup.console_db import check_database, copy_database, restore_database
from app.backup.sets import add_set
from app.backup.snapshots import with_snapshot
from app.backup.source import DirectorySource, SavedState
from app.backup.taking import BackupRefused
from app.security import trail_chain
from node.protocol.group_members import GroupMembers
from node.store.backup.command import GROUP, MEMBER, carry_out
from node.store.backup.manifest import BackupDamaged, File, check_files, read_manifest
from node.store.backup.restoring import alone_at
from node.store.errors import StoreError, StoreRefused
from node.store.files.os_files import pack_sealed_json, read_sealed_json
from tests.unit.backup_kit import TOKEN, add_members, back_up, make_member
from tests.unit.console_kit import BASE, running
from tests.unit.test_backup_command import make_database, rows_of

ODD: list[Any] = [
    None, True, -1, 2**63, 1.5, float("nan"), "x", "\ud800", "\x1b[31m", "/etc/passwd", "../../etc/passwd", [], {},
    ["x"], {"a": 1}, "9" * 9000, [[1, 2]],
]  # fmt: skip
FREE = {("made_at",), ("source",), ("extra",), ("runs",), ("console_db",), ("log",), ("format",)}


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places_in(one, (*at, key)))]


def test_a_manifest_with_anything_in_any_field_is_refused_in_words(tmp_path: Path) -> None:
    store = make_member(tmp_path / "a", 1, 5)
    add_members(store, GroupMembers({"n0": "127.0.0.1:1"}, removed={}))
    store.close()
    back_up(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b/manifest"
    good = read_sealed_json(path)
    assert good is not None
    taken = []
    for place in places_in(good)[1:]:
        for odd in ODD:
            value = holder = copy.deepcopy(good)
            for key in place[:-1]:
                holder = holder[key]
            holder[place[-1]] = odd
            path.write_bytes(pack_sealed_json(value))
            try:
                manifest = read_manifest(tmp_path / "b")
                assert manifest is not None
                check_files(tmp_path / "b", manifest)
            except StoreError:
                continue
            if place not in FREE:
                taken.append((place, odd))
    may = {("log", "group"), ("log", "group_id"), ("log", "kind"), ("log", "base"), ("log", "snapshot")}
    may |= {("log", "members"), ("log", "peers")}
    assert [one for one in taken if one[0] not in may] == []
    assert [odd for place, odd in taken if place == ("log", "group")] == ["x"]


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    """A FIFO would be waited for, a device read, for ever."""
    make_member(tmp_path / "a", 1, 5).close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None
    piece = tmp_path / "b/entries" / made.log.pieces[0].name
    piece.unlink()
    os.mkfifo(piece)
    with pytest.raises(BackupDamaged, match="FIFO"):
        check_files(tmp_path / "b", made)
    (tmp_path / "b/manifest").unlink()
    (tmp_path / "b/manifest").symlink_to("/dev/zero")
    with pytest.raises(StoreRefused, match="symbolic link"):
        read_manifest(tmp_path / "b")


@pytest.mark.parametrize(
    "name",
    ["entries/letter.txt", "snapshot-2024/photo", "snapshot-trip/photo", "trial-run/letter.txt", "console-log.txt",
     "trial-01234567/letter.txt", "entries.txt", "manifest.old"],
)  # fmt: skip
def test_files_that_are_named_almost_alike_stay(tmp_path: Path, name: str) -> None:
    make_member(tmp_path / "a", 1, 5).close()
    mine = tmp_path / "b" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(BackupRefused, match="no part of a back-up"):
        back_up(tmp_path / "a", tmp_path / "b")
    assert mine.read_text() == "mine"


def test_a_link_in_the_place_of_the_pieces_leads_to_nobody_s_files(tmp_path: Path) -> None:
    make_member(tmp_path / "a", 1, 5).close()
    other = tmp_path / "other" / f"{7:020d}"
    other.parent.mkdir()
    other.write_text("mine")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/entries").symlink_to(other.parent)
    with pytest.raises(BackupRefused, match="entries"):
        back_up(tmp_path / "a", tmp_path / "b")
    assert other.read_text() == "mine"


def test_sets_stand_beside_nothing_else(tmp_path: Path) -> None:
    mine = tmp_path / "root/removed-photos/one"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(BackupRefused, match="removed-photos"):
        add_set(tmp_path / "root", 1, lambda _one: {})
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", ["99991231T235959Z", "20249999T999999Z"])
def test_a_set_of_a_time_that_cannot_be_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "root" / name).mkdir(parents=True)
    with pytest.raises(BackupRefused, match=name):
        add_set(tmp_path / "root", 1, lambda _one: {})


def test_two_restores_at_once_are_refused(tmp_path: Path) -> None:
    """They would remove each other's files."""
    make_member(tmp_path / "a", 1, 5).close()
    back_up(tmp_path / "a", tmp_path / "b")
    order: dict[str, Any] = {"action": MEMBER, "source": str(tmp_path / "b"), "into": str(tmp_path / "new")}
    order |= {"id": "n1", "group": "g", "token": None, "voters": []}
    with alone_at(tmp_path / "new", is_group=False), pytest.raises(StoreRefused, match="another restore"):
        carry_out(order)
    assert list((tmp_path / "new").iterdir()) == []
    assert carry_out(order)["restored"][0]["end_index"] >= 4
    assert sorted(one.name for one in (tmp_path / "new").iterdir()) == ["dledger-n1", "operator-trail.jsonl"]
    order |= {"action": GROUP, "into": str(tmp_path / "all"), "group": "x", "token": TOKEN, "voters": ["n0"]}
    with alone_at(tmp_path / "all", is_group=True), pytest.raises(StoreRefused, match="another restore"):
        carry_out(order)
    assert carry_out(order)["restored"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "all", "b", "new"]


@pytest.mark.parametrize("folder", ["a#b", "a?mode=memory", "a%41", "a b"])
def test_a_database_in_a_directory_with_an_odd_name(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir()
    make_database(place / "console.db", rows=3)
    made = copy_database(str(place / "console.db"), place, "000001")
    check_database(place, made)
    restore_database(place, made, tmp_path / "back" / folder / "console.db")
    assert rows_of(tmp_path / "back" / folder / "console.db") == 3


@pytest.mark.parametrize("keep_tokens", [False, True])
def test_a_restored_console_opens_for_nothing_that_may_have_ended_since(tmp_path: Path, keep_tokens: bool) -> None:
    """Sessions and links never, API tokens only where whoever restores asks for it."""
    live, back = tmp_path / "live" / "console.db", tmp_path / "back" / "console.db"
    for one in (live, back):
        one.parent.mkdir()

    async def before() -> tuple[File, str, str, str]:
        async with running(tmp_path, seeded=False, db_url=f"sqlite:///{live}") as kit:
            ann = await kit.person("ann")
            token = (await ann.change("POST", "/api/v1/tokens", json={"name": "ci", "role": "viewer"})).json()["token"]
            link = await kit.link("bea", "admin")
            made = copy_database(str(live), tmp_path, "000001")
            assert (await kit.client(origin=BASE).post(link)).status_code == 303
            cookie = ann.client.cookies[kit.app.state.cookie_name()]
            assert (await ann.change("DELETE", "/api/v1/tokens/1")).status_code == 204
            assert (await ann.change("POST", "/logout")).status_code == 303
            return made, cookie, link, token

    async def after(cookie: str, link: str, token: str) -> None:
        async with running(tmp_path, seeded=False, db_url=f"sqlite:///{back}") as kit:
            thief = kit.client(origin=BASE, cookie=f"{kit.app.state.cookie_name()}={cookie}")
            assert (await thief.get("/api/v1/me")).status_code == 401
            assert (await kit.client(origin=BASE).post(link)).status_code == 410
            robot = kit.client(authorization=f"Bearer {token}")
            assert (await robot.get("/api/v1/clusters")).status_code == (200 if keep_tokens else 401)
            async with kit.app.state.sessions() as db:
                assert (await trail_chain.verify(db)).problems == []

    made, *shown = asyncio.run(before())
    back.parent.rmdir()
    ended = restore_database(tmp_path, made, back, keep_tokens=keep_tokens)
    assert ended == (0 if keep_tokens else 1)
    asyncio.run(after(*shown))


@pytest.mark.parametrize("name", ["../../../mine", "/tmp/mine", "sub/data", "\0"])
def test_a_member_that_names_files_elsewhere_writes_nowhere(tmp_path: Path, name: str) -> None:
    make_member(tmp_path / "a", 1, 5).close()
    made = back_up(tmp_path / "a", tmp_path / "b")
    assert made.log is not None

    class Hostile(DirectorySource):
        def snapshots(self) -> list[SavedState]:
            return [SavedState(3, ((name, 4),))]

        def read_snapshot(self, index: int, name: str, offset: int, length: int) -> bytes:
            return b"evil"

    source = Hostile(tmp_path / "a")
    before = sorted(tmp_path.rglob("*"))
    _, notes = with_snapshot(source, tmp_path / "b", replace(made.log, kind="kv"), None)
    source.close()
    assert "is not in the back-up" in notes[0]
    assert sorted(tmp_path.rglob("*")) == before
