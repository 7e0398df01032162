"""The verdict on a process run is tested itself: one thing wrong in logs or history, and what must be said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.store.file_store import FileStore
from tests.process.chaos_clients import Recorder
from tests.process.chaos_verdict import check_logs, read_logs

BODIES = [b"a0:%d" % number for number in range(6)]


def write(directory: Path, member: str, bodies: list[bytes], term: int = 1) -> Path:
    store = FileStore.open(
        directory / member, group="g", node_id=member, data_file_size=4096, index_file_size=1024, init=True
    )
    for body in bodies:
        store.append_as_leader([body], term)
    ticket = store.prepare_sync()
    if ticket is not None:
        ticket.run()
        store.finish_sync(ticket)
    store.close()
    return directory / member


def reported(*, first: int = 0, count: int = 6, result: str = "ok") -> Recorder:
    """One client appended them one by one, and was told where they are; the last one with `result`."""
    recorder = Recorder()
    for number in range(count):
        operation = recorder.history.invoke("a0", "append", "leader", [BODIES[number]])
        last = number == count - 1
        outcome = result if last else "ok"
        index = first + number if outcome == "ok" else -1
        recorder.history.complete(operation, outcome, first_index=index, last_index=index, term=1)  # type: ignore[arg-type]
    return recorder


def rules(directory: Path, logs: dict[str, list[bytes]], recorder: Recorder) -> set[str]:
    stores = {member: write(directory, member, bodies) for member, bodies in logs.items()}
    read, unreadable = read_logs(stores)
    return {one.rule for one in (*unreadable, *check_logs(read, recorder))}


def test_equal_logs_that_hold_what_was_promised_are_fine(tmp_path: Path) -> None:
    assert rules(tmp_path, {"n0": BODIES, "n1": BODIES}, reported()) == set()
    assert rules(tmp_path / "unknown", {"n0": BODIES[:5], "n1": BODIES[:5]}, reported(result="unknown")) == set()


@pytest.mark.parametrize(
    ("logs", "recorder", "rule"),
    [
        ({"n0": BODIES, "n1": BODIES[:5]}, reported(), "acknowledged_lost"),
        ({"n0": BODIES[:5], "n1": BODIES[:5]}, reported(), "acknowledged_lost"),
        ({"n0": BODIES, "n1": BODIES[:5]}, reported(count=5), "committed_missing"),
        ({"n0": BODIES, "n1": [*BODIES[:4], b"x", BODIES[5]]}, reported(), "logs_differ"),
        ({"n0": BODIES, "n1": BODIES}, reported(result="fail"), "failed_applied"),
        ({"n0": [*BODIES, BODIES[2]], "n1": [*BODIES, BODIES[2]]}, reported(), "duplicate_entry"),
        ({"n0": [*BODIES, b"?"], "n1": [*BODIES, b"?"]}, reported(), "phantom"),
        ({"n0": BODIES, "n1": BODIES}, reported(first=1), "acknowledged_lost"),
    ],
)
def test_one_thing_wrong_is_named(tmp_path: Path, logs: dict[str, list[bytes]], recorder: Recorder, rule: str) -> None:
    assert rule in rules(tmp_path, logs, recorder)


def test_a_read_that_saw_less_than_somebody_knew_is_stale(tmp_path: Path) -> None:
    recorder = reported()
    read = recorder.history.invoke("r0", "read", "n2 linearizable", from_index=2)
    recorder.history.complete(read, "ok", read_index=3, seen=[(2, BODIES[2]), (3, BODIES[3])])
    assert rules(tmp_path, {"n0": BODIES, "n1": BODIES}, recorder) == {"stale_read"}


def test_an_index_other_than_the_expected_one_is_named(tmp_path: Path) -> None:
    recorder = reported()
    recorder.expected[3] = 4
    assert rules(tmp_path, {"n0": BODIES}, recorder) == {"expected_index"}


def test_a_damaged_log_is_named(tmp_path: Path) -> None:
    store = write(tmp_path, "n0", BODIES)
    path = next((store / "data").glob("[0-9]*"))
    data = bytearray(path.read_bytes())
    data[data.index(BODIES[1])] ^= 1
    path.write_bytes(data)
    _, found = read_logs({"n0": store})
    assert {one.rule for one in found} & {"log_damaged", "log_unreadable"}
