"""`GET ha/log` gives the files of a classic broker's commit log page by page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.control import ha_log
from node.control.app import create_app
from node.views.ha import HaView
from tests.unit.classic_kit import classic_settings, pair_ports


def test_the_files_come_in_pages_from_the_oldest_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 100,000 the oldest were left out, and nothing said so."""
    files = [100 * at for at in range(3, 10)]
    span = {"pair": None, "begin_offset": 300, "end_offset": 999, "file_bytes": 100, "files": files}

    async def look(_: object) -> HaView:
        return HaView(as_of="now", broker="down", name="pair", self_id="s", address="a:1", ha_address="a:2")

    async def work() -> None:
        app = create_app(classic_settings(tmp_path, "s", "slave", pair_ports("m", "s")))
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1/api/v1/ha") as client:
            whole = (await client.get("/log")).json()
            assert whole["files"] == files and whole["next"] is None
            found: list[int] = []
            asked: dict[str, Any] = {"limit": 3}
            while asked.get("cursor", "") is not None:
                page = (await client.get("/log", params=asked)).json()
                found += page["files"]
                assert len(page["files"]) <= 3
                asked["cursor"] = page["next"]
            assert found == files
            gone = (await client.get("/log", params={"limit": 3, "cursor": "150"})).json()
            assert gone["files"] == files[:3], "the file that the cursor names may be gone"
            assert (await client.get("/log", params={"limit": 0})).status_code == 422
            assert (await client.get("/log", params={"cursor": "x"})).status_code == 422

    monkeypatch.setattr(ha_log, "look", look)
    monkeypatch.setattr(ha_log, "_span", lambda _root, _found: dict(span))
    asyncio.run(work())
