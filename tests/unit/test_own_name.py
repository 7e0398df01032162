"""Somebody who says that it is this member itself: a stranger, or this member, met at an address named for another."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

from node.client import LedgerClient
from node.config import load
from node.engine.engine import Engine
from node.protocol.codes import RequestCode, ResponseCode, Role
from node.store.memory_store import MemoryStore
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from tests.ports import free_ports
from tests.unit.engine_kit import running, until

Json = dict[str, Any]
REFUSED = (ResponseCode.UNKNOWN_MEMBER, ResponseCode.UNKNOWN_GROUP)


def beside(tmp_path: Path, work: Any) -> None:
    """A leader without TLS and secret, as on one machine; it is the same afterwards and appends."""

    async def both() -> None:
        port = free_ports(1)[0]
        values = {"node.id": "n0", "peers": f"n0-127.0.0.1:{port}", "node.data": str(tmp_path)}
        engine = Engine(load(values, None, {}), MemoryStore())
        async with running([engine]) as codes:
            await until(lambda: engine.replica.role is Role.LEADER and engine.replica.member.hard.group_id is not None)
            client = LedgerClient(dict(engine.settings.peers), deadline_s=30.0)
            try:
                await client.append(b"before")
                await work(engine, port)
                await client.append(b"after")
            finally:
                await client.close()
        assert codes == [0], engine.reason

    asyncio.run(both())


class Wire:
    """Frames and their answers."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[Frame] = asyncio.Queue()
        self.connection = Connection(lambda _one, frame: self._answers.put_nowait(frame), lambda _one: None)

    async def ask(self, code: RequestCode, fields: Json) -> Json:
        self.connection.send_body(code, 0, 1, [json.dumps(fields).encode()])
        return dict(json.loads(bytes((await asyncio.wait_for(self._answers.get(), 60)).body)))


def hello(engine: Engine, rng: random.Random) -> Json:
    """A whole one, as far as somebody knows: what they cannot know is drawn."""
    store = engine.store
    return {
        "code": 200, "group": "default", "localId": "n0", "node_id": "n0", "remoteId": "n0",
        "version_min": 1, "version_max": rng.choice([1, 2, 3]), "store_id": rng.choice(["x", store.store_id]),
        "voter_state": rng.choice(["VOTER", "FORMING", "REJOINING"]), "end_index": rng.randrange(-1, 1000),
        "sealed_from": 0, "peers_hash": "x", "data_file_size": store.data_file_size, "term": rng.choice([0, 1, 10**6]),
        "index_file_size": store.index_file_size, "flush": "sync", "lease_reads": False, "life_ids": ["x"],
        "recorded": {}, "group_id": rng.choice([None, engine.replica.member.hard.group_id, "another"]),
    }  # fmt: skip


def test_a_hello_in_this_members_own_name_is_refused(tmp_path: Path) -> None:
    """It ended the leader's engine: anybody on its machine could, where members prove nothing."""

    async def work(engine: Engine, port: int) -> None:
        rng = random.Random(12)
        for _ in range(30):
            wire = Wire()
            await dial(wire.connection, "127.0.0.1", port)
            answer = await wire.ask(RequestCode.HELLO, hello(engine, rng))
            assert answer["code"] in REFUSED, answer
            wire.connection.abort()
        assert not engine.reason

    beside(tmp_path, work)


def said_of(engine: Engine, peer_id: str) -> str:
    alarms = engine.replica.status(engine.now_ns()).alarms
    return " ".join(one.text for one in alarms if one.peer_id == peer_id)


def test_a_member_whose_address_is_this_members_own_harms_nobody(tmp_path: Path) -> None:
    """Two spellings of an address are the same to nobody but the network; the engine met itself there, and ended."""

    async def work(engine: Engine, port: int) -> None:
        rng = random.Random(13)
        wire = Wire()
        await dial(wire.connection, "127.0.0.1", port)
        for number, host in enumerate(rng.sample(["localhost", "127.1", "0.0.0.0"], 3)):
            asked: Json = {"group": "default", "what": "members", "kind": "add", "memberId": f"m{number}"}
            asked |= {"address": f"{host}:{port}", "promote": rng.random() < 0.5}
            while (answer := await wire.ask(RequestCode.OPERATOR_ACTION, asked))["code"] != ResponseCode.SUCCESS:
                assert answer["code"] == ResponseCode.INCONSISTENT_STATE, answer  # the one before is not committed yet
                await asyncio.sleep(0.01)
            await until(lambda number=number: "is n0 itself" in said_of(engine, f"m{number}"))  # type: ignore[misc]
        wire.connection.abort()

    beside(tmp_path, work)
