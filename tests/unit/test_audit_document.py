"""docs/audits.md has every class and every depth of an audit, and each class is planted in a test."""

from __future__ import annotations

import re
from pathlib import Path

from app.audit.classify import SEVERITIES, SEVERITY_ORDER
from app.audit.result import DEPTHS, PROVES
from app.console.audit_pages import DEPTH_TEXT

ROOT = Path(__file__).parents[2]
PLANTED_IN = ROOT / "tests" / "audit" / "test_compare.py"


def rows_below(title: str) -> dict[str, list[str]]:
    """The first table below a title: its first column, without the backticks, to the others."""
    text = (ROOT / "docs" / "audits.md").read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip("`"): cells[1:] for cells in rows[2:]}


def test_every_class_is_explained_with_its_severity() -> None:
    found = rows_below("The classes of findings")
    assert {cls: cells[0] for cls, cells in found.items()} == SEVERITIES
    assert all(all(cells) for cells in found.values())
    order = [SEVERITY_ORDER.index(cells[0]) for cells in found.values()]
    assert order == sorted(order), "the worst first"


def test_every_class_is_planted_and_found() -> None:
    planted = set(re.findall(r'"([a-z_]+)"', PLANTED_IN.read_text()))
    assert set(SEVERITIES) - planted == set()


def test_every_depth_says_what_it_sees_and_what_not() -> None:
    assert set(rows_below("How deep")) == set(DEPTHS) == set(PROVES) == set(DEPTH_TEXT)
