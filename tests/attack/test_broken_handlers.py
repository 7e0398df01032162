"""Handlers of a control plane that fail as nobody expected: an answer of the document on every call, and nothing leaks.

The calls come from each kind of node's own OpenAPI document, so that a new one is broken by itself. What broke is in
the log, under the reference that the answer names; what was asked by an operator is in the trail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from node import operator_trail
from node.config import load
from node.control.app import create_app
from tests.api.test_control_guard import BASE, TOKEN, run, token_file
from tests.attack.remoting_kit import drawn
from tests.attack.test_odd_bodies import Bodies, Names
from tests.openapi_kit import Document
from tests.ports import free_ports

LEAK: Final = "postgresql://bob:hunter2@db"
APPENDS: Final = frozenset(
    f"{method} /api/v1/{path}"
    for method, path in (
        ("post", "entries"), ("post", "messages"), ("post", "machine/command"), ("put", "kv/{key}"),
        ("delete", "kv/{key}"),
    )
)  # fmt: skip
KINDS: Final = ("log", "kv", "broker", "classic")


def settings_of(kind: str) -> dict[str, Any]:
    """Its broker's ports are free: a broker that another program started there would answer."""
    broker, ha = (f"127.0.0.1:{port}" for port in free_ports(2))
    match kind:
        case "kv":
            return {"node.state_machine": "kv"}
        case "broker":
            return {"broker.address": broker}
        case "classic":
            return {"peers": "", "ha.role": "sync_master", "ha.address": ha, "broker.address": broker}
    return {}


class Broken:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"{name}: {LEAK}")


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_that_fails_is_a_problem_with_a_reference(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        chosen = {
            "node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1",
            "control.token_file": str(token_file(tmp_path)), **settings_of(kind),
        }  # fmt: skip
        app, trail = create_app(load(chosen, environ={})), tmp_path / operator_trail.NAME
        app.state.parts = Broken()
        described, failed, changed = Document(app.openapi()), 0, 0
        bodies = Bodies(described.document, drawn(f"broken handlers {kind}"))
        transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers=headers) as asking:
            for method, path, call in described.operations():
                filled, body = path.format_map(Names()), {}
                content = call.get("requestBody", {}).get("content", {})
                if "application/json" in content:
                    body["json"] = bodies.right(content["application/json"]["schema"])
                answer = await asking.request(method, filled, **body)
                said = f"{method} {path}: {answer.status_code} {answer.headers} {answer.text[:300]}"
                assert LEAK not in answer.text and "Traceback" not in answer.text, said
                assert answer.headers["x-content-type-options"] == "nosniff", said
                described.check(method.upper(), filled, answer.status_code, answer.headers, answer.content)
                if answer.status_code != 500:
                    continue
                failed += 1
                problem = answer.json()
                assert answer.headers["content-type"] == "application/problem+json", said
                assert problem["reference"] in caplog.text and problem["action"], said
                if method == "get":
                    assert "unknown" not in problem["detail"], said
                else:
                    assert "look before you repeat it" in problem["detail"], said
                    changed += 1
                assert problem.get("outcome") == ("unknown" if f"{method} {path}" in APPENDS else None), said
        assert failed > 5 and LEAK in caplog.text
        rows = [json.loads(one["content"]) for one in map(json.loads, trail.read_text().splitlines())]
        ended = [one["status"] for one in rows if one["kind"] == "ended"]
        assert changed > 1 and 500 in ended and len(ended) == sum(one["kind"] == "begun" for one in rows)

    run(work())
