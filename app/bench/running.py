"""Runs a bench: on its own event loop, its garbage collector spared, and leaving no process behind.

Invariants: Ctrl-C and SIGTERM cancel the measuring, which then ends its processes and removes its directory; where it
is killed with SIGKILL, the kernel ends its processes (Linux: parent-death signal).
"""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Coroutine
from typing import Any, Final

COLLECTOR_THRESHOLDS: Final = (20_000, 20, 50)


def spare_the_collector() -> None:
    """For a process that does nothing but measure: what is there stays, what comes is mostly short-lived.

    Engines do the same for themselves; thousands of waiting tasks would be walked through again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def measured(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Runs one bench to its result.

    Raises KeyboardInterrupt when a signal asked it to stop, after it has cleaned up; whoever handled SIGTERM before
    gets it then (the command line ends with another code).
    """
    import uvloop

    stop_requested = False
    before = signal.getsignal(signal.SIGTERM)

    async def with_signals() -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal stop_requested
            stop_requested = True
            task.cancel()

        if threading.current_thread() is threading.main_thread():  # no other one may take signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work

    spare_the_collector()
    try:
        result: dict[str, Any] = uvloop.run(with_signals())
    except asyncio.CancelledError as error:
        if stop_requested:
            if callable(before):
                signal.signal(signal.SIGTERM, before)
                signal.raise_signal(signal.SIGTERM)
            raise KeyboardInterrupt from None
        raise RuntimeError("a task was cancelled though no signal asked for it") from error
    return result
