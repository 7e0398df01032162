"""SIGHUP to a node and to a console: new certificates and tokens for whoever comes from then on; a broken file changes
nothing but the log and an alarm."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from app.pki import make, wanted_for
from node.children import apart
from node.transport.tls import client_context
from tests.ports import free_ports
from tests.process.group import ROOT, SMALL_FILES

pytestmark = pytest.mark.process
WITHIN_S = 60.0
OLD, NEW = "the-old-token-of-this-node", "the-new-token-of-this-node"


def until(fact: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + WITHIN_S
    while not fact():
        assert time.monotonic() < ends, f"never: {what}"
        time.sleep(0.05)


class Place:
    """A group of one and its console, every port with TLS; `pki` is what they read, `renewed` has newer files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pki, self.renewed = directory / "pki", directory / "renewed"
        make(self.pki, wanted_for({"n0": []}, ["client"], "console"), 2)
        make(self.renewed, wanted_for({"n0": []}, ["client"], "console"), 2, self.pki)
        self.token = directory / "token"
        self.token.touch(0o600)
        self.token.write_text(OLD)
        self.member, self.control, self.console = free_ports(3)
        files = {kind: self.pki / f"n0.{kind}" for kind in ("crt", "key")}
        sets = {
            "node.tls_cert_file": files["crt"], "node.tls_key_file": files["key"],
            "node.tls_ca_file": self.pki / "ca.crt", "node.token_file": self.token,
            "control.tls_cert_file": files["crt"], "control.tls_key_file": files["key"],
        }  # fmt: skip
        more = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
        self.file = directory / "node.toml"
        self.file.touch()
        self.node = self.start(
            "node", "-m", "node", "--id", "n0", "--group", "g", "--peers", f"n0-127.0.0.1:{self.member}",
            "--data", str(directory / "n0"), "--control", f"127.0.0.1:{self.control}", "--init",
            "--config", str(self.file), "--log-format", "json", *SMALL_FILES, *more,
        )  # fmt: skip
        self.console_file = directory / "console.toml"
        self.console_file.touch()
        self.console_process = self.start(
            "console", "-m", "app.cli", "console", "--config", str(self.console_file),
            "--listen", f"127.0.0.1:{self.console}", "--log-format", "json",
            "--db", str(directory / "console.db"), "--node", f"https://127.0.0.1:{self.control}",
            "--node-ca-file", str(self.pki / "ca.crt"), "--node-token-file", str(self.token),
            "--tls-cert", str(self.pki / "console.crt"), "--tls-key", str(self.pki / "console.key"),
        )  # fmt: skip
        self.verify = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                preexec_fn=apart(signal.SIGKILL), env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def close(self) -> None:
        for process in (self.node, self.console_process):
            process.terminate()
        for process in (self.node, self.console_process):
            process.wait(WITHIN_S)

    def said(self, name: str, event: str) -> list[str]:
        """Reasons of that event in a process's log."""
        lines = (self.directory / f"{name}.log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [str(one.get("reason")) for one in found if one["event"] == event]

    def shown(self, port: int) -> bytes | None:
        """The certificate that a port shows now."""
        context = self.verify
        if port == self.member:
            names = (self.pki / "client.crt", self.pki / "client.key", self.pki / "ca.crt")
            context = client_context(*names)
        try:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as plain,
                context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
            ):
                return secured.getpeercert(binary_form=True)
        except OSError:
            return None

    def put(self, source: Path) -> None:
        """Other files, under the names that are read."""
        for path in source.glob("*.*"):
            (self.pki / path.name).write_bytes(path.read_bytes())

    def client(self) -> httpx2.Client:
        return httpx2.Client(
            base_url=f"https://127.0.0.1:{self.control}", verify=self.verify, timeout=WITHIN_S, trust_env=False
        )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.close()


def status_of(client: httpx2.Client, token: str) -> int:
    return client.get("/api/v1/state", headers={"authorization": f"Bearer {token}"}).status_code


