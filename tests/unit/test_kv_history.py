"""Clients of a key-value store, and three real engines that change leaders and lose states: each key is a register."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from node.client import LedgerClient
from node.engine.engine import Engine
from node.protocol.codes import ResponseCode
from node.state_machine.caller import Caller
from node.state_machine.kind import kind_of
from node.state_machine.kv import KeyValue
from tests.simulation.key_linearizability import KeyOperation, keys_at_fault
from tests.unit.engine_kit import running, until
from tests.unit.kv_history import CALLS, use
from tests.unit.machine_kit import Inside, group

CLIENTS = 4


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
