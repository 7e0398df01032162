"""The other system of `bench append --against pysyncobj`: three PySyncObj processes on loopback.

PySyncObj replicates method calls of an object in the process itself, so the measuring loop runs in the leader's: it is
spared the client's hop that ours pays. Its journal is in memory, without checksums, which compares to `flush = async`
at best. It has no batches: they are measured as one call with a list of bodies, one entry of its log.

It is given its best: each case tries every configuration of CONFIGURATIONS for a moment and goes on with the fastest.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import select
import signal
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from app.bench.common import Sample, free_ports
from app.bench.load import BODIES_MIN, Case, different_bodies, sample_of
from app.bench.running import spare_the_collector
from app.bench.usage import cpu_s
from node.children import apart, environment, python

READY_WITHIN_S: Final = 20.0
TRY_S: Final = 1.5
WARM_UP_S: Final = 0.5
SETTLE_S: Final = 0.5
TRY_AGAIN_S: Final = 0.05
MIB: Final = 1 << 20
# Its low-latency mode; its defaults; and its defaults with what makes its batches leave sooner and be larger.
CONFIGURATIONS: Final[Mapping[str, dict[str, Any]]] = {
    "unbatched": {"appendEntriesUseBatch": False},
    "batched": {"appendEntriesUseBatch": True},
    "batched, 10 ms, 1 MiB": {
        "appendEntriesUseBatch": True, "appendEntriesPeriod": 0.01, "autoTickPeriod": 0.005,
        "appendEntriesBatchSizeBytes": MIB, "sendBufferSize": MIB, "recvBufferSize": MIB,
    },
}  # fmt: skip


@dataclass(slots=True)
class PySyncObjCluster:
    """Its processes; the leader measures when asked. A context manager. Raises RuntimeError where it is missing."""

    configuration: str
    size: int = 3
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def __enter__(self) -> PySyncObjCluster:
        if importlib.util.find_spec("pysyncobj") is None:
            raise RuntimeError("PySyncObj is not installed: pip install pysyncobj")
        addresses = [f"127.0.0.1:{port}" for port in free_ports(self.size)]
        for own in addresses:
            others = [address for address in addresses if address != own]
            command = python("-m", "app.bench.pysyncobj_peer", self.configuration, own, *others)
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1,
                env=environment(), preexec_fn=apart(signal.SIGKILL),
            )  # fmt: skip
            self.processes.append(process)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def ask(self, process: subprocess.Popen[str], request: dict[str, Any]) -> None:
        """One line to one member; it answers with one."""
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()

    def failover_s(self) -> float:
        """Kills the leader; seconds until one of the others has appended something. Raises RuntimeError."""
        for process in self.processes:
            self.ask(process, {"leads": True})
        leads = [answered(process)["leads"] for process in self.processes]
        if leads.count(True) != 1:
            raise RuntimeError("PySyncObj elected no leader; try again")
        survivors = [process for process, leader in zip(self.processes, leads, strict=True) if not leader]
        pipes = [process.stdout for process in survivors if process.stdout is not None]
        time.sleep(SETTLE_S)
        began = time.perf_counter()
        self.processes[leads.index(True)].kill()
        for process in survivors:
            self.ask(process, {"append_once": True})
        ready, _, _ = select.select(pipes, [], [], READY_WITHIN_S)
        if not ready:
            raise RuntimeError(f"PySyncObj appended nothing within {READY_WITHIN_S:g} s of its leader's death")
        return time.perf_counter() - began

    def measure(self, case: Case, body_bytes: int, seconds: float) -> Sample:
        """Asks all; the leader answers with its sample, the others that they are none. Raises RuntimeError."""
        pids = [process.pid for process in self.processes]
        request: dict[str, Any] = {"in_flight": case.in_flight, "batch": case.batch, "body_bytes": body_bytes}
        request |= {"seconds": seconds, "pids": pids}
        for process in self.processes:
            self.ask(process, request)
        measured = [answer for process in self.processes if (answer := answered(process))]
        if not measured:
            raise RuntimeError("PySyncObj elected no leader that measured; try again")
        return Sample(**measured[0])


def answered(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The member's next line; nothing of a member that is gone."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return dict(json.loads(line)) if line else {}


def best_configuration(case: Case, body_bytes: int, size: int) -> str:
    """The name of the one that appends most in a short try; one request at a time: its low-latency mode."""
    if case.in_flight == 1 and case.batch == 1:
        return "unbatched"
    rates: dict[str, float] = {}
    for name in CONFIGURATIONS:
        with PySyncObjCluster(name, size) as cluster:
            cluster.measure(case, body_bytes, WARM_UP_S)
            rates[name] = cluster.measure(case, body_bytes, TRY_S).entries_per_s
    return max(rates, key=lambda name: rates[name])


def serve(configuration: str, own: str, others: list[str]) -> None:
    """One member: reads a request a line, measures if it leads, answers a line."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Log(SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            conf = SyncObjConf(
                commandsQueueSize=1_000_000, dynamicMembershipChange=False, **CONFIGURATIONS[configuration]
            )
            super().__init__(own, others, conf=conf)
            self.count = 0

        @replicated  # type: ignore[untyped-decorator]
        def append(self, body: bytes | list[bytes]) -> int:
            self.count += 1
            return self.count

    log = Log()
    spare_the_collector()  # what ours gets, too
    answer: dict[str, Any]
    for line in sys.stdin:
        request = json.loads(line)
        deadline = time.monotonic() + READY_WITHIN_S
        while "append_once" not in request and not log.isReady() and time.monotonic() < deadline:
            time.sleep(0.02)
        if "leads" in request:
            answer = {"leads": bool(log._isLeader())}
        elif "append_once" in request:
            answer = append_once(log)
        else:
            answer = measure_here(log, request) if log._isLeader() else {}
        print(json.dumps(answer), flush=True)


