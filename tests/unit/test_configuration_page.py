"""docs/configuration.md is made from the models and may not fall behind them."""

from __future__ import annotations

import re
from pathlib import Path

from app.commands.configuration_page import page
from node.config import known_keys
from node.config_models import TABLES

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# As pages and messages write it: "[node] token_file", or with backticks around one or both.
NAMED = re.compile(rf"\[({'|'.join(TABLES)})\]`?\s+`?([a-z]+_[a-z_]+)\b")


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "configuration.md").read_text() == page()


def test_the_page_names_every_key() -> None:
    text = page()
    for key in known_keys():
        assert f"| `{key.partition('.')[2]}` |" in text


def test_every_key_that_is_named_with_its_table_is_in_that_table() -> None:
    named = [
        (path.name, f"{table}.{key}")
        for path in [*DOCS.glob("*.md"), ROOT / "README.md", *ROOT.glob("node/**/*.py"), *ROOT.glob("app/**/*.py")]
        for table, key in NAMED.findall(path.read_text())
    ]
    assert len(named) > 30
    assert [one for one in named if one[1] not in known_keys()] == []
