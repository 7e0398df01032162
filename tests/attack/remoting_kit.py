"""What attacks on RocketMQ's ports are made with: a name server or a broker as a process, and who uses it meanwhile."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from node.broker.client_port import VIP_BELOW
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command, decode, encode
from tests.ports import free_ports
from tests.unit.broker_kit import pull_fields, send_fields

SEED: Final = int(os.environ.get("ATTACK_SEED", 12))  # `make prove` draws others
WITHIN_S: Final = 60.0
TOPIC: Final = "Flights"
SECRET: Final = b"s" * 32


def drawn(name: str) -> random.Random:
    print(f"ATTACK_SEED={SEED} ({name})")
    return random.Random(f"{SEED} {name}")


class Caller:
    """One connection that asks and waits for the answer."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._file.close()
        self.socket.close()

    def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        self.socket.sendall(encode(Command(code, 1, fields=fields, body=body)))
        return self.answer()

    def answer(self) -> Command:
        """Raises EOFError where the server closed the connection."""
        head = self._file.read(4)
        if len(head) < 4:
            raise EOFError
        return decode(head + self._file.read(*struct.unpack(">i", head)))

    def route(self) -> Command:
        return self.ask(Request.GET_ROUTEINFO_BY_TOPIC, topic=TOPIC)

    def register(self, name: str, address: str, body: bytes = b"", **more: str) -> Command:
        said = {"brokerName": name, "brokerAddr": address, "clusterName": "c", "haServerAddr": "", "brokerId": "0"}
        return self.ask(Request.REGISTER_BROKER, body, **(said | more))


class Attacked:
    """The name server's process, and a broker that is registered with it all the time."""

    port = 0
    started = b"listening on"
    descriptors: int | None = None  # as a shell with `ulimit -n` gives

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        command = [sys.executable, "-P", "-m", *self.command(folder)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)
        if self.descriptors is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (self.descriptors, self.descriptors))
        while self.started not in self.log.read_bytes():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)
        self.broker = Caller(self.port)
        table = {TOPIC: {"topicName": TOPIC, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}}
        version = {"timestamp": 1, "counter": 1, "stateVersion": 1}
        topics = json.dumps(
            {"topicConfigSerializeWrapper": {"topicConfigTable": table, "dataVersion": version}}
        ).encode()
        assert self.broker.register("honest", "127.0.0.1:10911", topics).code == Answer.SUCCESS
        self.before = self.broker.route()
        assert self.before.code == Answer.SUCCESS
        with Caller(self.port) as one:  # what a first request takes is no attack's
            assert one.route() == self.before

    def command(self, _folder: Path) -> list[str]:
        (self.port,) = free_ports(1)
        return ["node.name_service", "--listen", f"127.0.0.1:{self.port}"]

    def unharmed(self) -> None:
        """The broker's connection is there, a new one gets in, and both are answered as before."""
        assert self.process.poll() is None, self.log.read_text()
        assert self.broker.route() == self.before
        with Caller(self.port) as one:
            assert one.route() == self.before

    def close(self) -> None:
        self.broker.socket.close()
        self.process.kill()
        self.process.wait()


class AttackedBroker(Attacked):
    """A master's process in classic mode, with a secret: strangers reach its main, VIP and HA port."""

    main = ha = 0
    started = b"listening"
    sent = 0

    def command(self, folder: Path) -> list[str]:
        while True:
            vip, _, self.main, self.ha = free_ports(4)
            if vip == self.main - VIP_BELOW:
                break
        secret = folder / "secret"
        secret.write_bytes(SECRET + b"\n")
        secret.chmod(0o600)
        return [
            "node.broker", "--id", "a", "--group", "pair", "--data", str(folder / "data"), "--flush", "async",
            "--role", "async_master", "--ha", f"127.0.0.1:{self.ha}", "--broker", f"127.0.0.1:{self.main}",
            "--secret-file", str(secret), "--set", "broker.vip=true",
        ]  # fmt: skip

    @property
    def port(self) -> int:  # type: ignore[override]
        """The main one or the VIP one."""
        return random.choice([self.main, self.main - VIP_BELOW])

    def unharmed(self) -> None:
        """And messages are taken and given."""
        super().unharmed()
        with Caller(self.port) as one:
            body = b"%d" % self.sent
            assert one.ask(Request.SEND_MESSAGE_V2, body, **send_fields()).code == Answer.SUCCESS
            pulled = one.ask(Request.PULL_MESSAGE, **pull_fields(self.sent))
            assert pulled.code == Answer.SUCCESS
            assert body in bytes(pulled.body)
        self.sent += 1
