"""The console's OpenAPI document says what is really answered: every operation is called once, and held to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.unit.console_tour import toured


def test_every_operation_answers_as_its_document_says(tmp_path: Path) -> None:
    """The transport of every test's requests checks each answer against the document (console_kit.Documented)."""
    tour = asyncio.run(toured(tmp_path))
    document = tour.kit.app.openapi()
    named = {f"{method} {path}" for path, calls in document["paths"].items() for method in calls}
    assert set(tour.seen) == named
