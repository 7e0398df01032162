"""Every script's output is the script itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.runner import play, scripts


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_script_does_what_it_says(path: Path) -> None:
    """Regenerate with `python -m tests.scenarios.runner --rewrite`, and read the difference."""
    text = path.read_text()
    assert play(text) == text


def test_the_scripts_are_there() -> None:
    names = {path.stem for path in scripts()}
    assert {"raft_figure_7", "raft_figure_8", "transfer_half_way", "wiped_follower", "order_below_commit"} <= names
