"""A classic broker's commit log over REST: what audits read, what is refused, and who keeps files meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.broker.classic.pins import PINS_MAX, Pins
from node.broker.classic.retention import Retention
from node.broker.introspection import PIN
from node.config import Settings
from node.control.app import create_app
from node.message_store.local_recovery import file_name
from node.message_store.log_span import span_of
from node.rocketmq.codes import Answer
from tests.unit.classic_kit import Served, classic, classic_settings, pair_ports, story, two
from tests.unit.engine_kit import until
from tests.unit.test_classic_retention import AT_FOUR_S, filled, rule


@asynccontextmanager
async def rest_of(settings: Settings) -> AsyncGenerator[httpx2.AsyncClient, None]:
    transport = httpx2.ASGITransport(app=create_app(settings), client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431/api/v1/ha") as rest:
        yield rest


async def whole(rest: httpx2.AsyncClient, said: dict[str, Any], piece_bytes: int = 50_000) -> bytes:
    """All of a log, in ranges."""
    found = bytearray()
    for start in said["files"]:
        upto, at = min(said["end_offset"], start + said["file_bytes"]) - start, 0
        while at < upto:
            headers = {"range": f"bytes={at}-{at + piece_bytes - 1}", "if-match": f'"{said["version"]}"'}
            got = await rest.get(f"/log/{start:020d}", headers=headers)
            assert got.status_code == 206 and 0 < len(got.content) <= piece_bytes, got.text
            found += got.content
            at += len(got.content)
    return bytes(found)


@story
async def test_both_ends_of_a_pair_give_the_same_bytes(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave), master.client() as client:
        for number in range(9):
            [answer] = await client.send(bytes([number]) * 20_000)
            assert answer.code == Answer.SUCCESS
        end = master.broker.store.log.max_offset
        await until(lambda: slave.broker.store.log.max_offset == end)
        found = []
        for one in (slave, master):
            async with rest_of(one.broker.settings) as rest:
                said = (await rest.get("/log")).json()
                assert (said["self_id"], said["begin_offset"], said["end_offset"]) == (
                    one.broker.settings.node.id, 0, end,
                )  # fmt: skip
                assert said["files"] == one.broker.store.log.starts and len(said["files"]) > 2
                found.append((await whole(rest, said), said["pair"], said["epochs"], said["is_master"]))
        log = master.broker.store.log
        on_disk = b"".join((log.root / "commitlog" / file_name(start)).read_bytes() for start in log.starts)[:end]
        assert found[0][0] == found[1][0] == on_disk
        assert found[0][1:3] == found[1][1:3] and found[0][1]
        assert [one[3] for one in found] == [False, True]


@story
async def test_a_range_of_before_a_cut_or_a_restart_is_refused(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with rest_of(settings) as rest:
        async with classic(settings) as master, master.client() as client:
            for number in range(3):
                await client.send(bytes([number]) * 100)
            log = master.broker.store.log
            await until(lambda: log.flushed_offset == log.max_offset)
            before = (await rest.get("/log")).json()
            tag = {"if-match": f'"{before["version"]}"'}
            assert (await rest.get(f"/log/{0:020d}", headers=tag)).status_code == 200
            log.cut(log.last_record.offset)
            refused = await rest.get(f"/log/{0:020d}", headers=tag)
            assert (refused.status_code, refused.json()["title"]) == (412, "Changed")
            after = (await rest.get("/log")).json()
            assert after["end_offset"] < before["end_offset"] and after["version"] != before["version"]
        down = (await rest.get("/log")).json()
        assert (down["version"], down["is_master"], down["end_offset"]) == ("down", None, after["end_offset"])
        got = await rest.get(f"/log/{0:020d}", headers={"if-match": '"down"'})
        assert (
            got.content[: after["end_offset"]]
            == (tmp_path / f"m/commitlog/{0:020d}").read_bytes()[: after["end_offset"]]
        )
        async with classic(settings):
            assert (await rest.get(f"/log/{0:020d}", headers={"if-match": '"down"'})).status_code == 412
            assert (await rest.get("/log")).json()["version"] not in (before["version"], after["version"])


@story
async def test_what_is_no_range_of_the_log_is_refused_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with rest_of(settings) as rest:
        assert (await rest.get("/log")).status_code == 503
        async with classic(settings) as master, master.client() as client:
            await filled(master, client)
            end = master.broker.store.log.max_offset
            last = master.broker.store.log.starts[-1]
            for asked in (f"bytes={end - last}-", "bytes=5-1", "bytes=-0", "bytes=0-1,3-4"):
                got = await rest.get(f"/log/{last:020d}", headers={"range": asked})
                assert (got.status_code, got.headers["content-range"]) == (416, f"bytes */{end - last}"), asked
            for other in ({}, {"range": "items=0-1"}):  # another unit counts for nothing (RFC 9110, 14.2)
                got = await rest.get(f"/log/{last:020d}", headers=other)
                assert (got.status_code, len(got.content)) == (
                    200,
                    end - last,
                )  # never behind the end, though the file goes on
            for name in (f"{7:020d}", f"{1 << 40:020d}"):
                assert (await rest.get(f"/log/{name}")).status_code == 404
            for name in ("..%2f..%2fm", "0", "x" * 20):
                assert (await rest.get(f"/log/{name}")).status_code in (400, 404, 422), name
            await until(lambda: master.broker.store.log.flushed_offset == end)
            assert await rule(master, monkeypatch).look(AT_FOUR_S)
            assert (await rest.get(f"/log/{0:020d}")).status_code == 410


def kept(served: Served, monkeypatch: pytest.MonkeyPatch, used: float = 0.1) -> Retention:
    """The rules of retention, heeding what the broker heeds."""
    found = rule(served, monkeypatch, used)
    found._kept_from = served.broker._needed_from
    return found


@story
async def test_a_pin_keeps_files_until_it_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client, rest_of(settings) as rest:
        starts = await filled(master, client)
        log = master.broker.store.log
        await until(lambda: log.flushed_offset == log.max_offset)
        got = await rest.put("/pins/audit-1", json={"from_offset": starts[1], "for_s": 900})
        assert got.json() == {"owner": "audit-1", "from_offset": starts[1], "expires_in_s": 900}
        [held] = (await rest.get("http://127.0.0.1:8431/api/v1/ha")).json()["pins"]
        assert (held["owner"], held["from_offset"]) == ("audit-1", starts[1]) and 0 < held["expires_in_ms"] <= 900_000
        assert await kept(master, monkeypatch).look(AT_FOUR_S) == 1
        assert log.min_offset == starts[1]
        got = await rest.put("/pins/audit-2", json={"from_offset": 0, "for_s": 900})
        assert (got.status_code, got.json()["title"]) == (410, "Removed")
        assert (await rest.delete("/pins/audit-1")).status_code == 204
        assert (await rest.delete("/pins/audit-1")).status_code == 204
        assert (await rest.get("http://127.0.0.1:8431/api/v1/ha")).json()["pins"] == []
        assert await kept(master, monkeypatch).look(AT_FOUR_S) == len(starts) - 3
        for body in ({"from_offset": -1, "for_s": 1}, {"from_offset": 1, "for_s": 86_401}, {"from_offset": 1}):
            assert (await rest.put("/pins/audit-1", json=body)).status_code == 422


@story
async def test_pins_are_given_to_the_own_control_plane_and_bounded(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client, rest_of(settings) as rest:
        for body in (
            b"",
            b"[]",
            b'{"key": 1}',
            json.dumps({"key": "x", "owner": "o", "from_offset": 0, "for_s": 9}).encode(),
        ):
            [answer] = await client.ask((PIN, {}, body))
            assert answer.code in (Answer.SYSTEM_ERROR, Answer.NO_PERMISSION)
        assert master.broker._pins.as_said() == []
        for number in range(PINS_MAX):
            assert master.broker._pins.keep(f"o{number}", number, 60)
        got = await rest.put("/pins/one-more", json={"from_offset": 0, "for_s": 1})
        assert (got.status_code, "pins are held already" in got.text) == (503, True)
        assert (await rest.put("/pins/o3", json={"from_offset": 0, "for_s": 1})).status_code == 200
    async with rest_of(settings) as rest:
        assert (await rest.put("/pins/late", json={"from_offset": 0, "for_s": 1})).status_code == 503


def test_a_pin_ends_by_itself() -> None:
    now = [1000]
    pins = Pins(lambda: now[0])
    assert pins.keep("a", 70, 10) and pins.keep("b", 50, 5) and pins.lowest() == 50
    now[0] += 5000
    assert pins.lowest() == 70 and [one["owner"] for one in pins.as_said()] == ["a"]
    now[0] += 5000
    assert pins.lowest() is None


@story
async def test_the_files_say_the_same_as_the_broker_did(tmp_path: Path) -> None:
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m"))
    async with classic(settings) as master, master.client() as client:
        await filled(master, client, 5)
        log = master.broker.store.log
        said = log.min_offset, log.max_offset, log.file_bytes, tuple(log.starts)
    found = await asyncio.to_thread(span_of, settings.node.data)
    assert (found.begin, found.end, found.file_bytes, found.starts) == said
