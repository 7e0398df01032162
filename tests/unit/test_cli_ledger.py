"""`append`, `get`, `tail`, `status`, `transfer` against a ledger of the test's: shapes, exit codes, honesty."""

from __future__ import annotations

import asyncio
import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from app.cli import run
from app.commands.kv import text_of
from app.commands.ledger import Split, Tally, batches_of, bodies_of
from node.client import AppendResult, Denied, NotAppended, OutcomeUnknown, Unreachable
from node.client.kv import KvClient
from node.protocol.entry import Entry, Magic

PEERS = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
ON = ["--peers", PEERS]


def state_of(member_id: str, role: str) -> dict[str, Any]:
    log = {"begin_index": 0, "end_index": 9, "durable_index": 9, "committed_index": 9, "applied_index": None}
    return {
        "engine": "ok",
        "self_id": member_id,
        "role": role,
        "term": 4,
        "flush": "sync",
        "log": log,
        "alarms": [],
        "peers": [],
        "leader_id": "n1",
    }


class FakeLedger:
    """Stands in for LedgerClient: entries in a list, failures by order."""

    entries: ClassVar[list[Entry]] = []
    down: ClassVar[set[str]] = set()
    alarms: ClassVar[list[Any]] = []
    fail: ClassVar[Exception | None] = None
    fail_after: ClassVar[int] = 0
    voter_state: ClassVar[str] = "VOTER"
    transferred: ClassVar[dict[str, Any]] = {}
    unverified: ClassVar[bool] = False
    peers_all: ClassVar[tuple[str, ...]] = ("n0", "n1", "n2")

    def __init__(self, peers: Any, **_: Any) -> None:
        self.peers = peers

    async def close(self) -> None:
        await asyncio.sleep(0)

    async def append_many(self, bodies: Sequence[bytes], *, expected_index: int | None = None) -> AppendResult:
        if self.fail is not None and len(self.entries) >= self.fail_after:
            raise self.fail
        first = len(self.entries)
        for body in bodies:
            self.entries.append(Entry(Magic.NORMAL, len(self.entries), 4, 0, bytes(body)))
        return AppendResult(first_index=first, last_index=len(self.entries) - 1, term=4)

    async def read(
        self, from_index: int, limit: int, *, include_all: bool = False, enough_bytes: int = 1 << 62
    ) -> list[Entry]:
        if self.fail is not None and from_index >= self.fail_after:
            raise self.fail
        if enough_bytes <= 1024 * 1024:
            limit = min(limit, 2)  # as if these had so many
        found = self.entries[from_index : from_index + limit]
        return [entry for entry in found if include_all or entry.magic == Magic.NORMAL]

    async def committed_index(self) -> int:
        if self.fail is not None:
            raise self.fail
        return len(self.entries) - 1

    async def leader(self) -> str:
        return "n1"

    async def introspect(self, node_id: str, what: str, since: Any = None) -> dict[str, Any]:
        if isinstance(self.fail, Denied):
            raise self.fail
        if node_id in self.down:
            raise Unreachable(f"{node_id} at h:1: Connect call failed ('h', 1)")
        if what == "watermarks":
            mark = {"last_ack_ms": 10, "lag_entries": 0, "lag_ms": 0}
            return {"peers": [{"id": one, **mark} for one in self.peers_all if one not in self.down]}
        if what == "dispatchers":
            return {"items": [{"peer_id": one, "state": "APPEND"} for one in self.peers_all if one != node_id]}
        if what == "closures":
            return {"pending": 0, "limit": 100, "oldest_age_ms": None}
        state = state_of(node_id, "LEADER" if node_id == "n1" else "FOLLOWER")
        state["log"]["committed_index"] = len(self.entries) - 1
        state["log"]["end_index"] = len(self.entries) - 1
        return {**state, "alarms": self.alarms, "voter_state": self.voter_state}

    async def transfer(self, to: str | None, *, if_term: int | None = None, deadline_ms: int = 0) -> dict[str, Any]:
        return self.transferred


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeLedger]:
    monkeypatch.setattr("app.commands.targets.LedgerClient", FakeLedger)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    FakeLedger.entries, FakeLedger.down, FakeLedger.alarms = [], set(), []
    FakeLedger.fail, FakeLedger.fail_after, FakeLedger.voter_state = None, 0, "VOTER"
    return FakeLedger


