"""The thread that writes: in order, one at a time, reported on the loop, and nothing after the close."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

from node.engine.writer import Ended, Writer


def test_work_is_done_in_order_and_reported_on_the_loop() -> None:
    async def story() -> None:
        writer, loop_thread = Writer(), threading.current_thread()
        done: list[int | None] = []
        wrote: list[int] = []
        finished = asyncio.Event()

        def work(number: int) -> int:
            assert threading.current_thread() is not loop_thread
            wrote.append(number)
            return number

        def reported(ended: Ended[int]) -> None:
            assert threading.current_thread() is loop_thread and ended.error is None
            done.append(ended.value)
            if len(done) == 50:
                finished.set()

        for number in range(50):
            writer.run(partial(work, number), reported)
        await finished.wait()
        assert wrote == done == list(range(50))
        writer.close()

    asyncio.run(story())


def test_what_the_work_raised_is_told_and_the_next_one_is_done() -> None:
    async def story() -> None:
        writer = Writer()
        reported: asyncio.Queue[Ended[None]] = asyncio.Queue()

        def broken() -> None:
            raise OSError("input/output error")

        writer.run(broken, reported.put_nowait)
        writer.run(lambda: None, reported.put_nowait)
        first, second = await reported.get(), await reported.get()
        assert isinstance(first.error, OSError) and second.error is None
        writer.close()

    asyncio.run(story())


def test_a_close_waits_for_what_runs_and_nothing_is_told_or_begun_afterwards() -> None:
    async def story() -> None:
        writer = Writer()
        began, go_on = threading.Event(), threading.Event()
        wrote: list[str] = []
        reported: list[Ended[None]] = []

        def slow() -> None:
            began.set()
            go_on.wait()
            wrote.append("slow")

        writer.run(slow, reported.append)
        began.wait()
        threading.Timer(0.05, go_on.set).start()
        writer.close()
        assert wrote == ["slow"]
        writer.run(lambda: wrote.append("late"), reported.append)
        await asyncio.sleep(0.05)
        assert wrote == ["slow"] and reported == []

    asyncio.run(story())


def test_a_close_without_work_has_nothing_to_wait_for() -> None:
    async def story() -> None:
        Writer().close()

    asyncio.run(story())


def test_a_report_that_fails_keeps_back_none_behind_it() -> None:
    async def story() -> None:
        writer = Writer()
        failures: list[object] = []
        reported: asyncio.Queue[Ended[None]] = asyncio.Queue()
        has_ended, go_on = threading.Event(), threading.Event()
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context["exception"]))

        def wait() -> None:
            has_ended.set()
            go_on.wait()

        def broken(_ended: Ended[object]) -> None:
            raise ValueError("a bug")

        writer.run(lambda: None, broken)
        writer.run(lambda: None, reported.put_nowait)
        writer.run(wait, reported.put_nowait)
        has_ended.wait()  # both before it have, and nothing else wakes the loop
        try:
            assert (await asyncio.wait_for(reported.get(), 60)).error is None
        finally:
            go_on.set()
        assert [str(failure) for failure in failures] == ["a bug"]
        writer.close()

    asyncio.run(story())
