"""`members address`: a wrong one cuts a member off: it is said before the change, and after it what takes it back.

After each change what comes next is said: of a removal, that its process has to be ended."""

from __future__ import annotations

from typing import Any

import pytest

from app.commands import members as commands
from app.commands.endings import Exit
from app.commands.targets import Target
from node.protocol.codes import ResponseCode
from node.views.members import MembersView, MemberView
from node.views.state import StateView

TARGET = Target({"n0": "n0:1", "n1": "n1:1"}, "g")
LOST = "THE OTHERS LOSE n1 until it does, and it counts for no quorum"


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("n1", "it answers there"),
        (None, f"n1 does not answer there: {LOST}"),
        ("n2", f"n2 answers there, not n1: {LOST}"),
    ],
)
def test_who_answers_there_is_said_before_and_what_takes_it_back_after(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: str | None, says: str
) -> None:
    asked: list[dict[str, Any]] = []

    async def ask(_target: Target, fields: dict[str, Any]) -> dict[str, Any]:
        asked.append(fields)
        return {"code": int(ResponseCode.SUCCESS), "index": 7}

    async def ask_members(_target: Target) -> MembersView:
        return MembersView(items=(MemberView(id="n0", address="n0:1"), MemberView(id="n1", address="n1:1")))

    async def state_at(_target: Target, member_id: str, address: str) -> StateView | None:
        assert (member_id, address) == ("n1", "elsewhere:9")
        return None if there is None else StateView(engine="ok", self_id=there)

    monkeypatch.setattr(commands, "ask", ask)
    monkeypatch.setattr(commands, "ask_members", ask_members)
    monkeypatch.setattr(commands, "state_at", state_at)
    fields = {"kind": "address", "memberId": "n1", "address": "elsewhere:9"}
    assert commands.change(TARGET, fields, "move", True, False, None, False) == Exit.FINE
    out, err = capsys.readouterr()
    assert says in err
    assert out == "changed: entry 7 is committed; `quorumscope members address n1 n1:1` takes it back\n"
    assert [one.get("dryRun") for one in asked] == [True, None]
    assert commands.change(TARGET, fields, "move", False, True, None, True) == Exit.FINE
    assert f'"answers_there": {"null" if there is None else chr(34) + there + chr(34)}' in capsys.readouterr().out


def test_whoever_removes_a_member_reads_that_its_process_goes_on() -> None:
    """The console said it; the command line ended with "entry 7 is committed"."""
    said = commands.follows(TARGET.access, {"kind": "remove", "memberId": "n1"})
    assert said == "; end the process of n1 on its machine: it would go on running"
