"""`demo --ha`: one master, two slaves, a name server and sends; what the slaves have in the end is the master's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.audit.pair_audit import plan
from app.audit.pair_compare import compare_file
from app.audit.pair_logs import reader_of
from app.audit.pair_opening import opened
from app.audit.pair_result import result_of
from app.audit.replicas import ReplicaSpec
from app.demo.processes import command_of
from node.children import apart, environment, python

pytestmark = pytest.mark.process
WITHIN_S = 240.0  # not how fast this machine is: what a test may take at all


def said(url: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx2.get(f"{url}/api/v1/ha", timeout=20, trust_env=False).json()
    return found


def acknowledged(master: dict[str, Any]) -> set[str]:
    """The slaves that have something of it."""
    return {one["peer_id"] for one in master["connections"] if one["acked_offset"]}


def acknowledged_upto(master: dict[str, Any], slave: str) -> int:
    return max((one["acked_offset"] or 0 for one in master["connections"] if one["peer_id"] == slave), default=0)


def test_sends_run_and_both_slaves_have_what_the_master_has(tmp_path: Path) -> None:
    data, out = tmp_path / "demo", tmp_path / "out"
    command = python("-m", "app.cli", "demo", "--ha", "--headless", "--rate", "50", "--data", str(data))
    with out.open("wb") as sink:
        demo = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment(),
            preexec_fn=apart(signal.SIGTERM),
        )  # fmt: skip
    pids: list[int] = []
    try:
        deadline = time.monotonic() + WITHIN_S
        while "Ctrl-C" not in out.read_text():
            assert demo.poll() is None and time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)
        text = out.read_text()
        pids = [int(one) for one in re.findall(r"pid (\d+)", text)]
        urls = re.findall(r"control (http://\S+)", text)
        assert [said(url)["role"] for url in urls] == ["SYNC_MASTER", "SLAVE", "SLAVE"]
        while acknowledged(said(urls[0])) != {"s1", "s2"}:
            assert time.monotonic() < deadline, said(urls[0])
            time.sleep(0.05)
        stopped = re.search(r"kill -STOP (\d+)", text)
        assert stopped and "node.broker" in command_of(int(stopped[1]))  # its supervisor would stop nothing
        os.kill(int(stopped[1]), signal.SIGSTOP)
        try:
            upto = said(urls[0])["end_offset"]
            while said(urls[0])["end_offset"] <= upto or acknowledged_upto(said(urls[0]), "s1") >= upto:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.kill(int(stopped[1]), signal.SIGCONT)
    finally:
        demo.send_signal(signal.SIGINT)
        try:
            assert demo.wait(30) == 0, out.read_text()
        finally:
            demo.kill()
            demo.wait()
    assert re.search(r"[1-9][\d,]* messages were sent", out.read_text())
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    specs = [ReplicaSpec("directory", str(data / name), name) for name in ("m", "s1", "s2")]
    logs = opened(specs)
    found = [
        compare_file([(logs[at], reader_of(logs[at], specs[at])) for at in one.logs], one.start) for one in plan(logs)
    ]
    facts = [fact for one in found for fact in one.facts]
    result = result_of(
        logs, facts, records=0, same_bytes=sum(one.same_bytes for one in found), dropped=0, seconds=0.0
    )  # fmt: skip
    assert result["verdict"] == "consistent", result["summary"]
