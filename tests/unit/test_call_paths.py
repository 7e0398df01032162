"""The call paths of ARCHITECTURE.md: each function that they name exists, and is reached from one before it.

An append and an audit are written there as functions, a watermark as modules. Invariants: a function that is renamed,
removed or not reached any more fails here; the numbers in the text are those of the lists.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
COUNTED = {"twenty-one": 21, "twenty-two": 22, "twenty-eight": 28, "thirty-two": 32}
APPEND, WATERMARK, AUDIT = 0, 1, 2
FOLDERS = {APPEND: ("node",), AUDIT: ("app/api", "app/audit", "app/console", "app/db")}


@dataclass(frozen=True, slots=True)
class Step:
    """A function, by its class where it has one; `begins`: what calls it is another process, or the reader."""

    owner: str | None
    name: str
    begins: bool


@cache
def code(folders: tuple[str, ...]) -> dict[tuple[str | None, str], list[tuple[ast.AST, ast.AST]]]:
    """(class, function) -> its definitions, each with the class that it is in, or itself."""
    found: dict[tuple[str | None, str], list[tuple[ast.AST, ast.AST]]] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for one in ast.parse(path.read_text()).body:
                inside = one.body if isinstance(one, ast.ClassDef) else [one]
                owner = one.name if isinstance(one, ast.ClassDef) else None
                for each in inside:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        found.setdefault((owner, each.name), []).append((each, one))
    return found


def path_of(text: str, number: int, when: str = "now") -> str:
    """The lines of a path: the first one, and those that go on below it."""
    return re.findall(rf"^{when} +(.+\n(?: {{10}}.+\n)*)", text, re.MULTILINE)[number]


def steps_of(path: str) -> list[Step]:
    """`Owner: one two`, `Owner.one`, `one`; `>` passes on within a process, `|` to another one."""
    steps: list[Step] = []
    owner, begins = None, True
    for word in path.split():
        if word in (">", "|"):
            owner, begins = None, word == "|"
        elif word.endswith(":"):
            owner = word[:-1] if word[0].isupper() else None  # a module's name says where, not whose
        else:
            before, _, name = word.rpartition(".")
            owner = before or owner
            steps.append(Step(owner, name, begins))
            begins = False
    return steps


def mentioned(node: ast.AST) -> set[str]:
    names = {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
    return names | {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def faults(steps: list[Step], folders: tuple[str, ...]) -> list[str]:
    """Functions that are not there, or that nothing before them mentions: neither a function of the path nor its class,
    which may keep it in a table."""
    defined, before, found = code(folders), set[str](), []
    for step in steps:
        bodies = defined.get((step.owner, step.name), [])
        if not bodies:
            found.append(f"{step} is not there")
        elif not step.begins and step.name not in before:
            found.append(f"{step} is reached from none of those before it")
        for _function, whole in bodies:
            before |= mentioned(whole)
    return found


@pytest.mark.parametrize("number", [APPEND, AUDIT])
def test_each_function_is_there_and_reached(number: int) -> None:
    steps = steps_of(path_of(TEXT, number))
    assert faults(steps, FOLDERS[number]) == []


def test_the_numbers_in_the_text_are_those_of_the_lists_and_have_not_grown() -> None:
    said = re.findall(r"^(\w+(?:-\w+)?) functions before, (\w+(?:-\w+)?) now", TEXT, re.MULTILINE)
    for (before, now), number in zip(said, (APPEND, AUDIT), strict=True):
        counted = [len(steps_of(path_of(TEXT, number, when))) for when in ("before", "now")]
        assert counted == [COUNTED[before.lower()], COUNTED[now.lower()]]
        assert counted[1] < counted[0]


# What each station of a watermark's way is in the code, and what it takes from the one before.
STATIONS = {
    "Progress": ("node/consensus/progress.py", r"self\.watermark_index = "),
    "status_builder": ("node/consensus/status_builder.py", r"\.watermark_index"),
    "introspect (WatermarkView)": ("node/engine/introspect.py", r"map\(watermark, status\.watermarks\)"),
    "control plane": ("node/control/snapshots.py", r"read\(view, answer\)"),
    "aggregate (WatermarkView)": ("app/console/aggregate.py", r"watermarks\.of\("),
    "waterline": ("app/console/waterline.py", r"mark\.match_index"),
}


def test_a_watermark_passes_these_stations() -> None:
    stations = [one.strip() for one in path_of(TEXT, WATERMARK).replace("\n", " ").split(">")]
    assert stations == list(STATIONS)
    assert len(stations) < len(path_of(TEXT, WATERMARK, "before").split(">"))
    for place, taken in STATIONS.values():
        assert re.search(taken, (ROOT / place).read_text()), (place, taken)


def test_a_function_that_is_not_there_or_not_reached_is_found() -> None:
    gone = steps_of("Appends: submit_run _post")
    lost = steps_of("Appends: submit_run | GroupEnd.on_frame > Segment.write")
    assert [one.rpartition(" is ")[2] for one in faults(gone, ("node",))] == ["not there"]
    assert [one.rpartition(" is ")[2] for one in faults(lost, ("node",))] == ["reached from none of those before it"]
