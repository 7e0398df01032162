"""Records what Prometheus would have scraped while a real pair was really broken: `record_breaks`, for classic HA.

    python -m tests.process.record_pair_breaks tests/unit/prometheus_series.json

Takes some nine minutes, and replaces the breaks of pairs in that file. Each break is a demo of its own: a SYNC_MASTER
m, slaves s1 and s2, sends running.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import httpx2

from app.demo.pair import PairDemo
from app.demo.processes import broker_of, children_of
from app.demo.run import DemoOptions
from node.message_store.commit_log import COMMIT_LOG
from node.message_store.local_mark import log_mark_path
from tests.process.record_breaks import BROKEN_SCRAPES, INTERVAL_S, LINE, QUIET_SCRAPES, RULES, Scrape, written

STORE_TIMESTAMP_AT: Final = 56  # of a record: no CRC covers it
FAMILIES: Final = set(re.findall(r"\bquorumscope_[a-z_]+\b", RULES.read_text()))
Breaking = Callable[[PairDemo], Awaitable[None]]


async def scrape(asking: httpx2.AsyncClient, url: str) -> Scrape:
    try:
        answer = await asking.get(f"{url}/metrics")
    except httpx2.HTTPError:
        return None
    if answer.status_code != 200:
        return None
    lines = (LINE.match(line) for line in answer.text.splitlines())
    return {one[1] + (one[2] or ""): float(one[3]) for one in lines if one and one[1] in FAMILIES}


async def timeline(breaking: Breaking) -> dict[str, list[Scrape]]:
    with tempfile.TemporaryDirectory() as place:
        demo = PairDemo(DemoOptions(console=False, noted=False), Path(place), lambda text: print(text, file=sys.stderr))
        try:
            await demo.start()
            async with httpx2.AsyncClient(timeout=4, trust_env=False) as asking:
                await until_well(asking, demo)
                kept: dict[str, list[Scrape]] = {f"node/{name}": [] for name in demo.controls}
                loop = asyncio.get_running_loop()
                begun = loop.time()
                broken: asyncio.Task[None] | None = None
                for number in range(QUIET_SCRAPES + BROKEN_SCRAPES):
                    await asyncio.sleep(max(0.0, begun + number * INTERVAL_S - loop.time()))
                    if number == QUIET_SCRAPES:
                        broken = asyncio.ensure_future(breaking(demo))
                    found = await asyncio.gather(*(scrape(asking, url) for url in demo.controls.values()))
                    for scrapes, one in zip(kept.values(), found, strict=True):
                        scrapes.append(one)
                assert broken is not None
                await broken
                return kept
        finally:
            for process in demo.processes.running.values():
                for pid in children_of(process.pid):
                    os.kill(pid, signal.SIGCONT)
            await demo.stop()


async def until_well(asking: httpx2.AsyncClient, demo: PairDemo) -> None:
    """Both slaves are served, and nothing is said to be wrong."""
    async with asyncio.timeout(60):
        while True:
            found = [await scrape(asking, url) or {} for url in demo.controls.values()]
            served = sum(one.get("quorumscope_ha_served", 0) for one in found)
            wrong = sum(value for one in found for key, value in one.items() if "ha_problems" in key)
            if served == 2 and not wrong:
                return
            await asyncio.sleep(0.5)


def broker_pid(demo: PairDemo, name: str) -> int:
    found = broker_of(demo.processes.running[name].pid)
    assert found is not None, f"{name} has no broker"
    return found


async def nothing(_demo: PairDemo) -> None:
    """All stays well."""


def stopped(*names: str) -> Breaking:
    async def breaking(demo: PairDemo) -> None:
        for name in names:
            os.kill(broker_pid(demo, name), signal.SIGSTOP)

    return breaking


async def master_killed(demo: PairDemo) -> None:
    demo.processes.running["m"].kill()


async def slave_forked(demo: PairDemo) -> None:
    """The last record of a slave that was stopped is another one when it starts again."""
    process = demo.processes.running["s1"]
    process.terminate()
    await process.wait()
    root = demo.directory / "s1"
    said = json.loads(log_mark_path(root).read_text().partition(" ")[2])
    offset, _size, _crc = said["last"]
    start = offset - offset % said["file_bytes"]
    with (root / COMMIT_LOG / f"{start:020d}").open("r+b") as file:
        file.seek(offset - start + STORE_TIMESTAMP_AT + 7)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    log_mark_path(root).unlink()  # it names the record with its CRC
    await demo.processes.start("s1", ["-m", "node", *demo.arguments("s1")])


BREAKS: Final[dict[str, Breaking]] = {
    "pair: quiet": nothing,
    "pair: slave stopped": stopped("s1"),
    "pair: both slaves stopped": stopped("s1", "s2"),
    "pair: master killed": master_killed,
    "pair: slave forked": slave_forked,
}


async def main() -> None:
    out = Path(sys.argv[1])
    found = {}
    for name, breaking in BREAKS.items():
        print(name, file=sys.stderr, flush=True)
        found[name] = await timeline(breaking)
    known = json.loads(out.read_text())["breaks"]
    out.write_text(written(found, known))


if __name__ == "__main__":
    asyncio.run(main())
