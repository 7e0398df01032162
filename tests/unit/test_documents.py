"""Documents that name files name files that exist: ARCHITECTURE.md, docs/where-to-change.md and docs/proof.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`([\w./-]+?/[\w./-]*|[\w-]+\.(?:py|html|js|md|txt|json|toml))`|\]\(([\w./-]+)(?:#[\w-]+)?\)")
# ARCHITECTURE.md leaves out the package where a table is about one: a path may stand below any of these.
BELOW = (
    "",
    "node",
    "app",
    "tests",
    "tests/unit",
    "tests/simulation",
    "docs",
    "node/store",
    "node/views",
    "tests/simulation/driver",
    "tests/process",
    "tests/interop",
    "tests/fuzz",
)
# Not in the source: paths on a member's disk, of HTTP, of git.
ELSEWHERE = re.compile(
    r"/.*|DATA/.*|data/.*|index/.*|index|truncated/.*|adopting/|quorumscope\.json|engine-refused\.json|audits/"
    r"|app/_data|refs/.*|verified/.*"
)


def named_in(text: str) -> list[str]:
    return [one for pair in NAMED.findall(text) for one in pair if one]


def exists(named: str, base: Path) -> bool:
    if (base / named).exists():
        return True
    return any((ROOT / below / named).exists() for below in BELOW)


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/where-to-change.md", "docs/proof.md"])
def test_every_path_that_a_document_names_exists(document: str) -> None:
    path = ROOT / document
    names = named_in(path.read_text())
    assert len(names) > 60, "the pattern finds them"
    gone = [one for one in names if not ELSEWHERE.fullmatch(one) and not exists(one, path.parent)]
    assert gone == []


def test_the_call_paths_of_an_append_and_an_audit_are_functions_of_today() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = re.findall(r"^now {5}((?:Appends|start_audit).*(?:\n {10}.*)*)", text, re.MULTILINE)
    assert len(paths) == 2
    code = "\n".join(path.read_text() for top in ("node", "app") for path in (ROOT / top).rglob("*.py"))
    for path in paths:
        names = set(re.findall(r"[A-Za-z_]+", path)) - {"job"}
        assert len(names) > 15
        assert [
            one for one in sorted(names) if not re.search(rf"^\s*(?:async )?(?:def|class) {one}\b", code, re.M)
        ] == []


def test_every_rule_that_the_code_cites_is_on_the_page_of_rules() -> None:
    page = (ROOT / "docs/rules.md").read_text()
    explained = set(re.findall(r"^\| ([ERSCM]\d+) \|", page, re.MULTILINE)) | set(re.findall(r"\b(?:6\.\d+)\b", page))
    assert len(explained) > 40
    cited: dict[str, str] = {}
    for path in [*ROOT.glob("node/**/*.py"), *ROOT.glob("app/**/*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]:
        text = path.read_text()
        for cites in re.findall(r"SAFETY ((?:[ERSCM]\d+(?:, | and | to )?)+)", text):
            cited |= dict.fromkeys(re.findall(r"[ERSCM]\d+", cites), path.name)
        if path.suffix == ".py" and "SAFETY" in text:
            for cites in re.findall(r"\(((?:[ERSCM]\d+(?:, )?)+)\)", text):
                cited |= dict.fromkeys(re.findall(r"[ERSCM]\d+", cites), path.name)
        cited |= dict.fromkeys(re.findall(r"FORMATS (6\.\d+)", text), path.name)
    assert len(cited) > 40
    assert {rule: where for rule, where in cited.items() if rule not in explained} == {}


def test_a_path_that_is_gone_is_found() -> None:
    names = named_in("see `node/consensus/fast.py`, `gone.py`, [here](docs/gone.md#part) and `GET state`")
    assert names == ["node/consensus/fast.py", "gone.py", "docs/gone.md"]
    assert not any(exists(one, ROOT) for one in names)


def test_the_page_for_newcomers_answers_twenty_questions_and_more() -> None:
    page = (ROOT / "docs/where-to-change.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and not line.startswith("| I want")]
    assert len(rows) >= 20
    for row in rows:
        assert named_in(row.split("|")[2]), f"names no file: {row}"
    for text in ("README.md", "ARCHITECTURE.md"):
        assert "docs/where-to-change.md" in (ROOT / text).read_text()
