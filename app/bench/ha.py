"""`bench ha`: a classic master and its slave as processes: sends that wait for it, its lag, how it catches up.

SYNC_MASTER: one send at a time, and many in flight. ASYNC_MASTER: how far the slave is behind under an even load, of at
most SHARE of what was taken before. Then a log is filled in batches, and a slave with an empty directory gets it: bytes
a second, and messages a second until they are in its queues. CPU is that of both brokers, and of this process.

Invariants: a send that is not answered SUCCESS ends the bench; what is said of lag is what the master's own view says.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import statistics
import tempfile
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from app.bench.common import free_ports, percentile, say
from app.bench.load import Case, different_bodies, measure
from app.bench.machine import machine
from app.bench.message_load import TOPIC, JsonSends
from app.bench.paced import paced
from app.bench.running import measured
from app.bench.usage import cpu_s
from node.children import apart, environment, python
from node.message_client.errors import Unavailable
from node.message_client.link import Link
from node.message_client.routes import Queue
from node.message_store.batch import BatchedMessage, encode_batch
from node.rocketmq.codes import Answer, Request
from node.rocketmq.header_fields import write_header
from node.rocketmq.headers import SendRequestV2

GROUP: Final = "bench"
QUEUES: Final = 4
START_WITHIN_S: Final = 60.0
CATCH_UP_WITHIN_S: Final = 600.0
INTROSPECT: Final = 29_101
LOOK_S: Final = 0.02
SHARE: Final = 0.85
BATCH: Final = 500
BATCHES_AT_ONCE: Final = 8


@dataclass(slots=True, frozen=True)
class HaOptions:
    flush: str = "async"
    body_bytes: int = 256
    in_flight: int = 512
    rate_per_s: float = 15_000.0
    seconds: float = 3.0
    fill_mb: int = 512
    fill_body_bytes: int = 1024
    directory: Path | None = None


class BenchPair:
    """Brokers a (master) and b (slave) in a new directory."""

    def __init__(self, options: HaOptions) -> None:
        self._options = options
        self.directory = Path(tempfile.mkdtemp(prefix="quorumscope-bench-", dir=options.directory))
        ports = free_ports(4)
        self.clients = dict(zip("ab", ports[:2], strict=True))
        self.ha = dict(zip("ab", ports[2:], strict=True))
        self.running: dict[str, Process] = {}
        self.links: dict[str, Link] = {}

    async def start(self, name: str, role: str) -> None:
        other = "b" if name == "a" else "a"
        command = python("-m", "node.broker", "--id", name, "--group", GROUP, "--data", str(self.directory / name))
        command += ["--broker", f"127.0.0.1:{self.clients[name]}", "--role", role, "--flush", self._options.flush]
        command += ["--ha", f"127.0.0.1:{self.ha[name]}", "--ha-peers", f"127.0.0.1:{self.ha[other]}"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("QUORUMSCOPE_")}
        with (self.directory / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *command, stdout=log, stderr=log, env=environment(inherited), preexec_fn=apart(signal.SIGKILL)
            )
        self.links[name] = Link(f"127.0.0.1:{self.clients[name]}")
        await self.until(name, lambda _said: True, START_WITHIN_S)

    async def stop(self, name: str) -> None:
        process = self.running.pop(name, None)
        await self.links.pop(name).close()
        if process is not None and process.returncode is None:
            process.terminate()
            await process.wait()

    async def close(self) -> None:
        for name in list(self.running):
            await self.stop(name)
        shutil.rmtree(self.directory, ignore_errors=True)

    async def view(self, name: str) -> dict[str, Any]:
        """What `GET /api/v1/ha` says. Raises Unavailable."""
        answer = await self.links[name].ask(INTROSPECT, {}, b'{"ask": "ha"}', 5.0)
        said: dict[str, Any] = json.loads(bytes(answer.body))
        return said

    async def until(self, name: str, holds: Any, within_s: float) -> dict[str, Any]:
        """Its view once it is so. Raises TimeoutError, RuntimeError where it ended."""
        async with asyncio.timeout(within_s):
            while True:
                if self.running[name].returncode is not None:
                    raise RuntimeError(f"broker {name} ended: {(self.directory / f'{name}.log').read_text()[-1000:]}")
                try:
                    said = await self.view(name)
                    if holds(said):
                        return said
                except Unavailable:
                    pass
                await asyncio.sleep(LOOK_S)

    @property
    def pids(self) -> list[int]:
        return [one.pid for one in self.running.values()]


def _served(said: dict[str, Any]) -> bool:
    return any(one["state"] == "transfer" for one in said["connections"])


def run(options: HaOptions) -> dict[str, Any]:
    """All parts, as `--json` prints them."""
    return measured(_run(options))


async def _run(options: HaOptions) -> dict[str, Any]:
    pair = BenchPair(options)
    result: dict[str, Any] = {"machine": await asyncio.to_thread(machine, pair.directory), "options": _said(options)}
    try:
        await _sync(pair, options, result)
        await _lag(pair, options, result)
        await _catch_up(pair, options, result)
    finally:
        await pair.close()
    return {"results": cases_of(result, options), "failover": None, **result}


def cases_of(result: dict[str, Any], options: HaOptions) -> list[dict[str, Any]]:
    """The parts with a rate, as `bench messages` names it; `failover` is null: a slave is promoted by hand."""
    cases = []
    for name in ("sync_one", "sync_many", "lag"):
        part = result[name]
        per_s = part["sends_per_s"]
        cases.append({
            "case": name, "messages_per_s": per_s, "mb_per_s": per_s * options.body_bytes / 1e6,
            "p50_ms": part["p50_ms"], "p99_ms": part["p99_ms"],
        })  # fmt: skip
    filled = result["catch_up"]
    empty = {"case": "catch_up", "messages_per_s": filled["messages_per_s"], "mb_per_s": filled["mb_per_s"]}
    return [*cases, {**empty, "p50_ms": None, "p99_ms": None}]


def _said(options: HaOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in HaOptions.__slots__ if name != "directory"}


async def _sends(pair: BenchPair) -> JsonSends:
    queues = [Queue(GROUP, f"127.0.0.1:{pair.clients['a']}", number) for number in range(QUEUES)]
    sends = JsonSends(pair.links["a"], queues, binary=True)
    await pair.links["a"].connect()
    await sends.append(b"ready")
    return sends


async def _sync(pair: BenchPair, options: HaOptions, result: dict[str, Any]) -> None:
    await pair.start("a", "sync_master")
    await pair.start("b", "slave")
    await pair.until("a", _served, START_WITHIN_S)
    sends = await _sends(pair)
    for name, in_flight in (("sync_one", 1), ("sync_many", options.in_flight)):
        say(f"SYNC_MASTER, {in_flight} in flight")
        sample = await measure(sends, Case(in_flight, 1), options.body_bytes, options.seconds, lambda: cpu_s(pair.pids))
        result[name] = {
            "in_flight": in_flight, "sends_per_s": sample.entries_per_s, "p50_ms": sample.p50_ms,
            "p99_ms": sample.p99_ms, "cpu_us_per_send": sample.cpu_us_per_entry,
        }  # fmt: skip
    await pair.stop("a")


async def _lag(pair: BenchPair, options: HaOptions, result: dict[str, Any]) -> None:
    rate_per_s = min(options.rate_per_s, SHARE * result["sync_many"]["sends_per_s"])
    say(f"ASYNC_MASTER, {rate_per_s:,.0f} sends a second")
    await pair.start("a", "async_master")
    await pair.until("a", _served, START_WITHIN_S)
    sends = await _sends(pair)
    lags: list[float] = []

    async def looking() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for one in (await pair.view("a"))["connections"]:
                lags.append(float("inf") if one["lag_ms"] is None else float(one["lag_ms"]))

    watching = asyncio.create_task(looking())
    try:
        sample = await paced(sends, rate_per_s, options.body_bytes, options.seconds)
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    lags.sort()
    result["lag"] = {
        "sends_per_s": sample.entries_per_s, "p50_ms": sample.p50_ms, "p99_ms": sample.p99_ms,
        "lag_p50_ms": percentile(lags, 0.5), "lag_p99_ms": percentile(lags, 0.99), "looks": len(lags),
    }  # fmt: skip


async def _catch_up(pair: BenchPair, options: HaOptions, result: dict[str, Any]) -> None:
    await pair.stop("b")
    say(f"filling {options.fill_mb} MB")
    await _fill(pair.links["a"], options)
    end = int((await pair.view("a"))["end_offset"])
    shutil.rmtree(pair.directory / "b")
    say("an empty slave")
    await pair.start("b", "slave")
    before = await pair.view("b")
    began = time.perf_counter()
    there = await pair.until("b", lambda said: said["end_offset"] >= end, CATCH_UP_WITHIN_S)
    bytes_s = time.perf_counter() - began
    await pair.until("b", lambda said: said["dispatched_offset"] >= end, CATCH_UP_WITHIN_S)
    messages_s = time.perf_counter() - began
    cpu = cpu_s([pair.running["b"].pid], with_own=False)
    sent = end - int(before["end_offset"])
    messages = options.fill_mb * 1_000_000 // options.fill_body_bytes
    result["catch_up"] = {
        "bytes": sent, "seconds": bytes_s, "mb_per_s": sent / 1e6 / bytes_s, "messages": messages,
        "dispatched_seconds": messages_s, "messages_per_s": messages / messages_s, "slave_cpu_s": cpu,
        "end_offset": there["end_offset"],
    }  # fmt: skip


async def _fill(link: Link, options: HaOptions) -> None:
    """In batches of BATCH, BATCHES_AT_ONCE of them under way."""
    bodies = different_bodies(BATCH, options.fill_body_bytes)
    body = encode_batch(BatchedMessage(0, one, b"") for one in bodies)
    left = max(1, options.fill_mb * 1_000_000 // options.fill_body_bytes // BATCH)
    took: list[float] = []

    async def one() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            header = SendRequestV2(
                GROUP, TOPIC, "TBW102", 4, left % QUEUES, 0, 1_795_000_000_000, 0, "", 0, False, None, True
            )  # fmt: skip
            began = time.perf_counter()
            answer = await link.ask(Request.SEND_BATCH_MESSAGE, write_header(header), body, 60.0)
            took.append(time.perf_counter() - began)
            if answer.code != Answer.SUCCESS:
                raise RuntimeError(f"a batch was answered {answer.code}: {answer.remark}")

    await asyncio.gather(*(one() for _ in range(BATCHES_AT_ONCE)))
    say(f"batches took {statistics.median(took) * 1000:.1f} ms")
