"""Calls in disguise at a control plane: what a path's odd end, case or double slash turns a call into.

A router may take `entries` and a line break for `entries`; whoever judges the caller's right must see the same call.
"""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from node.access_rows import Right
from node.config import load
from node.control.app import create_app
from node.control_tokens import issue
from tests.api.test_control_guard import BASE, run
from tests.attack.disguises import disguises
from tests.attack.remoting_kit import drawn

BODIES = (
    "entries", "entries/0", "digests", "truncations/1/entries", "segments/data/00000000000000000000",
)  # fmt: skip
DRAWN = 80


@pytest.mark.parametrize("path", BODIES)
def test_no_disguise_gives_bodies_to_whoever_may_only_observe(tmp_path: Path, path: str) -> None:
    rng = drawn(f"disguises of {path}")

    async def work() -> None:
        file = tmp_path / "tokens"
        _, token = issue(file, "bea", Right.OBSERVE, 1)
        chosen = {
            "node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", "control.tokens_file": str(file),
        }  # fmt: skip
        transport = httpx2.ASGITransport(app=create_app(load(chosen, environ={})))
        headers = {"authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, headers=headers) as bea:
            assert (await bea.get("/api/v1/state")).status_code == 200
            for method in ("GET", "HEAD"):
                assert (await bea.request(method, f"/api/v1/{path}")).status_code == 403
                for one in disguises(rng, path, DRAWN):
                    answer = await bea.request(method, one)
                    # 307: to the same path without its last slash, which is judged again.
                    assert answer.status_code in (307, 403, 404), f"{method} {one}: {answer}"

    run(work())