def append_once(log: Any) -> dict[str, Any]:
    """Appends until it succeeds; a call that finds no leader waits for one by itself."""
    done = threading.Event()
    outcome: list[int] = []

    def called_back(_result: Any, error: int) -> None:
        outcome.append(error)
        done.set()

    while True:
        done.clear()
        log.append(b"after failover", callback=called_back)
        done.wait(TRY_AGAIN_S)
        if outcome and not outcome[-1]:
            return {"appended": True}


def measure_here(log: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Keeps `in_flight` calls going through callbacks for `seconds`."""
    batch, open_calls = request["batch"], request["in_flight"]
    bodies = different_bodies(max(BODIES_MIN, batch), request["body_bytes"])
    next_body = itertools.cycle(bodies if batch == 1 else [bodies[:batch]]).__next__
    latencies_s, clock = array("d"), time.perf_counter
    done = threading.Event()
    cpu_before_s = cpu_s(request["pids"], with_own=False)
    began = clock()
    stop_at = began + request["seconds"]

    class Flight:
        """As ours in `load.keep_in_flight`: one callback for all calls of one place."""

        __slots__ = ("landed", "sent")

        def __init__(self) -> None:
            self.landed, self.sent = self.land, clock()
            log.append(next_body(), callback=self.landed)

        def land(self, _result: Any, error: int) -> None:
            nonlocal open_calls
            now = clock()
            if not error:
                latencies_s.append(now - self.sent)
            if now < stop_at:
                self.sent = now
                log.append(next_body(), callback=self.landed)
                return
            open_calls -= 1
            if open_calls == 0:
                done.set()

    for _ in range(open_calls):
        Flight()
    done.wait(request["seconds"] + READY_WITHIN_S)
    elapsed_s = time.perf_counter() - began
    cpu_after_s = cpu_s(request["pids"], with_own=False)
    entries = len(latencies_s) * batch
    cpu_us = None
    if cpu_before_s is not None and cpu_after_s is not None and entries:
        cpu_us = (cpu_after_s - cpu_before_s) / entries * 1e6
    sample = sample_of(latencies_s, entries, elapsed_s, cpu_us)
    return {
        "entries_per_s": sample.entries_per_s, "p50_ms": sample.p50_ms, "p99_ms": sample.p99_ms,
        "cpu_us_per_entry": sample.cpu_us_per_entry,
    }  # fmt: skip


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], sys.argv[3:])
