"""JSON bodies (FORMATS 2): fastjson's forms on the wire, the protocol's messages in here.

What is common to all of them is in `json_fields.py`. `seq` never travels in a body: it is the frame's opaque.

Invariant: whatever the bytes, reading ends in a value or in BodyError.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from node.protocol.codes import RequestCode, ResponseCode, VoteResult, VoterState
from node.protocol.entry import BytesLike, Entry, EntryError, pack_record, slab_of
from node.protocol.messages import (
    FetchRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    Hello,
    InstallRequest,
    Message,
    PushKind,
    PushRequest,
    PushResponse,
    ReadIndexRequest,
    ReadIndexResponse,
    ReadWay,
    SnapshotPart,
    TransferRequest,
    TransferResponse,
    TransferTicket,
    VoteRequest,
    VoteResponse,
)
from node.transport.hello_body import check_length, hello_fields, hello_of, mark_fields, marks_of
from node.transport.json_fields import BodyError, Fields, dump, load, signed, unsigned

__all__ = ["BodyError", "Fields", "decode_request", "decode_response", "dump", "encode_message", "load", "request_code"]


# --- entries ----------------------------------------------------------------------------------------------------------
def entry_fields(entry: Entry) -> dict[str, Any]:
    """An entry as DLedger's JSON has it."""
    return {
        "body": base64.b64encode(entry.body).decode(),
        "bodyCrc": signed(entry.body_crc),
        "chainCrc": signed(entry.chain_crc),
        "channel": entry.channel,
        "index": entry.index,
        "magic": entry.magic,
        "pos": entry.pos,
        "size": entry.size,
        "term": entry.term,
    }


def entry_of(fields: Fields) -> Entry:
    """Raises BodyError."""
    numbers = [
        fields.number(name, default) for name, default in (("magic", 1), ("index", -1), ("term", -1), ("pos", 0))
    ]
    channel, body_crc, chain_crc = (fields.number(name, 0) for name in ("channel", "bodyCrc", "chainCrc"))
    magic, index, term, pos = numbers
    for name, value in (("magic", magic), ("channel", channel), ("bodyCrc", body_crc), ("chainCrc", chain_crc)):
        if not -(1 << 31) <= value < 1 << 32:
            raise BodyError(f"an entry's {name} is not 32 bits wide")
    if magic >= 1 << 31 or channel >= 1 << 31:
        raise BodyError("an entry's magic or channel is not an int32")
    body = fields.blob("body") or b""
    return Entry(magic, index, term, pos, body, channel, body_crc & 0xFFFFFFFF, chain_crc & 0xFFFFFFFF)


# --- writing ----------------------------------------------------------------------------------------------------------
REQUEST_CODES: Final[Mapping[type, RequestCode]] = {
    Hello: RequestCode.HELLO,
    HeartBeatRequest: RequestCode.HEART_BEAT,
    PushRequest: RequestCode.SLAB_PUSH,
    TransferRequest: RequestCode.LEADERSHIP_TRANSFER,
    ReadIndexRequest: RequestCode.READ_INDEX,
    FetchRequest: RequestCode.FETCH,
    InstallRequest: RequestCode.INSTALL_BASE,
    SnapshotPart: RequestCode.SNAPSHOT_PART,
}


def request_code(message: Message) -> RequestCode | None:
    """The frame code of a request; None for an answer."""
    if isinstance(message, VoteRequest):
        return RequestCode.PRE_VOTE if message.pre else RequestCode.VOTE
    if isinstance(message, Hello) and message.answer:
        return None
    return REQUEST_CODES.get(type(message))


def encode_message(message: Message, group: str, local_id: str, remote_id: str) -> bytes:
    """The JSON body of a request or an answer. An answer names sender and receiver as its request did.

    Raises BodyError.
    """
    base: dict[str, Any] = {
        "code": int(ResponseCode.SUCCESS),
        "group": group,
        "localId": local_id,
        "remoteId": remote_id,
    }
    match message:
        case Hello():
            base |= hello_fields(message)
        case VoteRequest():
            base |= {
                "leaderId": message.candidate_id,
                "ledgerEndIndex": message.ledger_end_index,
                "ledgerEndTerm": message.ledger_end_term,
                "term": message.term,
                "reform": message.reform or None,
            } | _ticket_fields(message.ticket)
        case VoteResponse():
            base |= {"leaderId": remote_id, "localId": remote_id, "remoteId": local_id}
            base |= {"term": message.term, "voteResult": message.result.value}
        case HeartBeatRequest():
            base |= {"leaderId": message.leader_id, "term": message.term, "commitIndex": message.commit_index}
            base["commitChain"] = signed(message.commit_chain)
            if message.marks:
                base["marks"] = [mark_fields(mark) for mark in message.marks]
            if message.held_index >= 0:
                base["heldIndex"] = message.held_index
        case HeartBeatResponse():
            base |= {"code": int(message.code), "term": message.term, "endIndex": message.end_index}
            base["voterState"] = message.voter_state.value
            if message.needs_state_from >= 0:
                base["needsStateFrom"] = message.needs_state_from
        case TransferRequest():
            base |= {"term": message.term, "transferId": local_id, "transfereeId": message.transferee_id}
            base |= {"takeLeadershipLedgerIndex": message.take_leadership_index} | _ticket_fields(message.ticket)
        case TransferResponse():
            base |= {"code": int(message.code), "term": message.term}
        case ReadIndexRequest():
            base["term"] = message.term
            if message.way is not ReadWay.INDEX:
                base["readWay"] = int(message.way)
        case ReadIndexResponse():
            base |= {"code": int(message.code), "term": message.term}
            base |= {"readIndex": message.read_index, "endIndex": message.end_index}
        case _:
            raise BodyError(f"{type(message).__name__} has no JSON body")
    return dump(base)


