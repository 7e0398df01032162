"""Real engines with a broker beside each, on free loopback ports, for tests."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Final

from tests.ports import free_ports
from tests.process.group import START_WITHIN_S, Group

DATA_FILE: Final = "store.mapped_file_size_for_entry_data_bytes=262144"  # so that the log rolls over files


class BrokerGroup(Group):
    """Engines, and a broker beside each; the brokers are each other's name servers."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = dict(zip(self.peers, free_ports(len(self.peers)), strict=True))
        self.brokers: dict[str, subprocess.Popen[str]] = {}

    @property
    def name_servers(self) -> str:
        return ";".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def arguments(self, node_id: str, *more: str) -> list[str]:
        peers = ";".join(f"{member}-{address}" for member, address in self.peers.items())
        data = str(self.directory / node_id)
        name_servers = f"broker.name_servers={self.name_servers}"
        return [
            "--id", node_id, "--group", self.group, "--peers", peers, "--data", data, "--set", DATA_FILE,
            "--set", name_servers, "--init", *self.token, "--broker", f"127.0.0.1:{self.ports[node_id]}", *more,
        ]  # fmt: skip

    def start(self, *node_ids: str) -> None:
        super().start(*node_ids)
        for node_id in node_ids:
            self.start_broker(node_id)

    def start_broker(self, node_id: str) -> None:
        broker = self.brokers[node_id] = self.spawn(self.arguments(node_id), "node.broker")
        assert broker.stdout is not None
        line = broker.stdout.readline()
        assert line, f"the broker of {node_id} ended: {broker.communicate()[1]}"
        assert json.loads(line)["event"] == "broker"

    def end_broker(self, node_id: str, number: int) -> int:
        broker = self.brokers.pop(node_id)
        broker.send_signal(number)
        broker.communicate(timeout=START_WITHIN_S)
        return broker.returncode

    def close(self) -> None:
        for node_id in list(self.brokers):
            self.end_broker(node_id, signal.SIGKILL)
        super().close()
