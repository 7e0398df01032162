"""The frames that real Java nodes and clients exchanged (shared/vectors/rpc): decode, handle, encode.

Where the situation can be posed, our handlers answer with the same fields and codes; what differs on purpose is listed
in DIFFERENCES with its reason, and each of those is checked to differ in just that way.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.config import load as load_settings
from node.consensus.api import SECOND
from node.consensus.replica import Proposal, ReadOutcome, Replica, ReplicaConfig, TransferOutcome
from node.engine.access import Access
from node.engine.client_requests import ClientRequests
from node.engine.disk import Disk
from node.engine.events import EventRing
from node.engine.introspect import Introspection
from node.engine.json_push import answer_fields, linked
from node.engine.log_reads import LogReads
from node.engine.process import Process
from node.engine.quota import Quota
from node.protocol.codes import FlushMode, RequestCode, VoteResult, VoterState
from node.protocol.messages import (
    HeartBeatRequest,
    Message,
    PushRequest,
    PushResponse,
    VoteRequest,
    VoteResponse,
)
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from node.transport.bodies import decode_request, dump, encode_message
from node.transport.remoting import Frame, decode_frame, encode_frame

PEERS = {"n0": "127.0.0.1:20920", "n1": "127.0.0.1:22001", "n2": "127.0.0.1:22002"}
MEMBERS_JSON = (RequestCode.VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH, RequestCode.LEADERSHIP_TRANSFER)
# file -> (what ours says instead, why)
DIFFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "36_HEART_BEAT_posed_416": ({"code": 200}, "a higher term is adopted at once, not in a later tick (416 asked for)"),
    "57_PUSH_COMPARE_xterm_posed_406": ({"xIndex": 4}, "backing up never goes below what is verified (R6)"),
    "38_PUSH_APPEND_batch_at4_posed_406": ({"code": 200}, "requests 26 to 30 are not recorded; here 4 follows entry 3"),
    "45_PUSH_APPEND_single_wrongleader_at6_posed_406": ({"code": 409}, "says which check failed: the leader"),
    "44_PUSH_APPEND_single_staleterm_at6_posed_406": ({"code": 403}, "says which check failed: the term"),
    "49_PUSH_COMMIT_staleterm_posed_200": ({"code": 403}, "COMMIT is checked for term and leader (R4)"),
    "60_PUSH_TRUNCATE_staleterm_posed_200": ({"code": 403}, "TRUNCATE is checked for term and leader (R4)"),
    "28_VOTE_posed_lastlog_REJECT_TERM_NOT_READY": (
        {"term": 9},
        "the higher term is adopted at once, not in a later tick",
    ),
}
# Answers of ours say more (their own term, their end); fields that DLedger leaves at its defaults are not compared.
COMPARED = {"HEART_BEAT": ("code",), "VOTE": ("code", "voteResult", "leaderId", "localId", "remoteId", "group", "term")}


def pairs(vectors: Path) -> list[dict[str, Any]]:
    frames = json.loads((vectors / "rpc" / "index.json").read_text())["frames"]
    return [frame for frame in frames if frame["kind"] == "request"]


def test_every_frame_decodes_and_encodes_byte_for_byte(vectors: Path) -> None:
    files = sorted((vectors / "rpc").glob("*.bin"))
    assert len(files) == 132
    for path in files:
        raw = path.read_bytes()
        frame = decode_frame(raw)
        assert frame.language == "JAVA"
        assert encode_frame(frame) == raw, path.name


def test_every_json_body_encodes_byte_for_byte(vectors: Path) -> None:
    bodies = 0
    for path in sorted((vectors / "rpc").glob("*.bin")):
        body = decode_frame(path.read_bytes()).body
        if body and path.name != "02_APPEND_batch-typed_200.req.bin":
            assert dump(json.loads(body)) == body, path.name
            bodies += 1
    assert bodies > 120


def test_every_member_request_decodes_and_votes_and_heartbeats_come_back(vectors: Path) -> None:
    seen = set()
    for one in pairs(vectors):
        frame = decode_frame((vectors / "rpc" / one["file"]).read_bytes())
        if frame.code not in MEMBERS_JSON:
            continue
        message = decode_request(frame.code, frame.body, frame.opaque)
        seen.add(type(message).__name__)
        if isinstance(message, (VoteRequest, HeartBeatRequest)):
            mine = json.loads(encode_message(message, "g0", one["body"]["localId"], one["body"]["remoteId"]))
            mine.pop("commitIndex", None)
            assert mine == one["body"]
    assert seen == {"VoteRequest", "HeartBeatRequest", "PushRequest", "TransferRequest"}


class Follower:
    """n1 as the recorded session has it: a voter in term 5 with an empty log."""

    def __init__(self) -> None:
        store = MemoryStore(hard_state=HardState(5, None, VoterState.VOTER))
        config = ReplicaConfig("g0", "n1", PEERS, flush=FlushMode.ASYNC)
        self.now = 10**12
        self.replica = Replica(config, store, random.Random(1), self.now)

    def answer(self, message: Message) -> Message | None:
        sender = message.leader_id if isinstance(message, (HeartBeatRequest, PushRequest)) else ""
        sender = message.candidate_id if isinstance(message, VoteRequest) else sender
        self.replica.receive(sender, message, self.now)
        effects = self.replica.take_effects()
        if effects.truncate is not None:
            self.replica.store.truncate(effects.truncate.cut_index, effects.truncate.record)
            self.replica.disk.truncated(effects.truncate.log_epoch, effects.truncate.cut_index, self.now)
        answers = [send.message for send in effects.sends if send.to == sender]
        return answers[-1] if answers else None

    def _silence(self) -> None:
        """The session's leader said nothing for 6 s before the votes: n1 was a candidate again."""
        tick_ns = self.replica.config.timing.heartbeat_ns // 2
        ends_at = self.now + 6 * SECOND
        while self.replica.leader_id is not None and self.now < ends_at:  # silence is counted in ticks (E6)
            self.now += tick_ns
            self.replica.tick(self.now)
            self.replica.take_effects()

    def handle(self, frame: Frame) -> dict[str, Any]:
        message = decode_request(frame.code, frame.body, frame.opaque)
        if isinstance(message, PushRequest):
            push = linked(message, self.replica)
            answer = None if push is None else self.answer(push)
            assert answer is None or isinstance(answer, PushResponse)
            return answer_fields(message, answer, "g0")
        if isinstance(message, VoteRequest):
            self._silence()
            found = self.answer(message)
            if found is None:  # ours owes a stranger no answer at all: the connection refused it (C7)
                found = VoteResponse(message.seq, 5, VoteResult.REJECT_UNKNOWN_LEADER)
            return dict(json.loads(encode_message(found, "g0", "n1", message.candidate_id)))
        answer = self.answer(message)
        assert answer is not None
        return dict(json.loads(encode_message(answer, "g0", "n1", "n0")))


