"""A row of the console's trail says what was done to what: which address, which member, how many entries, by whose
token; also where nothing came of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.console_kit import Person, run, running
from tests.unit.fake_control import FakeGroup

Json = dict[str, Any]
NODE, NEW = "http://127.0.0.1:8431", "http://127.0.0.1:9431"
TOKEN = "0123456789abcdef-of-the-group"


async def newest(boss: Person) -> Json:
    rows = (await boss.get("/api/v1/admin-trail?limit=1")).json()["items"]
    assert TOKEN not in str(rows)
    return dict(rows[0])


API: list[tuple[str, str, Json, str, Json]] = [
    ("PATCH", "/api/v1/clusters/demo", {"json": {"name": "Orders"}}, "clusters/demo",
     {"before": {"name": "demo"}, "after": {"name": "Orders"}}),
    ("POST", "/api/v1/clusters/demo/addresses", {"json": {"control_url": NEW}}, "clusters/demo/addresses",
     {"after": {"control_url": NEW, "is": "approved"}}),
    ("DELETE", f"/api/v1/clusters/demo/addresses?control_url={NEW}", {}, "clusters/demo/addresses",
     {"after": {"control_url": NEW, "is": "withdrawn"}}),
    ("PUT", "/api/v1/clusters/demo/node-token", {"json": {"token": TOKEN}}, "clusters/demo/node-token",
     {"before": {"shown": "none"}, "after": {"shown": "own"}}),
    ("DELETE", "/api/v1/clusters/demo/node-token", {}, "clusters/demo/node-token",
     {"before": {"shown": "own"}, "after": {"shown": "the console's or none"}}),
    ("POST", "/api/v1/clusters/demo/entries", {"json": {"entries": ["a", "b"]}}, "clusters/demo/entries",
     {"after": {"entries": 2}}),
    ("POST", "/api/v1/clusters/demo/leadership-transfer", {"json": {"to": "n1"}}, "clusters/demo/leadership",
     {"after": {"to": "n1"}}),
    ("POST", "/api/v1/audits", {"json": {"cluster": "demo", "depth": "chain"}}, "audits/",
     {"after": {"depth": "chain"}}),
    ("POST", "/api/v1/clusters/demo/nodes/n1/repair", {"json": {"from_index": 3}}, "clusters/demo/nodes/n1",
     {"after": {"from_index": 3}}),
    ("POST", "/clusters/demo/addresses", {"data": {"control_url": NEW}}, "clusters/demo/addresses",
     {"after": {"control_url": NEW, "is": "approved"}}),
    ("POST", "/clusters/demo/addresses/withdraw", {"data": {"control_url": NEW}}, "clusters/demo/addresses",
     {"after": {"control_url": NEW, "is": "withdrawn"}}),
    ("POST", "/clusters/demo/node-token", {"data": {"token": TOKEN}}, "clusters/demo/node-token",
     {"before": {"shown": "none"}, "after": {"shown": "own"}}),
    ("POST", "/clusters/demo/leadership", {"data": {"to": "n1"}}, "clusters/demo/leadership", {"after": {"to": "n1"}}),
    ("POST", "/clusters", {"data": {"control_url": NEW}}, "clusters",
     {"after": {"control_url": NEW, "node_token": "none"}}),
    ("POST", "/api/v1/clusters", {"json": {"control_url": NEW, "node_token": TOKEN}}, "clusters",
     {"after": {"control_url": NEW, "node_token": "given"}}),
    ("DELETE", "/api/v1/clusters/demo", {}, "clusters/demo", {"before": {"name": "Orders"}}),
]  # fmt: skip


def test_every_change_of_a_group_is_in_the_trail_with_what_it_was_about(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, FakeGroup()) as kit:
            await kit.watched()
            boss = await kit.person("boss", "admin")
            for method, path, body, target, detail in API:
                answer = await boss.change(method, path, **body)
                row = await newest(boss)
                said = f"{method} {path}: {answer.status_code} {answer.text[:200]}; {row}"
                assert row["method"] == method and row["path"] == path, said
                assert row["status"] == answer.status_code, said
                assert row["target"].startswith(target), said
                assert row["detail"] is not None, said
                for when, facts in detail.items():
                    assert facts.items() <= row["detail"][when].items(), said

    run(work())


@pytest.mark.parametrize("url", ["http://ann:secret-of-ann@127.0.0.1:9431", "no address"])
def test_what_is_no_address_is_in_no_row(tmp_path: Path, url: str) -> None:
    async def work() -> None:
        async with running(tmp_path, FakeGroup()) as kit:
            await kit.watched()
            boss = await kit.person("boss", "admin")
            for path, body in (("clusters", {"control_url": url}), ("clusters/demo/addresses", {"control_url": url})):
                assert (await boss.change("POST", f"/api/v1/{path}", json=body)).status_code == 422
                row = await newest(boss)
                assert row["status"] == 422 and "secret-of-ann" not in str(row)

    run(work())