def _ticket_fields(ticket: TransferTicket | None) -> dict[str, Any]:
    if ticket is None:
        return {}
    return {"ticket": {"nonce": ticket.nonce, "term": ticket.term, "transfereeId": ticket.transferee_id}}


# --- reading ----------------------------------------------------------------------------------------------------------
def decode_request(code: int, body: BytesLike, seq: int) -> Message:
    """A member's JSON request. Raises BodyError, also for a code that is no member's."""
    if code == RequestCode.HELLO:
        check_length(body)
    fields = load(body)
    match code:
        case RequestCode.HELLO:
            return hello_of(fields, seq, answer=False)
        case RequestCode.VOTE | RequestCode.PRE_VOTE:
            return VoteRequest(
                seq, fields.text("leaderId"), fields.term(), fields.number("ledgerEndIndex"),
                fields.number("ledgerEndTerm"), code == RequestCode.PRE_VOTE, _ticket(fields), fields.flag("reform"),
            )  # fmt: skip
        case RequestCode.HEART_BEAT:
            chain = unsigned(fields.optional_number("commitChain"))
            commit_index = fields.number("commitIndex")
            held_index = max(-1, fields.number("heldIndex"))
            leader_id, term = fields.text("leaderId"), fields.term()
            return HeartBeatRequest(seq, leader_id, term, commit_index, chain, marks_of(fields), held_index)
        case RequestCode.LEADERSHIP_TRANSFER:
            take = fields.number("takeLeadershipLedgerIndex")
            return TransferRequest(seq, fields.term(), fields.text("transfereeId"), take, _ticket(fields))
        case RequestCode.READ_INDEX:
            return ReadIndexRequest(seq, fields.term(), _read_way(fields))
        case RequestCode.PUSH:
            return _json_push(fields, seq)
    raise BodyError(f"request code {code} is not a member's")


def _read_way(fields: Fields) -> ReadWay:
    """A later release's that is not known here is the one that every release knows."""
    number = fields.optional_number("readWay")
    return ReadWay(number) if number in tuple(ReadWay) else ReadWay.INDEX


def _ticket(fields: Fields) -> TransferTicket | None:
    ticket = fields.nested("ticket")
    if ticket is None:
        return None
    return TransferTicket(ticket.term(), ticket.text("transfereeId"), ticket.text("nonce"))


def _json_push(fields: Fields, seq: int) -> PushRequest:
    """DLedger's PUSH. An APPEND carries no link to the entry before it: that is for the receiver to settle (C8)."""
    kinds = {kind.name: kind for kind in PushKind}
    name = fields.text("type")
    if name not in kinds:
        raise BodyError(f"push type {name!r} is not known")
    kind, term, commit_index = kinds[name], fields.term(), fields.number("commitIndex")
    prev_index, prev_term = fields.number("preLogIndex"), fields.number("preLogTerm")
    leader_id, epoch = fields.text("leaderId"), 0
    if kind is PushKind.TRUNCATE:
        return PushRequest(seq, kind, leader_id, term, epoch, commit_index, -1, -1, None, prev_index)
    if kind is not PushKind.APPEND:
        return PushRequest(seq, kind, leader_id, term, epoch, commit_index, prev_index, prev_term)
    entries = []
    for item in fields.items("entries"):
        if not isinstance(item, dict):
            raise BodyError("an entry is not an object")
        entries.append(entry_of(Fields(item)))
    if not entries:
        raise BodyError("an APPEND without entries")
    try:
        slab = slab_of(b"".join(map(pack_record, entries)), entries[0].pos, None)
    except (EntryError, ValueError) as error:
        raise BodyError(str(error)) from None
    if any(entry.index != slab.first_index + number for number, entry in enumerate(entries)):
        raise BodyError("the entries of an APPEND are not consecutive")
    if slab.last_term > term:
        raise BodyError(f"an entry of term {slab.last_term} from a leader of term {term}")
    return PushRequest(
        seq, kind, leader_id, term, epoch, commit_index, prev_index, prev_term, None, slab.first_index, slab
    )


def decode_response(code: RequestCode, body: BytesLike, seq: int) -> Message:
    """The JSON answer to our own request of that code. Raises BodyError."""
    if code is RequestCode.HELLO:
        check_length(body)
    fields = load(body)
    term = fields.term()
    match code:
        case RequestCode.HELLO:
            return hello_of(fields, seq, answer=True)
        case RequestCode.VOTE | RequestCode.PRE_VOTE:
            result = fields.choice("voteResult", VoteResult, VoteResult.UNKNOWN)
            return VoteResponse(seq, term, result, code is RequestCode.PRE_VOTE)
        case RequestCode.HEART_BEAT:
            state = fields.choice("voterState", VoterState, VoterState.VOTER)
            needs = fields.number("needsStateFrom")
            return HeartBeatResponse(seq, term, fields.code(), fields.number("endIndex"), state, needs)
        case RequestCode.LEADERSHIP_TRANSFER:
            return TransferResponse(seq, term, fields.code())
        case RequestCode.READ_INDEX:
            read_index, end_index = fields.number("readIndex"), fields.number("endIndex")
            return ReadIndexResponse(seq, term, fields.code(), read_index, end_index)
        case RequestCode.PUSH:
            x_term, x_index = fields.number("xTerm"), fields.number("xIndex")
            return PushResponse(seq, fields.code(), 0, term, -1, -1, fields.number("endIndex"), x_term, x_index)
    raise BodyError(f"request code {code} has no JSON answer")