def test_the_posed_session_is_answered_as_the_java_node_did(vectors: Path) -> None:
    posed = [one for one in pairs(vectors) if "posing" in one["capture_session"]]
    posed.sort(key=lambda one: int(one["header"]["opaque"]))
    assert len(posed) >= 20
    follower = Follower()
    differed: set[str] = set()
    for one in posed:
        name = one["pair"]
        raw = (vectors / "rpc" / f"{name}.resp.bin").read_bytes()
        theirs = json.loads(decode_frame(raw).body)
        ours = follower.handle(decode_frame((vectors / "rpc" / one["file"]).read_bytes()))
        compared = COMPARED.get(one["request_name"], tuple(theirs))
        expected = {field: theirs.get(field) for field in compared}
        if name in DIFFERENCES:
            differed.add(name)
            expected |= DIFFERENCES[name][0]
            assert expected != {field: theirs.get(field) for field in compared}, f"{name} differs no more"
        assert {field: ours.get(field) for field in compared} == expected, name
    assert differed == set(DIFFERENCES)


# --- clients --------------------------------------------------------------------------------------------------------
class Wire:
    """A connection that keeps what was answered."""

    peer_host = "127.0.0.1"
    on_earned = None
    backlog_bytes = 0

    def __init__(self) -> None:
        self.rights, self.served = 0, None
        self.frames: list[tuple[int, bytes]] = []

    def answer(self, frame: Frame, body: bytes) -> None:
        self.frames.append((200, body))

    def refuse(self, frame: Frame, code: int, remark: str) -> None:
        self.frames.append((code, remark.encode()))

    def stop_reading(self, why: str) -> None:
        raise AssertionError(why)

    def resume_reading(self, why: str) -> None:
        raise AssertionError(why)


