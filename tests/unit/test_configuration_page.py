"""docs/configuration.md is made from the models and may not fall behind them."""

from __future__ import annotations

from pathlib import Path

from app.commands.configuration_page import page
from node.config import known_keys

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / "configuration.md").read_text() == page()


def test_the_page_names_every_key() -> None:
    text = page()
    for key in known_keys():
        assert f"| `{key.partition('.')[2]}` |" in text
