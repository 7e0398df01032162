"""What the browser runs is what was published: vendored files against their hashes, no inline code in pages."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from app.resources import code_root

ROOT = code_root()

VENDOR = ROOT / "static" / "vendor"
MANIFEST = json.loads((VENDOR / "manifest.json").read_text())
TESTS_VENDOR = ROOT / "tests" / "browser" / "vendor"
STATIC_BYTES_MAX = 127_622  # at c9725aa
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


@pytest.mark.parametrize("entry", MANIFEST["files"], ids=lambda one: str(one["file"]))
def test_a_vendored_file_is_what_was_published(entry: dict[str, str]) -> None:
    assert hashlib.sha256((VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    assert entry["version"] and entry["license"] and entry["package"]


def test_the_accessibility_checker_is_what_was_published() -> None:
    (entry,) = json.loads((TESTS_VENDOR / "manifest.json").read_text())["files"]
    assert hashlib.sha256((TESTS_VENDOR / entry["file"]).read_bytes()).hexdigest() == entry["sha256"]


def test_nothing_is_vendored_that_the_manifest_does_not_name() -> None:
    named = {one["file"] for one in MANIFEST["files"]} | {"manifest.json"}
    assert {one.name for one in VENDOR.iterdir() if one.is_file()} == named


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_no_page_carries_inline_script_or_style(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)", text), "inline script"
    assert not re.search(r"<style\b|\sstyle\s*=", text), "inline style"
    assert not re.search(r"\son[a-z]+\s*=\s*[\"']", text), "inline handler"


def test_the_stylesheet_has_the_prescribed_colours_and_no_green() -> None:
    css = (ROOT / "static" / "app.css").read_text().lower()
    for colour in ("#2f6fde", "#5b97f5", "#995900", "#f0b03a", "#c2271f", "#ff7a70", "#6b7280", "#8c96a3"):
        assert colour in css
    assert "green" not in re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    for colour in set(re.findall(r"#[0-9a-f]{6}\b", css)):
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        assert green <= max(red, blue) + 12, f"{colour} is green"


def test_the_htmx_configuration_is_the_contracts() -> None:
    found = re.search(r"name=\"htmx-config\" content='([^']+)'", (ROOT / "templates" / "base.html").read_text())
    assert found is not None
    assert json.loads(found[1]) == {
        "extensions": "sse",
        "history": False,
        "noSwap": [204, 304, "4xx", "5xx"],
        "morphIgnore": ["data-htmx-powered", "open"],
    }


def test_the_static_files_weigh_no_more_than_they_did() -> None:
    """A page that grows slower is not noticed by whoever adds a little: what comes must find its room."""
    files = [path for path in (ROOT / "static").rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert sum(path.stat().st_size for path in files) <= STATIC_BYTES_MAX
