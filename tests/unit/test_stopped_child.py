"""A supervisor's child that ends by itself while it is stopped."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from node import __main__ as supervisor


class Ending:
    """A process that ends at the moment of the call `at`, before its signal arrives."""

    def __init__(self, at: str) -> None:
        self.returncode: int | None = None
        self.at, self.calls = at, list[str]()

    def signal(self, call: str) -> None:
        self.calls.append(call)
        if call == self.at:
            self.returncode = 0
            raise ProcessLookupError

    def terminate(self) -> None:
        self.signal("terminate")

    def kill(self) -> None:
        self.signal("kill")

    async def wait(self) -> int | None:
        while self.returncode is None:  # noqa: ASYNC110 - as a stop waits
            await asyncio.sleep(0)
        return self.returncode


@pytest.mark.parametrize(("at", "calls"), [("terminate", ["terminate"]), ("kill", ["terminate", "kill"])])
def test_it_was_stopped(at: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was taken for a crash: "node.server cannot be started ()", and left that reason in its directory."""
    monkeypatch.setattr(supervisor, "STOP_WITHIN_S", 0.01)
    process = Ending(at)
    asyncio.run(supervisor.stop(supervisor.Child(cast(asyncio.subprocess.Process, process), 0.0)))
    assert process.calls == calls
