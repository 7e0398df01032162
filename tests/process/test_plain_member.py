"""A voter that speaks plain DLedger: our engine refuses to take part in such a group, and says so (SAFETY C8)."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from node.protocol.codes import RemotingCode
from node.transport.remoting import FLAG_RESPONSE, Frame, encode_frame
from tests.conftest import free_ports

pytestmark = pytest.mark.process
UNSUPPORTED_TEXT = "request type 52000 not supported"


def answer_like_dledger(listener: socket.socket) -> None:
    """To every first frame: REQUEST_CODE_NOT_SUPPORTED, as the Java node does with a HELLO."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            length = int.from_bytes(connection.recv(4), "big")
            received = b""
            while len(received) < length and (part := connection.recv(length - len(received))):
                received += part
            header_bytes = int.from_bytes(received[1:4], "big")
            opaque = json.loads(received[4 : 4 + header_bytes])["opaque"]
            refused = Frame(RemotingCode.REQUEST_CODE_NOT_SUPPORTED, opaque, b"", FLAG_RESPONSE, UNSUPPORTED_TEXT)
            connection.sendall(encode_frame(refused))
            connection.recv(1)


def test_a_group_with_a_plain_voter_is_refused(tmp_path: Path) -> None:
    own, plain = free_ports(2)
    with socket.create_server(("127.0.0.1", plain)) as listener:
        threading.Thread(target=answer_like_dledger, args=(listener,), daemon=True).start()
        peers = f"n0-127.0.0.1:{own};n1-127.0.0.1:{plain}"
        command = [sys.executable, "-m", "node.server", "--id", "n0", "--group", "g", "--peers", peers]
        engine = subprocess.run(
            [*command, "--data", str(tmp_path), "--init"], capture_output=True, text=True, timeout=30, check=False
        )
    assert engine.returncode == 3, engine.stderr
    said = engine.stderr.strip().splitlines()[-1]
    assert "n1" in said and "DLedger" in said
    assert "n1" in json.loads((tmp_path / "engine-refused.json").read_text())["reason"]
