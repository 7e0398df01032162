"""The control plane's OpenAPI document: every JSON call has a summary and an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from node.config import load
from node.control.app import create_app
from node.control.openapi import WITHOUT_EXAMPLE, examples


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data: Path = tmp_path_factory.mktemp("data")
    given = {"node.id": "n0", "node.data": str(data), "peers": "n0-127.0.0.1:1"}
    reported: dict[str, Any] = create_app(load(given, environ={})).openapi()
    return reported


def test_every_json_call_has_a_summary_and_an_example(document: dict[str, Any]) -> None:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            assert operation["summary"], name
            if name in WITHOUT_EXAMPLE:
                continue
            answers = [answer for code, answer in operation["responses"].items() if code.startswith("2")]
            assert answers[0]["content"]["application/json"]["example"] == examples()[name]["response"], name
            if "requestBody" in operation:
                assert operation["requestBody"]["content"]["application/json"]["example"], name
