"""What a caller gets wrong is said at once, and nothing of it is sent or kept; a client goes on behind it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from node.client import LedgerClient, LedgerClientSync, LedgerError, NotAppended, WrongLoop
from node.client.errors import Closed
from node.transport.remoting import FRAME_BYTES_MAX
from tests.unit.test_client_appends import Member, against, counting

WITHIN_S = 20.0


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: client.append("text"), "a body is bytes, not str"),
        (lambda client: client.append(5), "a body is bytes, not int"),
        (lambda client: client.append(None), "a body is bytes, not NoneType"),
        (lambda client: client.append_many([b"a", 3]), "a body is bytes, not int"),
        (lambda client: client.append_many(b"abc"), "several bodies are a sequence of bytes, not bytes"),
        (lambda client: client.append_many({b"abc"}), "several bodies are a sequence of bytes, not set"),
        (lambda client: client.append_many(5), "several bodies are a sequence of bytes, not int"),
        (lambda client: client.append(b"a", expected_index=1 << 70), "from 0 to"),
        (lambda client: client.append(b"a", expected_index=-1), "from 0 to"),
        (lambda client: client.append_many([b"a"], expected_index="0"), "a whole number, not str"),
        (lambda client: client.read(-1, 1), "from 0 to"),
        (lambda client: client.read(1 << 63, 1), "from 0 to"),
        (lambda client: client.read(0, -1), "from 0 to"),
        (lambda client: client.read("0", 1), "a whole number, not str"),
        (lambda client: anext(client.committed(interval_ms=-1)), "interval_ms is from 1 to"),
        (lambda client: anext(client.committed(keep_alive_ms=1 << 40)), "keep_alive_ms is from 10 to"),
        (lambda client: anext(client.committed(interval_ms=0)), "interval_ms is from 1 to"),
        (lambda client: anext(client.committed(interval_ms=500, keep_alive_ms=100)), "keep_alive_ms is from 500 to"),
        (lambda client: client.state("n7"), "n7 is not one of n0"),
        (lambda client: client.metadata("n7"), "n7 is not one of n0"),
        (lambda client: client.order("n7", {}, 1.0), "n7 is not one of n0"),
        (lambda client: client.append(b"x" * FRAME_BYTES_MAX), "over the limit"),
        (lambda client: client.append_many([b"x" * (FRAME_BYTES_MAX // 2)] * 3), "over the limit"),
    ],
)
def test_a_wrong_argument_is_said_at_once(call: Callable[[Any], Awaitable[Any]], says: str) -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        await client.append(b"before")
        with pytest.raises((TypeError, ValueError, LedgerError), match=says):
            await call(client)
        assert (await client.append(b"behind")).first_index == 1
        assert [body for bodies in member.appends for body in bodies] == [b"before", b"behind"]
        assert not client._appends._open and not client._appends._in_flight

    against(counting(), work)


@pytest.mark.parametrize(
    "given",
    [
        {"deadline_s": None}, {"deadline_s": -1}, {"deadline_s": "5"}, {"deadline_s": float("nan")},
        {"deadline_s": float("inf")}, {"deadline_s": True}, {"in_flight_max": 0}, {"in_flight_max": -1},
        {"in_flight_max": 1.5},
    ],
)  # fmt: skip
def test_bounds_that_are_none_are_said_before_anything_waits_for_them(given: dict[str, Any]) -> None:
    """An append with a deadline of None, or with no room for any entry, never ended."""

    async def work() -> None:
        with pytest.raises((TypeError, ValueError), match=next(iter(given))):
            LedgerClient("n0-127.0.0.1:1", **given)

    asyncio.run(work())
    with pytest.raises((TypeError, ValueError), match=next(iter(given))):
        LedgerClientSync("n0-127.0.0.1:1", **given)


def test_a_body_that_is_too_long_was_not_appended_by_a_client_that_has_yet_to_dial() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        with pytest.raises(NotAppended, match="over the limit"):
            await client.append(b"x" * FRAME_BYTES_MAX)
        assert member.appends == []

    against(counting(), work)


def test_what_can_be_gone_through_once_is_appended_whole() -> None:
    """A generator of mixed kinds was emptied by the look at its kinds: nothing was appended of it."""

    async def work(client: LedgerClient, member: Member) -> None:
        await client.append_many(iter([b"a", b"b"]))  # type: ignore[arg-type]
        await client.append_many(one for one in (b"c", bytearray(b"d")))  # type: ignore[arg-type]
        assert [body for bodies in member.appends for body in bodies] == [b"a", b"b", b"c", b"d"]

    against(counting(), work)


def test_a_list_may_be_used_again_while_its_bodies_wait_for_room() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        client._appends._in_flight_max = 1
        first, batch = client.submit(b"first"), [b"a", b"b"]
        second = asyncio.ensure_future(client.append_many(batch))
        await asyncio.sleep(0)
        batch[:] = [b"c"]
        await first
        assert (await second).last_index == 2
        assert [body for bodies in member.appends for body in bodies] == [b"first", b"a", b"b"]

    against(counting(), work)


def test_memory_that_can_be_written_to_is_taken_as_it_is_now() -> None:
    async def work(client: LedgerClient, member: Member) -> None:
        body = bytearray(b"now")
        first, second = client.submit(body), asyncio.ensure_future(client.append_many([body, memoryview(body)]))
        await asyncio.sleep(0)
        body[:] = b"bad"
        await first
        await second
        assert [one for bodies in member.appends for one in bodies] == [b"now"] * 3

    against(counting(), work)


async def used_client() -> tuple[LedgerClient, Member]:
    """One that belongs to this loop: it has appended here."""
    member = Member(counting())
    client = LedgerClient(await member.start(), deadline_s=5.0)
    await client.append(b"x")
    return client, member


async def left_client() -> LedgerClient:
    """The same, and its member listens no more."""
    client, member = await used_client()
    member.server.close()
    return client


def test_a_client_of_another_loop_says_so() -> None:
    """Where a loop ended, or in another thread's."""
    client = asyncio.run(left_client())

    async def second() -> None:
        for call in (client.append(b"x"), client.read(0, 1), client.state("n0")):
            with pytest.raises(WrongLoop, match="make another one here"):
                await asyncio.wait_for(call, WITHIN_S)

    asyncio.run(second())


