"""Lines that a stranger's words would begin: in what commands print, to a terminal and to whatever reads a pipe line by
line, in logs of both forms, and in mails.

Each command is asked of control planes of which every text holds a line break, in each of the forms that terminals, log
readers or `str.splitlines` know, and then a line that looks like the command's own.
"""

from __future__ import annotations

import io
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from app.audit.command import render
from app.audit.message_render import render_messages
from app.audit.pair_render import render_pair
from app.cli import run as run_cli
from app.commands import output
from app.commands.entries import print_entry
from app.commands.kv import print_event, print_raw
from app.commands.messages import in_columns
from app.notify.message import line
from node.logs import Log
from node.printable import escaped
from node.protocol.entry import Entry
from node.protocol.kv import EventType
from tests.attack.test_words_of_strangers import terminal
from tests.unit.fake_pair import FakePair
from tests.unit.test_cli_brokers import Planes, asked_of

Json = dict[str, Any]
BREAKS = ("\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", "\x1b[2K\x1b[1G")
FORGED = "n9  MASTER"
# What decides which way a command goes, or what an older library reads: the rest is poisoned.
KEPT = {"broker", "role", "next", "control_url", "engine", "id", "self_id", "assigned_by", "state"}


def poison(value: Any, rng: random.Random, name: str = "") -> Any:
    if isinstance(value, dict):
        return {key: poison(one, rng, key) for key, one in value.items()}
    if isinstance(value, list):
        return [poison(one, rng, name) for one in value]
    return f"{value}{rng.choice(BREAKS)}{FORGED}" if isinstance(value, str) and name not in KEPT else value


class Hostile(Planes):
    """Two control planes whose every word is a stranger's; `state` is what any other one would say."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def answer(self, method: str, path: str, body: Json | None) -> tuple[int, Json]:
        status, content = super().answer(method, path, body)
        if path.endswith("/state") or status == 421:
            return status, content
        return status, poison(content, self.rng)


def checked(text: str) -> None:
    """Every line is one of the command's own: none begins with what a stranger wrote, and no character is obeyed."""
    assert FORGED in text, "the stranger's words were not shown at all"
    lines = text.split("\n")
    assert all(one.isprintable() for one in lines), [one for one in lines if not one.isprintable()]
    assert not [one for one in lines if one.lstrip().startswith(FORGED)]


