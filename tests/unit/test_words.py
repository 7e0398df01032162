"""Words that nobody may use here: private ones, which a reader has to guess at, and what to say instead.

Names, docstrings, comments, messages, templates and documents are read, of the product and of its tests. A new riddle
goes into the table, with the word of the field that says the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).relative_to(ROOT)
KINDS = {".py", ".md", ".html", ".css", ".js", ".txt", ".json", ".toml", ".mako"}
SOURCES = ("app", "node", "templates", "static", "migrations", "docs", "README.md", "ARCHITECTURE.md", "CHANGELOG.md")
TESTS = ("tests",)
LEFT_OUT = ("static/vendor/", "tests/browser/vendor/")

# What may not be written, as a pattern, and what to say instead.
EVERYWHERE = {
    r"fast.?back.?up": "log backtracking",
    r"moved.?backwards": "log regressed",
    r"\b(giv(e|es|en|ing)|gave)( it| them)?[ _]back": "drop from the page cache; return; free; close",
    r"(terminal|reader)[^.]{0,20}\bobeys?\b|\bwould obey\b": "control characters; escaped",
    r"(?<![a-z])desks?(?![a-z])": "client requests",
    r"(?<![a-z])steer(s|ed|ing)?(?![a-z])": "operator actions; transfer of leadership",
    r"(stand|stands|standing|stood)[ _]back": "lower_priority; paused",
    r"who lies\b": "which record is corrupt",
    r"\bis nobody.s\b": "exceeds TERM_MAX; what it is, said plainly",
    r"(?<![a-z])(on)?lookers?(?![a-z])": "observer",
    r"\ba person\b": "an operator; needs an operator; by hand",
    r"(?<![a-z])doors?(?![a-z])": "server, interface, request handler: whatever it is",
}
# In the product, where what is "told" is reported, sent, answered or known: to whom, and how, is what matters.
IN_SOURCES = {
    r"\b(un)?told\b|(?<![a-z])told_|_told(?![a-z])": "reported, sent, answered, asked; to_json() for what makes JSON",
    r"\bnobody.s\b": "no member's; or what it is, said plainly",
}


def lines_of(places: tuple[str, ...]) -> list[tuple[str, int, str]]:
    found: list[tuple[str, int, str]] = []
    for place in places:
        path = ROOT / place
        for one in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = one.relative_to(ROOT)
            if one.suffix not in KINDS or name == HERE or str(name).startswith(LEFT_OUT) or not one.is_file():
                continue
            found += [(str(name), number, line) for number, line in enumerate(one.read_text().splitlines(), start=1)]
    return found


@pytest.mark.parametrize(
    ("places", "words"), [(SOURCES, EVERYWHERE | IN_SOURCES), (TESTS, EVERYWHERE)], ids=["product", "tests"]
)
def test_no_private_words(places: tuple[str, ...], words: dict[str, str]) -> None:
    lines = lines_of(places)
    assert len(lines) > 10_000
    any_of = re.compile("|".join(words), re.IGNORECASE)
    bad = [(name, number, line) for name, number, line in lines if any_of.search(line)]
    say = [
        f"{name}:{number}: say instead: {instead}: {line.strip()[:120]}"
        for name, number, line in bad
        for word, instead in words.items()
        if re.search(word, line, re.IGNORECASE)
    ]
    assert say == []


@pytest.mark.parametrize(
    "line",
    [
        "def fast_back_up(", "self._moved_backwards", "gives back the cache", "frees it and gives it back",
        "what a terminal would obey", "a reader obeys it", "self.desk = x", "STEER = 1",
        "def stand_back(", "to tell who lies", "term 5 is nobody's", "LOOKER_NICENESS", "waits for a person",
        "the door",
    ],
)  # fmt: skip
def test_the_patterns_find_what_they_are_for(line: str) -> None:
    assert any(re.search(word, line, re.IGNORECASE) for word in EVERYWHERE)


@pytest.mark.parametrize("line", ["desktop", "indoors", "onlooking is a word", "a personal token", "outdoor"])
def test_the_patterns_leave_other_words_alone(line: str) -> None:
    assert not any(re.search(word, line, re.IGNORECASE) for word in EVERYWHERE)
