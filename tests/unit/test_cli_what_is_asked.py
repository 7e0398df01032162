"""What a command was given arrives at whom it asks, and how it ends is what came of it: each option by itself."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands import consumers, one_member
from node.client import LedgerClient, Trimmed
from node.client.kv import KvClient
from node.protocol.entry import Entry, Magic
from node.protocol.kv import ITEMS_MAX, NEVER, EventType, KvCommand, KvEvent, KvItem, KvResult, Status

ON = ["--peers", "n0-127.0.0.1:9"]
URL = "http://127.0.0.1:8431"
Json = dict[str, Any]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ([], {"what": "engine", "force": False}),
        (["--force"], {"what": "engine", "force": True}),
        (["--state-machine"], {"what": "state_machine", "force": False}),
        (["--state-machine", "--force"], {"what": "state_machine", "force": True}),
    ],
)
def test_a_restart_asks_for_what_was_said(words: list[str], asked: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[Any] = []

    def call(method: str, _url: str, resource: str, _token: Any, body: Any = None, **_: Any) -> Json:
        bodies.append((method, resource, body))
        return {"id": "1", "state": "done", "outcome": {"took_ms": 1}}

    monkeypatch.setattr(one_member, "control_call", call)
    assert run(["restart", "--node", URL, *words]) == 0
    assert bodies == [("POST", "restart", asked)]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["--to", "latest"], {"to": "latest"}),
        (["--to", "offset", "--offset", "0"], {"to": "offset", "offset": 0}),
        (["--to", "earliest", "--queue", "0"], {"to": "earliest", "queue_id": 0}),
        (["--to", "time", "--time", "2026-01-01T00:00:00Z"], {"to": "time", "time": "2026-01-01T00:00:00Z"}),
    ],
)
def test_a_reset_sets_what_was_shown_and_no_other_queue(
    words: list[str], asked: Json, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies: list[Json] = []

    def change(_target: Any, _method: str, _path: str, body: Json) -> Json:
        bodies.append(body)
        return {"group": "g", "topic": "t", "dry_run": body.get("dry_run", False), "items": []}

    monkeypatch.setattr(consumers, "change", change)
    assert run(["consumer", "reset", "g", "--topic", "t", *words, "--yes", *ON]) == 0
    assert bodies == [{"topic": "t", **asked, "dry_run": True}, {"topic": "t", **asked}]


# --- entries ----------------------------------------------------------------------------------------------------------
def entries_from(first: int, end: int) -> list[Entry]:
    return [Entry(Magic.NORMAL, index, 1, 0, b"%d" % index) for index in range(first, end + 1)]


@pytest.fixture
def trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of entries 5 to 9."""

    async def read(_self: LedgerClient, at: int, limit: int, **_: Any) -> list[Entry]:
        return entries_from(max(at, 5), 9)[:limit]

    async def committed(_self: LedgerClient) -> int:
        return 9

    monkeypatch.setattr(LedgerClient, "read", read)
    monkeypatch.setattr(LedgerClient, "committed_index", committed)


@pytest.mark.usefixtures("trimmed")
def test_what_begins_behind_the_index_that_was_asked_for_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "3", "-n", "4", *ON]) == 1
    shown = capsys.readouterr()
    assert shown.out == "5\n6\n" and "index 3 is not in the committed log" in shown.err
    assert run(["get", "5", "-n", "4", *ON]) == 0


@pytest.mark.usefixtures("trimmed")
def test_a_tail_from_an_index_that_is_gone_does_not_begin_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read(_self: LedgerClient, at: int, limit: int, **_: Any) -> list[Entry]:
        if at < 5:
            raise Trimmed(at, 5, "n0")
        return entries_from(at, 9)[:limit]

    monkeypatch.setattr(LedgerClient, "read", read)
    assert run(["tail", "--from", "3", *ON]) != 0
    assert capsys.readouterr().out == ""
    assert run(["tail", "-n", "8", *ON]) == 0, "the last ones are fewer then"
    assert capsys.readouterr().out.split() == ["5", "6", "7", "8", "9"]


