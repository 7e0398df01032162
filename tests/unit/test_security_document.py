"""Each sentence of docs/security.md that docs/security-tests.md names is there, and so are the tests that hold it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
CELL = re.compile(r"(?<!\\)\|")  # the end of a cell


def cells_of(line: str) -> list[str]:
    return [cell.strip().replace(r"\|", "|") for cell in CELL.split(line)[1:-1]]


def rows() -> list[list[str]]:
    lines = (ROOT / "docs" / "security-tests.md").read_text().splitlines()
    return [cells_of(line) for line in lines if line.startswith("| ")][1:]


def security() -> str:
    """In one line, however it is wrapped."""
    return " ".join((ROOT / "docs" / "security.md").read_text().split())


@cache
def held_in(name: str) -> frozenset[str]:
    (path,) = (ROOT / "tests").rglob(name)
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_every_sentence_is_in_security_md_and_held_by_tests_that_are_there() -> None:
    text = security()
    assert [sentence for sentence, _ in rows() if " ".join(sentence.split()) not in text] == []
    for sentence, held_by in rows():
        named = TEST.findall(held_by)
        assert named and held_by.count("`") == 2 * len(named), sentence
        assert [one for one in named if one[1] not in held_in(one[0])] == []


def test_no_sentence_is_there_twice() -> None:
    found = [sentence for sentence, _ in rows()]
    assert len(found) == len(set(found)) > 60


def test_every_bound_of_security_md_is_held_by_a_test() -> None:
    """Its tables of bounds are those with the head "bound"."""
    text = (ROOT / "docs" / "security.md").read_text()
    bounds: list[str] = []
    for table in re.findall(r"\| bound \| is \|\n\|---\|---\|\n((?:\|.*\n)+)", text):
        bounds += [cells_of(line)[0] for line in table.splitlines()]
    assert len(bounds) > 20
    assert [one for one in bounds if one not in [sentence for sentence, _ in rows()]] == []
