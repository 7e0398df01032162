"""Background tasks that cannot die unseen: the one way in which engine, control plane, console and demo start one.

`run` starts work that ends by itself; `keep` starts work that must go on, and starts it again with back-off when it
fails. Invariants: whatever ends a task but a stop or its own return is reported, by name and with the reason; a task is
referenced until it ends; `stop` returns once none runs any more. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

BACK_OFF_S_MIN: Final = 0.1
BACK_OFF_S_MAX: Final = 30.0
STEADY_AFTER_S: Final = 60.0  # work that went on so long starts over without the back-off that it had gathered

log = logging.getLogger(__name__)

Report = Callable[[str, BaseException], None]


def reason_of(error: BaseException) -> str:
    """An error in one line, as people read it: many say nothing without their type."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def to_log(name: str, error: BaseException) -> None:
    """Where there is nothing better to report to: the process's log, with the traceback."""
    log.error("%s failed: %s", name, reason_of(error), exc_info=error)


class Background:
    """The tasks of one owner. `report` is called with each failure; `failing` holds what waits to be started again."""

    def __init__(self, report: Report = to_log) -> None:
        self._report = report
        self.failing: dict[str, str] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that run now."""
        return list(self._tasks)

    def get(self, name: str) -> asyncio.Task[Any] | None:
        """The task of that name, while it runs."""
        return next((task for task in self._tasks if task.get_name() == name), None)

    def keep(self, name: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[None]:
        """Runs `work()` until it returns; where it raises, again after a while."""
        return self._start(name, self._kept(name, work))

    def run(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[None]:
        """Runs `work` once."""
        task = self._start(name, self._once(name, work))
        task.add_done_callback(lambda _: work.close())  # one cancelled before it began would complain at its end
        return task

    async def stop(self) -> None:
        """Cancels what runs and waits for its end."""
        while tasks := [task for task in self._tasks if task is not asyncio.current_task()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _once(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        try:
            await work
        except Exception as error:
            self._tell(name, error)

    async def _kept(self, name: str, work: Callable[[], Awaitable[Any]]) -> None:
        loop = asyncio.get_running_loop()
        wait_s = 0.0
        while True:
            began_s = loop.time()
            try:
                await work()
                self.failing.pop(name, None)
                return
            except Exception as error:
                self.failing[name] = reason_of(error)
                self._tell(name, error)
            if loop.time() - began_s >= STEADY_AFTER_S:
                wait_s = 0.0
            wait_s = min(max(wait_s * 2, BACK_OFF_S_MIN), BACK_OFF_S_MAX)
            await asyncio.sleep(wait_s)

    def _tell(self, name: str, error: Exception) -> None:
        try:
            self._report(name, error)
        except Exception as trouble:  # who reports must not be able to end what is supervised
            to_log(f"the report that {name} failed ({reason_of(error)})", trouble)
