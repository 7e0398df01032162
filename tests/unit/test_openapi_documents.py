"""Both OpenAPI documents: each operation has a model of its answer, valid examples, and all its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app.console.app import create_app as create_console
from app.console.settings import ConsoleSettings
from node.config import load
from node.control.app import create_app as create_control_plane
from node.control.openapi import examples
from tests.openapi_kit import Document

CLASSIC = {"ha.role": "sync_master", "ha.address": "127.0.0.1:10912", "broker.address": "127.0.0.1:10911", "peers": ""}
MORE = {
    "node with a store": {"node.state_machine": "kv"}, "node with a broker": {"broker.address": "127.0.0.1:10911"},
    "node in classic mode": CLASSIC,
}  # fmt: skip
ALWAYS = {"400", "401", "403", "421", "500", "503"}
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}


@pytest.fixture(scope="module", params=["node", *MORE, "console"])
def document(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Document:
    place: Path = tmp_path_factory.mktemp("document")
    if request.param == "console":
        return Document(create_console(ConsoleSettings(db_url=f"sqlite:///{place}/console.db")).openapi())
    given = {"node.id": "n0", "node.data": str(place), "peers": "n0-127.0.0.1:1"}
    given |= MORE.get(request.param, {})
    return Document(create_control_plane(load(given, environ={})).openapi())


def test_bounds_of_whole_numbers_are_these(document: Document) -> None:
    text = json.dumps(document.document)
    assert '"maximum": 9223372036854775807' in text
    assert "e+18" not in text


def test_every_success_has_a_model_and_a_valid_example(document: Document) -> None:
    for method, path, call in document.operations():
        assert call["summary"], f"{method} {path}"
        for status, answer in call["responses"].items():
            if status.startswith("2") and status != "204":
                assert answer["content"], f"{method} {path} {status}"
                for media_type, content in answer["content"].items():
                    check_content(document, f"{method} {path} {status}", media_type, content)
        done = [one for one in call["responses"].items() if one[0].startswith("2") and one[0] != "204"]
        for status, answer in sorted(done)[-1:]:  # 200 beside a 202 is a dry run's
            shown = [one for name, one in answer["content"].items() if name != "application/octet-stream"]
            assert all("example" in one for one in shown), f"{method} {path} {status} has no example"


def check_content(document: Document, said: str, media_type: str, content: dict[str, Any]) -> None:
    schema = content["schema"]
    if media_type == "application/json":
        assert set(schema) == {"$ref"}, f"{said} has no model: {schema}"
        if "example" in content:
            assert document.faults(schema, content["example"]) == [], f"{said}: python -m tests.unit.openapi_examples"
    else:
        assert schema["type"] == "string", said


def test_no_example_is_left_of_a_call_that_is_gone(tmp_path: Path) -> None:
    given = {"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1"}
    paths: dict[str, Any] = {}
    for more in MORE.values():
        paths |= create_control_plane(load(given | more, environ={})).openapi()["paths"]
    for method, path in (name.split() for name in examples()):
        assert method in paths[path]


def test_every_body_has_a_valid_example(document: Document) -> None:
    for method, path, call in document.operations():
        content = call.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None:
            assert "example" in content, f"{method} {path}"
            assert document.faults(content["schema"], content["example"]) == [], f"{method} {path}"


def test_every_refusal_is_documented_as_a_problem(document: Document) -> None:
    for method, path, call in document.operations():
        said, statuses = f"{method} {path}", set(call["responses"])
        wanted = set(ALWAYS)
        wanted |= {"422"} if call.get("parameters") else set()
        wanted |= {"404"} if "{" in path else set()
        wanted |= {"409", "413", "415", "422"} if method in ("post", "put", "patch") else set()
        assert wanted <= statuses, f"{said} lacks {wanted - statuses}"
        for status, answer in call["responses"].items():
            if status >= "400":
                assert answer["description"] and PROBLEM.items() <= answer["content"].items(), f"{said} {status}"


UNKNOWN_OUTCOME = (
    "post /api/v1/entries", "put /api/v1/kv/{key}", "delete /api/v1/kv/{key}", "post /api/v1/machine/command",
    "post /api/v1/messages", "post /api/v1/ha/promote", "post /api/v1/clusters/{cluster_id}/entries",
)  # fmt: skip


def test_a_change_of_which_nobody_may_know_whether_it_was_made_says_so(document: Document) -> None:
    for method, path, call in document.operations():
        if f"{method} {path}" in UNKNOWN_OUTCOME:
            assert "504" in call["responses"], f"{method} {path}"
        if path == "/api/v1/kv-events":
            assert "410" in call["responses"], "events are kept for a while"


def test_who_may_call_is_in_the_document(document: Document) -> None:
    schemes = document.document["components"]["securitySchemes"]
    assert schemes["token"]["scheme"] == "bearer"
    assert [set(one) for one in document.document["security"]] == [{name} for name in schemes]
    public = {path for _, path, call in document.operations() if call.get("security") == []}
    assert public == {path for path in ("/healthz", "/readyz", "/leaderz") if path in document.document["paths"]} or (
        public == {"/api/v1"}
    )
