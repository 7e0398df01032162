"""How much more memory a process takes while it is attacked: anonymous memory, for mapped files are not its own."""

from __future__ import annotations

import threading
from pathlib import Path

EVERY_S = 0.01


class Memory:
    """What a process takes more than when this was made, in MiB, and the most of it while this is entered."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._before = self._most = self._anonymous_kib()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _anonymous_kib(self) -> int:
        (line,) = (line for line in self._status.read_text().splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1])

    def _watch(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._most = max(self._most, self._anonymous_kib())

    def now_mib(self) -> float:
        return (self._anonymous_kib() - self._before) / 1024

    @property
    def most_mib(self) -> float:
        return (self._most - self._before) / 1024

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._stop.set()
        self._thread.join()
