"""`quorumscope backup` and `restore` as commands: what they print, refuse and leave behind."""

from __future__ import annotations

import io
import json
import os
import shlex
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.backup import sets
from app.backup.run import TrialFailed
from app.command_line import run
from app.commands.backup import Job
from node.snapshots.directory import SnapshotMeta, SnapshotWriter, newest_index
from node.store.backup import command as backup_process
from node.store.backup.command import carry_out
from node.store.backup.manifest import read_manifest, write_manifest
from node.store.errors import StoreError
from node.store.files.os_files import pack_sealed_json, read_sealed_json
from tests.unit.backup_kit import add, commit_all, make_member
from tests.unit.store_fixtures import open_store
from tests.unit.store_layout import flip

Json = dict[str, Any]
PEERS = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"


@pytest.fixture(autouse=True)
def no_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.demo.state.running_demo", lambda: None)


def at_once(order: Json) -> Json:
    """What the process does, without one."""
    try:
        return carry_out(order)
    except StoreError as error:
        raise TrialFailed(str(error)) from error


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.backup.run.in_process", at_once)


def command(capsys: pytest.CaptureFixture[str], *words: str | Path, code: int = 0) -> Json:
    assert run([*map(str, words), "--json"]) == code
    written = capsys.readouterr()
    result: Json = json.loads(written.out) if written.out else {"error": written.err}
    return result


@pytest.fixture
def member(tmp_path: Path) -> Path:
    make_member(tmp_path / "a", 2, 10).close()
    return tmp_path / "a"


def make_database(path: Path, rows: int = 3) -> None:
    with closing(sqlite3.connect(path)) as live:
        live.execute("PRAGMA journal_mode=WAL")
        live.execute("CREATE TABLE IF NOT EXISTS t (x)")
        live.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(rows)])
        live.commit()


def rows_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as live:
        return int(live.execute("SELECT count(*) FROM t").fetchone()[0])


