"""The audit's driver process: `python -m app.audit.job SPEC.json`.

The spec is a file (it may hold tokens, so never the command line): {replicas, depth, from_index, to_index, master,
out}. Progress and the result are JSON lines on stdout. A file named `cancel` beside the spec cancels, also before
anything has started; so do SIGTERM and SIGINT. Invariant: exactly one final line is written, and nothing of ours lives
on after it.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from app.audit.archives import find_committed
from app.audit.chain import ChainResult, compare_chains, merge_ranges
from app.audit.classify import Unaudited, classify, worst_first
from app.audit.fence import Fence, FenceError
from app.audit.fencing import fix_fence, holders_specs, open_holders, utc_text
from app.audit.java import NoJava
from app.audit.observe import Fact
from app.audit.pins import RENEW_S, AuditPins
from app.audit.progress import Progress
from app.audit.replicas import ReplicaSpec
from app.audit.result import DEPTHS, build_result
from app.audit.session import LOCAL, how_jvm_ended, is_local, start_session
from app.audit.sizes import estimate_bytes
from app.audit.spark import NoSpark, await_spark
from app.audit.states import about_states, compare_states, saved_states
from app.audit.tasks import (
    BLOCK_ENTRIES,
    FACTS_PER_BLOCK_MAX,
    ROW_SCHEMA,
    Piece,
    compare_task,
    facts_of,
    plan_pieces,
    split_tasks,
)
from node.printable import escaped
from node.priority import lower_priority

FINISHED, USAGE, UNREACHABLE, FAILED, CANCELLED = 0, 64, 69, 70, 130
WATCH_S = 0.2
BEAT_ROUNDS = 5
JOB_GROUP = "quorumscope-audit"


@dataclass(frozen=True)
class JobSpec:
    """What to audit, and how."""

    replicas: tuple[ReplicaSpec, ...]
    depth: str = "bytes"
    from_index: int | None = None
    to_index: int | None = None
    master: str = LOCAL
    out: str | None = None
    block_entries: int = BLOCK_ENTRIES
    messages: bool = False  # message stores, each with itself and with each other, in place of the log's entries
    ha: bool = False  # commit logs of a classic pair, the master first, in place of the log's entries

    @classmethod
    def read(cls, path: Path) -> JobSpec:
        data = json.loads(path.read_text())
        replicas = tuple(ReplicaSpec.from_json(one) for one in data.pop("replicas"))
        given = {key: value for key, value in data.items() if value is not None}
        spec = cls(replicas, **given)
        if spec.depth not in DEPTHS:
            raise ValueError(f"depth is {', '.join(DEPTHS)}; not {spec.depth!r}")
        return spec


class Job:
    """One audit from spec to final line."""

    def __init__(self, spec: JobSpec, cancel_file: Path, progress: Progress, work_dir: Path) -> None:
        self.spec = spec
        self.progress = progress
        self.work_dir = work_dir
        self._cancel_file = cancel_file
        self._cancelled = threading.Event()
        self._session: Any = None
        self._counters: tuple[Any, Any, Any] | None = None
        self._pins = AuditPins(spec.replicas, spec.from_index, ha=spec.ha)
        self._pinned_at_s: float | None = None  # when the pins were taken, or renewed

    # --- cancelling and watching --------------------------------------------------------------------------------
    def cancel(self) -> None:
        self._cancelled.set()

    def watch(self) -> None:
        """Runs in a thread of its own to the end; a line a second says that the job lives, whatever a step does."""
        for round_number in itertools.count(1):
            if self._cancelled.is_set() or self._cancel_file.exists():
                self._end_cancelled()
            self._count()
            if self._pinned_at_s is not None and time.monotonic() - self._pinned_at_s > RENEW_S:
                self._pinned_at_s = time.monotonic()
                self._pins.renew()
            if round_number % BEAT_ROUNDS == 0:
                self.progress.emit()
            time.sleep(WATCH_S)

    def _count(self) -> None:
        if self._counters is not None:
            blocks, rows, size_bytes = (counter.value for counter in self._counters)
            self.progress.count(blocks, rows, size_bytes)

    def _end_cancelled(self) -> NoReturn:
        """At any moment, also while the JVM starts: a cancel that waits for a step to finish feels lost."""
        session = self._session
        if session is not None:
            try:
                session.sparkContext.cancelJobGroup(JOB_GROUP)
                if not is_local(self.spec.master):
                    session.stop()
            except Exception as error:  # the process ends in any case
                print(escaped(f"audit: cancelling: {error}"), file=sys.stderr)
        if not self.progress.finish("cancelled"):
            time.sleep(30)  # the main thread has just written its result and is ending the process
        self.end(CANCELLED)

    def end(self, code: int) -> NoReturn:
        """Leaves without waiting for Spark's orderly stop: a local JVM ends when its parent does."""
        if self._pinned_at_s is not None:
            self._pinned_at_s = None
            self._pins.release()
        shutil.rmtree(self.work_dir, ignore_errors=True)
        sys.stderr.flush()
        os._exit(code)

    def fail(self, code: int, name: str, detail: str) -> NoReturn:
        if not self.progress.finish("failed", code=name, detail=detail):
            time.sleep(30)
        self.end(code)

    # --- the work -----------------------------------------------------------------------------------------------
    def run(self) -> NoReturn:
        threading.Thread(target=self.watch, name="watch", daemon=True).start()
        with self._errors_end_it():
            if self.spec.messages:
                result = self._messages()
            elif self.spec.ha:
                result = self._pair()
            else:
                result = self._chain_first() if self.spec.depth == "chain" else self._read_all()
            if self.spec.out is not None:
                from app.audit.export import write_out

                write_out(Path(self.spec.out), result)
        self._count()
        written = self.progress.finish("result", result=result)
        if written and self._session is not None and not is_local(self.spec.master):
            self._session.stop()
        self.end(FINISHED)

    @contextmanager
    def _errors_end_it(self) -> Iterator[None]:
        """Whatever is raised within, in whichever thread, ends the process with a last line that says it."""
        try:
            yield
        except FenceError as error:
            self.fail(USAGE, "usage", str(error))
        except NoJava as error:
            self.fail(FAILED, "no_java", str(error))
        except NoSpark as error:
            self.fail(FAILED, "no_spark", str(error))
        except Exception as error:
            ended = how_jvm_ended(self._session)
            said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            self.fail(FAILED, "failed" if ended is None else "jvm_ended", ended or said)

    def _fence(self) -> Fence:
        with self._errors_end_it():
            self.progress.mark("fencing", "running")
            fence = fix_fence(self.spec.replicas, self.spec.from_index, self.spec.to_index)
            if not fence.readable:
                problems = "; ".join(f"{r.id}: {r.problem}" for r in fence.replicas)
                self.fail(UNREACHABLE, "unreachable", f"no replica could be read: {problems}")
            self._pins.take(fence)
            self._pinned_at_s = time.monotonic()
            fence = find_committed(fence, open_holders(self.spec.replicas, fence))
            self.progress.mark("fencing", "done")
            return fence

    def _start_jvm(self) -> None:
        self.progress.mark("starting_jvm", "running")
        await_spark(self.progress.wait)
        self._session = start_session(self.spec.master, work_dir=self.work_dir)
        self.progress.mark("starting_jvm", "done")

    def _read_all(self) -> dict[str, Any]:
        # Beside the JVM's start: a wrong name or dead nodes end the process without waiting for Java.
        fencing = ThreadPoolExecutor(1, thread_name_prefix="fencing").submit(self._fence)
        self._start_jvm()
        fence = fencing.result()
        pieces = plan_pieces(fence, self.spec.block_entries)
        facts, rows, dropped = self._compare(fence, pieces, self.spec.depth)
        return self._result(fence, facts, rows, dropped, [], None)

    def _chain_first(self) -> dict[str, Any]:
        fence = self._fence()
        self.progress.mark("reading", "running")
        chains: ChainResult = compare_chains(fence, open_holders(self.spec.replicas, fence))
        if not chains.drill:
            for step in ("reading", "comparing"):
                self.progress.mark(step, "done")
            self.progress.mark("starting_jvm", "skipped")
            return self._result(fence, [], chains.rows, 0, chains.unaudited, chains.compared > 0)
        self._start_jvm()
        pieces = plan_pieces(fence, self.spec.block_entries, merge_ranges(chains.drill))
        facts, rows, dropped = self._compare(fence, pieces, "bytes")
        return self._result(fence, facts, chains.rows + rows, dropped, chains.unaudited, True)

    def _messages(self) -> dict[str, Any]:
        from app.audit.message_audit import audit_messages, opened, result_of

        self.progress.mark("fencing", "running")
        replicas = opened(self.spec.replicas)
        if all(one.store is None for one in replicas):
            self.fail(USAGE, "usage", "; ".join(f"{one.id}: {one.problem}" for one in replicas))
        self.progress.mark("fencing", "done")
        self._start_jvm()
        self.progress.mark("reading", "running")
        self._session.sparkContext.setJobGroup(JOB_GROUP, "audit of messages", interruptOnCancel=True)

        def count(blocks: Any, rows: Any, size_bytes: Any) -> None:
            self._counters = (blocks, rows, size_bytes)

        findings, dropped = audit_messages(
            self._session, replicas, count, lambda ranges: self.progress.totals(ranges, None)
        )
        self._count()
        for step in ("reading", "comparing"):
            self.progress.mark(step, "done")
        return result_of(replicas, findings, dropped, self.progress.elapsed_s)

    def _pair(self) -> dict[str, Any]:
        from app.audit.pair_audit import audit_pair, excused
        from app.audit.pair_opening import master_first, opened
        from app.audit.pair_result import result_of

        self.progress.mark("fencing", "running")
        specs = master_first(self.spec.replicas)
        logs, taken_at = opened(specs), utc_text()
        if all(one.problem for one in logs):
            dead = (UNREACHABLE, "unreachable") if all(one.kind == "http" for one in specs) else (USAGE, "usage")
            self.fail(*dead, "; ".join(f"{one.id}: {one.problem}" for one in logs))
        self._pins.hold({one.source: one.begin for one in logs if one.version and not one.problem})
        self._pinned_at_s = time.monotonic()
        self.progress.mark("fencing", "done")
        self._start_jvm()
        self.progress.mark("reading", "running")
        self._session.sparkContext.setJobGroup(JOB_GROUP, "audit of a pair", interruptOnCancel=True)

        def count(blocks: Any, rows: Any, size_bytes: Any) -> None:
            self._counters = (blocks, rows, size_bytes)

        found = audit_pair(self._session, specs, logs, count, lambda pieces: self.progress.totals(pieces, None))
        self._count()
        for step in ("reading", "comparing"):
            self.progress.mark(step, "done")
        return result_of(
            logs, excused(found.facts, logs, opened(specs)) if found.facts else [], records=found.records,
            same_bytes=found.same_bytes, dropped=found.dropped, seconds=self.progress.elapsed_s,
            taken_at=taken_at,
        )  # fmt: skip

    def _compare(self, fence: Fence, pieces: list[Piece], depth: str) -> tuple[list[Fact], int, int]:
        """One Spark job over all pieces; returns facts, records read, and how many facts had to be dropped."""
        specs = holders_specs(self.spec.replicas, fence)
        self.progress.mark("reading", "running")
        self.progress.totals(len(pieces), estimate_bytes(fence, specs, pieces) if depth == "bytes" else None)
        self.progress.mark("comparing", "running")
        facts: list[Fact] = []
        rows = dropped = 0
        if pieces:
            context = self._session.sparkContext
            context.setJobGroup(JOB_GROUP, "audit", interruptOnCancel=True)
            blocks_done, rows_done, bytes_done = (context.accumulator(0) for _ in range(3))
            self._counters = (blocks_done, rows_done, bytes_done)

            def on_block(block_rows: int, block_bytes: int) -> None:
                blocks_done.add(1)
                rows_done.add(block_rows)
                bytes_done.add(block_bytes)

            tasks = split_tasks(pieces, context.defaultParallelism)
            work = compare_task(
                tasks, [s.as_json() for s in specs], [f.as_json() for f in fence.holders], depth,
                self.spec.block_entries, on_block,
            )  # fmt: skip
            numbers = self._session.range(0, len(tasks), 1, len(tasks))
            for row in numbers.mapInArrow(work, ROW_SCHEMA).collect():
                found = facts_of(row["facts"])
                dropped += max(row["found"] - FACTS_PER_BLOCK_MAX, 0)
                rows += row["rows"]
                facts.extend(found)
        self._count()
        self.progress.mark("reading", "done")
        self.progress.mark("comparing", "done")
        return facts, rows, dropped

    def _result(
        self, fence: Fence, facts: list[Fact], rows: int, dropped: int, unaudited: list[Unaudited], twice: bool | None
    ) -> dict[str, Any]:
        findings, unread = classify(facts, fence)
        states = saved_states(self.spec.replicas, fence)
        findings = worst_first([*findings, *compare_states(states, fence)])
        return build_result(
            fence=fence, depth=self.spec.depth, findings=findings, unaudited=[*unaudited, *unread], rows=rows,
            seconds=self.progress.elapsed_s, dropped=dropped, twice=twice, about_states=about_states(states, fence),
        )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Runs one audit and ends the process; returns only where there is nothing to run."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("usage: python -m app.audit.job SPEC.json", file=sys.stderr)
        return USAGE
    path = Path(arguments[0])
    progress = Progress()
    progress.emit()
    try:
        spec = JobSpec.read(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        progress.finish("failed", code="usage", detail=f"{path.name}: {error}")
        return USAGE
    job = Job(spec, path.with_name("cancel"), progress, Path(tempfile.mkdtemp(prefix="quorumscope-audit-")))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: job.cancel())
    return job.run()


if __name__ == "__main__":
    lower_priority()
    sys.exit(main())
