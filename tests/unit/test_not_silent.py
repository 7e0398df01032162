"""A control plane that answers, and tells no state: it is not called silent, and nothing that runs is to be started."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.health.group_view import Problem
from app.why_unreached import why_unreached
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup

pytestmark = pytest.mark.usefixtures("samples_stay_new")
ASKED = "http://127.0.0.1:8433"


class Guarded(FakeGroup):
    """`n2` answers as it is told, whatever it is asked."""

    says: tuple[int, Any] | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.says is not None and str(request.url).startswith(self.nodes["n2"].url):
            status, said = self.says
            return httpx2.Response(status, json=said, request=request)
        return await super().handle_async_request(request)


def told(tmp_path: Path, status: int, said: Any, check: Callable[[Problem], None]) -> None:
    group = Guarded()

    async def work() -> None:
        async with running(tmp_path, group) as kit:
            await kit.watched()
            group.says = status, said
            found = await kit.until(lambda: problems_of(kit, "n2"))
            assert [one.code for one in found] == ["replica_silent"]
            check(found[0])

    run(work())


def problems_of(kit: Kit, node_id: str) -> list[Problem]:
    return [one for one in kit.console.watches["demo"].view.problems if one.node_id == node_id]


def test_one_that_asks_for_another_token_is_not_to_be_started(tmp_path: Path) -> None:
    def check(one: Problem) -> None:
        assert one.text.startswith("n2 refuses to say how it is (the token is not the one of this node)")
        assert "refuses the token" in one.means and "[console] node_token_file" in one.step
        assert one.command == f"quorumscope status --node {ASKED}"
        assert one.curl == f'curl -s -H "Authorization: Bearer $QUORUMSCOPE_TOKEN" {ASKED}/api/v1/state'

    refusal = {"title": "Unauthorized", "detail": "the token is not the one of this node"}
    told(tmp_path, 401, refusal, check)


@pytest.mark.parametrize(
    ("status", "said"),
    [(200, {"role": 7}), (200, ["a list"]), (500, {"detail": "it broke"}), (404, {}), (302, {})],
)
def test_one_that_answers_nonsense_is_not_called_silent(tmp_path: Path, status: int, said: Any) -> None:
    def check(one: Problem) -> None:
        assert one.text.startswith("n2 says nothing that can be read (") and "silent" not in one.text
        assert "something answers at http://127.0.0.1:8433" in one.means
        assert one.command == f"quorumscope status --node {ASKED}", "and nothing is to be started"

    told(tmp_path, status, said, check)


def failure(*causes: BaseException) -> BaseException:
    """The first one, because of the second, and so on."""
    for error, cause in pairwise(causes):
        error.__cause__ = cause
    return causes[0]


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ((RuntimeError("all attempts failed"), OSError("all"), ConnectionRefusedError(111, "x")), "connection refused"),
        ((RuntimeError("x"), BaseExceptionGroup("both", [OSError(113, "x"), OSError(111, "y")])), "no route to host"),
        ((RuntimeError("[Errno -2] x"), OSError(-2, "Name or service not known")), "name or service not known"),
        ((RuntimeError("the server went away"),), "the server went away"),
        ((RuntimeError(),), "RuntimeError"),
    ],
)
def test_why_a_connection_failed_is_said_by_the_system(causes: tuple[BaseException, ...], said: str) -> None:
    assert why_unreached(failure(*causes)) == said
