"""Every command against what goes wrong around it: an address that nobody serves, one that never answers, a Ctrl-C
meanwhile, a reader that went away, a full disk, a narrow terminal without UTF-8. The commands and their parameters are
the command line's own: a new one is among them by itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import pytest
import typer

from app import command_line
from app.commands.endings import Exit

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
WITHIN_S = 300.0
SERVERS: Final = {"node", "console", "nameserver", "demo"}  # they ask nobody before they serve
FILES_ONLY: Final = {"restore", "pki"}  # their members are written into files
WAITING: Final = {"consume"}  # it waits for its name server for as long as it runs
# What a required parameter is given; "x" where it is not named here. By command, or for all.
SAMPLES: Final = {
    "index": "0", "through": "0", "address": "127.0.0.1:9", "member": "n1", "old": "n0", "new": "n9", "words": "d",
    "consumer reset to": "earliest",
}  # fmt: skip
ASKED: Final = {
    "--node": "http://127.0.0.1:{port}",
    "--peers": "n0-127.0.0.1:{port}",
    "--name-server": "127.0.0.1:{port}",
}
LONGEST_LINE: Final = 55
ODD: Final = "a\udcff"  # as Python has the bytes of a word that is not UTF-8


@dataclass(frozen=True)
class Leaf:
    """A command that can be run."""

    words: tuple[str, ...]
    parameters: tuple[Any, ...]

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def ways(self) -> list[str]:
        """The options that say who is asked, over the network."""
        known = {one.opts[0] for one in self.parameters}
        return [way for way in ASKED if way in known and self.words[0] not in SERVERS | FILES_ONLY]

    @property
    def texts(self) -> list[Any]:
        """Its parameters that are text."""
        return [one for one in self.parameters if str in (kind := one.type_descriptor.annotation, *get_args(kind))]

    def call(self, way: str, odd: Any = None) -> list[str]:
        """Its words, so that it would do what it is for if there were somebody to ask; `odd` gets no text in UTF-8."""
        said = list(self.words)
        for one in self.parameters:
            if one is odd:
                said += [ODD] if one.param_type_name == "argument" else [one.opts[0], ODD]
                continue
            sample = SAMPLES.get(f"{self.name} {one.name}") or SAMPLES.get(one.name, "x")
            if one.opts[0] == way:
                said += [way, ASKED[way]] + (
                    [way, ASKED[way].replace("127.0.0.1", "localhost")] if one.multiple else []
                )
            elif one.param_type_name == "argument":
                said += [sample] if one.required else []
            elif one.required:
                said += [one.opts[0], sample]
            elif one.opts[0] in ("--yes", "--json"):
                said.append(one.opts[0])
        return said


def leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[Leaf]:
    for name, one in command.commands.items():
        if hasattr(one, "commands"):
            yield from leaves(one, (*words, name))
        else:
            yield Leaf((*words, name), tuple(one.params))


def every_leaf() -> list[Leaf]:
    command_line.bring_in(["--help"])
    return list(leaves(typer.main.get_command(command_line.app)))


def came_of(cells: list[dict[str, Any]], directory: Path) -> list[tuple[str, dict[str, Any]]]:
    """(the command, what came of it) of each cell."""
    for number, cell in enumerate(cells):
        own = directory / str(number)
        own.mkdir()
        cell["directory"] = str(own)
        cell["variables"] = {"XDG_RUNTIME_DIR": str(own), "TMPDIR": str(own)} | cell.get("variables", {})
    done = subprocess.run(
        [sys.executable, "-m", "tests.process.forked_commands"], cwd=ROOT, input=json.dumps(cells), text=True,
        capture_output=True, timeout=WITHIN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [(" ".join(cell["arguments"]), one) for cell, one in zip(cells, json.loads(done.stdout), strict=True)]


def is_json_or_nothing(text: str) -> bool:
    try:
        return text == "" or bool(json.loads(text))
    except ValueError:
        return False


def test_every_help_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    known = every_leaf()
    command = typer.main.get_command(command_line.app)
    for name, value in {"COLUMNS": "40", "TERM": "dumb", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    wrong = []
    for leaf in known:
        code = command.main(args=[*leaf.words, "--help"], prog_name="quorumscope", standalone_mode=False)
        said = capsys.readouterr()
        # Words are not broken: the longest of them is what makes a line longer than the terminal.
        narrow = max(map(len, said.out.splitlines())) <= LONGEST_LINE
        if code or said.err or not narrow or not said.out.startswith(f"Usage: quorumscope {leaf.words[0]}"):
            wrong.append((leaf.name, said))
    assert not wrong


@pytest.mark.parametrize(
    ("stdout", "code", "said"),
    [("closed", Exit.FINE, ""), ("full", Exit.UNDETERMINED, "quorumscope: No space left on device\n")],
)
def test_a_result_that_cannot_be_printed(stdout: str, code: Exit, said: str, tmp_path: Path) -> None:
    """On a full disk it was a traceback and 120, but where the interpreter buffers nothing."""
    words = [["--help"], ["--version"], ["kv", "put", "--help"], ["config", "show", "--json"], ["config", "check"]]
    cells = [{"arguments": one, "stdout": stdout} for one in words]
    assert [(one["code"], one["err"]) for _, one in came_of(cells, tmp_path)] == [(code, said)] * len(words)


@pytest.mark.long
def test_no_word_that_is_not_utf_8_ends_in_a_traceback(tmp_path: Path) -> None:
    """`topic describe` and `backup --group` did; in the C locale with PYTHONUTF8=0 every umlaut is such a word."""
    cells = [
        {"arguments": leaf.call((leaf.ways or [""])[0], odd)}
        for leaf in every_leaf() if leaf.words[0] not in SERVERS | {"bench"} for odd in leaf.texts
    ]  # fmt: skip
    assert Counter(cell["arguments"][0] for cell in cells)["topic"] > 12
    codes = {Exit.FINDING, Exit.USAGE, Exit.UNREACHABLE}  # a file may have such a name
    wrong = [
        (command, one) for command, one in came_of(cells, tmp_path)
        if one["code"] not in codes or "Traceback" in one["err"]
    ]  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_result_in_characters_that_stdout_lacks(encoding: str, tmp_path: Path) -> None:
    """It was done, and then a traceback and 2."""
    cells = [{"arguments": ["pki", "demo", "Zürich 東京", *form], "encoding": encoding} for form in ([], ["--json"])]
    (_, plain), (_, as_json) = came_of(cells, tmp_path)
    assert (plain["code"], as_json["code"]) == (Exit.FINE, Exit.FINE), plain["err"] + as_json["err"]
    assert "\\u6771\\u4eac/ca.crt" in plain["out"]
    assert json.loads(as_json["out"])["directory"] == "Zürich 東京"


@pytest.mark.parametrize("listens", [False, True], ids=["refuses", "hangs"])
def test_nobody_answers(listens: bool, tmp_path: Path) -> None:
    cells = [
        {"arguments": leaf.call(way), "listens": listens}
        for leaf in every_leaf() for way in leaf.ways if leaf.name not in WAITING
    ]  # fmt: skip
    assert Counter(cell["arguments"][0] for cell in cells)["members"] == 12
    wrong = []
    for command, one in came_of(cells, tmp_path):
        *_, last = ["", *one["err"].splitlines()]
        if one["code"] == Exit.FINE:  # it had nothing to ask for: its input is empty
            right = command.startswith(("append --peers", "produce ")) and not last
        else:
            # Whether a change was done is unknown only where somebody may have heard of it.
            codes = {Exit.UNREACHABLE, Exit.USAGE} | ({Exit.UNKNOWN_OUTCOME} if listens else set())
            right = one["code"] in codes and last.startswith("quorumscope") and "Traceback" not in one["err"]
        if not right or not is_json_or_nothing(one["out"]):
            wrong.append((command, one))
    assert not wrong


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="SIGINT"),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM", marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, 130, id="SIGHUP", marks=pytest.mark.long),
    ],
)
def test_ended_while_nobody_answers(number: signal.Signals, code: int, tmp_path: Path) -> None:
    cells = [
        {"arguments": leaf.call(way), "listens": True, "signal": number} for leaf in every_leaf() for way in leaf.ways
    ]
    wrong = []
    for command, one in came_of(cells, tmp_path):
        *_, last = ["", *one["err"].splitlines()]
        if one["connected"]:
            right = one["code"] == code and last.endswith("interrupted") and "Traceback" not in one["err"]
        else:
            right = one["code"] in (Exit.FINE, Exit.USAGE)
        if not right or not is_json_or_nothing(one["out"]):
            wrong.append((command, one))
    assert not wrong
