"""`message`, `topic`, `store inspect|verify` on a RocketMQ store: what they print, and what they end with."""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from app.commands.messages import message_lines, opened
from node.message_store.commit_log import Placed
from node.message_store.described import in_time, message_json
from node.message_store.message_store import MessageStore
from node.message_store.record import MessageRecord
from tests.unit.message_broker import Broker, filled
from tests.unit.message_faults import missing_unit, wrong_body
from tests.unit.message_kit import record


@pytest.fixture(params=[False, True], ids=["local", "ledger"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Broker:
    made = filled(tmp_path, ledger=request.param)
    made.write()
    return made


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: Exit = Exit.FINE) -> str:
    assert run(list(arguments)) == code
    return capsys.readouterr().out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: Exit = Exit.FINE) -> Any:
    return json.loads(printed(capsys, *arguments, "--json", code=code))


def test_a_message_is_found_by_place_id_queue_and_key(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(broker.root)
    offset = broker.units["TopicTest", 0][3][0]
    (by_place,) = as_json(capsys, "message", "get", "--store", root, "--offset", str(offset))["items"]
    assert (by_place["topic"], by_place["queue_id"], by_place["queue_offset"]) == ("TopicTest", 0, 3)
    assert by_place["where"]["offset"] == offset
    assert by_place["where"]["queue_unit"]["points_here"]
    assert by_place["where"]["index_files"] == ["index/20261121032455669"]
    assert (by_place["where"]["entry_index"] is None) is not broker.ledger
    file = broker.root / by_place["where"]["file"]
    at = by_place["where"]["file_position"]
    assert file.read_bytes()[at + 4 : at + 7] == b"\xda\xa3\x20"
    for way in (
        [by_place["message_id"]],
        ["--topic", "TopicTest", "--queue", "0", "--queue-offset", "3"],
        ["--key", by_place["keys"][0]],
        ["--key", by_place["keys"][0], "--topic", "TopicTest"],
    ):
        assert as_json(capsys, "message", "get", "--store", root, *way)["items"] == [by_place]
    many = as_json(capsys, "message", "get", "--store", root, "--key", "k3")["items"]
    assert len(many) > 5
    assert len(as_json(capsys, "message", "get", "--store", root, "--key", "k3", "-n", "2")["items"]) == 2
    text = printed(capsys, "message", "get", "--store", root, "--offset", str(offset))
    assert f"lies at offset {offset}: " in text
    assert "  UNIQ_KEY: FD" in text
    assert "points here" in text
    assert ("of the replicated log" in text) is broker.ledger


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--offset", "5"], 1, "no message begins at offset 5"),
        (["--offset", "999999999"], 1, "no file holds offset"),
        (["--key", "nosuch"], 1, "no message of any topic has the key 'nosuch'"),
        (["--key", "k3", "--topic", "none"], 1, "no message of topic 'none'"),
        (["--topic", "TopicTest", "--queue", "9", "--queue-offset", "0"], 1, "there is no queue 9"),
        (["--topic", "TopicTest", "--queue", "0", "--queue-offset", "999"], 1, "it holds 0 to"),
        (["--topic", "TopicTest", "--queue", "0"], 64, "all three"),
        (["xyz"], 64, "no message id"),
        (["0" * 32, "--offset", "5"], 64, "not ID and --offset"),
        ([], 64, "which message?"),
        (["--offset", "-1"], 64, "--offset"),
    ],
)
def test_what_is_not_there_and_what_is_no_question(
    broker: Broker, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    assert run(["message", "get", "--store", str(broker.root), *arguments]) == code
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["message", "get", "--offset", "0"], 64, "which store?"),
        (["topic", "list"], 64, "or --store"),
        (["topic", "list", "--store", "/nope"], 64, "no such directory"),
        (["topic", "list", "--store", "EMPTY"], 64, "is no message store"),
        (["topic", "describe", "none", "--store", "STORE"], 1, "there is no topic 'none'"),
        (["store", "verify", "QUEUES"], 64, "its commit log is elsewhere"),
        (["store", "inspect", "QUEUES"], 64, "its commit log is elsewhere"),
    ],
)
def test_a_store_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "QUEUES" / "consumequeue").mkdir(parents=True)
    filled(tmp_path / "STORE", count=3).write()
    named = [str(tmp_path / one) if one.isupper() else one for one in arguments]
    assert run(named) == code
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err


