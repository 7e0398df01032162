"""The JSON body of HELLO (52000), and the marks that heartbeats pass round (SAFETY E8, E9, E10, C9, C11).

Invariants: what a stranger says is bounded here: a HELLO's bytes, lives and marks, the characters of ids; `proven` is
never read from a body.
"""

from __future__ import annotations

from typing import Any, Final

from node.protocol.codes import FlushMode, VoterState
from node.protocol.entry import BytesLike
from node.protocol.group_settings import GroupSettings, SaidSettings
from node.protocol.messages import Hello, MemberMark, PeerRecord
from node.transport.json_fields import SHORT_TEXT_MAX, BodyError, Fields

LIVES_MAX: Final = 64
MARKS_MAX: Final = 64
HELLO_BYTES_MAX: Final = 64 * 1024  # many times what the largest group says


def check_length(body: BytesLike) -> None:
    """Before anything is parsed or kept of it. Raises BodyError."""
    if len(body) > HELLO_BYTES_MAX:
        raise BodyError(f"a HELLO of {len(body)} bytes; {HELLO_BYTES_MAX} at most")


def hello_fields(hello: Hello) -> dict[str, Any]:
    fields = {
        "code": int(hello.code), "detail": hello.detail, "group": hello.group, "node_id": hello.node_id,
        "version_min": hello.version_min, "version_max": hello.version_max, "store_id": hello.store_id,
        "voter_state": hello.voter_state.value, "end_index": hello.end_index, "sealed_from": hello.sealed_from,
        "peers_hash": hello.peers_hash, "data_file_size": hello.data_file_size,
        "index_file_size": hello.index_file_size, "flush": hello.flush.value, "lease_reads": hello.lease_reads,
        "api_url": hello.api_url, "token": hello.token, "caps": list(hello.caps), "recorded": hello.recorded,
        "term": hello.term, "group_id": hello.group_id, "life_ids": list(hello.life_ids),
        "election_min_ms": hello.election_min_ms, "nonce": hello.nonce, "mac": hello.mac,
        "marks_from": hello.marks_from, "record": _record_fields(hello.record),
        "settings": None if hello.settings is None else _settings_fields(hello.settings),
    }  # fmt: skip
    return fields | ({"ended": True} if hello.ended else {})


def _settings_fields(said: SaidSettings) -> dict[str, Any]:
    was = None if said.was is None else {**said.was._asdict(), "flush": said.was.flush.value}
    return {**said._asdict(), "was": was}


def _record_fields(record: PeerRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {
        "store_id": record.store_id, "life_id": record.life_id,
        "mark": {"index": record.mark_index, "term": record.mark_term, "leadership": record.leadership},
    }  # fmt: skip


def mark_fields(mark: MemberMark) -> dict[str, Any]:
    return {"id": mark.member_id, "index": mark.index, "term": mark.term}


def hello_of(fields: Fields, seq: int, *, answer: bool) -> Hello:
    return Hello(
        seq=seq,
        group=fields.text("group"),
        node_id=fields.text("node_id"),
        store_id=fields.id_text("store_id"),
        voter_state=fields.choice("voter_state", VoterState, VoterState.REJOINING),
        end_index=fields.number("end_index"),
        sealed_from=fields.number("sealed_from"),
        peers_hash=fields.id_text("peers_hash"),
        data_file_size=fields.number("data_file_size"),
        index_file_size=fields.number("index_file_size"),
        flush=fields.choice("flush", FlushMode, FlushMode.SYNC),
        lease_reads=fields.flag("lease_reads"),
        api_url=fields.optional_text("api_url"),
        token=fields.optional_text("token"),
        caps=tuple(fields.list_of_texts("caps")),
        version_min=fields.number("version_min"),
        version_max=fields.number("version_max"),
        code=fields.code(),
        detail=fields.optional_text("detail"),
        recorded=fields.texts("recorded"),
        answer=answer,
        term=fields.term(),
        group_id=fields.short_text("group_id"),
        life_ids=_lives(fields),
        election_min_ms=fields.optional_number("election_min_ms"),
        marks_from=fields.number("marks_from"),
        record=_record(fields),
        settings=_settings(fields),
        nonce=fields.short_text("nonce"),
        mac=fields.short_text("mac"),
        ended=fields.flag("ended"),
    )


def _lives(fields: Fields) -> tuple[str, ...]:
    lives = fields.list_of_texts("life_ids")[-LIVES_MAX:]
    if any(len(life) > SHORT_TEXT_MAX for life in lives):
        raise BodyError(f"a life's id has more than {SHORT_TEXT_MAX} characters")
    return tuple(lives)


def _record(fields: Fields) -> PeerRecord | None:
    record = fields.nested("record")
    if record is None:
        return None
    mark = record.nested("mark") or Fields({})
    life_id = record.short_text("life_id")
    return PeerRecord(
        record.id_text("store_id"), life_id, mark.number("index"), mark.number("term"), mark.number("leadership")
    )


def _settings(fields: Fields) -> SaidSettings | None:
    said = fields.nested("settings")
    if said is None:
        return None
    was = said.nested("was")
    before = None if was is None else GroupSettings(
        was.choice("flush", FlushMode, FlushMode.SYNC), was.flag("lease_reads"), was.number("election_min_ms")
    )  # fmt: skip
    beat_ms, min_ms = said.number("heartbeat_ms"), said.number("election_min_ms")
    return SaidSettings(beat_ms, min_ms, said.id_text("mark"), said.id_text("knows"), before)


def marks_of(fields: Fields) -> tuple[MemberMark, ...]:
    marks = []
    for item in fields.items("marks")[:MARKS_MAX]:
        if not isinstance(item, dict):
            raise BodyError("a mark is not an object")
        mark = Fields(item)
        marks.append(MemberMark(mark.id_text("id"), mark.number("index"), mark.number("term")))
    return tuple(marks)