def test_append_reports_what_was_acknowledged(
    ledger: type[FakeLedger], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"one\ntwo\r\n\nfour")
    assert run(["append", str(path), *ON, "--batch", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"appended", "unknown", "first_index", "last_index", "ranges", "entries_per_s"}
    assert (result["appended"], result["unknown"], result["ranges"]) == (4, 0, [[0, 3]])
    assert [entry.body for entry in ledger.entries] == [b"one", b"two", b"", b"four"]


def test_append_of_nothing_knows_no_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_bytes(b"")
    assert run(["append", str(tmp_path / "in"), *ON, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["appended"], result["first_index"], result["last_index"], result["ranges"]) == (0, -1, -1, [])


@pytest.mark.parametrize(
    ("failure", "code", "unknown"),
    [
        (OutcomeUnknown("no quorum within 2 s"), 75, 2),
        (NotAppended("503 LEADER_PENDING_FULL"), 1, 0),
        (Unreachable("no member answers"), 69, 0),
        (Denied("a token is needed"), 77, 0),
    ],
)
def test_append_stops_at_the_first_batch_that_was_not_acknowledged(
    failure: Exception, code: int, unknown: int, ledger: type[FakeLedger], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    ledger.fail, ledger.fail_after = failure, 2
    (tmp_path / "in").write_bytes(b"a\nb\nc\nd\ne\nf\n")
    assert run(["append", str(tmp_path / "in"), *ON, "--batch", "2", "--json"]) == code
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert (result["appended"], result["unknown"], result["ranges"]) == (2, unknown, [[0, 1]])
    assert said.err.count("\n") == 1
    assert str(failure) in said.err


def test_bodies_by_line_by_file_and_by_length() -> None:
    assert list(bodies_of(io.BytesIO(b"a\nb"), Split.LINES)) == [b"a", b"b"]
    assert list(bodies_of(io.BytesIO(b"a\nb"), Split.FILE)) == [b"a\nb"]
    framed = b"".join(struct.pack(">I", len(body)) + body for body in (b"a\n", b"", b"xyz"))
    assert list(bodies_of(io.BytesIO(framed), Split.LENGTH)) == [b"a\n", b"", b"xyz"]


@pytest.mark.parametrize("cut", [b"\0\0", b"\0\0\0\5ab", b"\xff\xff\xff\xff"])
def test_a_broken_length_is_a_usage_error(cut: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_bytes(cut)
    assert run(["append", str(tmp_path / "in"), *ON, "--split", "length"]) == 64
    assert "--split length" in capsys.readouterr().err


def test_batches_are_bounded_in_entries_and_bytes() -> None:
    assert [len(run_) for run_ in batches_of(iter([b"x"] * 5), 2)] == [2, 2, 1]
    big = b"x" * 600_000
    assert [len(run_) for run_ in batches_of(iter([big] * 3), 100)] == [1, 1, 1]


def test_ranges_join_and_part() -> None:
    tally = Tally()
    tally.add(0, 1)
    tally.add(2, 4)
    tally.add(7, 7)
    assert (tally.ranges, tally.appended) == ([[0, 4], [7, 7]], 6)


def test_get_and_tail_print_one_object_a_line(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    bodies = [b"zero", b"", b"\xff\x00", "drei €".encode()]
    ledger.entries = [Entry(Magic.NORMAL, number, 4, 0, body) for number, body in enumerate(bodies)]
    ledger.entries[1] = Entry(Magic.NOOP, 1, 4, 0, b"")
    assert run(["get", "1", "-n", "3", *ON, "--json"]) == 0
    got = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert got[0] == {"index": 1, "term": 4, "body_bytes": 0, "magic": "NOOP", "text": ""}
    assert got[1] == {"index": 2, "term": 4, "body_bytes": 2, "base64": "/wA="}
    assert got[2]["text"] == "drei €"
    assert run(["tail", "-n", "3", *ON, "--json"]) == 0
    tailed = [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()]
    assert tailed == [2, 3], "a tail skips what is no message"


def test_get_of_what_is_not_there_is_a_finding(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["get", "7", *ON]) == 1
    assert "index 7 is not in the committed log" in capsys.readouterr().err


def test_get_prints_what_it_read_before_it_reads_on(
    ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred thousand entries of 4 MiB are not held first."""
    ledger.entries = [Entry(Magic.NORMAL, number, 4, 0, b"%d" % number) for number in range(5)]
    ledger.fail, ledger.fail_after = Unreachable("nobody answers"), 3
    assert run(["get", "0", "-n", "5", *ON]) == 69
    assert capsys.readouterr().out == "0\n1\n2\n3\n"


def test_status_is_fine_degraded_or_unreachable(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", *ON, "--json"]) == 0
    fine = json.loads(capsys.readouterr().out)
    assert (fine["leader_id"], fine["term"], fine["problems"]) == ("n1", 4, [])
    assert fine["quorum"] == {"size": 3, "needed": 2, "answering": 3, "standing": 3, "stands": True}
    ledger.down = {"n2"}
    assert run(["status", *ON]) == 1
    text = capsys.readouterr().out
    assert "n1 leads in term 4; 2 of 3 members answer, the quorum stands" in text
    assert "! n2 does not answer: connection refused: nothing listens there" in text
    assert " ?" in text, "unknown is never 0"
    ledger.down = {"n0", "n1", "n2"}
    assert run(["status", *ON, "--json"]) == 69
    assert json.loads(capsys.readouterr().out)["quorum"]["stands"] is None, "nobody told"


def test_an_alarm_is_a_finding(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    ledger.alarms = [{"kind": "diverged", "detail": "n2 refused a truncation"}]
    assert run(["status", *ON]) == 1
    assert "! n0 reports diverged: n2 refused a truncation." in capsys.readouterr().out


def test_a_member_that_does_not_vote_is_a_finding(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    ledger.voter_state = "REJOINING"
    assert run(["status", *ON]) == 1
    assert "! n0 came back without its log and does not vote" in capsys.readouterr().out


def test_a_dead_engine_is_explained_by_its_control_plane(
    ledger: type[FakeLedger], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {
        "group": "g", "self_id": "n0", "engine": "down", "engine_reason": "the disk failed",
        "peers": [
            {"id": "n0", "address": "h:1", "control_url": "http://n0"}, {"id": "n1", "address": "h:2"},
        ],
    }  # fmt: skip
    monkeypatch.setattr("app.commands.control_calls.control_call", lambda *_, **_tls: state)
    ledger.down = {"n0"}
    assert run(["status", "--node", "http://n0"]) == 1
    assert "! The engine of n0 is down: the disk failed." in capsys.readouterr().out


def test_denied_is_77(ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]) -> None:
    ledger.fail = Denied("a token is needed")
    assert run(["status", *ON]) == 77
    assert capsys.readouterr().err == "quorumscope: denied: a token is needed\n"


def test_transfer_names_no_term_where_none_was_said(
    ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    """A member that cannot write its trail refuses before it looks: "n1 leads in term -1"."""
    ledger.transferred = {"code": 414, "leaderId": "n1", "transfereeId": None, "term": -1, "detail": "the trail"}
    assert run(["transfer", "n2", *ON]) == 1
    assert capsys.readouterr().out == "not moved: n1 leads; the trail\n"
    assert run(["transfer", "n2", *ON, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["term"] is None


@pytest.mark.parametrize(("code", "exit_code", "word"), [(200, 0, "moved: n2"), (418, 1, "not moved: n1")])
def test_transfer_says_how_it_ended(
    code: int, exit_code: int, word: str, ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    leader = "n2" if code == 200 else "n1"
    ledger.transferred = {"code": code, "leaderId": leader, "transfereeId": "n2", "term": 5, "detail": ""}
    assert run(["transfer", "n2", *ON]) == exit_code
    assert capsys.readouterr().out.startswith(f"{word} leads in term 5")
    assert run(["transfer", "n2", *ON, "--json"]) == exit_code
    assert json.loads(capsys.readouterr().out) == {
        "moved": code == 200, "code": code, "leader_id": leader, "transferee_id": "n2", "term": 5, "detail": "",
    }  # fmt: skip


def test_tail_from_an_index_prints_so_many_and_no_more(
    ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.entries = [Entry(Magic.NORMAL, number, 4, 0, b"%d" % number) for number in range(8)]

    def tailed(*arguments: str, code: int = 0) -> list[str]:
        assert run(["tail", *arguments, *ON]) == code
        return capsys.readouterr().out.split()

    assert tailed("--from", "2", "-n", "3") == ["2", "3", "4"]
    assert tailed("--from", "2", "-n", "3", "-f") == ["2", "3", "4"], "it ends once it has them"
    assert tailed("--from", "6") == ["6", "7"]
    assert tailed("--from", "6", "-n", "9") == ["6", "7"]
    assert tailed("--from", "2", "-n", "0") == []
    assert tailed("-n", "2") == ["6", "7"]
    assert tailed() == [str(number) for number in range(8)]


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["-n", "2"], "6 7"), (["--from", "5"], "5 6 7"), (["-n", "0"], "")]
)
def test_tail_ends_where_the_log_ended_when_it_began(
    arguments: list[str],
    expected: str,
    ledger: type[FakeLedger],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    ledger.entries = [Entry(Magic.NORMAL, number, 4, 0, b"%d" % number) for number in range(8)]
    reads = ledger.read

    async def grown(self: FakeLedger, from_index: int, limit: int, **how: Any) -> list[Entry]:
        await self.append_many([b"more", b"and more"])  # somebody else appends faster than we read
        assert len(self.entries) < 40, "tail never ends"
        return await reads(self, from_index, min(limit, 5), **how)

    monkeypatch.setattr(ledger, "read", grown)
    assert run(["tail", *arguments, *ON]) == 0
    assert capsys.readouterr().out.split() == expected.split()


@pytest.mark.parametrize(("entries", "ends"), [(0, "the log is empty"), (3, "the log ends at 2")])
def test_tail_from_beyond_the_end_says_so(
    entries: int, ends: str, ledger: type[FakeLedger], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger.entries = [Entry(Magic.NORMAL, number, 4, 0, b"x") for number in range(entries)]
    assert run(["tail", "--from", "7", *ON]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"tail: nothing is committed from 7 on: {ends}\n")


def test_a_key_that_was_not_there_is_said_whatever_was_to_be_done_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An exit code of 1 without a word leaves open what went wrong."""

    async def nothing(self: KvClient, key: bytes) -> None:
        return None

    async def not_deleted(self: KvClient, key: bytes) -> bool:
        return False

    monkeypatch.setattr(KvClient, "get", nothing)
    monkeypatch.setattr(KvClient, "delete", not_deleted)
    for command in ("get", "delete"):
        assert run(["kv", command, "colour", "--peers", "n0-127.0.0.1:9"]) == 1
        assert capsys.readouterr().err == "kv: there is no key colour\n"
    assert run(["kv", "delete", "colour", "--json", "--peers", "n0-127.0.0.1:9"]) == 1
    captured = capsys.readouterr()
    assert (json.loads(captured.out), captured.err) == ({"key": "colour", "deleted": False}, "")


@pytest.mark.parametrize(
    ("raw", "printed"),
    [
        (b"blue", {"value": "blue"}),
        (b"", {"value": ""}),
        (b"\xff", {"value": None, "value_base64": "/w=="}),
    ],
)
def test_a_value_has_its_name_also_where_it_is_no_text(raw: bytes, printed: dict[str, str | None]) -> None:
    """INTERFACES: `get --json` prints {key, value, found, index}."""
    assert text_of("value", raw) == printed
