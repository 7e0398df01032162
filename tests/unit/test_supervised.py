"""A supervisor is asked by signals, which end whoever does not take them."""

from __future__ import annotations

import os

import pytest

from node import supervised
from node.supervised import BROKER_AGAIN, START_AGAIN, ask_for_another_broker, ask_for_another_engine


def test_only_a_supervisor_that_says_that_it_takes_a_signal_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the release before starts a control plane of this one, where the files were replaced below it."""
    sent: list[tuple[int, int]] = []
    parent = os.getppid()
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    for name in [one for one in os.environ if one.startswith("NODE_SUPERVISOR")]:
        monkeypatch.delenv(name)
    assert not ask_for_another_engine() and not ask_for_another_broker()
    monkeypatch.setenv("NODE_SUPERVISOR_PID", str(parent))
    assert ask_for_another_engine() and not ask_for_another_broker()
    assert sent == [(parent, START_AGAIN)]
    monkeypatch.setattr(os, "getpid", lambda: parent)
    monkeypatch.setenv("NODE_SUPERVISOR_TAKES_BROKER_AGAIN", "")
    supervised.supervise_children()
    assert ask_for_another_engine() and ask_for_another_broker() and sent[1:] == [
        (parent, START_AGAIN), (parent, BROKER_AGAIN),
    ]  # fmt: skip
