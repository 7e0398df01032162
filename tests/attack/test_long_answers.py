"""Long answers of a control plane, as a real process over a real log: nobody takes them, or they cost more than their
bytes say. Which log, which calls and how many comes from a seed that is printed.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import httpx2
import pytest

from app.command_line import run as quorumscope
from node.config import load
from node.server import open_store
from tests.attack.memory import Memory
from tests.attack.test_web_floods import SEED, WAIT_S, process, until
from tests.ports import free_ports
from tests.unit.store_fixtures import sync

pytestmark = pytest.mark.process
ENTRIES: Final = 20  # of a mebibyte each: two answers and a half
BODY_BYTES: Final = 1 << 20
# 64 MiB wait to be taken; the rest is what is being read and packed, each of that in a few forms at once.
MEMORY_MIB: Final = 360


def a_log(folder: Path, chosen: random.Random) -> None:
    """Bodies that are text, none, or much JSON in few bytes."""
    set_to = {"node.id": "n0", "node.init": True, "peers": "n0-127.0.0.1:1", "node.data": str(folder)}
    store = open_store(load(set_to, environ={}))
    try:
        for _ in range(ENTRIES):
            piece = chosen.choice([b"x", b"[],", b"1,", b'{"a":{}},'])
            filled = piece * ((BODY_BYTES - 3) // len(piece))
            body = b"[" + filled + b"0]" if piece != b"x" else filled
            store.append_as_leader([body if chosen.random() < 0.9 else os.urandom(BODY_BYTES)], 1)
        sync(store)
    finally:
        store.close()


def asked(chosen: random.Random) -> str:
    form = chosen.choice(["text", "json", "hex", "hex", "base64"])
    begin, limit, one = chosen.randrange(ENTRIES // 2), chosen.randrange(8, 1001), chosen.randrange(ENTRIES)
    segment = f"/api/v1/segments/data/{0:020}"
    page, entry = f"entries?view=raw&as={form}&from={begin}&limit={limit}", f"entries/{one}?view=raw&as={form}"
    return chosen.choice([f"/api/v1/{page}", segment, segment, f"/api/v1/{entry}"])


@pytest.mark.parametrize("scheme", ["http", pytest.param("https", marks=pytest.mark.long)])
def test_long_answers_that_nobody_takes_take_bounded_memory_and_keep_nobody_out(tmp_path: Path, scheme: str) -> None:
    """100 of them took a gigabyte."""
    print(f"ATTACK_SEED={SEED}")
    chosen = random.Random(f"{SEED} long answers")
    a_log(tmp_path, chosen)
    member, port = free_ports(2)
    flags = ["--id", "n0", "--group", "default", "--peers", f"n0-127.0.0.1:{member}", "--data", str(tmp_path)]
    tls: ssl.SSLContext | None = None
    if scheme == "https":
        assert quorumscope(["pki", "demo", str(tmp_path / "pki")]) == 0
        given = {"cert": "n0.crt", "key": "n0.key"}
        flags += [
            part for what, name in given.items() for part in ("--set", f"control.tls_{what}_file={tmp_path}/pki/{name}")
        ]
        tls = ssl.create_default_context(cafile=str(tmp_path / "pki" / "ca.crt"))
    with ExitStack() as stack:
        control = stack.enter_context(process("node.control", *flags, "--control", f"127.0.0.1:{port}"))
        url = f"{scheme}://127.0.0.1:{port}"
        get = partial(httpx2.get, timeout=WAIT_S, trust_env=False, verify=tls or True)

        def healthy() -> bool:
            with suppress(httpx2.HTTPError):
                return bool(get(f"{url}/healthz").status_code == 200)
            return False

        until(healthy)
        first = get(f"{url}/api/v1/entries?view=raw&limit=1")
        assert len(first.content) > BODY_BYTES
        count = chosen.randrange(70, 100)
        with Memory(control.pid) as memory:
            for number in range(count):
                one = stack.enter_context(socket.socket())
                one.settimeout(WAIT_S)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                one.connect(("127.0.0.1", port))
                if tls is not None:
                    one = stack.enter_context(tls.wrap_socket(one, server_hostname="127.0.0.1"))
                head = f"GET {asked(chosen)} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n\r\n".encode()
                one.sendall(head * chosen.choice([1, 1, 4]))
                if number % 10 == 0:
                    assert healthy()
            # Who takes the answer gets it whole, behind all of theirs.
            last = get(f"{url}/api/v1/entries?view=raw&as=hex&limit=3")
            assert last.status_code == 200 and len(last.json()["items"]) == 3
        print(f"{memory.most_mib:.0f} MiB more at most beside {count} connections")
        assert memory.most_mib < MEMORY_MIB
        assert healthy() and control.poll() is None
