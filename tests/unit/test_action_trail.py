"""What operators ask over the member port is in the node's trail: who, what, from where, by which token, and how it
went; and what cannot be recorded is not done."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from node.access_rows import rows_of
from node.engine import action_trail
from node.engine.access import Access
from node.engine.action_trail import ActionTrail
from node.engine.engine import Engine
from node.operator_trail import NAME, ROOM_BYTES, OperatorTrail, verify
from node.protocol.codes import RequestCode, ResponseCode, Role
from node.transport.bodies import dump
from node.transport.bodies import load as load_body
from tests.unit.test_engine_damage import ask, group, operator_action, run, stores_of, until

Json = dict[str, Any]
TOKEN = "0123456789abcdef-of-the-operator"


def said_in(path: Path) -> list[Json]:
    return [json.loads(json.loads(line)["content"]) for line in path.read_text().splitlines()]


def with_trail(engine: Engine, directory: Path) -> Path:
    engine.use_trail(ActionTrail(directory, asyncio.get_running_loop()))
    return directory / NAME


async def transfer(engine: Engine, **fields: Any) -> Json:
    fields = {"group": engine.settings.node.group, "remoteId": engine.settings.node.id, "term": -1, **fields}
    return dict(load_body(await ask(engine, RequestCode.LEADERSHIP_TRANSFER, dump(fields))).values)


def test_a_transfer_and_a_scrub_are_rows_with_who_asked_and_how_it_went(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, stores_of()) as engines:
            await until(lambda: any(one.replica.role is Role.LEADER for one in engines.values()))
            name, leader = next((n, one) for n, one in engines.items() if one.replica.role is Role.LEADER)
            path = with_trail(leader, tmp_path / name)
            rows = rows_of(("token /etc/ops.token = operate", "anonymous = append"))
            leader.client_requests.renew_access(Access("the node's own 0123456789", rows, [TOKEN]))
            refused = await operator_action(leader, what="scrub")
            assert refused["code"] == ResponseCode.UNEXPECTED_MEMBER and not path.exists()
            assert (await operator_action(leader, what="scrub", token=TOKEN))["code"] == 200
            odd = await operator_action(leader, what="dance", token=TOKEN)
            assert odd["code"] == ResponseCode.UNEXPECTED_ARGUMENT
            to = next(one for one in engines if one != name)
            answer = await transfer(leader, transfereeId=to, token=TOKEN, trailRow=7)
            await until(lambda: len(said_in(path)) == 6)
            assert TOKEN not in path.read_text()
            by_row: dict[int, list[Json]] = {}
            for one in said_in(path):
                by_row.setdefault(one["row"], []).append(one)
            scrub, dance, moved = by_row.values()
            assert all([begun["kind"], ended["kind"]] == ["begun", "ended"] for begun, ended in by_row.values())
            for begun, _ in by_row.values():
                assert begun["user_name"] == begun["credential"] == "token ops.token"
                assert begun["via"] == "member port" and begun["address"] == "127.0.0.1"
            assert [begun["target"] for begun, _ in by_row.values()] == ["scrub", "dance", "leadership-transfer"]
            assert scrub[1]["status"] == 200 and scrub[1]["detail"]["after"] == {"passNumber": 1}
            assert dance[1]["status"] == ResponseCode.UNEXPECTED_ARGUMENT
            assert moved[1]["status"] == answer["code"]
            asked = moved[1]["detail"]["asked"]
            assert asked["transfereeId"] == to and asked["trailRow"] == 7
            assert moved[1]["detail"]["before"]["leader_id"] == name
            done = verify(path)
            assert done.problems == [] and done.rows == 3

    run(work)


def test_what_cannot_be_recorded_is_not_done(tmp_path: Path) -> None:
    async def work() -> None:
        async with group(tmp_path, stores_of(1)) as engines:
            engine = engines["n0"]
            with_trail(engine, tmp_path / "n0").mkdir()  # no file can be there
            answer = await operator_action(engine, what="scrub")
            assert answer["code"] == ResponseCode.DISK_ERROR and "nothing was done" in answer["detail"]
            assert engine.duties.scrubber.view().running is None and engine.duties.scrubber.view().last is None

    run(work)


def test_what_waits_to_be_recorded_is_bounded(tmp_path: Path) -> None:
    async def work() -> None:
        trail = ActionTrail(tmp_path, asyncio.get_running_loop())
        told: list[tuple[int | None, str]] = []
        for _ in range(action_trail.WAITING_MAX + 5):
            trail.begin(lambda row, problem: told.append((row, problem)), target="scrub", user_name="-")
        assert len(told) == 5 and all(row is None and "try again" in problem for row, problem in told)
        await until(lambda: len(told) == action_trail.WAITING_MAX + 5)
        trail.close()
        assert sorted(row for row, _ in told if row is not None) == list(range(1, action_trail.WAITING_MAX + 1))
        assert verify(tmp_path / NAME).problems == []

    run(work)


def test_a_trail_has_room_of_its_own_before_the_disk_is_full(tmp_path: Path) -> None:
    """A leader whose disk was full handed leadership over to nobody: what an operator does then, and its broker."""
    trail, path = OperatorTrail(tmp_path / NAME), tmp_path / NAME
    trail.keep_room()
    room_bytes = path.stat().st_blocks * 512
    if not room_bytes:
        pytest.skip("this file system gives a file no room behind its end")
    assert path.stat().st_size == 0 and room_bytes >= ROOM_BYTES
    row = trail.begin(user_name="-", action="transfer")
    trail.end(row, 200)
    assert path.stat().st_blocks * 512 >= path.stat().st_size + ROOM_BYTES
    assert verify(path).problems == [] and len(said_in(path)) == 2
