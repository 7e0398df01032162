"""The job's process and the command line: progress, cancel, exit codes, the JSON of the interface."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.audit import command
from app.audit.command import AuditArgs
from app.audit.launch import Lines, request_cancel, start_job, write_spec
from app.audit.progress import FINAL_EVENTS, STEPS
from app.audit.replicas import ReplicaSpec
from app.audit.runner import runs_job
from node.children import environment, python
from tests.audit.builder import Store, Written, entries
from tests.audit.plane import Plane, serve

RESULT_KEYS = {
    "verdict", "depth", "proves", "fence", "replicas", "first_divergence", "single_copy_ranges", "unaudited",
    "findings", "findings_truncated", "rows", "seconds",
}  # fmt: skip


def build(root: Path, count: int = 300) -> list[Store]:
    return [
        Store(root / name, file_bytes=1 << 16, index_file_bytes=1 << 15).write(entries(count))
        for name in ("n0", "n1", "n2")
    ]


@contextmanager
def served(stores: list[Store], **more: Any) -> Iterator[list[Plane]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(serve(Plane(s.root, f"n{i}", s.begin_index, s.end_index, s.end_index, **more)))
            for i, s in enumerate(stores)
        ]


def until_final(directory: Path, process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """All lines of a job; the test's own time limit ends it if it never comes to its last one."""
    lines = Lines(directory)
    events: list[dict[str, Any]] = []
    while not events or events[-1]["event"] not in FINAL_EVENTS:
        gone = process.poll() is not None
        events.extend(lines.read())
        if gone and (not events or events[-1]["event"] not in FINAL_EVENTS):
            raise AssertionError(f"the job ended without a last line: {(directory / 'log').read_text()}")
        time.sleep(0.02)
    process.wait()
    return events


def specs(planes: list[Plane]) -> list[ReplicaSpec]:
    return [ReplicaSpec("http", plane.url) for plane in planes]


@pytest.mark.spark
@pytest.mark.long  # test_console.py starts the same job, and reads its steps and its finding
def test_the_job_reports_its_steps_and_finds_the_flipped_byte(tmp_path: Path) -> None:
    stores = build(tmp_path)
    stores[1].flip(150, 60)
    job = tmp_path / "job"
    with served(stores) as planes:
        write_spec(job, specs(planes), depth="bytes", block_entries=64, out=str(tmp_path / "out"))
        process = start_job(job, outlives=True)
        events = until_final(job, process)
    assert process.returncode == 0
    assert (job / "spec.json").stat().st_mode & 0o077 == 0
    progress = [event for event in events if event["event"] == "progress"]
    seen = [event["step"] for event in progress if event["step"]]
    assert sorted(set(seen), key=seen.index)[0] in ("starting_jvm", "fencing")
    assert {step["state"] for step in progress[-1]["steps"]} == {"done"}
    assert [step["name"] for step in progress[-1]["steps"]] == list(STEPS)
    assert (progress[-1]["blocks_done"], progress[-1]["blocks_total"]) == (5, 5)
    assert progress[-1]["bytes_done"] >= progress[-1]["bytes_total"] > 100_000
    result = events[-1]["result"]
    assert result.keys() >= RESULT_KEYS
    assert (result["verdict"], result["first_divergence"], result["rows"]) == ("divergent", 150, 900)
    (found,) = result["findings"]
    assert (found["class"], found["severity"], found["replicas"]) == ("crc_invalid", "critical", ["n1"])
    assert (found["from_index"], found["to_index"]) == (150, 150)
    import pyarrow.parquet as pq

    table = pq.read_table(tmp_path / "out" / "findings.parquet").to_pylist()
    assert [(row["class"], row["replicas"], row["good"]) for row in table] == [("crc_invalid", ["n1"], ["n0", "n2"])]


@pytest.mark.spark
def test_a_cancel_counts_while_the_jvm_starts(tmp_path: Path) -> None:
    job = tmp_path / "job"
    with served(build(tmp_path)) as planes:
        write_spec(job, specs(planes), depth="bytes")
        process = start_job(job, outlives=True)
        while not any(event["step"] == "starting_jvm" for event in Lines(job).read()):
            time.sleep(0.02)
        request_cancel(job)
        events = until_final(job, process)
    assert events[-1]["event"] == "cancelled"
    assert process.returncode == 130


