"""Each oddity of RocketMQ's in the docs names the tests that hold what is done here, and those are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from node.protocol.codes import RequestCode

ROOT = Path(__file__).parents[2]
TABLES = {("messages.md", "## The oddities of the real thing"): 17, ("remoting.md", "### Oddities of the wire"): 17}
TEST = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
OURS_FROM = 52_007  # what is below is in the interfaces that all share


def rows_below(document: str, title: str) -> list[list[str]]:
    text = (ROOT / "docs" / document).read_text().split(f"\n{title}")[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return rows[2:]


@cache
def held_in(name: str) -> frozenset[str]:
    found = [ROOT / "tests" / kind / name for kind in ("unit", "interop")]
    (path,) = [one for one in found if one.exists()]
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize(("document", "title"), list(TABLES))
def test_every_oddity_is_in_the_table_and_held_by_tests(document: str, title: str) -> None:
    rows = rows_below(document, title)
    assert [cells[0] for cells in rows] == [str(number + 1) for number in range(TABLES[document, title])]
    for number, original, here, held_by in rows:
        named = TEST.findall(held_by)
        assert original and here and named, number
        assert held_by.count("`") == 2 * len(named), f"{number}: {held_by}"
        assert [one for one in named if one[1] not in held_in(one[0])] == []


def test_every_request_code_of_our_own_is_in_the_docs() -> None:
    text = "".join(path.read_text() for path in [*(ROOT / "docs").glob("*.md"), ROOT / "ARCHITECTURE.md"])
    ours = [code for code in RequestCode if OURS_FROM <= code < RequestCode.USER_DEFINE_REQUEST]
    assert [f"{code.name} {code.value}" for code in ours if code.name not in text or str(code.value) not in text] == []
