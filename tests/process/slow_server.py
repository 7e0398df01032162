"""An engine on a slow disk: `node.server` as it is, over a platform whose syncs take a while, or wait for the test.

`python -m tests.process.slow_server ARGUMENTS` takes what `node.server` takes. SLOW_SYNC_MS: how long a sync takes at
the most, half of it on average; SLOW_SYNC_SEED: which ones. While the file that SLOW_SYNC_HOLD names exists, no sync of
this process begins. Nothing else differs: what is asked for is done, later.
"""

from __future__ import annotations

import os
import random
import sys
import time

from node.server import main
from node.store.files.platform import OsPlatform

LOOK_S = 0.01


class SlowDisk(OsPlatform):
    """The real one, but syncs wait before they begin and after they ended: what they report is old by then."""

    def __init__(self, most_ms: float, seed: str, hold: str) -> None:
        self._most_s, self._rng, self._hold = most_ms / 1000, random.Random(seed), hold

    def _wait(self) -> None:
        time.sleep(self._most_s * self._rng.random() / 2)
        while self._hold and os.path.exists(self._hold):
            time.sleep(LOOK_S)

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        self._wait()
        os.fdatasync(fd)
        self._wait()

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._wait()
        os.fsync(fd)
        self._wait()


if __name__ == "__main__":
    environ = os.environ
    disk = SlowDisk(
        float(environ.get("SLOW_SYNC_MS", "0")), environ.get("SLOW_SYNC_SEED", "0"), environ.get("SLOW_SYNC_HOLD", "")
    )
    sys.exit(main(platform=disk))
