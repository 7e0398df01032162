"""What strangers wrote never reaches a terminal, a log or a page as something that these obey."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment

from app.commands import output
from app.commands.entries import print_entry
from app.console import fragments
from node.logs import Log
from node.printable import escaped, escaped_bytes, escaped_json, pictured, print_line
from node.protocol.entry import Entry

EVIL = "a\x1b]0;gone\x07\x1b[2J\r\n2026 info forged\u202e\x9b31m\x00é\tend"


def nonsense(rng: random.Random) -> str:
    return "".join(chr(rng.choice([rng.randrange(0x100), rng.randrange(0x2000, 0x2100)])) for _ in range(50))


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_obeyed_is_left_and_nothing_else_changes(seed: int) -> None:
    text = nonsense(random.Random(seed))
    assert escaped(text).isprintable() and pictured(text).isprintable()
    assert json.loads(escaped_json(json.dumps(text, ensure_ascii=False))) == text
    assert escaped(text).encode().decode("unicode_escape").encode("latin-1", "ignore")
    plain = "".join(one for one in text if one.isprintable())
    assert escaped(plain) == pictured(plain) == plain


def test_bodies_of_any_bytes_can_be_shown() -> None:
    assert escaped_bytes(b"\x1b[31mred\xff\x00\n\xc3\xa9") == "\\x1b[31mred\\xff\\x00\\né".encode()


def test_controls_are_shown_as_their_pictures() -> None:
    assert pictured("\x1b[2J\r\n\t\x7f\x9b") == "␛[2J␍␊␉␡\\x9b"
    fragments.add_filters(env := Environment(autoescape=True))
    assert env.from_string("{{ body | pictured }}").render(body="<\x1b>") == "&lt;␛&gt;"


class Terminal(io.TextIOWrapper):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def written(self) -> bytes:
        raw: Any = self.buffer
        return bytes(raw.getvalue())


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("terminal", "raw"), [(True, False), (True, True), (False, False)])
def test_a_terminal_gets_no_escape_sequences_and_a_pipe_the_bytes(
    terminal: bool, raw: bool, as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal(terminal=terminal)
    monkeypatch.setattr(sys, "stdout", out)
    print_entry(Entry(1, 0, 1, 0, EVIL.encode(), 0, 0, 0), as_json, raw=raw)
    sys.stdout.flush()
    if as_json:
        assert json.loads(out.written())["text"] == EVIL
    elif raw or not terminal:
        assert out.written() == EVIL.encode() + b"\n"
    if terminal and not raw:
        assert all(one.isprintable() or one in "\n\t" for one in out.written().decode())


def test_what_a_member_says_is_escaped_on_stderr_and_in_results(monkeypatch: pytest.MonkeyPatch) -> None:
    out, errors = Terminal(terminal=True), Terminal(terminal=False)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", errors)
    output.say(f"n0 answers: {EVIL}")
    output.show(EVIL)
    output.show_json({"detail": EVIL})
    for stream in (out, errors):
        assert all(one.isprintable() or one in "\n\t" for one in stream.written().decode())


def test_a_log_line_stays_one_line_whoever_named_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    log = Log("engine", "info", "console", SimpleNamespace(msg=lines.append), member="n0", group="g")
    log.note("hello_refused", "warning", peer=EVIL, reason=f"says it is {EVIL!s}")
    log.last_word(f"node: {EVIL}")
    (line,) = lines
    assert "\x1b" not in line and "\n" not in line and "\x9b" not in line
    assert all(one.isprintable() for one in capsys.readouterr().err.rstrip("\n"))


def test_a_line_is_written_in_one_piece() -> None:
    class Pieces(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.pieces: list[str] = []

        def write(self, text: str) -> int:
            self.pieces.append(text)
            return super().write(text)

    out = Pieces()
    print_line('{"event": "ready"}', out)
    assert out.pieces == ['{"event": "ready"}\n']


@pytest.mark.parametrize("closed", ["by its reader", "here"])
def test_a_stream_that_is_closed_by_now_ends_nothing(closed: str) -> None:
    """`quorumscope node | less`, and less has ended: an engine that was started again said that its port was taken, and
    stayed down."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as out:
        os.close(read_end)
        if closed == "here":
            out.close()
        print_line('{"event": "ready"}', out)


def test_a_process_whose_output_nobody_reads_ends_with_its_own_code() -> None:
    """Python writes what is left at the end, and made of an engine's 3 (refused) 120."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    words = "import sys; from node.printable import print_line; print_line('ready', sys.stdout); sys.exit(3)"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", words], env=buffered, stdout=write_end, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (3, b"")


def test_a_stream_that_was_closed_from_the_start_ends_nothing() -> None:
    """`quorumscope node >&-`: Python's stdout is None then."""
    print_line('{"event": "ready"}', None)
