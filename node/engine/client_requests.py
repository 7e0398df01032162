"""Serves clients: appends, reads, transfers and introspection, in our own frames and in DLedger's JSON.

Invariants: every request gets exactly one answer; appends of one connection are proposed in the order of their arrival
(SAFETY C4); what waits is bounded per connection and per node, and at a limit the node stops reading (C5).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from node.access_rows import Right
from node.consensus.api import MS
from node.consensus.replica import Appended, Outcome, Proposal, ReadOutcome, Replica, TransferOutcome
from node.engine.access import NEEDED, TOKEN_FIELD, Access, refusal_text
from node.engine.client_reads import ClientReads
from node.engine.cold_turns import ColdTurns
from node.engine.introspect import Introspection
from node.engine.log_reads import LogReads
from node.engine.proposals import Proposals
from node.engine.quota import Quota
from node.engine.recorded_actions import Answer, RecordedActions
from node.engine.slow_requests import SlowRequests
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode, Role
from node.protocol.entry import BytesLike
from node.protocol.messages import ReadWay
from node.transport.bodies import BodyError, Fields, dump, entry_fields, load
from node.transport.committed_frames import PushedPosition, encode_position
from node.transport.connection import Connection
from node.transport.machine_frames import (
    CommandAnswer,
    QuestionAnswer,
    encode_command_answer,
    encode_question_answer,
)
from node.transport.remoting import FLAG_ONE_WAY, FLAG_RESPONSE, Frame
from node.transport.slab_frames import (
    ENTRIES_PER_REQUEST_MAX,
    AppendAnswer,
    AppendedByte,
    ReadAnswer,
    check_count,
    decode_append,
    encode_append_answer,
    encode_read_answer,
)

APPENDED_BYTE: Final[Mapping[Appended, AppendedByte]] = {
    Appended.YES: AppendedByte.YES,
    Appended.NOT_APPENDED: AppendedByte.NOT_APPENDED,
    Appended.UNKNOWN: AppendedByte.UNKNOWN,
}
SUCCESS: Final = RemotingCode.SUCCESS
BASE_FIELDS: Final = ("group", "localId", "remoteId")
TRANSFER: Final = "leadership-transfer"
TRANSFER_DEADLINE_MS_MAX: Final = 600_000
Handler = Callable[[Connection, Frame], None]
JSON_APPEND_BYTES_MAX: Final = 8 * 1024 * 1024  # the longest entry in base64 fits; parsed in some 20 ms
TOKEN_IN_BODY: Final = frozenset({RequestCode.INTROSPECT, RequestCode.LEADERSHIP_TRANSFER, RequestCode.OPERATOR_ACTION})
SLOW: Final = TOKEN_IN_BODY | {RequestCode.METADATA}


class Driver(Protocol):
    """What serving client requests needs of the engine."""

    replica: Replica
    proposals: Proposals

    def read_index(self, done: Callable[[ReadOutcome], None], way: ReadWay = ReadWay.USUAL) -> None: ...
    def transfer(self, to: str | None, deadline_ms: int | None, if_term: int | None,
                 done: Callable[[TransferOutcome], None]) -> None: ...  # fmt: skip
    def address_of(self, member_id: str | None) -> str: ...


class ClientRequests:
    """See the module's docstring."""

    def __init__(self, driver: Driver, reads: LogReads, introspection: Introspection, quota: Quota,
                 status: Callable[[], Any], access: Access, slow: SlowRequests, cold: ColdTurns,
                 refused: Counter[str]) -> None:  # fmt: skip
        """`refused` counts requests without the right to them, by that right."""
        self._driver, self._reads, self._introspection, self._quota = driver, reads, introspection, quota
        self._status, self._access, self._slow, self._refused = status, access, slow, refused
        self._served: dict[Right, dict[int, Handler]] = {}  # by what a client may do
        self.reads = ClientReads(driver, reads, quota, slow, cold)
        self.when_closed: list[Callable[[Connection], None]] = [self.reads.closed]
        self._holding: list[Connection] = []  # what has answers that leave at the turn's end
        self._group, self._self_id = driver.replica.config.group, driver.replica.config.self_id
        self.actions = RecordedActions(self, driver.replica)
        self._handlers: dict[int, Handler] = {
            RequestCode.FAST_APPEND: self._fast_append,
            RequestCode.FAST_READ: self.reads.handle,
            RequestCode.METADATA: self._metadata,
            RequestCode.APPEND: self._append,
            RequestCode.GET: self._get,
            RequestCode.LEADERSHIP_TRANSFER: self.actions.handler(self._transfer, TRANSFER),
            RequestCode.INTROSPECT: self._introspect,
        }

    def serve(self, code: RequestCode, handler: Handler) -> None:
        """Registers the handler of one request code."""
        self._handlers[code] = handler

    def renew_access(self, access: Access) -> None:
        """For connections and tokens that come from now on; rights that a connection has, it keeps to its end."""
        self._access = access

    def closed(self, connection: Connection) -> None:
        """It has ended: nothing of it is served any more."""
        for forget in self.when_closed:
            forget(connection)

    def handle(self, connection: Connection, frame: Frame, handler: Handler | None = None) -> None:
        """One client request; `handler`: that of a slow one, whose turn has come."""
        if handler is None:
            served = connection.served
            if served is None or frame.ext_fields is not None:
                served = self._meet(connection, frame)
            handler = served.get(frame.code)
            if handler is None:
                self._unsupported(connection, frame)
                return
        try:
            handler(connection, frame)
            if connection.on_earned is not None and connection.rights:
                connection.earn()
        except BodyError as error:
            self._refuse_body(connection, frame, ResponseCode.UNEXPECTED_ARGUMENT, str(error))

    def _meet(self, connection: Connection, frame: Frame) -> dict[int, Handler]:
        """Its first request, or one that shows a token: what is served on that connection from now on."""
        rights = connection.rights | self._access.of_connection(connection)
        if frame.ext_fields is not None:
            shown = frame.ext_fields.get(TOKEN_FIELD, "")
            rights |= self._access.of_token(shown)
            connection.shown_as = self._access.name_of(shown) or connection.shown_as
        connection.rights = rights
        connection.served = self._served_with(Right(rights))
        return connection.served

    def who_asks(self, connection: Connection, fields: Fields) -> str:
        """By what an operator is known: a token's or a certificate's name; empty where neither was shown."""
        known = self._access.name_of(fields.text(TOKEN_FIELD)) or connection.shown_as
        return known or self._access.certificate_of(connection)

    def _served_with(self, rights: Right) -> dict[int, Handler]:
        if rights not in self._served:
            served: dict[int, Handler] = {}
            for code, handler in self._handlers.items():
                needed = NEEDED.get(RequestCode(code), Right.OPERATE)
                if code in SLOW:
                    handler = partial(self._later, handler)
                served[code] = handler if needed in rights else partial(self._without_right, needed, handler)
            self._served[rights] = served
        return self._served[rights]

    def _later(self, handler: Handler, connection: Connection, frame: Frame) -> None:
        self._slow.add(connection, partial(self.handle, connection, frame, handler))

    def _without_right(self, needed: Right, handler: Handler, connection: Connection, frame: Frame) -> None:
        """Requests in JSON may carry a token themselves."""
        if frame.code in TOKEN_IN_BODY and needed in self._access.of_token(load(frame.body).text(TOKEN_FIELD)):
            handler(connection, frame)
            if not connection.rights:
                connection.earn()
            return
        self._refused[(needed.name or "").lower()] += 1
        self._refuse_body(connection, frame, ResponseCode.UNEXPECTED_MEMBER, refusal_text(needed))

    def _refuse_body(self, connection: Connection, frame: Frame, code: ResponseCode, text: str) -> None:
        """An answer in the form that this request's has."""
        if frame.code in (RequestCode.FAST_APPEND, RequestCode.LANE_APPEND):
            refusal = AppendAnswer(code, -1, -1, -1, AppendedByte.NOT_APPENDED, detail=text)
            connection.answer(frame, encode_append_answer(refusal))
        elif frame.code in (RequestCode.FAST_READ, RequestCode.AWAITED_READ):
            connection.answer(frame, *encode_read_answer(ReadAnswer(code, -1, -1, -1, 0)))
        elif frame.code == RequestCode.COMMAND:
            refusal = AppendAnswer(code, -1, -1, -1, AppendedByte.NOT_APPENDED, detail=text)
            connection.answer(frame, encode_command_answer(CommandAnswer(refusal, False)))
        elif frame.code == RequestCode.QUESTION:
            connection.answer(frame, *encode_question_answer([QuestionAnswer(code, -1, text.encode())]))
        elif frame.code == RequestCode.COMMITTED_STREAM:
            connection.answer(frame, encode_position(PushedPosition(code)))
        else:
            connection.answer(frame, dump(self.base({}, code) | {"detail": text}))

    # --- our own frames -----------------------------------------------------------------------------------------
    def _fast_append(self, connection: Connection, frame: Frame) -> None:
        request = decode_append(frame.body)
        count, size = len(request.bodies), len(frame.body)
        self._quota.take(connection, count, size)

        def done(outcome: Outcome) -> None:
            self._quota.give(connection, count, size)
            if not frame.flag & FLAG_ONE_WAY:
                body = encode_append_answer(self.append_answer(outcome))
                if connection.hold_body(SUCCESS, FLAG_RESPONSE, frame.opaque, [body]):
                    self._holding.append(connection)

        expected = None if request.expected_index < 0 else request.expected_index
        self._driver.proposals.add(connection, Proposal(request.bodies, done, expected), request.ordered)

    def hold(self, connection: Connection, frame: Frame, body: bytes) -> None:
        """An answer that leaves at the turn's end."""
        if connection.hold_body(SUCCESS, FLAG_RESPONSE, frame.opaque, [body]):
            self._holding.append(connection)

    def release(self) -> None:
        """The end of a turn: its answers leave, those of one connection together."""
        holding, self._holding = self._holding, []
        for connection in holding:
            connection.release()

    def append_answer(self, outcome: Outcome) -> AppendAnswer:
        appended = APPENDED_BYTE[outcome.appended]
        indexes = (outcome.first_index, outcome.last_index, outcome.term)
        if appended is AppendedByte.YES:
            return AppendAnswer(outcome.code, *indexes, appended)
        leader_id = outcome.leader_id or ""
        address = self._driver.address_of(outcome.leader_id)
        retry_after_ms = -(-outcome.retry_after_ns // MS)
        return AppendAnswer(outcome.code, *indexes, appended, leader_id, address, outcome.detail, retry_after_ms)

    # --- DLedger's JSON -----------------------------------------------------------------------------------------
    def base(self, request: Mapping[str, Any], code: ResponseCode, **more: Any) -> dict[str, Any]:
        """A refusal as DLedger writes it: the request's own base fields, the code, the leader as known here."""
        kept = {
            name: request.get(name) for name in ("group", "localId", "remoteId") if isinstance(request.get(name), str)
        }
        leader_id = self._driver.replica.leader_id
        return {"code": int(code), "leaderId": leader_id, "term": -1} | kept | more

    def misdirected(self, fields: Fields) -> ResponseCode | None:
        if fields.text("group") != self._group:
            return ResponseCode.UNKNOWN_GROUP
        return None if fields.text("remoteId", self._self_id) == self._self_id else ResponseCode.UNKNOWN_MEMBER

    def _metadata(self, connection: Connection, frame: Frame) -> None:
        fields = load(frame.body)
        refused = self.misdirected(fields)
        replica = self._driver.replica
        if refused is not None:
            connection.answer(frame, dump(self.base(fields.values, refused)))
            return
        answer = {"code": 200, "group": self._group, "leaderId": replica.leader_id, "term": -1}
        answer["groupId"] = replica.member.hard.group_id
        if replica.config.kind.takes_commands:
            answer["stateMachine"] = replica.config.kind.name
        connection.answer(frame, dump(answer | {"peers": dict(replica.configuration.voters)}))

    def _append(self, connection: Connection, frame: Frame) -> None:
        fields = load(frame.body, JSON_APPEND_BYTES_MAX, ENTRIES_PER_REQUEST_MAX + 64)
        nothing = {"index": -1, "pos": -1}
        refused = self.misdirected(fields)
        if refused is not None:
            connection.answer(frame, dump(self.base(fields.values, refused, **nothing)))
            return
        single = fields.blob("body")
        bodies = fields.blobs("batchMsgs") if single is None else [single]
        check_count(len(bodies))
        self._quota.take(connection, len(bodies), len(frame.body))

        def done(outcome: Outcome) -> None:
            self._quota.give(connection, len(bodies), len(frame.body))
            if outcome.appended is Appended.NOT_APPENDED:
                refusal = self.base(fields.values, outcome.code, **nothing)
                connection.answer(frame, dump(refusal | {"detail": outcome.detail or None}))
                return
            answer = {"code": int(outcome.code), "group": self._group, "leaderId": outcome.leader_id}
            answer |= {"index": outcome.last_index, "term": outcome.term}
            self._reads.position(
                outcome.last_index, lambda position: connection.answer(frame, dump(answer | {"pos": position}))
            )

        self._driver.proposals.add(connection, Proposal(bodies, done), ordered=False)

    def _get(self, connection: Connection, frame: Frame) -> None:
        fields = load(frame.body)
        refused = self.misdirected(fields)
        replica = self._driver.replica
        begin_index = fields.number("beginIndex")
        if refused is None and replica.role is not Role.LEADER:
            refused = ResponseCode.NOT_LEADER

        def refuse(code: ResponseCode) -> None:
            connection.answer(frame, dump(self.base(fields.values, code, entries=[])))

        def found(code: ResponseCode, count: int, records: BytesLike) -> None:
            if code is not ResponseCode.SUCCESS or count == 0:
                refuse(ResponseCode.INDEX_OUT_OF_RANGE if code is ResponseCode.SUCCESS else code)
                return
            entry = entry_fields(self._reads.first_entry(records))
            connection.answer(frame, dump({"code": 200, "entries": [entry], "group": self._group, "term": -1}))

        def confirmed(outcome: ReadOutcome) -> None:
            self._quota.give(connection, 1, len(frame.body))
            if outcome.code is not ResponseCode.SUCCESS:
                refuse(outcome.code)
            else:
                self.reads.one(connection, frame, begin_index, found)

        if refused is not None:
            refuse(refused)
        elif begin_index < 0:
            refuse(ResponseCode.INDEX_OUT_OF_RANGE)
        else:
            self._quota.take(connection, 1, len(frame.body))
            self._driver.read_index(confirmed)

    # --- operator actions and views -----------------------------------------------------------------------------------
    def _transfer(self, fields: Fields, answer: Answer) -> None:
        refused = self.misdirected(fields)
        term = fields.number("term")
        detail = ""
        if refused is None and self._driver.replica.role is Role.LEADER and term not in (-1, self._driver.replica.term):
            refused, detail = ResponseCode.INCONSISTENT_TERM, f"the term is {self._driver.replica.term}, not {term}"
        if refused is not None:
            answer(self.base(fields.values, refused) | {"term": term, "detail": detail or None})
            return

        def done(outcome: TransferOutcome) -> None:
            kept = self.base(fields.values, outcome.code)
            said = {"leaderId": outcome.leader_id, "term": outcome.term, "detail": outcome.detail or None}
            answer(kept | said | {"transfereeId": outcome.transferee_id})

        deadline_ms = fields.optional_number("deadlineMs")
        if deadline_ms is not None and not 1 <= deadline_ms <= TRANSFER_DEADLINE_MS_MAX:
            raise BodyError(f"deadlineMs {deadline_ms}: 1 to {TRANSFER_DEADLINE_MS_MAX} are allowed")
        to = fields.text("transfereeId") or None
        self._driver.transfer(to, deadline_ms, fields.optional_number("ifTerm"), done)

    def _introspect(self, connection: Connection, frame: Frame) -> None:
        fields = load(frame.body)
        what = fields.text("what")
        if fields.text("group", self._group) != self._group:
            connection.answer(frame, dump(self.base(fields.values, ResponseCode.UNKNOWN_GROUP)))
            return
        if not self._introspection.knows(what):
            raise BodyError(f"there is no {what!r} to look at")
        answer = self._introspection.view(what, fields.optional_text("since"), self._status).to_bytes()
        connection.answer(frame, answer)
        self._slow.gave(connection, len(answer))

    def _unsupported(self, connection: Connection, frame: Frame) -> None:
        """As the original says it."""
        text = f" request type {frame.code} not supported"
        connection.refuse(frame, RemotingCode.REQUEST_CODE_NOT_SUPPORTED, text)
