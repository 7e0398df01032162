"""Targets: a member's core behind its decoders. Whatever members send, it answers, refuses or ignores; it never breaks.

An exception in the core ends an engine, so one odd frame that raises is a member down.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

from node.protocol.codes import RequestCode, ResponseCode, Role, VoteResult
from node.protocol.entry import Slab, decode_slab
from node.protocol.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    Message,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    TransferRequest,
    TransferTicket,
    VoteRequest,
    VoteResponse,
)
from node.protocol.slab_encode import encode_slab
from node.transport.bodies import BodyError, decode_request, decode_response, encode_message, request_code
from node.transport.slab_frames import PushEncoder, decode_push, decode_push_answer, encode_push_answer
from tests.fuzz.target import KIB, Target
from tests.fuzz.wire import CODES, repair_push
from tests.unit.core_kit import Leader, Solo, store_of

STEP = struct.Struct(">BBBiH")  # sender, code, answer or request, opaque, bytes of the body
SENDERS = ("n1", "n2", "n1", "n9")
LOG_TERMS = (1, 1, 2, 2)
STEPS_MAX = 40


def packed(sender: str, message: Message, *, answer: bool = False) -> bytes:
    """One step of an input."""
    if isinstance(message, PushRequest):
        code, body = int(RequestCode.SLAB_PUSH), b"".join(PushEncoder().encode(message))
    elif isinstance(message, PushResponse):
        code, body = int(RequestCode.SLAB_PUSH), encode_push_answer(message)
    else:
        known = request_code(message)
        code = int(RequestCode.HEART_BEAT if isinstance(message, HeartBeatResponse) else known or RequestCode.VOTE)
        if isinstance(message, VoteResponse) and message.pre:
            code = int(RequestCode.PRE_VOTE)
        body = encode_message(message, "g", sender, "n0")
    seq = message.seq & 0x7FFFFFFF if message.seq >= 0 else -1
    return STEP.pack(SENDERS.index(sender), CODES.index(code), answer, seq, len(body)) + body


def _decoded(sender: str, code: RequestCode, answer: bool, seq: int, body: bytes) -> Message:
    if code is RequestCode.SLAB_PUSH:
        return decode_push_answer(body, seq) if answer else decode_push(body, sender, seq)
    if code is RequestCode.PUSH:
        raise BodyError("a JSON PUSH is not served")
    return decode_response(code, body, seq) if answer else decode_request(code, body, seq)


class Watched:
    """A replica whose sends must all be encodable and whose marks must stay in order."""

    def __init__(self, solo: Solo) -> None:
        self.solo, self.encoder = solo, PushEncoder()
        self.term, self.committed = solo.replica.term, solo.replica.committed_index

    def step(self, sender: str, message: Message) -> None:
        self._check(self.solo.receive(sender, message))
        order = self.solo.effects.truncate
        if order is not None:
            self.solo.store.truncate(order.cut_index, order.record)
            self.solo.replica.disk.truncated(order.log_epoch, order.cut_index, self.solo.now)
        self._check(self.solo.sync())

    def _check(self, sent: list[tuple[str, Message]]) -> None:
        for to, message in sent:
            if isinstance(message, PushRequest):
                b"".join(self.encoder.encode(message))
            elif isinstance(message, PushResponse):
                encode_push_answer(message)
            else:
                encode_message(message, "g", "n0", to)
        replica, store = self.solo.replica, self.solo.store
        assert replica.term >= self.term
        assert replica.committed_index >= self.committed
        assert -1 <= replica.committed_index <= store.end_index
        assert replica.member.verified_index <= store.end_index
        assert store.end_term <= replica.term, f"the log is of term {store.end_term}, the member of {replica.term}"
        self.term, self.committed = replica.term, replica.committed_index

    def finish(self) -> None:
        """Time goes on, and every entry can be read."""
        for _ in range(3):
            self._check(self.solo.tick(700))
        self.solo.replica.status(self.solo.now)
        store, index = self.solo.store, self.solo.store.begin_index
        while index <= store.end_index:
            slab = store.read_slab(index, 1 << 20)
            assert [one.index for one in decode_slab(slab)] == list(range(index, slab.last_index + 1))
            index = slab.last_index + 1


def start(kind: int) -> Solo:
    """A follower, a member that follows nobody yet, or a leader."""
    if kind % 3 == 2:
        return Leader().solo
    solo = Solo(store_of(LOG_TERMS))
    if kind % 3 == 0:
        solo.follow(term=3)
    return solo


def core(data: bytes) -> None:
    """The first byte chooses what the member is; then one frame after the other."""
    watched = Watched(start(data[0] if data else 0))
    at, steps = 1, 0
    while at + STEP.size <= len(data) and steps < STEPS_MAX:
        number, code, answer, seq, size = STEP.unpack_from(data, at)
        body = data[at + STEP.size : at + STEP.size + size]
        at, steps = at + STEP.size + size, steps + 1
        sender = SENDERS[number % 2]
        try:
            known = RequestCode(CODES[code % len(CODES)])
            message = _decoded(sender, known, bool(answer & 1), seq, body)
        except BodyError:
            continue
        watched.step(message.node_id if isinstance(message, Hello) and not message.answer else sender, message)
    watched.finish()


def repair(data: bytes) -> bytes:
    """Slab pushes match their CRCs again, and steps say how long they are."""
    out, at = bytearray(data[:1]), 1
    while at + STEP.size <= len(data):
        head = list(STEP.unpack_from(data, at))
        body = data[at + STEP.size : at + STEP.size + head[4]]
        at += STEP.size + head[4]
        if CODES[head[1] % len(CODES)] == RequestCode.SLAB_PUSH and not head[2] & 1:
            body = repair_push(body)
        out += STEP.pack(*head[:4], len(body)) + body
    return bytes(out)


# --- seeds ------------------------------------------------------------------------------------------------------------
def slab_after(solo: Solo, bodies: Sequence[bytes], term: int) -> Slab:
    store = solo.store
    last = store.get(store.end_index)
    pos = 0 if last is None else last.pos + last.size
    return encode_slab(bodies, store.end_index + 1, term, pos, store.end_chain or 0)


def pushes() -> list[PushRequest]:
    """A leader's orders to the follower of `start(0)`, from the first COMPARE to a COMMIT."""
    solo = start(0)
    end = solo.store.end_index
    meta, before = solo.store.meta(end), solo.store.meta(1)
    assert meta is not None
    assert before is not None
    slab = slab_after(solo, [b"a", b"", b"ccc"], 3)
    many = encode_slab([b"%d" % number for number in range(30)], slab.last_index + 1, 3, slab.end_pos, slab.last_chain)
    common = {"leader_id": "n1", "term": 3, "dispatch_epoch": 1, "commit_index": 2}
    return [
        PushRequest(11, PushKind.COMPARE, **common, prev_index=end, prev_term=2, prev_chain=meta.chain),
        PushRequest(12, PushKind.TRUNCATE, **common, first_index=end + 1, prev_term=-1),
        PushRequest(13, PushKind.APPEND, **common, prev_index=end, prev_term=2, prev_chain=slab.prev_chain,
                    first_index=slab.first_index, slab=slab),
        PushRequest(14, PushKind.APPEND, **common, prev_index=slab.last_index, prev_term=3,
                    prev_chain=many.prev_chain, first_index=many.first_index, slab=many),
        PushRequest(15, PushKind.COMMIT, **{**common, "commit_index": 20}),
        PushRequest(16, PushKind.COMPARE, **common, prev_index=1, prev_term=1, prev_chain=before.chain),
        PushRequest(17, PushKind.TRUNCATE, **common, first_index=2, prev_term=3),
    ]  # fmt: skip