def test_from_a_directory_to_a_new_group(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = command(capsys, "backup", tmp_path / "b", "--data", member, "--verify")
    assert (made["begin_index"], made["end_index"], made["new_entries"], made["verified"]) == (0, 19, 20, True)
    assert made["restored"]["entries"] == 20 and made["kind"] == "plain" and not made["notes"]
    trail = [json.loads(line) for line in (member / "operator-trail.jsonl").read_text().splitlines()]
    assert "backup" in json.dumps(trail[0]) and len(trail) == 2
    tested = command(capsys, "backup", "verify", tmp_path / "b")
    assert tested["verified"] and tested["restored"]["end_index"] == 19
    refused = command(capsys, "restore", tmp_path / "b", "--into", tmp_path / "new", "--group", "again", code=64)
    assert "--peers" in refused["error"]  # a directory does not say who the members are
    new = command(capsys, "restore", tmp_path / "b", "--into", tmp_path / "new", "--group", "again", "--peers", PEERS)
    assert [one["node_id"] for one in new["restored"]] == ["n0", "n1", "n2"] and new["group_id"] != made["group_id"]
    words = shlex.split(new["start"]["n1"])
    assert words[:2] == ["quorumscope", "node"] and "--init" not in words and words[-1].endswith("=1024")
    assert words[words.index("--data") + 1] == str(tmp_path / "new/n1")
    for one in ("n0", "n1", "n2"):
        path = tmp_path / "new" / one / "operator-trail.jsonl"
        assert "restore of entries 0 to 19" in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    again = command(
        capsys, "restore", tmp_path / "b", "--into", tmp_path / "new", "--group", "g", "--peers", PEERS, code=1
    )
    assert "not empty" in again["error"]


@pytest.mark.usefixtures("no_process")
def test_what_the_process_answers_names_any_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A restore into a directory whose name is not UTF-8 was done, and then a traceback and 2."""
    monkeypatch.setattr("node.store.backup.command.carry_out", lambda _order: {"directory": "new\udcff"})
    monkeypatch.setattr("sys.stdin", io.StringIO("{}"))
    assert backup_process.main() == 0
    assert json.loads(capsys.readouterr().out.encode("ascii")) == {"directory": "new\udcff"}


def test_a_restore_says_what_it_begins_with(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "backup", tmp_path / "b", "--data", member)
    assert run(["restore", str(tmp_path / "b"), "--into", str(tmp_path / "n1"), "--as", "n1", "--peers", PEERS]) == 0
    assert "restore: writing and checking 20 entries" in capsys.readouterr().err


@pytest.mark.usefixtures("no_process")
def test_what_starts_a_new_group_runs_as_it_is_printed_where_the_addresses_are_known(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A back-up over HTTP names the members' addresses; what is not known is said below the commands."""
    command(capsys, "backup", tmp_path / "b", "--data", member)
    made = read_manifest(tmp_path / "b")
    assert made is not None and made.log is not None
    for peers, says in (
        ({"n0": "a:1", "n1": "b:2"}, "where that one still runs, name others with --peers"),
        ({"n0": "", "n1": ""}, "HOST:PORT: the back-up does not say where these members are reached"),
    ):
        write_manifest(tmp_path / "b", replace(made, log=replace(made.log, peers=peers)))
        into = tmp_path / f"new{len(says)}"
        assert run(["restore", str(tmp_path / "b"), "--into", str(into), "--group", "x"]) == 0
        out = capsys.readouterr().out
        assert says in out and ("--peers 'n0-a:1;n1-b:2'" in out) is ("HOST:PORT" not in out) is bool(peers["n0"])


@pytest.mark.usefixtures("no_process")
def test_one_member_of_either_group(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "backup", tmp_path / "b", "--data", member)
    new = command(
        capsys, "restore", tmp_path / "b", "--into", tmp_path / "n2", "--group", "x", "--id", "n2",
        "--group-token", "abcdefgh", "--peers", PEERS,
    )  # fmt: skip
    assert new["restored"][0]["directory"] == str(tmp_path / "n2/dledger-n2")
    old = command(capsys, "restore", tmp_path / "b", "--into", tmp_path / "n1", "--as", "n1", "--peers", PEERS)
    assert "--join" in old["start"]["n1"] and old["restored"][0]["end_index"] == 19


@pytest.mark.parametrize(
    "words",
    [
        ("backup",), ("backup", "verify"), ("backup", "a", "b"), ("backup", "b"), ("backup", "b", "--every", "x"),
        ("backup", "b", "--every", "0s"), ("backup", "b", "--keep", "0"), ("backup", "b", "--node", "u", "--data", "d"),
        ("backup", "verify", "b", "--db", "x"), ("backup", "b", "--db", "x", "--scratch", "y"), ("restore", "b"),
        ("restore", "b", "--into", "x"), ("restore", "b", "--into", "x", "--group", "g", "--as", "n1"),
        ("restore", "b", "--into", "x", "--group", "g", "--id", "n0"),
        ("restore", "b", "--into", "x", "--group", "a b"),
        ("restore", "b", "--into", "x", "--group", "g", "--group-token", "short"),
        ("restore", "b", "--into", "x", "--as", "n1", "--peers", "nonsense"),
        ("restore", "b", "--db", "x", "--as", "n"),
        ("restore", "b", "--into", "x", "--group", "g", "--keep-tokens"),
    ],
)  # fmt: skip
def test_usage_errors_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(list(words)) == 64
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_refusals_have_their_codes(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = "http://127.0.0.1:1"
    assert "unreachable" in command(capsys, "backup", tmp_path / "b", "--node", nowhere, code=69)["error"]
    both = command(capsys, "backup", tmp_path / "b", "--node", nowhere, "--node", f"{nowhere}2", code=69)["error"]
    assert nowhere in both and f"{nowhere}2" in both
    assert not (tmp_path / "b").exists()
    inside = command(capsys, "backup", member / "b", "--data", member, code=1)["error"]
    assert "data directory" in inside and not (member / "b").exists()
    assert "no back-up" in command(capsys, "backup", "verify", tmp_path, code=1)["error"]
    assert "no back-up" in command(capsys, "restore", tmp_path, "--into", tmp_path / "x", "--as", "n0", code=1)["error"]
    for words in (("backup", "verify", tmp_path / "none"), ("restore", tmp_path / "none", "--into", "x", "--as", "n0")):
        assert "no such directory" in command(capsys, *words, code=64)["error"]
    assert not (tmp_path / "x").exists()


def test_the_member_of_a_configuration_and_the_demo_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "n0.toml").write_text('[control]\naddress = "127.0.0.1:9"\n[peers]\nn0 = "127.0.0.1:1"\n')
    own = command(capsys, "backup", tmp_path / "b", "--config", tmp_path / "n0.toml", code=69)
    assert "http://127.0.0.1:9 is unreachable" in own["error"]
    members = [SimpleNamespace(control_url=f"http://127.0.0.1:{port}") for port in (5, 6)]
    monkeypatch.setattr("app.demo.state.running_demo", lambda: SimpleNamespace(members=members, spelled="here"))
    demo = command(capsys, "backup", tmp_path / "b", code=69)["error"]
    assert "127.0.0.1:5 is" in demo and "127.0.0.1:6 is" in demo and "demo that is running" in demo
    assert not (tmp_path / "b").exists()


def test_a_small_disk_is_refused(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.store.files.platform.OsPlatform.space_left_bytes", lambda _self, _path: 1000)
    refused = command(capsys, "backup", tmp_path / "b", "--data", member, code=1)
    assert "1000 bytes left" in refused["error"]
    assert read_manifest(tmp_path / "b") is None


@pytest.mark.usefixtures("no_process")
def test_damage_ends_verify_and_restore_with_1(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command(capsys, "backup", tmp_path / "b", "--data", member)
    flip(next((tmp_path / "b/entries").iterdir()), 100)
    assert "SHA-256" in command(capsys, "backup", "verify", tmp_path / "b", code=1)["error"]
    words = ("restore", tmp_path / "b", "--into", tmp_path / "n1", "--as", "n1")
    assert "SHA-256" in command(capsys, *words, code=1)["error"]
    assert not (tmp_path / "n1/dledger-n1").exists()


# --- the console's database -------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_process")
def test_the_console_s_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = tmp_path / "console.db"
    make_database(db)
    live = sqlite3.connect(db)  # a console that runs, and has not written its WAL into the file
    live.execute("INSERT INTO t VALUES (4)")
    live.commit()
    made = command(capsys, "backup", tmp_path / "b", "--db", db)
    assert made["console_db"] == "console-000001.sqlite" and made["group"] is None
    live.execute("INSERT INTO t VALUES (5)")
    live.commit()
    made = command(capsys, "backup", tmp_path / "b", "--db", f"sqlite:///{db}", "--verify")
    assert made["console_db"] == "console-000002.sqlite" and made["verified"]
    live.close()
    copies = [path for path in (tmp_path / "b").iterdir() if path.name.startswith("console-")]
    assert [(path.name, path.stat().st_mode & 0o777) for path in copies] == [("console-000002.sqlite", 0o600)]
    command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "back/console.db")
    assert rows_of(tmp_path / "back/console.db") == 5
    assert os.stat(tmp_path / "back/console.db").st_mode & 0o777 == 0o600
    refused = command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "back/console.db", code=1)
    assert "is there already" in refused["error"]
    flip(copies[0], 5000)
    assert "SHA-256" in command(capsys, "backup", "verify", tmp_path / "b", code=1)["error"]
    assert "SHA-256" in command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "c.db", code=1)["error"]
    assert not (tmp_path / "c.db").exists()