def test_topics_are_listed_with_their_queues(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    (broker.root / "config").mkdir()
    table = '{"topicConfigTable":{"TopicTest":{"perm":6,"readQueueNums":4,"writeQueueNums":4},"New":{"perm":4}}}'
    (broker.root / "config" / "topics.json").write_text(table)
    items = as_json(capsys, "topic", "list", "--store", str(broker.root))["items"]
    assert [one["topic"] for one in items] == ["L" * 150, "New", "OrderTopic", "TopicTest"]
    found = items[3]
    assert (found["perm"], found["read_queues"], items[0]["perm"]) == (6, 4, None)
    assert [(one["queue_id"], one["min_offset"], one["max_offset"]) for one in found["queues"]] == [
        (number, 0, len(broker.units["TopicTest", number])) for number in (0, 1)
    ]
    assert found["messages"] == sum(one["messages"] for one in found["queues"])
    assert items[1] == {
        "topic": "New", "messages": 0, "newest_at": None, "read_queues": None, "write_queues": None, "perm": 4,
        "queues": [],
    }  # fmt: skip
    assert as_json(capsys, "topic", "describe", "TopicTest", "--store", str(broker.root)) == found
    text = printed(capsys, "topic", "describe", "TopicTest", "--store", str(broker.root))
    assert "QUEUE  MIN  MAX  MESSAGES" in text
    assert "permission 6" in text
    assert printed(capsys, "topic", "list", "--store", str(broker.root)).count("\n") == 5


def test_inspect_says_what_a_broker_holds(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    found = as_json(capsys, "store", "inspect", str(broker.root))
    assert found["kind"] == ("replicated log" if broker.ledger else "commit log")
    assert (found["commit_log"]["min_offset"], found["commit_log"]["max_offset"]) == (0, broker.end)
    assert (found["topics"], found["queues"], found["clean_stop"]) == (3, len(broker.units), True)
    assert (found["ledger"] is not None) is broker.ledger
    (broker.root / "checkpoint").write_bytes(b"short")
    (broker.root / "abort").write_bytes(b"1")
    found = as_json(capsys, "store", "inspect", str(broker.root))
    assert (found["clean_stop"], found["checkpoint"][:14]) == (False, "cannot be read")
    assert "kind: " in printed(capsys, "store", "inspect", str(broker.root))


def test_verify_of_a_sound_store_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = filled(tmp_path)
    found = as_json(capsys, "store", "verify", str(broker.write()))
    assert found["problems"] == []
    assert found["problems_truncated"] is False
    assert {name: found[name] for name in ("entries", "begin_index", "sealed", "messages")} == {
        "entries": None, "begin_index": None, "sealed": None, "messages": 60,
    }  # fmt: skip
    assert "no problem found; every message" in printed(capsys, "store", "verify", str(tmp_path))


def test_verify_names_damage_its_meaning_and_what_a_start_would_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = filled(tmp_path)
    rng = random.Random(1)
    body, unit = wrong_body(broker, rng), missing_unit_kept(broker, rng)
    found = as_json(capsys, "store", "verify", str(tmp_path), code=Exit.FINDING)
    assert [(one["class"], one["offset"]) for one in found["problems"]] == [
        (one.fault, one.offset) for one in (body, unit)
    ]
    assert set(found["problems"][0]) >= {"class", "index", "file", "detail", "means", "offset"}
    assert found["next_start"]["cut_at_offset"] == body.offset
    text = printed(capsys, "store", "verify", str(tmp_path), code=Exit.FINDING)
    assert f"! body_crc_invalid at offset {body.offset} (topic TopicTest, queue 0, queue offset" in text
    assert "  means: the body is not what was sent" in text
    assert f"cuts the log at {body.offset}: 60 messages stay, 1 are gone" in text
    assert text.endswith("2 problems\n")


def missing_unit_kept(broker: Broker, rng: random.Random) -> Any:
    """The unit goes from the files as they are: what was planted before stays."""
    held = {path: path.read_bytes() for path in broker.folder.iterdir()}
    planted = missing_unit(broker, rng)
    for path, data in held.items():
        path.write_bytes(data)
    return planted


def test_verify_of_a_replicated_log_reads_its_entries_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broker = filled(tmp_path, ledger=True)
    broker.write()
    index = b"".join(
        (1).to_bytes(4, "big") + (place - 48).to_bytes(8, "big")
        + int.from_bytes(broker.log[place - 44 : place - 40], "big").to_bytes(4, "big")
        + number.to_bytes(8, "big") + (1).to_bytes(8, "big")
        for number, place in enumerate(broker.places)
    )  # fmt: skip
    folder = broker.folder.parent / "index"
    folder.mkdir()
    (folder / f"{0:020d}").write_bytes(index.ljust(4096, b"\0"))
    found = as_json(capsys, "store", "verify", str(tmp_path))
    assert (found["entries"], found["begin_index"], found["end_index"]) == (60, 0, 59)
    assert "replicated log: 60 entries, indexes 0 to 59" in printed(capsys, "store", "verify", str(tmp_path))
    (folder / f"{0:020d}").write_bytes(b"\xff" * 32 + index[32:].ljust(4064, b"\0"))
    found = as_json(capsys, "store", "verify", str(tmp_path), code=Exit.FINDING)
    assert {one["file"].partition("/")[0] for one in found["problems"]} == {"dledger-n0"}


def test_what_a_sender_wrote_cannot_forge_lines(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    broker.put("T\x1b[2J", 0, b"\x1b]0;title\x07", keys="k", unique="a\nlies at offset 7: nowhere")
    store = MessageStore(broker.write())
    placed = store.log.message_at(0)
    lines = message_lines(message_json(store, placed, opened))
    assert sum(line.startswith("lies at offset") for line in lines) == 1
    assert not any("\x1b" in line for line in lines if not line.startswith("  "))


@pytest.mark.parametrize(("kind", "body"), [(0x000, zlib.compress(b"hello")), (0x300, zlib.compress(b"hello"))])
def test_a_compressed_body_is_shown_as_it_was_sent(tmp_path: Path, kind: int, body: bytes) -> None:
    store = MessageStore(filled(tmp_path, count=1).write())
    found = message_json(store, placed_of(record(body, sys_flag=1 | kind)), opened)["body"]
    assert (found["text"], found["compression"], found["bytes"]) == ("hello", "zlib", 5)


@pytest.mark.parametrize(("kind", "name"), [(0x100, "lz4"), (0x200, "zstd")])
def test_lz4_and_zstandard_are_opened_with_pyarrow(tmp_path: Path, kind: int, name: str) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, name) as stream:
        stream.write(b"hello")
    store = MessageStore(filled(tmp_path, count=1).write())
    found = message_json(store, placed_of(record(sink.getvalue().to_pybytes(), sys_flag=1 | kind)), opened)["body"]
    assert (found["text"], found["compression"], found["opened"]) == ("hello", name, True)
    broken = message_json(store, placed_of(record(b"\xff\xfe", sys_flag=1 | kind)), opened)["body"]
    assert (broken["opened"], broken["base64"]) == (False, "//4=")
    assert any(
        "not opened" in line
        for line in message_lines(message_json(store, placed_of(record(b"x", sys_flag=0x501)), opened))
    )


def placed_of(one: MessageRecord) -> Placed:
    return Placed(0, one.total_size, one)


def test_a_time_that_no_calendar_has_is_unknown() -> None:
    assert in_time(1_795_000_000_100) == "2026-11-18T11:06:40.100Z"
    assert in_time(1 << 62) is None