def test_a_job_whose_program_is_just_being_loaded_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command line is empty for that moment, as one's is that has ended: a console that had just been started again
    said of an audit that its process had ended without a word, while it ran."""
    gone = subprocess.Popen(["true"])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{gone.pid}/cmdline").read_bytes() == b""
    assert not runs_job(gone.pid, tmp_path)
    gone.wait()
    assert not runs_job(gone.pid, tmp_path)
    monkeypatch.setattr(Path, "read_bytes", lambda _path: b"")
    assert runs_job(os.getpid(), tmp_path)


def test_a_cancel_comes_before_the_spec(tmp_path: Path) -> None:
    """The audit is known before its directory is made: a cancel in between was a bare 500."""
    request_cancel(tmp_path / "audits" / "7")
    write_spec(tmp_path / "audits" / "7", [])
    assert (tmp_path / "audits" / "7" / "cancel").exists()


def test_a_cancel_before_the_start_counts(tmp_path: Path) -> None:
    job = tmp_path / "job"
    with served(build(tmp_path)) as planes:
        write_spec(job, specs(planes), depth="bytes")
        request_cancel(job)
        process = start_job(job, outlives=True)
        assert until_final(job, process)[-1]["event"] == "cancelled"


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long), signal.SIGKILL]
)
def test_a_command_that_is_ended_leaves_no_job(tmp_path: Path, number: signal.Signals) -> None:
    """A `timeout 60 quorumscope audit ...` left a JVM and its workers that read all replicas for nobody."""
    stores = [str(store.root) for store in build(tmp_path)]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command_line = python("-m", "app.cli", "audit", "--store", stores[0], "--store", stores[1])
    audit = subprocess.Popen(
        command_line, env=environment() | {"TMPDIR": str(scratch)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (jobs := children_of(audit.pid)):
            assert audit.poll() is None
            time.sleep(0.02)
        (job,) = jobs
        while not any(scratch.rglob("progress.jsonl")) or not next(scratch.rglob("progress.jsonl")).stat().st_size:
            time.sleep(0.02)
        os.kill(audit.pid, number)
        code = audit.wait()
    finally:
        audit.kill()
        audit.wait()
    while Path(f"/proc/{job}").exists():  # the test's own time limit ends this
        time.sleep(0.02)
    assert code == {signal.SIGTERM: 143, signal.SIGHUP: 130, signal.SIGKILL: -signal.SIGKILL}[number]
    assert number is signal.SIGKILL or not any(scratch.rglob("spec.json"))


def run(capsys: pytest.CaptureFixture[str], **args: Any) -> tuple[int, dict[str, Any]]:
    code = command.run(AuditArgs(as_json=True, **{"depth": "chain", **args}))
    out = capsys.readouterr().out
    return code, json.loads(out) if out else {}


def test_exit_0_and_the_json_of_a_consistent_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(build(tmp_path)) as planes:
        code, result = run(capsys, nodes=tuple(plane.url for plane in planes))
        assert all("/entries" not in path for plane in planes for path in plane.requests)
    assert code == 0
    assert result.keys() >= RESULT_KEYS
    assert result["verdict"] == "consistent"
    assert "does not prove what the disks hold now" in result["proves"]
    assert result["fence"]["to_index"] == 299
    assert result["fence"]["committed_index"] == 299


@pytest.mark.spark
@pytest.mark.long
def test_exit_1_for_a_fork_that_the_chain_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = build(tmp_path)[:2]
    other = [*entries(200), *(Written(b"x" * 100, term=2) for _ in range(150))]
    stores.append(Store(tmp_path / "fork", file_bytes=1 << 16, index_file_bytes=1 << 15).write(other))
    with served(stores) as planes:
        code, result = run(capsys, nodes=tuple(plane.url for plane in planes))
    assert (code, result["verdict"], result["first_divergence"]) == (1, "divergent", 200)
    assert [f["class"] for f in result["findings"] if f["severity"] == "critical"] == ["fork"]


def test_exit_2_when_a_replica_is_dead_or_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(build(tmp_path)) as planes:
        code, result = run(capsys, nodes=(planes[0].url, planes[1].url, "http://127.0.0.1:9"))
        assert (code, result["verdict"]) == (2, "unauditable")
        assert "unreachable" in result["unaudited"][0]["reason"]
        assert result["replicas"][2]["begin_index"] is None
        code, result = run(capsys, nodes=(planes[0].url,))
        assert (code, result["verdict"]) == (2, "unauditable")
    java = [Store(tmp_path / f"j{i}", sealed=False, index_file_bytes=1 << 15).write(entries(50)) for i in range(2)]
    with served(java) as planes:
        code, result = run(capsys, nodes=tuple(plane.url for plane in planes))
    assert (code, result["verdict"]) == (2, "unauditable")
    assert "unsealed" in result["unaudited"][0]["reason"]


def test_exit_69_when_nobody_answers_without_waiting_for_java(capsys: pytest.CaptureFixture[str]) -> None:
    for depth in ("chain", "bytes"):
        code = command.run(AuditArgs(nodes=("http://127.0.0.1:9", "http://127.0.0.1:10"), depth=depth))
        assert code == 69
        assert "no replica could be read" in capsys.readouterr().err


def test_a_token_is_sent_and_never_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served(build(tmp_path)[:2], token="s3cret") as planes:
        urls = tuple(plane.url for plane in planes)
        assert run(capsys, nodes=urls)[0] == 69
        code, result = run(capsys, nodes=urls, token="s3cret")
    assert code == 0
    assert "s3cret" not in json.dumps(result)


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"nodes": ("localhost:1",)},
        {"nodes": ("http://127.0.0.1:9",), "depth": "deep"},
        {"nodes": ("http://127.0.0.1:9",), "from_index": 5, "to_index": 4},
        {"nodes": ("http://127.0.0.1:9",), "cluster": "demo"},
    ],
)
def test_exit_64_is_one_line(args: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(AuditArgs(**args)) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_one_node_named_twice_and_two_groups_are_usage_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(build(tmp_path)[:2]) as planes:
        assert command.run(AuditArgs(nodes=(planes[0].url, planes[0].url), depth="chain")) == 64
        planes[1].group = "other"
        assert command.run(AuditArgs(nodes=(planes[0].url, planes[1].url), depth="chain")) == 64
    assert "not of one group" in capsys.readouterr().err


def test_a_cluster_is_what_the_console_knows_and_its_token_stays_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(build(tmp_path)) as planes:
        members = [{"id": plane.node_id, "control_url": plane.url} for plane in planes]
        planes[0].clusters = [{"id": "c1", "name": "orders", "members": members}]
        more = {"cluster": "orders", "console_url": planes[0].url, "token": "console-token"}
        code, result = run(capsys, **more)
        assert (code, [one["id"] for one in result["replicas"]]) == (0, ["n0", "n1", "n2"])
        assert planes[0].tokens == {"Bearer console-token", None}
        assert planes[1].tokens == {None}
        assert run(capsys, **{**more, "cluster": "other"})[0] == 64
        assert run(capsys, **{**more, "console_url": "http://127.0.0.1:9"})[0] == 69
