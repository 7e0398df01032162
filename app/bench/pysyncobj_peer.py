"""The other system of `bench append --against pysyncobj`: three PySyncObj processes on loopback.

PySyncObj replicates method calls of an object in the process itself, so the measuring loop runs in the leader's: it is
spared the client's hop that ours pays. Its journal is in memory, which compares to `flush = async` at best.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
from typing import Any

from app.bench.common import Sample, free_ports, percentile

SIZE = 3
READY_WITHIN_S = 20.0


class PySyncObjCluster:
    """Three processes; the leader measures when asked. A context manager."""

    def __init__(self, *, batched: bool) -> None:
        """`batched` False is its low-latency mode, the fair one for a single request in flight."""
        self.batched = batched
        if importlib.util.find_spec("pysyncobj") is None:
            raise RuntimeError("PySyncObj is not installed: pip install pysyncobj")
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(SIZE)]
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> PySyncObjCluster:
        for own in self.addresses:
            others = [address for address in self.addresses if address != own]
            command = [sys.executable, "-m", "app.bench.pysyncobj_peer", str(int(self.batched)), own, *others]
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def measure(self, in_flight: int, body_bytes: int, seconds: float) -> Sample:
        """Asks all; the leader answers with its sample, the others that they are none."""
        request = json.dumps({"in_flight": in_flight, "body_bytes": body_bytes, "seconds": seconds})
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(request + "\n")
            process.stdin.flush()
        answers = [json.loads(process.stdout.readline()) for process in self.processes if process.stdout]
        measured = [answer for answer in answers if answer.get("entries_per_s")]
        if not measured:
            raise RuntimeError("PySyncObj elected no leader that measured; try again")
        return Sample(measured[0]["entries_per_s"], measured[0]["p50_ms"], measured[0]["p99_ms"])


def serve(batched: bool, own: str, others: list[str]) -> None:
    """One member: reads a request a line, measures if it leads, answers a line."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    class Log(SyncObj):  # type: ignore[misc]
        def __init__(self) -> None:
            conf = SyncObjConf(
                commandsQueueSize=1_000_000, appendEntriesUseBatch=batched, dynamicMembershipChange=False
            )
            super().__init__(own, others, conf=conf)
            self.count = 0

        @replicated  # type: ignore[untyped-decorator]
        def append(self, body: bytes) -> int:
            self.count += 1
            return self.count

    log = Log()
    for line in sys.stdin:
        request = json.loads(line)
        deadline = time.monotonic() + READY_WITHIN_S
        while not log.isReady() and time.monotonic() < deadline:
            time.sleep(0.02)
        answer = measure_here(log, request) if log._isLeader() else {}
        print(json.dumps(answer), flush=True)


def measure_here(log: Any, request: dict[str, Any]) -> dict[str, float]:
    """Keeps `in_flight` calls going through callbacks for `seconds`."""
    body = b"x" * request["body_bytes"]
    latencies_s: list[float] = []
    began = time.perf_counter()
    stop_at = began + request["seconds"]
    done = threading.Event()
    open_calls = request["in_flight"]

    def call() -> None:
        sent = time.perf_counter()
        log.append(body, callback=lambda _result, _error: answered(sent))

    def answered(sent: float) -> None:
        nonlocal open_calls
        now = time.perf_counter()
        latencies_s.append(now - sent)
        if now < stop_at:
            call()
            return
        open_calls -= 1
        if open_calls == 0:
            done.set()

    for _ in range(request["in_flight"]):
        call()
    done.wait(request["seconds"] + READY_WITHIN_S)
    elapsed_s = time.perf_counter() - began
    latencies_s.sort()
    return {
        "entries_per_s": len(latencies_s) / elapsed_s,
        "p50_ms": percentile(latencies_s, 0.50) * 1000,
        "p99_ms": percentile(latencies_s, 0.99) * 1000,
    }


if __name__ == "__main__":
    serve(sys.argv[1] == "1", sys.argv[2], sys.argv[3:])
