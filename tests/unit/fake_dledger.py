"""A plain DLedger group of the test's: sockets that answer as the Java original was recorded to (FORMATS 2).

It knows METADATA, APPEND, GET and LEADERSHIP_TRANSFER, answers every other request with remoting code 3, and keeps one
list of entries for all: what is under test is the client, not replication. It runs in a thread of its own, so that
commands with a loop of theirs can speak to it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from node.protocol.codes import RemotingCode, RequestCode
from node.transport.connection import Connection
from node.transport.remoting import Frame

Json = dict[str, Any]


class FakeDledger:
    """`received` is (member, request code, body) of all that came, `begin_index` what GET knows as the first one."""

    def __init__(self, members: tuple[str, ...] = ("n0", "n1", "n2"), leader_id: str | None = "n2") -> None:
        self.members, self.leader_id, self.term = members, leader_id, 4
        self.group = "g0"
        self.entries: list[Json] = []
        self.begin_index = 0
        self.received: list[tuple[str, int, Json]] = []
        self.append_code: int | None = None  # instead of appending
        self.append_index = -1  # and the index that this refusal names
        self.remoting_code: int | None = None  # of every APPEND and GET, in place of an answer
        self.addresses: dict[str, str] = {}

    @property
    def peers(self) -> str:
        return ";".join(f"{one}-{self.addresses[one]}" for one in self.members)

    def codes(self) -> list[int]:
        return [code for _, code, _ in self.received]

    def holds(self, *bodies: bytes, term: int | None = None, magic: int = 1) -> None:
        """Entries that are there already."""
        for body in bodies:
            index, size = len(self.entries), 48 + len(body)
            self.entries.append(
                {
                    "body": base64.b64encode(body).decode(), "bodyCrc": 0, "chainCrc": 0, "channel": 0, "index": index,
                    "magic": magic, "pos": 53 * index, "size": size, "term": term or self.term,
                }
            )  # fmt: skip

    # --- a member -----------------------------------------------------------------------------------------------
    def answer(self, member_id: str, connection: Connection, frame: Frame) -> None:
        known = {
            RequestCode.METADATA: self._metadata,
            RequestCode.APPEND: self._append,
            RequestCode.GET: self._get,
            RequestCode.LEADERSHIP_TRANSFER: self._transfer,
        }
        handle = known.get(frame.code)  # type: ignore[call-overload]
        request = json.loads(bytes(frame.body)) if handle is not None else {}
        self.received.append((member_id, frame.code, request))
        if handle is None:
            text = f" request type {frame.code} not supported"
            connection.refuse(frame, RemotingCode.REQUEST_CODE_NOT_SUPPORTED, text)
        elif self.remoting_code is not None and handle in (self._append, self._get):
            connection.refuse(frame, RemotingCode(self.remoting_code), "java.lang.NullPointerException, DLedgerServer")
        else:
            reported = handle(member_id, request)
            connection.answer(frame, json.dumps(reported, separators=(",", ":"), sort_keys=True).encode())

    def _refused(self, code: int, member_id: str, **more: Any) -> Json:
        reported = {"code": code, "group": self.group, "remoteId": member_id, "term": -1, **more}
        return reported if self.leader_id is None else {**reported, "leaderId": self.leader_id}

    def _sane(self, member_id: str, request: Json) -> int:
        if request.get("group") != self.group:
            return 400
        if request.get("remoteId") != member_id:
            return 401
        return 200 if member_id == self.leader_id else 404

    def _metadata(self, member_id: str, request: Json) -> Json:
        if request.get("group") != self.group:
            return self._refused(400, member_id)
        reported = {"code": 200, "group": self.group, "peers": self.addresses, "term": -1}
        return reported if self.leader_id is None else {**reported, "leaderId": self.leader_id}

    def _append(self, member_id: str, request: Json) -> Json:
        code = self._sane(member_id, request)
        if code == 200 and self.append_code is not None:
            return self._refused(self.append_code, member_id, index=self.append_index, pos=-1)
        if code != 200:
            return self._refused(code, member_id, index=-1, pos=-1)
        self.holds(base64.b64decode(request["body"]))
        index = len(self.entries) - 1
        return {
            "code": 200, "group": self.group, "index": index, "leaderId": self.leader_id, "pos": 53 * index,
            "term": self.term,
        }  # fmt: skip

    def _get(self, member_id: str, request: Json) -> Json:
        code, at = self._sane(member_id, request), request["beginIndex"]
        if code == 200 and at >= len(self.entries):
            code = 410
        elif code == 200 and at < self.begin_index:
            code = 419
        if code != 200:
            return self._refused(code, member_id, entries=[])
        return {"code": 200, "entries": [self.entries[at]], "group": self.group, "term": -1}

    def _transfer(self, member_id: str, request: Json) -> Json:
        reported = {
            "group": self.group,
            "leaderId": self.leader_id,
            "remoteId": member_id,
            "term": request.get("term", -1),
        }
        if request.get("term", -1) != self.term:
            return {**reported, "code": 407}
        if request.get("transferId") != self.leader_id or request.get("transfereeId") not in self.members:
            return {**reported, "code": 401}
        self.leader_id = request["transfereeId"]
        self.term += 1
        return {"code": 200, "term": self.term}


@contextmanager
def running(fake: FakeDledger, down: tuple[str, ...] = ()) -> Iterator[FakeDledger]:
    """Its members listen on loopback; those `down` have an address where nothing does."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="fake-dledger", daemon=True)
    thread.start()
    servers: list[asyncio.Server] = []
    connections: list[Connection] = []

    async def listen() -> None:
        for member in fake.members:
            server = await loop.create_server(
                lambda member=member: Connection(
                    lambda connection, frame: fake.answer(member, connection, frame), lambda _: None, connections.append
                ), "127.0.0.1", 0,
            )  # fmt: skip
            fake.addresses[member] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            if member in down:
                server.close()
            else:
                servers.append(server)

    async def close() -> None:
        for server in servers:
            server.close()
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)

    try:
        asyncio.run_coroutine_threadsafe(listen(), loop).result()
        yield fake
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