COMMANDS = [
    ["broker", "list"],
    ["broker", "describe", "n1"],
    ["consumer", "list"],
    ["consumer", "describe", "boards"],
    ["consumer", "reset", "boards", "--topic", "T", "--to", "latest"],
    ["consumer", "reset", "boards", "--topic", "T", "--to", "latest", "--yes"],
    ["topic", "list"],
    ["topic", "describe", "flights-JFK"],
    ["topic", "create", "new"],
]


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "pipe"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_word_of_a_control_plane_begins_a_line(
    words: list[str], is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_terminal:
        terminal(monkeypatch)
    hostile = Hostile(seed=len(" ".join(words)))
    try:
        if words[:2] == ["broker", "list"]:
            hostile.answers["GET", "broker"] = 503, {"detail": f"gone{BREAKS[0]}{FORGED}"}
        asked_of(hostile, *words)
    finally:
        hostile.server.shutdown()
        hostile.server.server_close()
    said = capsys.readouterr()
    checked(said.out + said.err)


@pytest.mark.parametrize("breaks", BREAKS, ids=repr)
def test_no_word_of_a_pairs_brokers_begins_a_line(
    breaks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = FakePair()
    word = f"x{breaks}{FORGED}"
    pair.ha["m"]["problems"] = [{"code": "log_broken", "about": word, "text": word}]
    pair.ha["m"]["connections"][0]["peer_id"] = word
    pair.ha["s1"]["following"]["address"] = f"127.0.0.1:10912{breaks}{FORGED}"
    answers = {"http://m": pair.ha["m"], "http://s1": pair.ha["s1"]}
    findings = [{"code": "x", "text": f"lacks{breaks}{FORGED}", "stops": False, "can_be_accepted": True}]

    def answer(method: str, url: str, *_args: Any, **_more: Any) -> tuple[int, Json]:
        if method == "GET":
            return 200, json.loads(json.dumps(answers[url]))
        return 200, {"promoted": False, "role": "SYNC_MASTER", "epoch": None, "findings": findings}

    for module in ("ha", "ha_promote"):
        monkeypatch.setattr(f"app.commands.{module}.control_answer", answer)
    monkeypatch.setattr("app.commands.ha.LOOK_AGAIN_S", 0.0)
    run_cli(["ha", "status", "--node", "http://m", "--node", "http://s1"])
    checked(capsys.readouterr().out)
    run_cli(["ha", "promote", "--node", "http://s1", "--dry-run"])
    checked(capsys.readouterr().out)


@pytest.mark.parametrize("breaks", BREAKS, ids=repr)
def test_what_the_helpers_of_all_commands_print_is_a_line_each(breaks: str, capsys: pytest.CaptureFixture[str]) -> None:
    word = f"x{breaks}{FORGED}"
    output.say(word)
    output.show(word)
    output.show_lines([word, *in_columns([("A", "B"), (word, word)])])
    said = capsys.readouterr()
    checked(said.out)
    checked(said.err)
    assert (len(said.out.splitlines()), len(said.err.splitlines())) == (4, 1)
    _, head, row = said.out.splitlines()[1:]
    assert head.index("B") == row.index(escaped(word), 1), "a cell is as wide as it is shown"


@pytest.mark.parametrize("breaks", BREAKS, ids=repr)
def test_audits_say_a_replicas_words_within_a_line(breaks: str) -> None:
    word = f"x{breaks}{FORGED}"
    replica = {"id": word, "problem": word, "committed_index": None, "begin_index": 0, "end_index": 0}
    finding = {"severity": "lost", "class": "x", "detail": word, "replicas": [word], "offset": None, "index": None}
    more = {"file": word, "means": word}
    common_part = {
        "summary": word, "verdict": "lost", "depth": "chain", "proves": word, "replicas": [replica],
        "unaudited": [{"replica": word, "from_index": 0, "to_index": 1, "reason": word}],
        "single_copy_ranges": [{"replica": word, "from_index": 0, "to_index": 1}],
        "findings": [finding | more], "findings_truncated": False, "rows": 1, "seconds": 1.0,
    }  # fmt: skip
    for rendered in (render, render_messages, render_pair):
        checked(rendered(common_part))


@pytest.mark.parametrize("breaks", BREAKS, ids=repr)
def test_on_a_terminal_a_body_is_a_line_and_so_is_a_key(breaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdout", out)
    body = f"body{breaks}{FORGED}\tput".encode()
    print_entry(Entry(1, 0, 1, 0, body, 0, 0, 0), False)
    print_raw(body, body)
    print_event(SimpleNamespace(type=EventType.PUT, key=body, value=body), False)  # type: ignore[arg-type]
    out.flush()
    raw: Any = out.buffer
    lines = raw.getvalue().decode().split("\n")
    assert len(lines) == 4 and [one.count("\t") for one in lines] == [0, 1, 2, 0]
    checked("\n".join(lines).replace("\t", " "))


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("breaks", BREAKS, ids=repr)
def test_a_log_has_a_line_an_event(breaks: str, form: Any) -> None:
    """Also of what is nested, which no field's own escaping reaches."""
    lines: list[str] = []
    log = Log("engine", "info", form, SimpleNamespace(msg=lines.append), member="n0")
    word = f"x{breaks}{FORGED}"
    log.note("hello_refused", "warning", peer=word, reason=word, named={word: [word]}, several=[word, (word,)])
    (one,) = lines
    assert FORGED in one and one.isprintable()
    if form == "json":
        assert json.loads(one)["several"] == [word, [word]]


@pytest.mark.parametrize("breaks", [*BREAKS, "\u202e", "\u200f"], ids=repr)
def test_a_mail_has_no_line_of_a_members_words(breaks: str) -> None:
    assert line(f"gone{breaks}{FORGED}").isprintable()


def test_a_mistake_of_ours_does_not_begin_a_line_with_a_strangers_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistaken(*_asked: Any, **_more: Any) -> None:
        raise ValueError(f"no number\n{FORGED}")

    monkeypatch.setattr("app.commands.one_member.control_state", mistaken)
    assert run_cli(["trim", "--node", "http://127.0.0.1:1", "--through", "3"]) == 2
    checked(capsys.readouterr().err)
