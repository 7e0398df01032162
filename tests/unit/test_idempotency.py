"""An Idempotency-Key stands for one caller's one call: any other body or kind is 422."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.responses import Response

from node.control.operations import Operations, located
from node.control.problems import Problem
from tests.unit.console_kit import Person, run, running

KEY = {"idempotency-key": "one-key"}
TRANSFER = "/api/v1/clusters/demo/leadership-transfer"


async def transferred(person: Person) -> httpx2.Response:
    """A transfer that was taken: a busy machine's view of the group may be a little old, and then it is refused."""
    async with asyncio.timeout(60):
        while True:
            answer = await person.change("POST", TRANSFER, json={"to": "n1"}, headers=KEY)
            if answer.status_code != 409:
                assert answer.status_code == 202, answer.text
                return answer
            await asyncio.sleep(0.05)


def test_the_same_call_finds_the_first_operation_and_another_one_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, bea = await kit.person("ann"), await kit.person("bea", "operator")
            kit.group.operation_steps = 1000
            first = await transferred(ann)
            again = await ann.change("POST", TRANSFER, json={"to": "n1"}, headers=KEY)
            assert again.status_code == 202 and again.json()["id"] == first.json()["id"]
            other_body = await ann.change("POST", TRANSFER, json={"to": "n2"}, headers=KEY)
            other_kind = await ann.change("POST", "/api/v1/clusters/demo/nodes/n1/repair", json={}, headers=KEY)
            audit = await ann.change("POST", "/api/v1/audits", json={"cluster": "demo"}, headers=KEY)
            for answer in (other_body, other_kind, audit):
                assert answer.status_code == 422 and answer.headers["content-type"] == "application/problem+json"
                assert answer.json()["title"] == "Key used already"
            theirs = await transferred(bea)
            assert theirs.json()["id"] != first.json()["id"], "never somebody else's"
            kit.group.lead("n1")
            await kit.until(lambda: kit.console.group_view("demo").leader_id == "n1")
            done = await ann.change("POST", TRANSFER, json={"to": "n1"}, headers=KEY)
            assert done.json()["id"] == first.json()["id"], "also once it leads, where a new call would be refused"

    run(work())


def test_a_new_user_of_an_old_name_does_not_inherit_keys(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            boss, bea = await kit.person("boss"), await kit.person("bea", "operator")
            await kit.person("filler", "viewer")  # so that the next user's number is a new one
            await transferred(bea)
            assert (await boss.change("DELETE", "/api/v1/users/bea")).status_code == 204
            bea = await kit.person("bea", "operator")
            assert (await bea.change("POST", TRANSFER, json={"to": "n1"}, headers=KEY)).status_code == 422

    run(work())


def test_a_node_s_own_operations_hold_a_key_to_its_call() -> None:
    async def work() -> None:
        operations = Operations()

        async def done() -> dict[str, Any]:
            return {"state": "done"}

        first = operations.start("scrub", "k", {"if_term": 1}, "", done)
        assert operations.start("scrub", "k", {"if_term": 1}, "", done) is first
        for kind, asked in (("scrub", {"if_term": 2}), ("repair", {"if_term": 1})):
            with pytest.raises(Problem) as caught:
                operations.start(kind, "k", asked, "", done)
            assert caught.value.status == 422
        assert operations.earlier("scrub", None, {}) is None
        await asyncio.sleep(0)
        await operations.close()

    run(work())


def test_a_repeated_call_says_where_its_operation_is() -> None:
    response = Response()
    assert located(response, {"id": "one"}) == {"id": "one"}
    assert response.headers["location"] == "/api/v1/operations/one"
