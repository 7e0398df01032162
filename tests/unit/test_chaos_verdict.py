"""The verdict on a process run is tested itself: one thing wrong in logs or history, and what must be said of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.store.file_store import FileStore
from tests.process.chaos_clients import Recorder
from tests.process.chaos_messages import Message, Place, broken
from tests.process.chaos_verdict import check_logs, ends_by_themselves, last_traceback, read_logs

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


def ended(part: str, code: int, **more: Any) -> str:
    """As a supervisor logs it (test_supervisor.py reads the same of a real one)."""
    event = {"event": f"{part}_ended", "process": "supervisor", "exit_code": code, "reason": f"the {part}: {code}"}
    return json.dumps({"time": "2026-11-22T02:31:28.340Z", "level": "error"} | event | more)


def test_only_what_was_killed_on_order_may_have_ended() -> None:
    said = "\n".join([ended("engine", -9), "not JSON _ended", ended("broker", -9), ended("engine", -9)])
    assert ends_by_themselves(said, {"engine": 2, "broker": 1}) == []
    assert ends_by_themselves(said, {"engine": 1, "broker": 1}) == ["the engine: -9"]
    assert ends_by_themselves(said, {"engine": 2}) == ["the broker: -9"]


@pytest.mark.parametrize(("part", "code"), [("engine", 1), ("engine", -11), ("broker", 3), ("control", -6)])
def test_whatever_ended_otherwise_did_so_by_itself(part: str, code: int) -> None:
    assert ends_by_themselves(ended(part, code), {"engine": 5, "broker": 5}) == [f"the {part}: {code}"]
    assert ends_by_themselves(ended(part, code, process="engine"), {}) == [], "what others say of it does not count"


RAISED = 'Traceback (most recent call last):\n  File "server.py", line 7, in main\n    run()\nOSError: no such thing\n'


def test_a_traceback_is_told_by_its_error_not_by_what_was_logged_later() -> None:
    """A run's verdict held three lines that were logged at the node's end, and its files are kept for two runs more."""
    later = "".join(f"{ended('engine', 0)}\n" for _ in range(3))
    assert last_traceback(later) is None
    assert (
        last_traceback(later + RAISED + later)
        == '  File "server.py", line 7, in main /     run() / OSError: no such thing'
    )
    logged = json.dumps({"event": "task_died", "exception": RAISED})
    assert "OSError: no such thing" in str(last_traceback(f"{later}{logged}\n{later}"))


PLACE = ("Flights", 1, 7)
OTHER = ("Flights", 1, 8)


@pytest.mark.parametrize(
    ("message", "places", "rule"),
    [
        (Message("single", "Flights", "ok", PLACE), [PLACE], None),
        (Message("single", "Flights", "ok", PLACE), [], "acknowledged_lost"),
        (Message("single", "Flights", "ok", PLACE), [OTHER], "acknowledged_elsewhere"),
        (Message("single", "Flights", "ok", PLACE), [("Bookings", 1, 7)], "acknowledged_lost"),
        (Message("single", "Flights", "ok", PLACE), [PLACE, OTHER], "stored_twice"),
        (Message("batch", "Flights", "unknown"), [], None),
        (Message("batch", "Flights", "unknown"), [PLACE, OTHER], "stored_twice"),
        (Message("single", "Flights", "fail"), [], None),
        (Message("single", "Flights", "fail"), [PLACE], "refused_stored"),
        (Message("delayed", "Flights", "fail"), [("SCHEDULE_TOPIC_XXXX", 0, 3)], "refused_stored"),
        (Message("delayed", "Flights", "ok"), [("SCHEDULE_TOPIC_XXXX", 0, 3)], "acknowledged_lost"),
        (Message("delayed", "Flights", "ok"), [PLACE, OTHER], None),
        (Message("transaction", "Flights", "ok", is_wanted=False), [("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)], None),
        (Message("transaction", "Flights", "ok", is_wanted=False), [PLACE], "rolled_back_delivered"),
        (Message("transaction", "Flights", "unknown", is_wanted=False), [PLACE], "rolled_back_delivered"),
    ],
)
def test_what_becomes_of_a_message_is_held_against_what_was_said(
    message: Message, places: list[Place], rule: str | None
) -> None:
    found = broken(b"s0:1:", message, {b"s0:1:": places})
    assert (found and found[0]) == rule
