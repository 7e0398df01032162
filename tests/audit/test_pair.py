"""`audit --ha`: planted faults in the logs of a pair are each found, and nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from app.audit.pair_audit import excused, plan
from app.audit.pair_compare import Fact, compare_file
from app.audit.pair_logs import PairLog, reader_of
from app.audit.pair_opening import opened
from app.audit.pair_render import render_pair
from app.audit.pair_result import result_of
from app.audit.replicas import ReplicaSpec
from app.cli import run
from app.commands.endings import Exit
from tests.unit.message_broker import filled
from tests.unit.pair_faults import PLANTS, SOUND, Plant, body_of_slave, nothing, slave_ahead, slave_behind


def specs(*roots: Path) -> list[ReplicaSpec]:
    return [ReplicaSpec("directory", str(root)) for root in roots]


def audited(*roots: Path, window_bytes: int = 8 << 20) -> dict[str, Any]:
    """What Spark does, in this process."""
    named = specs(*roots)
    logs = [PairLog.from_json(json.loads(json.dumps(one.as_json()))) for one in opened(named)]
    facts: list[Fact] = []
    records = same = 0
    for one in plan(logs):
        found = compare_file([(logs[at], reader_of(logs[at], named[at])) for at in one.logs], one.start, window_bytes)
        facts += [Fact.from_json(json.loads(json.dumps(fact.as_json()))) for fact in found.facts]
        records += found.records
        same += found.same_bytes
    facts = excused(facts, logs, opened(specs(*roots)))
    return result_of(logs, facts, records=records, same_bytes=same, dropped=0, seconds=1.0)


@pytest.mark.parametrize("window_bytes", [300, 8 << 20])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_every_planted_fault_is_found_and_nothing_else(
    tmp_path: Path, plant: Plant, seed: int, window_bytes: int
) -> None:
    planted = plant(tmp_path / "master", tmp_path / "slave", random.Random(seed))
    assert planted is not None
    result = audited(tmp_path / "master", tmp_path / "slave", window_bytes=window_bytes)
    found = [
        (one["class"], tuple(one["replicas"]), one["from_index"], tuple(one.get("good", ())))
        for one in result["findings"]
    ]
    assert found == [(planted.cls, planted.replicas, planted.begin, planted.good)]
    assert (result["verdict"], result["first_divergence"]) == ("divergent", planted.begin)
    assert result["findings"][0]["class"] in render_pair(result)


@pytest.mark.parametrize("plant", SOUND, ids=lambda one: one.__name__)
def test_a_sound_pair_has_no_findings(tmp_path: Path, plant: Plant) -> None:
    for seed in range(5):
        roots = tmp_path / str(seed) / "master", tmp_path / str(seed) / "slave"
        plant(*roots, random.Random(seed))
        result = audited(*roots)
        assert (result["verdict"], result["findings"], result["unaudited"]) == ("consistent", [], [])
        assert "holds the same" in result["summary"]


def test_what_one_log_alone_has_is_read_and_said(tmp_path: Path) -> None:
    slave_behind(tmp_path / "master", tmp_path / "slave", random.Random(1))
    result = audited(tmp_path / "master", tmp_path / "slave")
    lone = result["single_copy_ranges"]
    master, slave = result["replicas"]
    assert lone == [{"replica": "master", "from_index": slave["max_offset"], "to_index": master["max_offset"] - 1}]
    assert f"ends {master['max_offset'] - slave['max_offset']:,} bytes before it" in result["summary"]


def test_the_first_record_that_differs_stands_side_by_side(tmp_path: Path) -> None:
    body_of_slave(tmp_path / "master", tmp_path / "slave", random.Random(3))
    result = audited(tmp_path / "master", tmp_path / "slave")
    bad, good = result["findings"][0]["sides"]
    assert (bad["replicas"], good["replicas"]) == (["slave"], ["master"])
    assert bad["bytes"] != good["bytes"]
    assert "CRC is another" in bad["flaw"]
    assert good["flaw"] is None
    shift = bad["differs_at"] - bad["bytes_at"]
    assert [a == b for a, b in zip(bytes.fromhex(bad["bytes"]), bytes.fromhex(good["bytes"]), strict=True)].index(
        False
    ) == shift


def test_damage_that_two_slaves_do_not_share_is_one_finding_with_both_as_sound(tmp_path: Path) -> None:
    body_of_slave(tmp_path / "s1", tmp_path / "master", random.Random(5))
    filled(tmp_path / "s2").write()
    result = audited(tmp_path / "master", tmp_path / "s1", tmp_path / "s2")
    assert [(one["class"], one["replicas"], one["good"]) for one in result["findings"]] == [
        ("crc_invalid", ["master"], ["s1", "s2"])
    ]


def test_what_cannot_be_read_is_not_settled(tmp_path: Path) -> None:
    filled(tmp_path / "master").write()
    (tmp_path / "slave").mkdir()
    result = audited(tmp_path / "master", tmp_path / "slave")
    assert (result["verdict"], result["unaudited"][0]["replica"]) == ("unauditable", "slave")
    (tmp_path / "slave" / "commitlog").mkdir()
    result = audited(tmp_path / "master", tmp_path / "slave")
    assert (result["verdict"], result["summary"]) == ("unauditable", "Not settled: no byte is held by two logs.")


def test_a_log_that_was_cut_meanwhile_is_not_at_fault(tmp_path: Path) -> None:
    body_of_slave(tmp_path / "master", tmp_path / "slave", random.Random(3))
    named = specs(tmp_path / "master", tmp_path / "slave")
    logs = opened(named)
    facts = [
        fact for one in plan(logs)
        for fact in compare_file([(logs[at], reader_of(logs[at], named[at])) for at in one.logs], one.start).facts
    ]  # fmt: skip
    cut = [logs[0], PairLog.from_json({**logs[1].as_json(), "end": facts[0].begin})]
    result = result_of(logs, excused(facts, logs, cut), records=1, same_bytes=1, dropped=0, seconds=1.0)
    assert (result["verdict"], result["findings"]) == ("unauditable", [])
    assert "was cut" in result["summary"]


def test_usage(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["audit", "--ha", "--store", str(tmp_path)]) == Exit.USAGE
    assert "the master first" in capsys.readouterr().err
    stores = ["--store", str(tmp_path), "--store", str(tmp_path)]
    assert run(["audit", "--ha", "--messages", *stores]) == Exit.USAGE
    assert run(["audit", "--ha", "--from", "3", *stores]) == Exit.USAGE


@pytest.mark.spark
@pytest.mark.long
def test_the_command_says_what_the_audit_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slave_ahead(tmp_path / "master", tmp_path / "slave", random.Random(1))
    stores = ["--store", str(tmp_path / "master"), "--store", str(tmp_path / "slave")]
    assert run(["audit", "--ha", "--json", *stores]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["class"] for one in found["findings"]] == ["ahead"]
    taken = {"seconds": found["seconds"], "fence": found["fence"]}
    assert found == {**audited(tmp_path / "master", tmp_path / "slave"), **taken}


def test_equal_logs_are_equal(tmp_path: Path) -> None:
    nothing(tmp_path / "master", tmp_path / "slave", random.Random(1))
    assert audited(tmp_path / "master", tmp_path / "slave")["rows"] == 120
