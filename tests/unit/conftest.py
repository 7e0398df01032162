"""What the unit tests share: a busy machine's writers wait longer for their turn than anybody at a screen would."""

from __future__ import annotations

import pytest

BUSY_S = 60.0


@pytest.fixture(autouse=True)
def patient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of the time-out itself set one of their own."""
    monkeypatch.setattr("app.db.engine.BUSY_S", BUSY_S)
