"""An address that cannot be listened on: only a port that is taken stays so until somebody acts."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.broker.client_port import PortTaken, listen
from node.children import python
from node.control import __main__ as control
from node.down_reason import reason_left
from node.own_addresses import why_not_listening
from tests.unit.classic_kit import classic_settings

TAKEN = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
NOT_YET = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
UNKNOWN = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TAKEN, "n0:1 cannot be listened on (address already in use): end what uses that port,"
         " or give another in --peers"),
        (NOT_YET, "n0:1 cannot be listened on (cannot assign requested address): this machine has no such address yet;"
         " see to its network, or give another in --peers"),
        (UNKNOWN, "n0:1 cannot be listened on (temporary failure in name resolution): the host name cannot be resolved"
         " yet; see to its network, or give another in --peers"),
        (PermissionError(errno.EACCES, "Permission denied"),
         "n0:1 cannot be listened on (permission denied): give another in --peers"),
    ],
)  # fmt: skip
def test_what_to_do_is_said_by_what_is_wrong(error: OSError, said: str) -> None:
    assert why_not_listening("n0:1", error, "--peers") == said


def test_an_engine_whose_machine_has_not_its_address_yet_is_started_again(tmp_path: Path) -> None:
    """It ended with 69, and a node that came up before its network stayed down for good."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("x" * 32)
    done = subprocess.run(
        python("-m", "node.server", "--id", "n0", "--peers", "n0-192.0.2.1:20911", "--data", str(tmp_path / "n0"),
               "--secret-file", str(secret), "--init"),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    reason = reason_left(tmp_path / "n0") or ""
    assert done.returncode == 1 and reason.startswith("the engine ended with exit code 1: 192.0.2.1:20911 cannot be")


@pytest.mark.parametrize(("error", "raised"), [(TAKEN, PortTaken), (NOT_YET, OSError), (UNKNOWN, OSError)])
def test_a_broker_stays_down_over_a_port_that_is_taken_alone(
    tmp_path: Path, error: OSError, raised: type[Exception]
) -> None:
    async def opens(*_: Any, **__: Any) -> int:
        raise error

    settings = classic_settings(tmp_path, "m", "sync_master", {"m": 2})
    with pytest.raises(raised, match=r"127.0.0.1:1 cannot be listened on .* in --broker"):
        asyncio.run(listen(SimpleNamespace(open=opens), settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "code"), [(TAKEN, 69), (NOT_YET, 1), (UNKNOWN, 1)])
def test_a_control_plane_stays_down_over_a_port_that_is_taken_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, code: int
) -> None:
    said: list[str] = []

    def bind(_address: str) -> socket.socket:
        raise error

    log = SimpleNamespace(take_over=lambda: None, last_word=lambda text, **_: said.append(text), close=lambda: None)
    monkeypatch.setattr(control, "bind", bind)
    monkeypatch.setattr(control, "Log", lambda *_, **__: log)
    settings = classic_settings(tmp_path, "m", "sync_master", {"m": 2})
    assert control.serve(settings) == code
    assert (
        said[0].startswith(f"node.control: {settings.control.address} cannot be listened on") and "--control" in said[0]
    )
