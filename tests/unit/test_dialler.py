"""A dialler goes on whatever happens to it: the peer that cannot be dialled today is there tomorrow."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from node.config import load
from node.engine import dialler
from node.engine.engine import Engine
from node.store.memory_store import MemoryStore
from node.transport.connection import Connection, dial
from tests.ports import free_ports
from tests.unit.engine_kit import running, until


def connected(engine: Engine, peer_id: str) -> bool:
    return engine.replica.peers.of[peer_id].connected


def test_a_dialler_outlives_what_nobody_foresaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(2)
    peers = f"n0-127.0.0.1:{ports[0]};n1-127.0.0.1:{ports[1]}"
    troubles: list[Exception] = [UnicodeError("label empty or too long"), ZeroDivisionError("odd")]

    async def troubled(connection: Connection, host: str, port: int, tls: Any = None) -> None:
        if troubles and port == ports[1]:
            raise troubles.pop(0)
        await dial(connection, host, port, tls)

    monkeypatch.setattr(dialler, "dial", troubled)

    async def both() -> None:
        engines, running, ready = [], [], []
        for name in ("n0", "n1"):
            settings = load({"node.id": name, "peers": peers, "node.data": str(tmp_path / name)}, None, {})
            engine = Engine(settings, MemoryStore(store_id=name))
            up = asyncio.Event()
            running.append(asyncio.create_task(engine.run(lambda _port, up=up: up.set())))  # type: ignore[misc]
            engines.append(engine)
            ready.append(up.wait())
        await asyncio.gather(*ready)
        async with asyncio.timeout(20):
            while not (connected(engines[0], "n1") and connected(engines[1], "n0")):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.02)
        reported = [one for one in engines[0].events.since(None).items or () if one.kind == "task_failed"]
        assert [one.detail for one in reported] == [
            {"task": "the link to n1", "text": "UnicodeError: label empty or too long"},
            {"task": "the link to n1", "text": "ZeroDivisionError: odd"},
        ]
        for engine in engines:
            engine.stop()
        assert await asyncio.gather(*running) == [0, 0]

    asyncio.run(both())
    assert not troubles


def test_an_alarm_about_exchanged_addresses_stands_while_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both members reach this one, and keep their connections to it: a HELLO that was for the other one ended them."""
    ports = free_ports(3)
    dialled: Counter[int] = Counter()
    monkeypatch.setattr(dialler, "REDIAL_S_MAX", 0.5)

    async def counted(connection: Connection, host: str, port: int, tls: Any = None) -> None:
        dialled[port] += 1
        await dial(connection, host, port, tls)

    def engine_of(name: str, first: int, second: int, third: int) -> Engine:
        peers = f"n0-127.0.0.1:{ports[first]};n1-127.0.0.1:{ports[second]};n2-127.0.0.1:{ports[third]}"
        settings = load({"node.id": name, "peers": peers, "node.data": str(tmp_path / name)}, None, {})
        return Engine(settings, MemoryStore(store_id=name))

    async def all_three() -> None:
        wrong = engine_of("n0", 0, 2, 1)
        async with running([wrong, engine_of("n1", 0, 1, 2), engine_of("n2", 0, 1, 2)]):
            stand = wrong.replica.member.alarms
            await until(lambda: {("hello_refused", "n1"), ("hello_refused", "n2")} <= set(stand))
            monkeypatch.setattr(dialler, "dial", counted)
            await until(lambda: min(dialled[ports[1]], dialled[ports[2]]) >= 3)
            assert dialled[ports[0]] == 0
            told = [one for one in wrong.events.since(None).items or () if one.kind == "alarm_cleared"]
            assert [one.detail for one in told if (one.detail or {}).get("code") == "hello_refused"] == []

    asyncio.run(all_three())
