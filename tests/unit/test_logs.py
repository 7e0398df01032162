"""The lines of a log: their fields, their bounds, and that nobody waits for who does not read them."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from node import logs
from node.logs import TRACE_MAX, Log, Repeats
from node.supervisor_log import value_of

ROOT = Path(__file__).resolve().parents[2]
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Lines(list[str]):
    """In place of stderr."""

    def __bool__(self) -> bool:
        return True

    def msg(self, line: str) -> None:
        self.append(line)

    @property
    def reported(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self]


def made(form: logs.Format = "json", level: logs.Level = "info") -> tuple[Log, Lines]:
    out = Lines()
    return Log("engine", level, form, out, member="n0", group="g"), out


def test_a_line_says_when_how_grave_what_who_and_why() -> None:
    log, out = made()
    log.note("role", "critical", reason="elected", term=5, votes="n0, n1", nothing=None)
    (line,) = out.reported
    assert TIME.fullmatch(line.pop("time"))
    assert line == {
        "level": "error", "event": "role", "process": "engine", "member": "n0", "group": "g", "reason": "elected",
        "term": 5, "votes": "n0, n1",
    }  # fmt: skip
    log, out = made("console")
    log.note("role", reason="elected", term=5)
    rest = r" \[info +\] role +process=engine member=n0 group=g reason=elected term=5"
    assert re.fullmatch(TIME.pattern + rest, out[0])


def test_the_level_holds_back_what_is_less_grave() -> None:
    log, out = made(level="warning")
    log.note("term")
    log.note("peer_lost", "warning", peer="n1")
    assert [line["event"] for line in out.reported] == ["peer_lost"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_text_from_outside_is_bounded_and_stays_in_its_line(form: logs.Format) -> None:
    log, out = made(form)
    log.note("hello_refused", "warning", peer="n1\n2026-11-22T00:00:00.000Z [info] role\x1b[2J", reason="x" * 10_000)
    assert len(out) == 1
    assert "\n" not in out[0] and "\x1b" not in out[0]
    assert len(out[0]) < 1000


def test_repetitions_are_counted_instead_of_written() -> None:
    now = 0.0
    repeats = Repeats(lambda: now)
    admitted = [repeats.admits("a") for _ in range(25)]
    assert admitted == [0] * 10 + [None] * 15
    assert repeats.admits("b") == 0
    now = 10.0
    assert repeats.admits("a") == 15
    for number in range(2000):
        repeats.admits(number)
    assert len(repeats._seen) <= logs.KEYS_MAX


def test_a_suppressed_line_is_named_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    log, out = made()
    log._repeats = Repeats(lambda: now)
    for _ in range(12):
        log.note("hello_refused", "warning", peer="n9", reason="another group")
    now = 11.0
    log.note("hello_refused", "warning", peer="n9", reason="another group")
    assert [line.get("suppressed") for line in out.reported] == [None] * 10 + [2]


def test_what_libraries_log_comes_out_as_our_own_lines_do() -> None:
    log, out = made()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log.take_over()
        try:
            raise ValueError("odd")
        except ValueError:
            logging.getLogger("asyncio").exception("a task failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = out.reported
    assert (line["event"], line["level"], line["code"], line["reason"]) == ("log", "error", "asyncio", "a task failed")
    assert "ValueError: odd" in line["exception"]


def test_the_end_of_a_long_traceback_is_kept() -> None:
    """What failed is in its last line; what called it may have been forty frames of frameworks."""

    def deep(left: int) -> None:
        if not left:
            raise ValueError("odd")
        other(left)

    def other(left: int) -> None:
        deep(left - 1)

    log, out = made()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        log.take_over()
        try:
            deep(30)
        except ValueError:
            logging.getLogger("asyncio").exception("a task failed")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
    (line,) = out.reported
    assert line["exception"].endswith("ValueError: odd") and line["exception"].startswith("…")
    assert len(line["exception"]) < 2 * TRACE_MAX


def test_a_reader_that_does_not_read_stops_nobody() -> None:
    code = (
        "from node.logs import Log, BURST\n"
        "log = Log('engine', 'info', 'json')\n"
        "for number in range(20000):\n"
        "    log.note('role', peer=str(number % 400), code=number, reason='x' * 500)\n"
        "print('went on', flush=True)\n"
        "log.close()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "went on\n"  # nobody has read its stderr, which holds 64 KiB
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


def test_the_supervisor_picks_its_log_from_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORUMSCOPE_NODE__LOG_FORMAT", "json")
    assert value_of([], "log_format") == "json"
    assert value_of(["--log-format", "console", "--id", "n1"], "log_format") == "console"
    assert value_of(["--set", "node.log_level=error", "--log-format=json"], "log_level") == "error"
    assert value_of(["--id"], "id") is None


def test_a_line_is_escaped_where_no_file_can_be_opened() -> None:
    """Python loads a codec when it is first asked for: a log of "too many open files" failed at its own line break."""
    code = (
        "import os, resource\n"
        "from node.printable import escaped\n"
        "soft = len(os.listdir('/dev/fd'))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))\n"
        "held = []\n"
        "try:\n"
        "    while True: held.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "print(escaped('a\\x1bb\\nc'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "a\\x1bb\\nc\n", done.stderr


def test_what_draws_tracebacks_is_not_loaded_and_can_be_by_whoever_wants_it() -> None:
    """A sixth of what an engine's start takes of a core went into it."""
    code = "import sys, node.logs; print('rich' in sys.modules); import rich.traceback; print('rich' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["False", "True"], done.stderr
