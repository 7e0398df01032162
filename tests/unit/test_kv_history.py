"""Clients of a key-value store, and three real engines that change leaders and lose states: each key is a register."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from node.client import LedgerClient, LedgerError, OutcomeUnknown
from node.client.kv import KvClient
from node.engine.engine import Engine
from node.protocol.codes import ResponseCode
from node.protocol.kv import Status
from node.state_machine.caller import Caller
from node.state_machine.kind import kind_of
from node.state_machine.kv import KeyValue
from tests.simulation.key_linearizability import NEVER, KeyOperation, keys_at_fault
from tests.unit.engine_kit import running, until
from tests.unit.machine_kit import Inside, group

KEYS = (b"a", b"b", b"c")
CALLS = 60  # of each client
CLIENTS = 4


async def one_call(store: KvClient, operation: KeyOperation) -> None:
    """Carries it out, and notes what it answered. Raises LedgerError."""
    key, value = operation.key, operation.value
    if operation.kind == "get":
        item = await store.get(key)
        operation.answer = None if item is None else item.value
    elif operation.kind == "put":
        assert value is not None
        await store.put(key, value)
        operation.answer = True
    elif operation.kind == "delete":
        operation.answer = await store.delete(key)
    else:
        result = await store.compare_and_set(key, operation.expected, value)
        operation.answer = result.status is Status.DONE


async def use(name: int, members: list[str], client: LedgerClient, history: list[KeyOperation]) -> None:
    """One client: a call after the other, at the leader and, for reads, at members of its choice."""
    rng, seen = random.Random(f"client {name}"), dict.fromkeys(KEYS, b"")
    loop = asyncio.get_running_loop()
    for number in range(CALLS):
        key, kind = rng.choice(KEYS), rng.choice(["get", "get", "put", "put", "cas", "delete"])
        value = None if kind in ("get", "delete") else b"%d.%d" % (name, number)
        expected = (seen[key] or None) if kind == "cas" else None
        operation = KeyOperation(key, kind, loop.time(), NEVER, value, expected)  # type: ignore[arg-type]
        store = KvClient(client, deadline_s=30.0, member_id=rng.choice([None, *members]))
        try:
            await one_call(store, operation)
        except OutcomeUnknown:
            history.append(operation)
        except LedgerError:
            continue  # it did not happen
        else:
            operation.completed = loop.time()
            history.append(operation)
            if isinstance(operation.answer, bytes):
                seen[key] = operation.answer


async def trouble(members: list[tuple[Engine, Inside]], stop: asyncio.Event) -> int:
    """Leadership moves, and states are lost, one at a time; how often."""
    rng, count = random.Random("trouble"), 0
    while not stop.is_set():
        await asyncio.sleep(0.05)
        engine, machine = members[rng.randrange(len(members))]
        if rng.random() < 0.5:
            machine.caller = Caller(KeyValue(), kind_of("kv"))  # its process is another one
            machine.life = 0
            machine.stand()
        elif engine.replica.leadership is not None:
            asked: asyncio.Future[ResponseCode] = asyncio.get_running_loop().create_future()
            engine.transfer(None, None, None, lambda outcome, asked=asked: asked.set_result(outcome.code))  # type: ignore[misc]
            engine.read_done()
            await asked
        count += 1
    return count


def test_each_key_is_one_register(tmp_path: Path) -> None:
    async def both() -> None:
        members = group(tmp_path, 3, "kv", KeyValue)
        engines = [engine for engine, _ in members]
        peers = dict(engines[0].settings.peers)
        history: list[KeyOperation] = []
        async with running(engines) as codes:
            await until(lambda: any(engine.replica.leadership is not None for engine in engines))
            clients = [LedgerClient(peers, deadline_s=30.0) for _ in range(CLIENTS)]
            stop = asyncio.Event()
            troubling = asyncio.ensure_future(trouble(members, stop))
            await asyncio.gather(*(use(name, list(peers), one, history) for name, one in enumerate(clients)))
            stop.set()
            assert await troubling > 0
            for one in clients:
                await one.close()
        assert codes == [0, 0, 0], [engine.reason for engine in engines]
        assert len(history) > CALLS
        assert keys_at_fault(history) == [], sorted(history, key=lambda one: one.invoked)

    asyncio.run(both())
