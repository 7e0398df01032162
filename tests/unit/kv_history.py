"""Clients of a key-value store that note each call and its answer, for `key_linearizability` to judge."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count, takewhile

from node.client import LedgerClient, LedgerError, OutcomeUnknown
from node.client.kv import KvClient
from node.protocol.kv import Status
from tests.simulation.key_linearizability import NEVER, KeyOperation

KEYS = (b"a", b"b", b"c")
CALLS = 60  # of each client
CALLS_OF_A_KEY = 40  # then all go to new ones: unknown outcomes stay possible for ever, and make the search long


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


async def use(
    name: int,
    members: list[str],
    client: LedgerClient,
    history: list[KeyOperation],
    goes_on: Callable[[int], bool] = lambda made: made < CALLS,
) -> None:
    """One client: a call after the other, at the leader and, for reads, at members of its choice."""
    rng, seen = random.Random(f"client {name}"), dict[bytes, bytes]()
    loop = asyncio.get_running_loop()
    for number in takewhile(goes_on, count()):
        key, kind = rng.choice(KEYS), rng.choice(["get", "get", "put", "put", "cas", "delete"])
        key += b"%d" % (number // CALLS_OF_A_KEY)
        value = None if kind in ("get", "delete") else b"%d.%d" % (name, number)
        expected = seen.get(key) if kind == "cas" else None
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
