"""`transfer`: whom the group knows is the leader's to say, not the list of members that the client was given."""

from __future__ import annotations

from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit
from app.commands.targets import Target
from node.protocol.codes import ResponseCode

PEERS = ["--peers", "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3", "--group", "g"]


class Leader:
    """Knows n3, which came later; every call is kept."""

    def __init__(self) -> None:
        self.asked: list[str | None] = []

    async def transfer(self, to: str | None, **_more: Any) -> dict[str, Any]:
        self.asked.append(to)
        if to not in ("n0", "n1", "n2", "n3"):
            code = int(ResponseCode.UNKNOWN_MEMBER)
            return {"code": code, "leaderId": "n0", "term": 2, "transfereeId": to, "detail": f"{to} is not a member"}
        return {"code": 200, "leaderId": to, "term": 3, "transfereeId": to, "detail": None}

    async def close(self) -> None:
        pass


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    found = Leader()
    monkeypatch.setattr(Target, "client", lambda self, *_args, **_more: found)
    return found


def test_a_member_that_came_later_is_asked_for(leader: Leader, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "n3", *PEERS]) == Exit.FINE
    assert leader.asked == ["n3"] and "moved: n3 leads in term 3" in capsys.readouterr().out


def test_who_is_no_member_is_a_usage_error_that_says_where_they_are_named(
    leader: Leader, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transfer", "n9", *PEERS]) == Exit.USAGE
    said = capsys.readouterr().err
    assert "n9 is no member of g" in said and "quorumscope members list" in said and leader.asked == ["n9"]


def test_the_loss_of_data_is_accepted_for_named_members_only(
    leader: Leader, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plain DLedger group never changes its members, and nobody knows what its leader does with another name."""
    assert run(["transfer", "n9", "--accept-data-loss", "n9", "--if-term", "7", *PEERS]) == Exit.USAGE
    assert not leader.asked and "known: n0, n1, n2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "ends", "said"),
    [
        (ResponseCode.TIMEOUT, Exit.UNKNOWN_OUTCOME, "not known whether it moved: nobody known leads"),
        (ResponseCode.TAKE_LEADERSHIP_FAILED, Exit.FINDING, "not moved: nobody known leads"),
    ],
)
def test_where_nobody_is_heard_of_in_time_it_may_have_moved(
    leader: Leader, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: ResponseCode, ends: Exit,
    said: str,
) -> None:  # fmt: skip
    """The leader gave its order and stepped down: that was "not moved"."""

    async def transfer(to: str | None, **_more: Any) -> dict[str, Any]:
        return {"code": int(code), "leaderId": None, "term": 3, "transfereeId": to, "detail": "nobody leads yet"}

    monkeypatch.setattr(leader, "transfer", transfer)
    assert run(["transfer", "n1", *PEERS]) == ends
    assert said in capsys.readouterr().out