def test_databases_that_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = command(capsys, "backup", tmp_path / "b", "--db", "postgresql://u@h/d", code=1)["error"]
    assert "pg_dump" in wanted
    assert "no such database" in command(capsys, "backup", tmp_path / "b", "--db", tmp_path / "x", code=1)["error"]
    (tmp_path / "no.db").write_bytes(b"not a database" * 400)
    assert "no.db" in command(capsys, "backup", tmp_path / "b", "--db", tmp_path / "no.db", code=1)["error"]
    assert read_manifest(tmp_path / "b") is None if (tmp_path / "b").exists() else True


@pytest.mark.usefixtures("no_process")
def test_log_and_database_in_one(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_database(tmp_path / "console.db")
    made = command(capsys, "backup", tmp_path / "b", "--data", member, "--db", tmp_path / "console.db", "--verify")
    assert made["entries"] == 20 and made["console_db"] and made["verified"]
    more = command(capsys, "backup", tmp_path / "b", "--data", member)
    assert more["console_db"] == made["console_db"] and more["new_entries"] == 0  # what there is stays


@pytest.mark.usefixtures("no_process")
def test_a_restored_database_is_that_of_the_run_that_copied_it(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later run of the log alone gave its own time to the older copy: whoever restored it was to believe that a user
    who was disabled in between was disabled in it."""
    make_database(tmp_path / "console.db")
    monkeypatch.setattr("app.backup.run.now_text", lambda: "2026-11-01T00:00:00Z")
    command(capsys, "backup", tmp_path / "b", "--db", tmp_path / "console.db")
    monkeypatch.setattr("app.backup.run.now_text", lambda: "2026-11-29T00:00:00Z")
    later = command(capsys, "backup", tmp_path / "b", "--data", member)
    assert (later["made_at"], later["console_db_made_at"]) == ("2026-11-29T00:00:00Z", "2026-11-01T00:00:00Z")
    assert run(["backup", str(tmp_path / "b"), "--data", str(member)]) == 0
    assert "the console's database of 2026-11-01T00:00:00Z" in capsys.readouterr().out
    done = command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "back.db")
    assert done["made_at"] == "2026-11-01T00:00:00Z"


def test_a_restored_database_takes_no_other_one_s_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SQLite rolls what a killed writer's journal holds back into any database of that name."""
    db = tmp_path / "console.db"
    make_database(db)
    command(capsys, "backup", tmp_path / "b", "--db", db)
    journal = tmp_path / "back.db-journal"
    journal.write_bytes(b"a journal that was left")
    refused = command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "back.db", code=1)["error"]
    assert "back.db-journal is there already" in refused
    journal.unlink()
    command(capsys, "restore", tmp_path / "b", "--db", tmp_path / "back.db")


# --- several sets -----------------------------------------------------------------------------------------------------
def at(root: Path, *names: str) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.name != "lock" and path.name not in names)