class Serving:
    """The client handlers over a replica in memory: `leads`, or follows n2."""

    def __init__(self, self_id: str, *, leads: bool, directory: Path) -> None:
        store = MemoryStore(hard_state=HardState(0, None, VoterState.VOTER))
        peers = {self_id: PEERS[self_id]} if leads else PEERS
        self.now = 10**12
        config = ReplicaConfig("g0", self_id, peers, flush=FlushMode.ASYNC)
        self.replica = Replica(config, store, random.Random(1), self.now)
        self.done: list[Any] = []
        if leads:
            for _ in range(20):
                self.now += SECOND
                self.replica.tick(self.now)
        else:
            for _ in range(2):  # the first one only brings the term
                self.replica.receive("n2", HeartBeatRequest(1, "n2", 1), self.now)
        self.replica.take_effects()
        loop = asyncio.get_running_loop()
        assert loop
        self.process = Process()
        disk = Disk(
            store, FlushMode.ASYNC, log_epoch=lambda: 0, flushed=lambda *_: None, truncated=lambda *_: None,
            mended=lambda *_: None, damaged=lambda *_: None, begun=lambda *_: None, fail=lambda _: None,
            process=self.process,
        )  # fmt: skip
        overrides = {"node.id": self_id, "peers": "n0-127.0.0.1:20920;n1-127.0.0.1:22001;n2-127.0.0.1:22002"}
        settings = load_settings(overrides | {"node.data": str(directory)}, None, {})
        look = Introspection(settings, store, EventRing("b"), "b")
        status = lambda: self.replica.status(self.now)  # noqa: E731
        at_once: Any = SimpleNamespace(
            add=lambda _connection, serve: serve(), now_or_later=lambda _connection, serve: serve(),
            drop=lambda _connection: None,
        )  # fmt: skip
        cold: Any = SimpleNamespace(add=lambda _connection, read, _cancel: read(lambda: None))
        access = Access(None, (), ())
        self.proposals: Any = SimpleNamespace(add=self.propose)
        self.serving = ClientRequests(
            self, LogReads(store, disk), look, Quota(), status, access, at_once, cold, Counter()
        )
        self.disk = disk

    def propose(self, origin: object, proposal: Proposal, ordered: bool) -> None:
        self.replica.propose_many([proposal], self.now)

    def read_index(self, done: Any) -> None:
        outcome: list[ReadOutcome] = []
        self.replica.read_index(outcome.append, self.now)
        done(outcome[0])

    def transfer(self, to: str | None, deadline_ms: int | None, if_term: int | None, done: Any) -> None:
        outcome: list[TransferOutcome] = []
        self.replica.transfer(to, self.now, on_done=outcome.append, if_term=if_term)
        done(outcome[0])

    def address_of(self, member_id: str | None) -> str:
        return PEERS.get(member_id or "", "")

    def ask(self, raw: bytes) -> dict[str, Any]:
        wire = Wire()
        self.serving.handle(wire, decode_frame(raw))  # type: ignore[arg-type]
        code, body = wire.frames[0]
        return dict(json.loads(body)) if code == 200 else {"remoting": code, "remark": body.decode()}


