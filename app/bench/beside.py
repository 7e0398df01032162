"""Appends to a group at a low, even pace from a process of its own: what another load on the machine costs its engines.

`python -m app.bench.beside GROUP PEERS PER_S BODY_BYTES SECONDS` prints its latencies as JSON, in ms. A loop that also
makes the other load would measure its own turn. Invariant: the pace is too low to be a load itself.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from app.bench.cluster import ClientInUse
from app.bench.common import Sample
from app.bench.paced import paced
from node.children import apart, environment, python
from node.client import LedgerClient


async def appended_beside(group: str, peers: str, per_s: float, body_bytes: int, seconds: float) -> dict[str, float]:
    """p50_ms and p99_ms of such a process. Raises RuntimeError where it fails."""
    command = python("-m", "app.bench.beside", group, peers, str(per_s), str(body_bytes), str(seconds))
    process = await asyncio.create_subprocess_exec(
        *command, env=environment(), stdout=asyncio.subprocess.PIPE, preexec_fn=apart(signal.SIGKILL)
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the appends beside ended with {process.returncode}")
    found: dict[str, float] = json.loads(said)
    return found


async def _main(group: str, peers: str, per_s: float, body_bytes: int, seconds: float) -> Sample:
    async with ClientInUse(LedgerClient(peers, group=group, deadline_s=30.0)) as client:
        await client.append(b"first")  # finding the leader is not what is measured
        return await paced(client, per_s, body_bytes, seconds)


if __name__ == "__main__":
    asked_group, asked_peers, asked_per_s, asked_bytes, asked_s = sys.argv[1:]
    sample = asyncio.run(_main(asked_group, asked_peers, float(asked_per_s), int(asked_bytes), float(asked_s)))
    print(json.dumps({"p50_ms": round(sample.p50_ms, 3), "p99_ms": round(sample.p99_ms, 3)}))
