"""`store inspect` and `store verify`: the JSON that scripts rely on, for sound, damaged and Java directories."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.cli import run
from app.demo.breaks import CannotBreak, flip_one_bit
from node.snapshots import directory
from node.snapshots.directory import Snapshot, SnapshotMeta, SnapshotWriter
from node.store.file_store import FileStore
from node.store.files.platform import Platform

SHAPE = {"entries", "begin_index", "end_index", "end_term", "terms", "sealed", "problems"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A stopped member's data directory with fifty entries."""
    store = FileStore.open(
        tmp_path / "dledger-n0", group="g", node_id="n0", data_file_size=65536, index_file_size=32 * 1024, init=True
    )
    store.append_as_leader([b"body %d" % number for number in range(50)], term=1)
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.note_progress(49, 49)
    store.close()
    return tmp_path


def test_a_sound_store(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "verify", str(data), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == SHAPE
    assert (report["entries"], report["begin_index"], report["end_index"], report["problems"]) == (50, 0, 49, [])
    assert run(["store", "inspect", str(data / "dledger-n0")]) == 0
    assert "node_id: n0" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["verify", "inspect"])
@pytest.mark.parametrize("kind", ["data", "index"])
@pytest.mark.parametrize("java", [False, True])
def test_a_file_size_that_the_store_contradicts_is_no_damage(
    data: Path, capsys: pytest.CaptureFixture[str], command: str, kind: str, java: bool
) -> None:
    store = data / "dledger-n0"
    if java:
        for path in (path for path in store.iterdir() if path.name not in ("data", "index")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    known = {"data": 65536, "index": 32 * 1024}
    assert run(["store", command, str(data), f"--{kind}-file-size", "4096"]) == 64
    said = capsys.readouterr()
    assert said.out == "" and f"--{kind}-file-size 4096: " in said.err and str(known[kind]) in said.err
    assert run(["store", command, str(data), f"--{kind}-file-size", str(known[kind])]) == 0


@pytest.mark.parametrize("name", ["hardstate", "currterm", "quorumscope.json"])
@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_state_file_of_no_such_length_is_named_and_not_read_into_memory(
    data: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    """A sparse one of 64 GiB: it ended in a MemoryError."""
    path = data / "dledger-n0" / name
    os.truncate(path, 64 << 30)
    assert run(["store", command, str(data)]) == 2
    said = capsys.readouterr().err
    assert f"{path} is {64 << 30} bytes long" in said and "move it away" in said


@pytest.mark.parametrize("name", ["snapshot_meta", "quorumscope-meta"])
def test_a_snapshot_whose_description_has_no_such_length_is_damaged(
    data: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    writer = SnapshotWriter(data / "dledger-n0")
    writer.write(b"state")
    path = writer.commit(SnapshotMeta(49, 1)).path / name
    os.truncate(path, 64 << 30)
    assert run(["store", "verify", str(data), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["class"] == "snapshot_damaged" and f"it is {64 << 30} bytes long" in problem["detail"]


def test_a_flipped_bit_is_found_at_its_index(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, path, offset = flip_one_bit(data / "dledger-n0")
    assert (index, path.parent.name) == (32, "data")
    assert os.stat(path).st_size == 65536, "the file's length stays"
    assert run(["store", "verify", str(data), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert set(problem) == {"class", "index", "last_index", "file", "detail"}
    assert (problem["class"], problem["index"]) == ("crc_invalid", index)
    assert flip_one_bit(data / "dledger-n0") == (index, path, offset)
    assert run(["store", "verify", str(data)]) == 0, "flipped twice is as it was"


def saved(store: Path, index: int, state: bytes = b"the state") -> Path:
    """A snapshot of the store's; where its data lies."""
    writer = SnapshotWriter(store)
    writer.write(state)
    return writer.commit(SnapshotMeta(index, 1)).path / "data"


def test_a_snapshot_that_is_not_what_was_written_is_a_problem(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = data / "dledger-n0"
    saved(store, 10)
    rotten = saved(store, 20)
    assert run(["store", "verify", str(data)]) == 0
    assert "every record and every snapshot was read" in capsys.readouterr().out
    rotten.write_bytes(b"tHe state")
    assert run(["store", "verify", str(data), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert set(problem) == {"class", "index", "last_index", "file", "detail"}
    assert (problem["class"], problem["index"], problem["file"]) == ("snapshot_damaged", 20, "snapshot/snapshot_20")
    assert "does not match its checksum" in problem["detail"] and "puts it aside" in problem["detail"]
    (store / "snapshot" / "snapshot_10" / "quorumscope-meta").write_bytes(b"rot")
    assert run(["store", "verify", str(data)]) == 1
    assert "2 problems" in capsys.readouterr().out


def test_a_damaged_snapshot_is_no_store_with_nothing_to_repair(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rotten = saved(data / "dledger-n0", 20)
    assert run(["store", "repair", str(data)]) == 0
    assert "every record and every snapshot was read" in capsys.readouterr().out
    rotten.write_bytes(b"tHe state")
    assert run(["store", "repair", str(data)]) == 1
    said = capsys.readouterr().out
    assert "! The snapshot of entry 20: damaged" in said and "does not match its checksum" in said
    assert "-> Start the member: it puts this snapshot aside" in said and "Nothing is wrong" not in said
    assert rotten.read_bytes() == b"tHe state"


@pytest.mark.parametrize("name", ["data", "snapshot_meta", "quorumscope-meta"])
def test_a_fifo_in_a_snapshot_is_waited_for_by_nobody(
    data: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(data / "dledger-n0", 10, b"").with_name(name)
    path.unlink()
    os.mkfifo(path)
    assert run(["store", "verify", str(data), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["class"] == "snapshot_damaged" and f"{name} is a FIFO" in problem["detail"]
    found, wrong = directory.newest_sound(data / "dledger-n0")
    assert found is None and len(wrong) == 1


def test_a_snapshot_that_goes_while_it_is_read_is_no_problem(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = data / "dledger-n0"
    gone = saved(store, 10).parent
    read = directory.read_snapshot

    def late(path: Path, platform: Platform) -> Snapshot:
        shutil.rmtree(gone)
        return read(path, platform)

    monkeypatch.setattr(directory, "read_snapshot", late)
    assert directory.damaged_in(store) == []


@pytest.mark.parametrize("words", [["verify"], ["verify", "--json"], ["inspect"]])
def test_a_folder_with_nothing_in_it_is_no_sound_store(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It was "no problem found", 0: of a wrong path, or of one whose files are gone."""
    (tmp_path / "data").mkdir()
    assert run(["store", words[0], str(tmp_path), *words[1:]]) == 64
    said = capsys.readouterr()
    assert not said.out and "there is nothing in data/ and no quorumscope.json" in said.err


def test_nothing_committed_nothing_flipped(tmp_path: Path) -> None:
    store = FileStore.open(
        tmp_path / "s", group="g", node_id="n0", data_file_size=65536, index_file_size=1024, init=True
    )
    store.close()
    with pytest.raises(CannotBreak, match="no committed message"):
        flip_one_bit(tmp_path / "s")


def test_a_directory_of_the_java_original_is_read_as_it_is(vectors: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = sorted(path.parent for path in (vectors / "store").rglob("data") if path.is_dir())
    assert stores
    for store in stores:
        assert run(["store", "inspect", str(store), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["written_by"] == "DLedger (Java)"


def test_two_stores_in_one_directory_have_to_be_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("n0", "n1"):
        (tmp_path / f"dledger-{name}" / "data").mkdir(parents=True)
    assert run(["store", "verify", str(tmp_path)]) == 64
    assert "holds several stores" in capsys.readouterr().err


def test_repair_sets_a_term_but_none_that_the_store_has_passed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "repair", str(data), "--set-term", "0"]) == 1
    assert "term 0 is below" in capsys.readouterr().err
    assert run(["store", "repair", str(data), "--set-term", "7"]) == 0
    assert "term 7" in capsys.readouterr().out
    assert run(["store", "repair", str(data)]) == 0
    assert "Nothing is wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set-term", "1", "--accept-loss"], "one at a time"),
        (["--from", ".", "--discard-from", "3"], "one at a time"),
        (["--from", "."], "is no store"),
        (["--term", "3"], "--accept-loss only"),
        (["--dry-run"], "--dry-run of what"),
        (["--reset-term", "3", "--group-token", "short"], "is no group token"),
        (["--discard-from", "-1"], "greater than or equal to 0"),
    ],
)
def test_a_repair_that_is_not_one_action_is_refused(
    data: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert run(["store", "repair", str(data), *arguments]) == 64
    assert said in capsys.readouterr().err


def test_a_damaged_store_is_healed_from_another_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = data.parent / "copy"
    shutil.copytree(data / "dledger-n0", copy)
    index, _, _ = flip_one_bit(data / "dledger-n0")
    assert run(["store", "repair", str(data)]) == 1
    looked = capsys.readouterr().out
    assert f"! Entry {index}: damaged (crc_invalid)" in looked
    assert f"--discard-from {index} (drops entries {index}..49)" in looked
    assert run(["store", "repair", str(data), "--from", str(copy), "--dry-run", "--json"]) == 0
    tried = json.loads(capsys.readouterr().out)
    assert (tried["dry_run"], tried["problems"], len(tried["archived"])) == (True, [], 1)
    assert run(["store", "verify", str(data)]) == 1, "a dry run changes nothing"
    assert run(["store", "repair", str(data), "--from", str(copy)]) == 0
    assert f"Entry {index} (crc_invalid): healed from {copy}" in capsys.readouterr().out
    assert run(["store", "verify", str(data)]) == 0


def test_discarding_and_accepting_the_loss(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["store", "repair", str(data), "--discard-from", "60"]) == 1
    assert "holds 0..49" in capsys.readouterr().err
    assert run(["store", "repair", str(data), "--discard-from", "40", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["state"]["end_index"], done["state"]["voter_state"]) == (39, "REJOINING")
    assert "Entries 40..49: COMMITTED" in done["may_be_lost"][0]
    assert run(["store", "repair", str(data), "--accept-loss", "--term", "5"]) == 0
    assert "VOTER, term 5, no vote in terms up to 5" in capsys.readouterr().out
    assert run(["store", "repair", str(data), "--accept-loss"]) == 1
    assert "VOTER already" in capsys.readouterr().err


def test_a_command_that_is_killed_leaves_nobody_who_changes_the_store(tmp_path: Path) -> None:
    """Its work is done in a process of its own, which went on: numbers that a survivor's dry run said changed later."""
    pid_file = tmp_path / "pid"
    script = (
        "import sys; from pathlib import Path; from app.commands import store\n"
        "store.store_directory = lambda directory: directory\n"
        "store.python = lambda *_: ['sh', '-c', 'echo $$ > $0.new; mv $0.new $0; exec sleep 60', sys.argv[1]]\n"
        "store._decided(Path('.'), [], dry_run=False, as_json=False)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(pid_file)], cwd=Path(__file__).parents[2]) as command:
        while not pid_file.exists():
            assert command.poll() is None
            time.sleep(0.02)
        command.kill()
    working = Path("/proc") / pid_file.read_text().strip()
    until = time.monotonic() + 20
    while working.exists() and "State:\tZ" not in (working / "status").read_text():
        assert time.monotonic() < until, "it works on, and nobody sees it"
        time.sleep(0.02)