# --- the key-value store ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("words", "wanted"), [([], None), (["--from", "0"], 0), (["--from", "7"], 7)])
def test_a_watch_begins_where_it_was_told_to(
    words: list[str], wanted: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def watch(_self: KvClient, prefix: bytes = b"", *, from_index: int | None = None) -> AsyncIterator[KvEvent]:
        asked.append((prefix, from_index))
        for index in (7, 8, 9):
            yield KvEvent(EventType.PUT, b"colour", index, b"blue")

    monkeypatch.setattr(KvClient, "watch", watch)
    assert run(["kv", "watch", "col", *words, "-n", "2", "--json", *ON]) == 0
    assert asked == [(b"col", wanted)]
    assert [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()] == [7, 8]


@pytest.mark.parametrize("wanted", [1, ITEMS_MAX, ITEMS_MAX + 3, 3 * ITEMS_MAX])
def test_a_range_of_several_pages_gives_each_key_once_and_no_more_than_asked_for(
    wanted: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = [b"%06d" % number for number in range(2 * ITEMS_MAX + 10)]

    async def range_(_self: KvClient, at: bytes, to: bytes, *, limit: int) -> tuple[list[KvItem], bool]:
        found = [key for key in keys if key >= at]
        return [KvItem(key, b"v", 1, NEVER) for key in found[:limit]], len(found) > limit

    monkeypatch.setattr(KvClient, "range", range_)
    assert run(["kv", "range", "-n", str(wanted), *ON]) == 0
    assert [line.split("\t")[0].encode() for line in capsys.readouterr().out.splitlines()] == keys[:wanted]


@pytest.mark.parametrize(
    ("status", "found", "code"),
    [(Status.DONE, True, 0), (Status.CONDITION_FAILED, True, 1), (Status.CONDITION_FAILED, False, 1)],
)
def test_a_condition_that_did_not_hold_is_a_finding_whatever_the_key_holds(
    status: Status, found: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def cas(_self: KvClient, key: bytes, old: Any, new: bytes, *, ttl_ms: int) -> KvResult:
        asked.append((key, old, new, ttl_ms))
        return KvResult(status, found, 4, b"green")

    monkeypatch.setattr(KvClient, "compare_and_set", cas)
    words = ["kv", "cas", "colour", "red", "blue", "--ttl-ms", "5"]
    assert [run([*words, *ON]), run([*words, "--absent", *ON])] == [code] * 2
    assert asked == [(b"colour", b"red", b"blue", 5), (b"colour", None, b"blue", 5)]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["put", "colour", "blue", "--ttl-ms", "5", "--expected-index", "4"], (b"colour", 4, b"blue", 5)),
        (["put", "colour", "blue", "--expected-index", "-1"], (b"colour", -1, b"blue", 0)),
        (["delete", "colour", "--expected-index", "4"], (b"colour", 4, None, 0)),
    ],
)
def test_a_write_may_name_the_entry_that_it_replaces(
    words: list[str], asked: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []
    results = [KvResult(Status.DONE, words[0] == "put", 7), KvResult(Status.CONDITION_FAILED, True, 6, b"green")]

    async def at(_self: KvClient, key: bytes, index: int, new: bytes | None, *, ttl_ms: int = 0) -> KvResult:
        seen.append((key, index, new, ttl_ms))
        return results[len(seen) - 1]

    monkeypatch.setattr(KvClient, "compare_index_and_set", at)
    assert [run(["kv", *words, "--json", *ON]), run(["kv", *words, "--json", *ON])] == [0, 1]
    assert seen == [asked] * 2
    done, lost = map(json.loads, capsys.readouterr().out.splitlines())
    assert done == {"key": "colour", **({"index": 7} if words[0] == "put" else {"deleted": True})}
    assert lost == {"key": "colour", "done": False, "found": True, "index": 6, "value": "green"}
    seen.clear()
    results[0] = KvResult(Status.CONDITION_FAILED, False, -1)
    assert run(["kv", *words, *ON]) == 1
    assert capsys.readouterr().err == "kv: nothing was changed: colour is not there\n"


@pytest.mark.parametrize("words", [["put", "KEY", "v"], ["delete", "KEY"], ["cas", "KEY", "a", "b"]])
def test_a_key_that_is_no_text_is_printed_in_base64(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def write(_self: KvClient, _command: KvCommand) -> KvResult:
        return KvResult(Status.DONE, True, 4)

    monkeypatch.setattr(KvClient, "write", write)
    assert run(["kv", *[os.fsdecode(b"\xff") if word == "KEY" else word for word in words], "--json", *ON]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["key"], printed["key_base64"]) == (None, "/w==")
