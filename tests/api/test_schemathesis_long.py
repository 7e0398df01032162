"""The long form of tests/unit/test_schemathesis.py: more draws, and other ones each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_schemathesis import LONG, console, hold, node


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("serve", [console, node])
def test_whatever_is_asked_the_answer_is_documented(serve: Any, tmp_path: Path) -> None:
    hold(lambda: serve(tmp_path), LONG, fixed=False)