# pair -> (does the addressed member lead here?, fields that depend on the recorded log and not on the protocol)
CLIENT_PAIRS: dict[str, tuple[bool, set[str]]] = {
    "00_METADATA_200": (False, set()),
    "03_APPEND_body_200": (True, {"index", "pos"}),
    "04_APPEND_body_400": (True, set()),
    "05_APPEND_body_404": (False, set()),
    "08_APPEND_emptybody_200": (True, {"index", "pos"}),
    "02_APPEND_batch-typed_200": (True, {"index", "pos"}),
    "11_GET_404": (False, set()),
    "12_GET_410": (True, set()),
    "62_LEADERSHIP_TRANSFER_client-to-leader_401": (True, {"transfereeId", "detail"}),
    "63_LEADERSHIP_TRANSFER_client-to-leader_407": (True, {"detail"}),
}
# pair -> (does it lead?, what ours says, why it is not what the Java node says)
CLIENT_DIFFERENCES: dict[str, tuple[bool, dict[str, Any], str]] = {
    "01_APPEND_batch-plain_remoting1": (True, {"code": 200, "index": 2}, "batches work over RPC (FORMATS 6.7)"),
    "09_APPEND_nobody_remoting1": (
        True,
        {"code": 420},
        "an append without a body is named: no NullPointerException",
    ),
    "06_APPEND_body_414": (True, {"code": 200}, "one that fits our larger files is simply appended"),
    "10_GET_200": (True, {"code": 200}, "our first entry is the new leader's NOOP, and CRC fields are filled"),
}


@pytest.mark.parametrize("pair", CLIENT_PAIRS)
def test_clients_get_what_the_java_node_answers(vectors: Path, tmp_path: Path, pair: str) -> None:
    leads, free = CLIENT_PAIRS[pair]
    raw = (vectors / "rpc" / f"{pair}.req.bin").read_bytes()
    theirs = json.loads(decode_frame((vectors / "rpc" / f"{pair}.resp.bin").read_bytes()).body)

    async def work() -> dict[str, Any]:
        serving = Serving(json.loads(decode_frame(raw).body)["remoteId"], leads=leads, directory=tmp_path)
        try:
            return serving.ask(raw)
        finally:
            serving.disk.close()
            serving.process.close()

    ours = asyncio.run(work())
    extra = set(ours) - set(theirs)
    assert extra <= free | {"detail"}, "fields that DLedger does not have"
    assert {key: value for key, value in ours.items() if key not in free | {"detail"}} == {
        key: value for key, value in theirs.items() if key not in free
    }


@pytest.mark.parametrize("pair", CLIENT_DIFFERENCES)
def test_deliberate_differences_for_clients(vectors: Path, tmp_path: Path, pair: str) -> None:
    leads, expected, _why = CLIENT_DIFFERENCES[pair]
    raw = (vectors / "rpc" / f"{pair}.req.bin").read_bytes()

    async def work() -> dict[str, Any]:
        serving = Serving(json.loads(decode_frame(raw).body)["remoteId"], leads=leads, directory=tmp_path)
        try:
            return serving.ask(raw)
        finally:
            serving.disk.close()
            serving.process.close()

    ours = asyncio.run(work())
    assert {key: ours.get(key) for key in expected} == expected


def test_an_unknown_code_gets_the_same_words(vectors: Path, tmp_path: Path) -> None:
    async def work() -> None:
        serving = Serving("n0", leads=True, directory=tmp_path)
        theirs = decode_frame((vectors / "rpc" / "14_UNKNOWN_CODE_remoting3.resp.bin").read_bytes())
        raw = (vectors / "rpc" / "14_UNKNOWN_CODE_remoting3.req.bin").read_bytes()
        assert serving.ask(raw) == {"remoting": theirs.code, "remark": theirs.remark}
        serving.disk.close()
        serving.process.close()

    asyncio.run(work())