def test_another_thread_puts_nothing_into_this_turns_frame() -> None:
    """It was taken into the frame that was open, while its own loop went on with it, and had a future of that one."""

    def elsewhere(client: LedgerClient) -> str:
        try:
            client.submit(b"foreign")
        except WrongLoop as error:
            return str(error)
        return ""

    async def work() -> None:
        client, member = await used_client()
        calls = [client.submit(b"%d" % number) for number in range(3)]
        with ThreadPoolExecutor(1) as other:
            assert "none runs here" in other.submit(elsewhere, client).result()
        calls.append(client.submit(b"3"))
        await asyncio.gather(*calls)
        assert [body for bodies in member.appends for body in bodies] == [b"x", b"0", b"1", b"2", b"3"]
        await client.close()
        member.server.close()

    asyncio.run(asyncio.wait_for(work(), WITHIN_S))


def test_a_blocking_client_is_the_process_s_that_made_it() -> None:
    """Forked workers have no thread that would answer: they waited for ever."""
    with LedgerClientSync("n0-127.0.0.1:1", deadline_s=0.1) as client:
        fork = multiprocessing.get_context("fork")
        said = fork.SimpleQueue()

        def use() -> None:
            try:
                client.append(b"x")
            except Closed as error:
                said.put(str(error))
            client.close()

        worker = fork.Process(target=use)
        worker.start()
        worker.join(WITHIN_S)
        worker.kill()
        assert worker.exitcode == 0 and not said.empty() and "make another one here" in said.get()


def in_a_fork(use: Callable[[], None]) -> str:
    """What it raises there, or nothing."""
    fork = multiprocessing.get_context("fork")
    said = fork.SimpleQueue()

    def work() -> None:
        try:
            use()
            said.put("")
        except BaseException as error:
            said.put(f"{type(error).__name__}: {error}")

    worker = fork.Process(target=work)
    worker.start()
    worker.join(WITHIN_S)
    worker.kill()
    assert not said.empty(), "it hangs"
    return str(said.get())


def test_a_forked_process_neither_uses_nor_closes_its_parents_connections() -> None:
    """Also where it goes on with the parent's own loop: each read answers that were the other's, and an epoll that both
    have forgot the parent's connections once the child had closed them."""
    loop = asyncio.new_event_loop()

    async def end() -> None:
        assert (await client.append(b"z")).first_index == 1
        assert [body for bodies in member.appends for body in bodies] == [b"x", b"z"]
        await client.close()
        member.server.close()

    client, member = loop.run_until_complete(used_client())
    for call in (lambda: client.append(b"y"), lambda: client.read(0, 1), lambda: client.state("n0"), client.close):
        for run in (loop.run_until_complete, asyncio.run):
            said = in_a_fork(lambda run=run, call=call: run(asyncio.wait_for(call(), WITHIN_S / 4)))  # type: ignore[misc]
            assert said.startswith("WrongLoop: ") and "make another one here" in said
    loop.run_until_complete(asyncio.wait_for(end(), WITHIN_S))
    loop.close()


def test_a_client_whose_loop_is_over_is_not_closed_in_another() -> None:
    client = asyncio.run(left_client())

    async def close() -> None:
        await client.close()

    with pytest.raises(WrongLoop):
        asyncio.run(close())
    with pytest.raises(WrongLoop):
        client.submit(b"x")  # without any loop
    asyncio.run(LedgerClient("n0-127.0.0.1:1").close())  # no call has chosen a loop yet
