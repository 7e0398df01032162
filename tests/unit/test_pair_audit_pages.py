"""An audit of a pair from the console: what its job is given, and what its page shows of what that found."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.audit import runner as runner_module
from app.audit.pair_audit import plan
from app.audit.pair_compare import compare_file
from app.audit.pair_logs import reader_of
from app.audit.pair_opening import opened
from app.audit.pair_result import result_of
from app.audit.replicas import ReplicaSpec
from app.console.settings import Seed
from tests.unit.console_kit import running
from tests.unit.console_tour import RESULT
from tests.unit.fake_pair import FakePair
from tests.unit.pair_faults import body_of_slave


def found_in(root: Path) -> dict[str, Any]:
    """One damaged record of a slave; s2 has no log at all."""
    body_of_slave(root / "m", root / "s1", random.Random(3))
    (root / "s2").mkdir()
    specs = [ReplicaSpec("directory", str(root / name), name) for name in ("m", "s1", "s2")]
    logs = opened(specs)
    facts = [
        fact for one in plan(logs)
        for fact in compare_file([(logs[at], reader_of(logs[at], specs[at])) for at in one.logs], one.start).facts
    ]  # fmt: skip
    return result_of(logs, facts, records=120, same_bytes=1000, dropped=0, seconds=1.5)


def test_an_audit_of_a_pair_is_started_and_its_finding_stands_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, given = found_in(tmp_path / "logs"), {}

    def start_job(directory: Path, *, outlives: bool) -> subprocess.Popen[bytes]:
        assert outlives
        given.update(json.loads((directory / "spec.json").read_text()))
        (directory / "log").touch()
        (directory / "progress.jsonl").write_text(json.dumps({"event": "result", "result": result}) + "\n")
        return subprocess.Popen([sys.executable, "-c", ""])

    async def work() -> None:
        monkeypatch.setattr(runner_module, "start_job", start_job)
        pair = FakePair()
        async with running(tmp_path, pair, seeds=tuple(Seed(url) for url in pair.urls.values())) as kit:  # type: ignore[arg-type]
            watches = kit.console.watches
            await kit.until(lambda: "pair" in watches and len(watches["pair"].view.members) == 3)
            ann = await kit.person()
            started = await ann.change("POST", "/api/v1/audits", json={"cluster": "pair"})
            assert started.status_code == 202, started.text
            audit_id = started.json()["id"]
            await kit.until(lambda: any(one.code == "audit_divergent" for one in watches["pair"].view.problems))
            assert given["ha"] is True and [one["id"] for one in given["replicas"]] == ["m", "s1", "s2"]
            audit = (await ann.get(f"/api/v1/audits/{audit_id}")).json()
            assert (audit["state"], audit["verdict"], audit["result"]["unit"]) == ("done", "divergent", "offset")
            page = (await ann.get(f"/clusters/pair/audits/{audit_id}")).text
            bad, good = result["findings"][0]["sides"]
            for said in (
                "side by side", bad["bytes"], good["bytes"], "of the commit log, in bytes", "Offsets", "not read:",
                "quorumscope audit --cluster pair --ha",
            ):  # fmt: skip
                assert said in page, said
            assert "/entries/" not in page and "committed index" not in page
            page = (await ann.get("/clusters/pair")).text
            assert f"offset {result['findings'][0]['from_index']:,} on s1" in page and "/clusters/pair/audits" in page

    asyncio.run(work())


def test_a_finding_of_a_group_is_shown_without_what_pairs_have(tmp_path: Path) -> None:
    finding = {
        "class": "body_differs", "severity": "critical", "from_index": 7, "to_index": 7, "replicas": ["n2"],
        "detail": "another body",
    }  # fmt: skip
    result = {**RESULT, "verdict": "divergent", "findings": [finding], "findings_truncated": True}
    result |= {"findings_total": 1_734}

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            kept = kit.app.state.audit_runner.kept
            row, _ = await kept.create(
                cluster_id="demo", cluster_name="demo", depth="bytes", from_index=None, to_index=None,
                directory=str(tmp_path), requested_by="ann",
            )  # fmt: skip
            await kept.running(row.id, 1)
            await kept.finish(row.id, {"event": "result", "result": result})
            answer = await ann.get(f"/clusters/demo/audits/{row.id}")
            assert answer.status_code == 200 and "another body" in answer.text and "side by side" not in answer.text
            assert "1,734 findings in all" in answer.text and "first 1,734" not in answer.text, "one of them is listed"

    asyncio.run(work())
