"""`audit --messages`: ranges read apart and brought together by name find what one reading of a store finds."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.audit.message_audit import findings_of_files, head_for, opened, result_of, take_head
from app.audit.message_render import render_messages
from app.audit.message_tasks import compared, finding_json, packed_rows, ranges_of
from app.audit.replicas import ReplicaSpec
from app.cli import run
from app.commands.endings import Exit
from node.message_store.checking.facts import DUE_UNIT, KEY
from node.message_store.checking.verify import dispatched_upto, verify
from node.message_store.message_store import MessageStore
from tests.unit.message_broker import filled
from tests.unit.message_faults import PLANTS, Plant, planted


def audited(*roots: Path, between: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """The two steps of the job, and what Spark does between them, in this process. `between`: what brokers do then."""
    replicas = opened([ReplicaSpec("directory", str(root)) for root in roots])
    ranges = [one for n, each in enumerate(replicas) if each.store is not None for one in ranges_of(n, each.store)]
    rows = [row for one in reversed(ranges) for row in packed_rows(one)]
    groups: dict[tuple[str, str], dict[int, list[tuple[int, bytes]]]] = defaultdict(lambda: defaultdict(list))
    for kind, name, replica, begin, data in rows:
        groups[kind, name][replica].append((begin, data))
    for _kind, _name, replica, begin, data in sorted(row for row in rows if row[0] == "head"):
        assert begin >= 0
        take_head(replicas[replica], json.loads(data))
    heads = [head_for(one, dispatched_upto(one.store) if one.store is not None else None) for one in replicas]
    between()
    findings = []
    for (kind, name), parts in groups.items():
        if kind != "head":
            dtype = DUE_UNIT if kind == "queue" else KEY
            due = {
                replica: np.concatenate([np.frombuffer(data, dtype) for _begin, data in sorted(parts[replica])])
                for replica in sorted(parts)
            }
            findings += [finding_json(one, *ids) for one, ids in compared(heads, kind, name, due)]
    for one in replicas:
        findings += [finding_json(found, one.id) for found in findings_of_files(one)]
    return result_of(replicas, findings, 0, 1.0)


def named(findings: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted((one["class"], one["offset"] or -1, one["queue_offset"] or -1, one["count"]) for one in findings)


@pytest.mark.parametrize("ledger", [False, True])
@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_every_planted_fault_is_found_as_verify_finds_it(tmp_path: Path, plant: Plant, ledger: bool) -> None:
    planted(tmp_path / "n0", plant, 1, ledger=ledger)
    result = audited(tmp_path / "n0")
    expected = [one.as_json() for one in verify(MessageStore(tmp_path / "n0")).findings]
    assert named(result["findings"]) == named(expected)
    assert len(expected) == 1
    assert result["verdict"] == ("divergent" if result["findings"][0]["severity"] == "critical" else "consistent")
    assert result["findings"][0]["replicas"] == ["n0"]
    assert result["findings"][0]["class"] in result["summary"] and "and index agree" not in result["summary"]


def test_sound_replicas_are_consistent_and_one_that_cannot_be_read_is_not_settled(tmp_path: Path) -> None:
    for name in ("n0", "n1"):
        filled(tmp_path / name, ledger=True).write()
    result = audited(tmp_path / "n0", tmp_path / "n1")
    assert (result["verdict"], result["findings"], result["rows"]) == ("consistent", [], 120)
    assert "agree in 2 replica(s)" in render_messages(result)
    (tmp_path / "n2").mkdir()
    result = audited(tmp_path / "n0", tmp_path / "n2")
    assert (result["verdict"], result["unaudited"][0]["replica"]) == ("unauditable", "n2")
    assert "not read: " in render_messages(result)
    assert set(result) >= {
        "verdict", "depth", "proves", "fence", "replicas", "first_divergence", "single_copy_ranges", "unaudited",
        "findings", "findings_truncated", "rows", "seconds",
    }  # fmt: skip
    json.dumps(result)


@pytest.mark.parametrize("ledger", [False, True])
def test_what_a_running_broker_stores_between_the_two_steps_is_no_fault(tmp_path: Path, ledger: bool) -> None:
    broker = filled(tmp_path, ledger=ledger)
    broker.write()
    (tmp_path / "abort").write_bytes(b"4711")

    def goes_on() -> None:
        before = len(list(broker.folder.iterdir()))
        for number in range(60):
            broker.put("TopicTest", number % 2, b"meanwhile %d" % number, keys="later", tags="new")
        broker.write()
        assert len(list(broker.folder.iterdir())) > before

    result = audited(tmp_path, between=goes_on)
    assert (result["verdict"], result["findings"], result["rows"]) == ("consistent", [], 60)


def test_replicas_that_are_sound_but_hold_different_messages_diverge(tmp_path: Path) -> None:
    filled(tmp_path / "n0").write()
    behind = filled(tmp_path / "n1", count=40)  # it lags, which is no fault
    behind.write()
    assert audited(tmp_path / "n0", tmp_path / "n1")["findings"] == []
    other = filled(tmp_path / "n2", count=40)
    offset = other.put("TopicTest", 0, b"only here, and longer than the others")
    number = other.next_offsets["TopicTest", 0] - 1
    other.write()
    result = audited(tmp_path / "n0", tmp_path / "n2")
    (found,) = result["findings"]
    assert (found["class"], found["replicas"], found["queue_offset"]) == ("cq_mismatch", ["n0", "n2"], number)
    assert str(offset) in found["detail"]
    assert "after a failover" in render_messages(result)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "audit what?"),
        (["--node", "http://127.0.0.1:1"], "name them with --store"),
        (["--store", "d", "--depth", "chain"], "goes without --depth"),
        (["--store", "d", "--from", "3"], "goes without --depth"),
    ],
)
def test_a_usage_error_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert run(["audit", "--messages", *arguments]) == Exit.USAGE
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert says in said.err