@pytest.mark.usefixtures("no_process")
def test_the_newest_sound_ones_stay(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "sets"
    first = command(capsys, "backup", root, "--data", member, "--keep", "2")
    assert Path(first["directory"]).parent == root and first["removed"] == []
    for number, name in enumerate(("20200101T000000Z", "20200102T000000Z", "20200103T000000Z")):
        made = Path(first["directory"])
        copy = root / name
        copy.mkdir(mode=0o700)
        (copy / "entries").mkdir()
        for path in made.rglob("*"):
            if path.is_file() and path.name != "lock":
                (copy / path.relative_to(made)).write_bytes(path.read_bytes())
        if number == 2:
            next((copy / "entries").iterdir()).unlink()  # damaged: it counts for nothing
    (root / "20200104T000000Z.part").mkdir()  # of a run that was ended
    assert sets.drop_old(root, 3) == []  # three sound ones, and one that is not
    gone = sets.drop_old(root, 2)
    assert [one.name for one in gone] == ["20200101T000000Z"]
    assert sets.newest_in(root) == Path(first["directory"])
    report = command(capsys, "backup", "verify", root, code=1)
    assert [one["verified"] for one in report["items"]] == [True, False, True]
    restored = command(capsys, "restore", root, "--into", tmp_path / "n1", "--as", "n1")
    assert restored["restored"][0]["end_index"] == 19


def test_a_run_that_fails_removes_nothing(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "sets"
    command(capsys, "backup", root, "--data", member, "--keep", "1")
    before = at(root)
    command(capsys, "backup", root, "--node", "http://127.0.0.1:1", "--keep", "1", code=69)
    flip(member / "dledger-n0/data" / f"{0:020d}", 60)
    command(capsys, "backup", root, "--data", member, "--keep", "1", code=1)
    assert [name for name in at(root) if not name.endswith(".part")] == before
    with pytest.raises(ValueError, match="one at the least"):
        sets.drop_old(root, 0)


def test_sets_and_one_back_up_do_not_mix(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "backup", tmp_path / "b", "--data", member)
    refused = command(capsys, "backup", tmp_path / "b", "--data", member, "--keep", "2", code=1)
    assert "sets of back-ups" in refused["error"]
    command(capsys, "backup", tmp_path / "s", "--data", member, "--keep", "2")
    assert "no part of a back-up" in command(capsys, "backup", tmp_path / "s", "--data", member, code=1)["error"]


def test_over_and_over(
    tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that fails is said, and the next one comes; Ctrl-C ends it."""
    pauses: list[float] = []
    work, runs = Job.run, iter((1, 2, 3))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    def run_or_fail(job: Job) -> Json:
        if next(runs) == 2:
            raise OSError("the disk is gone")
        return work(job)

    monkeypatch.setattr("app.commands.backup.time.sleep", sleep)
    monkeypatch.setattr(Job, "run", run_or_fail)
    assert run(["backup", str(tmp_path / "b"), "--data", str(member), "--every", "6h"]) == 130
    written = capsys.readouterr()
    assert "the disk is gone" in written.err and "21600 s" in written.err
    assert written.out.count("entries 0 to 19") == 2 and len(pauses) == 3 and max(pauses) <= 21600
    found = read_manifest(tmp_path / "b")
    assert found is not None and found.runs == 2


# --- a state machine's group ------------------------------------------------------------------------------------------
@pytest.mark.usefixtures("no_process")
def test_a_snapshot_is_taken_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store(tmp_path / "a/dledger-n0", kind="kv")
    add(store, 3, 60)
    commit_all(store)
    store.remove_prefix(store.end_index - 60)
    begin, end = store.begin_index, store.end_index
    assert begin > 0
    lacking = command(capsys, "backup", tmp_path / "b", "--data", tmp_path / "a", code=1)
    assert any("cannot be built again" in note for note in lacking["notes"]) and lacking["snapshot_index"] is None
    assert "cannot be built again" in lacking["lacks_state"]
    restore = ("restore", tmp_path / "b", "--into", tmp_path / "m", "--as", "n1")
    assert "cannot be built again" in command(capsys, *restore, code=1)["error"]
    for index in (begin - 2, begin + 5):
        writer = SnapshotWriter(store.directory)
        writer.write(b"state of %d" % index)
        writer.commit(SnapshotMeta(index, 3))
    made = command(capsys, "backup", tmp_path / "b", "--data", tmp_path / "a", "--verify")
    assert made["snapshot_index"] == begin + 5 and made["end_index"] == end and made["verified"]
    assert not any("cannot" in note for note in made["notes"])
    again = command(capsys, "backup", tmp_path / "b", "--data", tmp_path / "a")
    assert again["snapshot_index"] == begin + 5
    new = command(capsys, "restore", tmp_path / "b", "--into", tmp_path / "n", "--group", "x", "--peers", PEERS)
    for one in new["restored"]:
        assert newest_index(Path(one["directory"])) == begin + 5 and one["end_index"] == end + 1
    assert "--state-machine kv" in new["start"]["n0"]
    flip(next((tmp_path / "b").glob("snapshot-*/*/data")), 3)
    assert "SHA-256" in command(capsys, *restore, code=1)["error"]
    store.close()


def test_a_set_without_its_state_takes_no_sound_ones_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a run ended with 0, and its sets counted as sound: with `--keep 1` the one that could be restored went."""
    root, words = tmp_path / "sets", ("--data", tmp_path / "a", "--keep", "1")
    store = open_store(tmp_path / "a/dledger-n0", kind="kv")
    add(store, 3, 60)
    commit_all(store)
    store.remove_prefix(store.end_index - 60)
    writer = SnapshotWriter(store.directory)
    writer.write(b"state")
    saved = writer.commit(SnapshotMeta(store.begin_index + 5, 3))
    sound = command(capsys, "backup", root, *words)
    (saved.path / "data").write_bytes(b"stale")  # its disk rots, and the scrub has not seen it yet
    refused = command(capsys, "backup", root, *words, code=1)["error"]
    assert "cannot be built again" in refused and "no other one goes" in refused
    assert sets.sets_in(root) == [sets.newest_in(root)] == [Path(sound["directory"])]
    older = root / "20200101T000000Z"  # as an earlier release made them
    command(capsys, "backup", older, "--data", tmp_path / "a", code=1)
    older.rename(root / "29990101T000000Z")
    assert not sets.is_sound(root / "29990101T000000Z") and sets.newest_in(root) == Path(sound["directory"])
    store.close()


def test_where_the_newest_snapshot_is_damaged_the_one_before_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(tmp_path / "a/dledger-n0", kind="kv")
    add(store, 3, 60)
    commit_all(store)
    store.remove_prefix(store.end_index - 60)
    begin = store.begin_index
    for index in (begin + 5, begin + 9):
        writer = SnapshotWriter(store.directory)
        writer.write(b"state of %d" % index)
        saved = writer.commit(SnapshotMeta(index, 3))
    flip(saved.path / "data", 3)
    made = command(capsys, "backup", tmp_path / "b", "--data", tmp_path / "a", "--verify")
    assert made["snapshot_index"] == begin + 5 and made["verified"] and made["lacks_state"] is None
    assert any(f"up to entry {begin + 9} is not in the back-up" in note for note in made["notes"])
    store.close()


@pytest.mark.usefixtures("no_process")
def test_the_class_of_ones_own_state_machine_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its kind, the name in small letters, starts nothing: the printed command has to say what is missing."""
    store = open_store(tmp_path / "a/dledger-n0", kind="accounts")
    add(store, 1, 3)
    commit_all(store)
    store.close()
    command(capsys, "backup", tmp_path / "b", "--data", tmp_path / "a")
    for target in (("--as", "n1"), ("--group", "x", "--peers", PEERS)):
        assert run(["restore", str(tmp_path / "b"), "--into", str(tmp_path / target[0].strip("-")), *target]) == 0
        said = capsys.readouterr().out
        assert "--state-machine PACKAGE.MODULE:CLASS" in said and "of the kind 'accounts'" in said


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize("target", [("--as", "n1"), ("--group", "x")])
def test_what_a_printed_start_lacks_is_said(
    target: tuple[str, str], tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Started as printed, a member of a group with a secret was refused."""
    command(capsys, "backup", tmp_path / "b", "--data", member)
    assert run(["restore", str(tmp_path / "b"), "--into", str(tmp_path / "d"), *target, "--peers", PEERS]) == 0
    said = capsys.readouterr().out
    assert "--id n1 " in said
    assert "add what no back-up holds, as each member had it: --control, --secret-file, or its --config" in said


def test_a_manifest_of_another_group_is_seen(tmp_path: Path, member: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(capsys, "backup", tmp_path / "b", "--data", member)
    value = read_sealed_json(tmp_path / "b/manifest")
    assert value is not None
    value["log"]["group_id"] = "f" * 32
    (tmp_path / "b/manifest").write_bytes(pack_sealed_json(value))
    assert "another group" in command(capsys, "backup", tmp_path / "b", "--data", member, code=1)["error"]