def alarms_of(client: httpx2.Client, token: str) -> set[str]:
    answer = client.get("/api/v1/state", headers={"authorization": f"Bearer {token}"}).json()
    return {one["code"] for one in answer["alarms"] or ()}


def der(path: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(path.read_text())


def changes_settings(place: Place, client: httpx2.Client) -> None:
    """By the same signal: what may change does, what may not is said, and a file that is none changes nothing."""
    store = "[store]\nscrub_pause_s = 1234\n"
    place.file.write_text(f"{store}page_cache_bytes = 1000000\n[timing]\nmax_push_time_out_ms = 999\n")
    place.node.send_signal(signal.SIGHUP)
    until(lambda: alarms_of(client, NEW) == {"restart_needed"}, "what needs a restart is an alarm")
    state = client.get("/api/v1/state", headers={"authorization": f"Bearer {NEW}"}).json()
    assert state["settings"] == {"restart_needed": ["store.page_cache_bytes"], "refused": []}
    assert (state["timing"]["max_push_time_out_ms"], state["scrub"]["pause_s"]) == (999, 1234)
    assert place.said("node", "settings_changed") == [
        "in force from now on: store.scrub_pause_s, timing.max_push_time_out_ms"
    ]
    place.file.write_text("[store\n")
    place.node.send_signal(signal.SIGHUP)
    until(
        lambda: alarms_of(client, NEW) == {"restart_needed", "file_not_reread", "control_file_not_reread"},
        "both processes say that they cannot read it",
    )
    place.file.write_text(store)
    place.node.send_signal(signal.SIGHUP)
    until(lambda: alarms_of(client, NEW) == set(), "a good file ends all of them")
    place.console_file.write_text("[console]\nhistory_days = 7\n")
    place.console_process.send_signal(signal.SIGHUP)
    needed = ["restart needed: console.history_days"]
    until(lambda: place.said("console", "settings_not_changed") == needed, "a console says what takes a restart")


def test_a_signal_has_certificates_and_tokens_read_again(place: Place) -> None:
    ports = {place.member: "n0", place.control: "n0", place.console: "console"}
    before = {port: der(place.pki / f"{name}.crt") for port, name in ports.items()}
    after = {port: der(place.renewed / f"{name}.crt") for port, name in ports.items()}
    until(lambda: {port: place.shown(port) for port in ports} == before, "all ports are open")
    with place.client() as long_lived:
        until(lambda: status_of(long_lived, OLD) == 200, "the control plane takes its token")

        (place.renewed / "ca.crt").unlink()  # it is the same
        place.put(place.renewed)
        place.token.write_text(NEW)
        assert place.shown(place.control) == before[place.control], "nothing changes by itself"
        for process in (place.node, place.console_process):
            process.send_signal(signal.SIGHUP)
        until(lambda: {port: place.shown(port) for port in ports} == after, "the new certificates are shown")
        until(lambda: status_of(long_lived, NEW) == 200, "the new token is taken, over a connection that there was")
        assert status_of(long_lived, OLD) == 401
        assert alarms_of(long_lived, NEW) == set()
        assert place.said("node", "not_reread") == place.said("console", "not_reread") == []

        for name in ("n0.crt", "console.crt"):
            (place.pki / name).write_text("no certificate")
        for process in (place.node, place.console_process):
            process.send_signal(signal.SIGHUP)
        both = {"file_not_reread", "control_file_not_reread"}
        until(lambda: alarms_of(long_lived, NEW) == both, "both processes of the node raise their alarm")
        until(lambda: len(place.said("console", "not_reread")) == 1, "the console says it in its log")
        assert {port: place.shown(port) for port in ports} == after, "what was read before stays in force"
        reasons = place.said("node", "not_reread") + place.said("console", "not_reread")
        assert len(reasons) == 4 and all("stays in force" in one and ".crt" in one for one in reasons), reasons

        place.put(place.renewed)
        for process in (place.node, place.console_process):
            process.send_signal(signal.SIGHUP)
        until(lambda: alarms_of(long_lived, NEW) == set(), "the alarms end")
        changes_settings(place, long_lived)
    assert place.node.poll() is None and place.console_process.poll() is None
