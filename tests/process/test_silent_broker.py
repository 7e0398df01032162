"""A leader whose broker alone hangs: another member's broker is the master within seconds, and nobody has to act."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.demo.processes import broker_of
from node.message_client.link import Link
from node.rocketmq.codes import Answer, Request
from tests.ports import free_ports
from tests.process.broker_group import BrokerGroup
from tests.process.group import START_WITHIN_S
from tests.unit.broker_kit import send_fields

PREFERRED_WITHIN_S = 2 * START_WITHIN_S  # one that could not keep leadership is given it again half a minute later

pytestmark = [pytest.mark.process, pytest.mark.long]


class Nodes(BrokerGroup):
    """Whole nodes: a supervisor each, with engine, control plane and broker."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.module = "node"
        self.more: tuple[str, ...] = ()
        self.control = dict(zip(self.peers, free_ports(len(self.peers)), strict=True))

    def arguments(self, node_id: str, *more: str) -> list[str]:
        return super().arguments(node_id, "--control", f"127.0.0.1:{self.control[node_id]}", *self.more, *more)

    def preferring(self, node_id: str) -> Nodes:
        self.more = ("--set", f"node.preferred_leaders={node_id}")
        return self

    def start(self, *node_ids: str) -> None:
        self.processes |= {one: self.spawn(self.arguments(one)) for one in node_ids}

    def role(self, node_id: str) -> str | None:
        """Of its broker, as its control plane says."""
        try:
            found = httpx2.get(f"http://127.0.0.1:{self.control[node_id]}/api/v1/broker", trust_env=False, timeout=10)
        except httpx2.HTTPError:
            return None
        role: str | None = found.json()["role"] if found.status_code == 200 else None
        return role

    def until(self, node_ids: set[str], role: str, within_s: float = START_WITHIN_S) -> str:
        """Which of them has that role."""
        deadline_s = time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            for one in node_ids:
                if self.role(one) == role:
                    return one
            time.sleep(0.1)
        raise AssertionError(f"none of {node_ids} becomes {role}")

    async def send(self, node_id: str) -> Any:
        link = Link(f"127.0.0.1:{self.ports[node_id]}")
        try:
            return (await link.ask(Request.SEND_MESSAGE_V2, send_fields(), b"body", 20.0)).code
        finally:
            await link.close()


def test_leadership_leaves_a_member_whose_broker_hangs(tmp_path: Path) -> None:
    """Its engine led on, no broker took messages, and only an operator could end that."""
    nodes = Nodes(tmp_path)
    everybody: Any = set(nodes.peers)
    try:
        nodes.start_all()
        first = nodes.until(everybody, "MASTER")
        broker_pid = broker_of(nodes.processes[first].pid)
        assert broker_pid is not None
        os.kill(broker_pid, signal.SIGSTOP)
        try:
            second = nodes.until(everybody - {first}, "MASTER")
            assert asyncio.run(nodes.send(second)) == Answer.SUCCESS
        finally:
            os.kill(broker_pid, signal.SIGCONT)
        nodes.until({first}, "SLAVE")
        nodes.until(everybody - {first}, "MASTER")
    finally:
        nodes.close()


def test_a_preferred_leaders_broker_that_hangs_is_started_again(tmp_path: Path) -> None:
    """Leadership came back, and stayed ever longer at a member whose broker took no messages."""
    nodes = Nodes(tmp_path).preferring("n1")
    everybody: Any = set(nodes.peers)
    try:
        nodes.start_all()
        nodes.until({"n1"}, "MASTER", PREFERRED_WITHIN_S)
        hung = broker_of(nodes.processes["n1"].pid)
        assert hung is not None
        os.kill(hung, signal.SIGSTOP)
        nodes.until(everybody - {"n1"}, "MASTER")
        nodes.until({"n1"}, "MASTER", PREFERRED_WITHIN_S)
        assert broker_of(nodes.processes["n1"].pid) not in (None, hung)
        assert asyncio.run(nodes.send("n1")) == Answer.SUCCESS
    finally:
        nodes.close()
