"""What is known of a classic broker that ended: it leaves its reason, and its control plane passes it on."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import httpx2

from node.children import python
from node.control.app import create_app
from node.down_reason import REASON_FILE, leave_reason
from node.message_store.local_lock import StoreLock
from node.unwritable import why_gone
from tests.ports import free_ports
from tests.unit.classic_kit import classic_settings


def test_a_broker_that_cannot_go_on_leaves_its_reason_and_its_code(tmp_path: Path) -> None:
    ha_port, port = free_ports(2)
    lock = StoreLock(tmp_path)
    try:
        ended = subprocess.run(
            python(
                "-m", "node.broker", "--id", "m", "--role", "sync_master", "--ha", f"127.0.0.1:{ha_port}",
                "--broker", f"127.0.0.1:{port}", "--data", str(tmp_path),
            ),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        lock.release()
    reason = json.loads((tmp_path / REASON_FILE).read_text())["reason"]
    assert reason.startswith(f"the broker ended with exit code {ended.returncode}: ")
    assert ended.returncode == 1 and str(tmp_path) in reason and reason.partition(": ")[2] in ended.stderr


def test_a_control_plane_says_why_its_classic_broker_is_down(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "sync_master", {"m": free_ports(1)[0]})
    data = settings.node.data
    data.mkdir()

    async def story() -> None:
        transport = httpx2.ASGITransport(app=create_app(settings), client=("127.0.0.1", 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431/api/v1") as rest:

            async def reason() -> str:
                said = (await rest.get("/ha")).json()
                assert said["broker"] == "down"
                return str(said["reason"])

            assert (await reason()).startswith(f"nothing answers at its port ({settings.broker.address}: ")
            leave_reason(data, "the broker ended with exit code 3: its directory was taken away")
            assert await reason() == "the broker ended with exit code 3: its directory was taken away"
            (data / REASON_FILE).unlink()
            data.rmdir()
            assert await reason() == why_gone(data, in_a_pair=True)

    asyncio.run(story())
