"""What the unit tests share: patience with a busy machine, where a time-out is not what a test is about."""

from __future__ import annotations

import pytest

BUSY_S = 60.0
STALE_S = 3600.0


@pytest.fixture
def samples_stay_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a test has to wait, what the console sampled of its group is not old."""
    monkeypatch.setattr("app.console.aggregate.STALE_S", STALE_S)


@pytest.fixture(autouse=True)
def patient_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database's writers wait long for their turn; tests of that time-out set one of their own."""
    monkeypatch.setattr("app.db.engine.BUSY_S", BUSY_S)
