"""Work with a group between two of its own elections.

A busy machine may cost a group its leader at any time. What a test says of one leader and one term is then not wrong of
the product, but was never asked of it: it is tried again. Facts are waited for, never times.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, TypeVar

import pytest

from node.client import LedgerClient, LedgerError
from tests.process.group import Group, all_vote, append_surely

WITHIN_S: Final = 60.0
TRIES: Final = 5
TERM_STEP: Final = 1 << 20
Work = Callable[[LedgerClient], Awaitable[Any]]
G = TypeVar("G", bound=Group)


def in_client(group: Group, work: Work) -> Any:
    async def run() -> Any:
        client = group.client(deadline_s=WITHIN_S)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


async def until(fact: Callable[[], Awaitable[bool]], what: str = "it") -> None:
    ends = time.monotonic() + WITHIN_S
    while True:
        with contextlib.suppress(LedgerError):
            if await fact():
                return
        assert time.monotonic() < ends, f"{what} never came"
        await asyncio.sleep(0.05)


async def settled(group: Group, client: LedgerClient) -> str:
    """The leader, once all vote and hold the same."""
    index = await append_surely(client, b"settled", WITHIN_S)
    await all_vote(client, group.peers, WITHIN_S)

    async def same() -> bool:
        states = [await client.state(one) for one in group.peers]
        leaders = {state["leader_id"] for state in states}
        return len(leaders) == 1 and all(state["log"]["committed_index"] >= index for state in states)

    await until(same)
    return await client.leader()


@contextlib.contextmanager
def begun(group: G) -> Iterator[G]:
    """The group with all members started, once it has settled; it is closed at the end, whatever came of that."""
    try:
        group.start_all()
        in_client(group, lambda client: settled(group, client))
        yield group
    finally:
        group.close()


async def standing(group: Group, client: LedgerClient) -> dict[str, Any]:
    """What changes with an election, or with a member's store."""
    states = {one: await client.state(one) for one in group.peers}
    return {one: (state["term"], state["leader_id"], state["store_id"]) for one, state in states.items()}


FAILED: Final = (AssertionError, LedgerError, pytest.fail.Exception)


def undisturbed(group: Group, work: Work) -> None:
    """Does the work; where it fails and the group had an election meanwhile, again."""

    async def tries(client: LedgerClient) -> None:
        for number in range(TRIES):
            await settled(group, client)
            before = await standing(group, client)
            try:
                await work(client)
            except FAILED:
                if number == TRIES - 1 or await standing(group, client) == before:
                    raise
            else:
                return

    in_client(group, tries)


def quietly(group: Group, attack: Work) -> None:
    """Does the attack between two looks at the group, until no election of its own fell in between."""

    async def tries(client: LedgerClient) -> None:
        for _ in range(TRIES):
            await settled(group, client)
            before = await standing(group, client)
            index = await append_surely(client, b"before", WITHIN_S)
            try:
                await attack(client)
            except FAILED:
                if await standing(group, client) == before:
                    raise
                continue
            after = await standing(group, client)
            next_index = await append_surely(client, b"after", WITHIN_S)
            assert max(term for term, *_ in after.values()) < max(term for term, *_ in before.values()) + TERM_STEP // 2
            if before == after and next_index == index + 1:
                return
        raise AssertionError(f"{TRIES} times something moved")

    in_client(group, tries)
