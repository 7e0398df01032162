"""Newcomers while strangers hold a member's port and its control plane, drawn from a seed (ATTACK_SEED has others
drawn): 2,000 connections each, opened and left, half of them within a TLS handshake where TLS is spoken. An operator
calls for a new member, it joins and votes, and a new client appends, all before one of them is let go.
"""

from __future__ import annotations

import contextlib
import json
import random
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from app.command_line import run as quorumscope
from node.client import LedgerClient
from tests.attack.memory import Memory
from tests.attack.remoting_kit import drawn
from tests.attack.test_member_port import KINDS
from tests.attack.test_tls_ports import HANDSHAKES, _first_words
from tests.attack.test_web_floods import process
from tests.ports import free_ports
from tests.process.group import ROOT, Group, append_surely
from tests.process.undisturbed import WITHIN_S, in_client, settled, until

pytestmark = pytest.mark.process
HELD: Final = 2000
MORE_MIB: Final = 64
Say = Callable[[socket.socket], None]


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough in this process for both floods."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * HELD + 1000
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open {hard} files, {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def hold(held: contextlib.ExitStack, address: str, say: Say) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(HELD):
        one = held.enter_context(socket.create_connection((host, int(port)), timeout=WITHIN_S))
        one.setblocking(False)
        with contextlib.suppress(OSError):  # its place went to another one, or it is not read from
            say(one)


@contextlib.contextmanager
def control_plane(group: Group, member: str, pki: Path) -> Iterator[str]:
    """Of a member that runs, over TLS."""
    port = free_ports(1)[0]
    sets = [f"control.tls_cert_file={pki / f'{member}.crt'}", f"control.tls_key_file={pki / f'{member}.key'}"]
    given = [word for word in group.arguments(member) if word not in ("--init", *group.token)]
    words = [*given, "--control", f"127.0.0.1:{port}", *(part for one in sets for part in ("--set", one))]
    process = subprocess.Popen([sys.executable, "-m", "node.control", *words], cwd=ROOT)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(WITHIN_S)


async def asked(call: Callable[[], httpx2.Response]) -> httpx2.Response | None:
    try:
        return call()
    except httpx2.HTTPError:
        return None


@pytest.mark.long
@pytest.mark.usefixtures("descriptors")
def test_a_member_joins_and_a_client_appends_while_strangers_hold_both_ports(tmp_path: Path) -> None:
    rng: random.Random = drawn("newcomers")
    pki = tmp_path / "pki"
    assert quorumscope(["pki", "demo", str(pki)]) == 0
    trusted = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    hello = _first_words(ssl._create_unverified_context())
    group = Group(tmp_path)
    newcomer = f"127.0.0.1:{free_ports(1)[0]}"
    everybody = dict(group.peers) | {"n3": newcomer}

    async def attack(client: LedgerClient) -> None:
        leader = await settled(group, client)
        before = (await client.state(leader))["term"]
        with control_plane(group, leader, pki) as address, contextlib.ExitStack() as held:
            url = f"https://{address}/api/v1"

            async def ready() -> bool:
                state = await asked(lambda: httpx2.get(f"{url}/state", verify=trusted, trust_env=False))
                return state is not None and state.status_code == 200 and state.json()["role"] == "LEADER"

            await until(ready)
            hold(held, group.peers[leader], lambda one: one.sendall(rng.choice(KINDS)(rng)))
            hold(held, address, lambda one: rng.choice(HANDSHAKES)(rng, hello, one))
            group.join("n3", newcomer)
            body = {"id": "n3", "address": newcomer}
            called = await asked(
                lambda: httpx2.post(f"{url}/members", json=body, verify=trusted, trust_env=False, timeout=WITHIN_S)
            )
            assert called is not None and called.status_code == 202, called and called.text
            alone = LedgerClient({"n3": newcomer}, group=group.group, deadline_s=WITHIN_S)
            fresh = LedgerClient(everybody, group=group.group, deadline_s=WITHIN_S)
            try:

                async def votes() -> bool:
                    items: list[dict[str, Any]] = (await alone.introspect("n3", "members"))["items"]
                    return "n3" in [one["id"] for one in items if one["kind"] == "voter"]

                await until(votes, "the new member's vote")
                await append_surely(fresh, b"in spite of them", WITHIN_S)
                now = await fresh.state(leader)
                assert (now["leader_id"], now["term"]) == (leader, before), "leadership moved"
                counted = now["connections"]
                assert sum(counted["ended"].values()) + counted["unproven"] > HELD // 2, "strangers were there"
            finally:
                await alone.close()
                await fresh.close()

    try:
        group.start_all()
        in_client(group, attack)
    finally:
        group.close()


@pytest.mark.long
@pytest.mark.usefixtures("descriptors")
def test_a_page_comes_over_tls_while_handshakes_at_a_console_do_not_end(tmp_path: Path) -> None:
    rng = drawn("handshakes at a console")
    pki = tmp_path / "pki"
    assert quorumscope(["pki", "demo", str(pki)]) == 0
    trusted = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    hello = _first_words(ssl._create_unverified_context())
    files = ("--tls-cert", str(pki / "console.crt"), "--tls-key", str(pki / "console.key"))
    listen = ("--db", str(tmp_path / "console.db"), "--listen", f"127.0.0.1:{free_ports(1)[0]}", *files)
    with process("app.cli", "console", *listen) as started, contextlib.ExitStack() as held:
        assert started.stdout is not None
        url: str = json.loads(started.stdout.readline())["url"]
        with Memory(started.pid) as memory:
            hold(held, url.rpartition("/")[2], lambda one: rng.choice(HANDSHAKES)(rng, hello, one))
            for _ in range(3):
                page = httpx2.get(f"{url}/login", verify=trusted, trust_env=False, timeout=WITHIN_S)
                assert page.status_code == 200
        print(f"{memory.most_mib:.0f} MiB more at most")
        assert memory.most_mib < MORE_MIB
