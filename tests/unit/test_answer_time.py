"""An answer whose head never ends, a line of it now and then, holds no command and no audit for ever."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from app.audit import replicas
from app.audit.replicas import ControlPlane, ReplicaSpec
from app.commands import control_calls
from app.commands.control_calls import control_call
from app.commands.endings import Exit, Failure
from app.commands.ha_promote import promote


@pytest.fixture
def dripping() -> Iterator[str]:
    """The address of a control plane that sends headers for as long as somebody reads them."""
    ends = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ends.wait(0.02):
                connection.sendall(b"x: y\r\n")

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        ends.set()
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


@pytest.mark.parametrize(("method", "code"), [("GET", Exit.UNREACHABLE), ("POST", Exit.UNKNOWN_OUTCOME)])
def test_a_head_without_end_ends_a_command(
    method: str, code: Exit, dripping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_calls, "CONTROL_ANSWER_S", 0.5 - control_calls.HTTP_TIMEOUT_S)
    monkeypatch.setattr(control_calls, "CHANGE_TIMEOUT_S", control_calls.HTTP_TIMEOUT_S)
    with pytest.raises(Failure, match="did not end its answer") as failed:
        control_call(method, dripping, "state", None)
    assert failed.value.code == code


def test_a_head_without_end_ends_an_audits_question(dripping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a back-up's; a head that was cut is no answer, though `http.client` takes its end for the head's."""
    monkeypatch.setattr(replicas, "ANSWER_S", 0.5)
    plane = ControlPlane(ReplicaSpec("http", dripping))
    with pytest.raises(replicas.ReadFailed, match="no answer"):
        plane.get("/state")
    with pytest.raises(replicas.ReadFailed, match="did not end its answer"):
        plane.change("PUT", "/pins/one", {})


def test_a_promotion_asks_first_whether_anybody_answers(dripping: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the minute of a promotion, and a bit, before it said that nobody answers."""
    monkeypatch.setattr(control_calls, "CONTROL_ANSWER_S", 0.5 - control_calls.HTTP_TIMEOUT_S)
    with pytest.raises(Failure, match="cannot be reached: it did not end its answer within 0 s") as failed:
        promote(dripping, yes=True)
    assert failed.value.code == Exit.UNREACHABLE
