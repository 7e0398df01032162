"""OPEN_LANE and appends over a lane, between a client's connection and the core (`consensus/lanes.py`).

Invariants: a lane belongs to the connection that opened it and ends with it; an append that cannot be read ends the
lane, too, for nobody knows what it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from node.consensus.api import LaneTicket, Outcome, Proposal
from node.consensus.lanes import LaneOpened
from node.engine.quota import Quota
from node.protocol.codes import ResponseCode
from node.transport.bodies import BodyError, Fields, dump, load
from node.transport.connection import Connection
from node.transport.lane_frames import LaneAnswer, decode_lane_append, lane_fields
from node.transport.remoting import FLAG_ONE_WAY, Frame
from node.transport.slab_frames import AppendAnswer, AppendedByte, encode_append_answer


class Driver(Protocol):
    """What is needed of the engine."""

    def open_lane(self, origin: Connection, done: Callable[[LaneOpened], None]) -> None: ...
    def lane_lost(self, origin: Connection) -> None: ...
    def propose_over_lane(self, origin: Connection, proposal: Proposal) -> None: ...
    def address_of(self, member_id: str | None) -> str: ...


class Clients(Protocol):
    """What is needed of the other client requests."""

    def misdirected(self, fields: Fields) -> ResponseCode | None: ...
    def append_answer(self, outcome: Outcome) -> AppendAnswer: ...
    def hold(self, connection: Connection, frame: Frame, body: bytes) -> None: ...


class LaneRequests:
    """One per engine."""

    def __init__(self, driver: Driver, clients: Clients, quota: Quota, group: str) -> None:
        self._driver, self._clients, self._quota, self._group = driver, clients, quota, group

    def open(self, connection: Connection, frame: Frame) -> None:
        """OPEN_LANE. Raises BodyError."""
        refused = self._clients.misdirected(load(frame.body))

        def done(opened: LaneOpened) -> None:
            address = self._driver.address_of(opened.leader_id) or None
            answer = LaneAnswer(*opened[:8], address, opened.detail)
            connection.answer(frame, dump({"group": self._group} | lane_fields(answer)))

        if refused is not None:
            done(LaneOpened(refused))
        else:
            self._driver.open_lane(connection, done)

    def append(self, connection: Connection, frame: Frame) -> None:
        """An append over a lane."""
        try:
            request = decode_lane_append(frame.body)
        except BodyError as error:
            self._driver.lane_lost(connection)
            code = ResponseCode.UNEXPECTED_ARGUMENT
            refusal = AppendAnswer(code, -1, -1, -1, AppendedByte.NOT_APPENDED, detail=str(error))
            connection.answer(frame, encode_append_answer(refusal))
            return
        count, size_bytes = len(request.bodies), len(frame.body)
        self._quota.take(connection, count, size_bytes)

        def done(outcome: Outcome) -> None:
            self._quota.give(connection, count, size_bytes)
            if not frame.flag & FLAG_ONE_WAY:
                self._clients.hold(connection, frame, encode_append_answer(self._clients.append_answer(outcome)))

        ticket = LaneTicket(request.term, request.lane, request.sequence, request.channel, request.patch_at)
        self._driver.propose_over_lane(connection, Proposal(request.bodies, done, lane=ticket))
