"""`demo --ha`: one master, two slaves, a name server and sends; what the slaves have in the end is the master's."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from app.cli import run as quorumscope
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


@contextmanager
def pair_demo(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """`demo --ha` in `demo`, once it runs; gives what it prints, and ends it as Ctrl-C does."""
    out = tmp_path / "out"
    command = python("-m", "app.cli", "demo", "--ha", "--headless", "--rate", "50", "--data", str(tmp_path / "demo"))
    with out.open("wb") as sink:
        demo = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=environment(),
            preexec_fn=apart(signal.SIGTERM),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + WITHIN_S
        while "Ctrl-C" not in out.read_text():
            assert demo.poll() is None and time.monotonic() < deadline, out.read_text()
            time.sleep(0.05)
        yield out.read_text
    finally:
        demo.send_signal(signal.SIGINT)
        try:
            assert demo.wait(30) == 0, out.read_text()
        finally:
            demo.kill()
            demo.wait()


@pytest.mark.long  # a master that is replaced: test_classic_pair.py
def test_a_lost_master_is_replaced_by_the_command_that_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pair_demo(tmp_path) as printed:
        urls = re.findall(r"control (http://\S+)", printed())
        (master,) = re.findall(r"^  m .* pid (\d+)$", printed(), re.MULTILINE)
        status = ["ha", "status", *(word for url in urls for word in ("--node", url)), "--json"]
        deadline = time.monotonic() + WITHIN_S
        while acknowledged(said(urls[0])) != {"s1", "s2"}:
            assert time.monotonic() < deadline, said(urls[0])
            time.sleep(0.05)
        os.kill(int(master), signal.SIGTERM)
        problems: list[dict[str, Any]] = []
        while not [one for one in problems if one["code"] == "ha_no_master"]:
            assert time.monotonic() < deadline, problems
            capsys.readouterr()
            quorumscope(status)
            problems = json.loads(capsys.readouterr().out)["problems"]
        command = next(one["command"] for one in problems if one["code"] == "ha_no_master")
        words = shlex.split(command)
        assert words[:3] == ["quorumscope", "ha", "promote"]
        assert quorumscope(words[1:]) != 0
        accepts = re.findall(r"--accept (\w+)", capsys.readouterr().err)
        accepted = [word for one in dict.fromkeys(accepts) for word in ("--accept", one)]
        assert quorumscope([*words[1:], *accepted, "--yes"]) == 0, capsys.readouterr()
        capsys.readouterr()
        quorumscope(status)
        assert "ha_no_master" not in {one["code"] for one in json.loads(capsys.readouterr().out)["problems"]}


def test_sends_run_and_both_slaves_have_what_the_master_has(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    with pair_demo(tmp_path) as printed:
        deadline = time.monotonic() + WITHIN_S
        text = printed()
        pids = [int(one) for one in re.findall(r"pid (\d+)", text)]
        urls = re.findall(r"control (http://\S+)", text)
        assert [said(url)["role"] for url in urls] == ["SYNC_MASTER", "SLAVE", "SLAVE"]
        while acknowledged(said(urls[0])) != {"s1", "s2"}:
            assert time.monotonic() < deadline, said(urls[0])
            time.sleep(0.05)
        stopped = re.search(r"kill -STOP (\d+) ", text)
        assert stopped and "node.broker" in command_of(int(stopped[1]))  # its supervisor would stop nothing
        assert "; kill" not in text, "pasted whole, it undoes at once what was to be seen"
        os.kill(int(stopped[1]), signal.SIGSTOP)
        try:
            upto = said(urls[0])["end_offset"]
            while said(urls[0])["end_offset"] <= upto or acknowledged_upto(said(urls[0]), "s1") >= upto:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.kill(int(stopped[1]), signal.SIGCONT)
    assert re.search(r"[1-9][\d,]* messages were sent", printed())
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
