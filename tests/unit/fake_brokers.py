"""A group of brokers that exists only as a transport: `FakeGroup`, with what a node answers of messages."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx2

from tests.process.group import ROOT
from tests.unit.fake_control import FakeGroup, FakeNode

Json = dict[str, Any]
EXAMPLES: Json = json.loads((ROOT / "node/control/examples.json").read_text())


def example(operation: str) -> Json:
    return copy.deepcopy(EXAMPLES[operation]["response"])


class BrokerGroup(FakeGroup):
    """Answers as a node's own examples say; `silent`: whose broker is down; by the path below `/api/v1`: `changed`
    has other values of some fields, `gone` is what there is not.
    """

    silent: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    changed: Json = {}  # noqa: RUF012 - replaced, never changed in place
    has_brokers = True

    def answer(self, node: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        method, params = request.method.lower(), request.url.params
        if path[0] == "state":
            status, state = super().answer(node, request, path)
            return status, state | ({"broker": f"127.0.0.1:{10911 + int(node.id[1:])}"} if self.has_brokers else {})
        if path[0] == "broker":
            said = example("get /api/v1/broker") | {"self_id": node.id}
            if node.id in self.silent:
                silent = dict.fromkeys(("role", "dispatch", "counts", "schedule", "transactions"))
                return 200, said | silent | {"broker": "down", "reason": "It does not run.", "role_changes": []}
            leads = node is self.leader
            waits = {} if leads else {"schedule": None, "transactions": None}
            return 200, said | waits | {"role": "MASTER" if leads else "SLAVE", "broker_id": 0 if leads else 2}
        if path[0] in ("topics", "consumer-groups", "messages"):
            named = {"topics": "/{topic}", "consumer-groups": "/{consumer_group}"}.get(path[0], "")
            rest = "".join(f"/{one}" for one in path[2:])
            if params.get("key") == "nobody's":
                return 422, {
                    "title": "Invalid request",
                    "detail": "key does not go with the other parameters",
                }
            if (at := "/".join(path)) in self.gone:
                return 404, {"title": "Not found", "detail": f"There is no {at}."}
            said = example(f"{method} /api/v1/{path[0]}{named if len(path) > 1 else ''}{rest}")
            return 200, said | self.changed.get(at, {})
        return super().answer(node, request, path)