@cache
def seeds() -> Sequence[bytes]:
    orders = [packed("n1", one) for one in pushes()]
    others = [
        packed("n1", HeartBeatRequest(21, "n1", 3, 2, None)),
        packed("n2", VoteRequest(22, "n2", 4, 9, 3)),
        packed("n2", VoteRequest(23, "n2", 4, 9, 3, pre=True)),
        packed("n2", VoteRequest(24, "n2", 4, 9, 3, ticket=TransferTicket(3, "n2", "x"))),
        packed("n1", TransferRequest(25, 3, "n0", 3, TransferTicket(3, "n0", "x"))),
        packed("n2", ReadIndexRequest(26, 3)),
        packed("n2", start(1).hello_of("n2", seq=27, answer=False)),
        packed("n1", start(1).hello_of("n1", seq=28, answer=False, store_id="another")),
    ]
    solo = start(2)
    replica = solo.replica
    solo.tick(60)
    sends = [(to, message) for to, message in solo.sent if to != "n0"]
    answers = []
    for _to, message in sends[-12:]:
        if isinstance(message, PushRequest):
            marks = (replica.term, 0, 0, 0)
            answers.append(PushResponse(message.seq, ResponseCode.SUCCESS, message.dispatch_epoch, *marks))
        elif isinstance(message, VoteRequest):
            answers.append(VoteResponse(message.seq, replica.term, VoteResult.ACCEPT, message.pre))
        else:
            answers.append(HeartBeatResponse(message.seq, replica.term, ResponseCode.SUCCESS, 0))
    assert replica.role is Role.LEADER
    reported = [packed("n1", one, answer=True) for one in answers]
    behind = packed("n2", PushResponse(-1, ResponseCode.INCONSISTENT_STATE, 1, 1, 0, 0, 0, 1, 0), answer=True)
    return [
        b"\0" + b"".join(orders), b"\0" + b"".join(others), b"\1" + b"".join(others[::-1]),
        b"\2" + b"".join(reported) + behind, b"\2" + b"".join(others), b"\1" + b"".join(orders + others),
        *(bytes([number % 2]) + one for number, one in enumerate([*orders, *others])),
    ]  # fmt: skip


TARGETS: tuple[Target, ...] = (
    Target("core", core, seeds, repair=repair, bytes_fixed=8 * 1024 * KIB, bytes_per_byte=400, heavy=True),
)
