"""`/metrics` of a broker in classic mode: what it says of its pair, nothing unknown as 0."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2

from node.control.app import create_app
from node.control.ha_metrics import CODES, exposition
from node.rocketmq.codes import Answer
from node.views.ha import HaView
from tests.unit.classic_kit import classic, classic_settings, pair_ports, story, two
from tests.unit.engine_kit import until
from tests.unit.fake_pair import FakePair, connection
from tests.unit.pair_states import behind, broker_down, forked, log_broken, sends_wait, too_few

LINE = re.compile(r"^quorumscope_ha_(\w+)(?:\{\w+=\"([^\"]*)\"\})? (\S+)$", re.MULTILINE)


def gauges(text: str) -> dict[str, float]:
    """By `name` or `name label`; a series that comes twice is refused, as Prometheus does."""
    found = [(f"{name} {label}".strip(), float(value)) for name, label, value in LINE.findall(text)]
    assert len(found) == len(dict(found)), "a series comes twice"
    return dict(found)


def said_by(pair: FakePair, name: str) -> dict[str, float]:
    return gauges(exposition(HaView.model_validate(pair.ha[name]), None))


def test_a_master_says_how_far_its_slaves_are() -> None:
    pair = FakePair()
    behind(pair)
    sends_wait(pair)
    pair.ha["m"]["so_far"] = {"flush_slave_timeout": 4, "slave_not_available": 3, "slaves_refused": 2}
    found = said_by(pair, "m")
    assert found["role SYNC_MASTER"] == found["takes_messages"] == found["broker ok"] == 1
    assert (found["epoch"], found["end_offset"], found["flushed_offset"]) == (2, 81_920, 81_920)
    assert (found["slave_acked_offset s1"], found["slave_lag_bytes s1"], found["slave_lag_seconds s1"]) == (
        10_000, 71_920, 9,
    )  # fmt: skip
    assert (found["slave_lag_bytes s2"], found["slave_served s2"]) == (0, 1)
    assert (found["sends_waiting"], found["sends_waiting_oldest_seconds"]) == (3, 2.1)
    assert (found["sends_not_on_slaves FLUSH_SLAVE_TIMEOUT"], found["slaves_refused"]) == (4, 2)
    assert not {name for name in found if name.startswith(("served", "stand", "behind", "fenced"))}


def test_a_slave_says_what_its_master_made_of_it() -> None:
    pair = FakePair()
    assert (said_by(pair, "s1")["served"], said_by(pair, "s1")["stand in_step"]) == (1, 1)
    forked(pair)
    found = said_by(pair, "s1")
    assert (found["served"], found["stand forked"], found["stand in_step"]) == (0, 1, 0)
    assert not {name for name in found if name.startswith(("slave_", "sends_"))}
    assert said_by(pair, "m")["problems slave_not_served"] == 1


def test_each_problem_has_its_series_also_while_nothing_is_wrong() -> None:
    pair = FakePair()
    quiet = said_by(pair, "m")
    assert {name: quiet[f"problems {name}"] for name in CODES} == dict.fromkeys(CODES, 0)
    too_few(pair)
    assert said_by(pair, "m")["problems too_few_slaves"] == 1
    log_broken(pair)
    pair.ha["m"]["problems"].append({"code": "log_broken", "about": "", "text": "no space"})
    assert said_by(pair, "m")["problems log_broken"] == 1


def test_nothing_unknown_is_said() -> None:
    pair = FakePair()
    broker_down(pair)
    assert said_by(pair, "s2") == {"broker ok": 0, "broker down": 1}
    pair.ha["m"]["connections"] = [connection("s1", acked_offset=None, lag_bytes=None, lag_ms=None)]
    found = said_by(pair, "m")
    assert "slave_served s1" in found and "slave_acked_offset s1" not in found and "slave_lag_seconds s1" not in found


def test_who_only_asks_is_no_slave_and_a_slave_comes_once() -> None:
    pair = FakePair()
    asks = connection("s1", peer_id=None, kind="unknown", state="asked", address="10.0.0.9:50001")
    closing = connection("s1", state="closed", acked_offset=5)
    pair.ha["m"]["connections"] = [asks, closing, connection("s1"), closing]
    found = said_by(pair, "m")
    assert {name for name in found if name.startswith("slave_served")} == {"slave_served s1"}
    assert (found["slave_served s1"], found["slave_acked_offset s1"]) == (1, 81_920)


@story
async def test_running_brokers_answer_and_count_what_slaves_did_not_get(tmp_path: Path) -> None:
    ports = pair_ports("m", "s")
    settings = classic_settings(tmp_path, "m", "sync_master", ports)
    transport = httpx2.ASGITransport(app=create_app(settings), client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431") as rest:
        assert gauges((await rest.get("/metrics")).text) == {"broker ok": 0, "broker down": 1}
        async with classic(settings) as master, master.client() as client:
            [answer] = await client.send(b"alone")
            assert answer.code == Answer.SLAVE_NOT_AVAILABLE
            answered = await rest.get("/metrics")
            assert answered.status_code == 200 and answered.headers["content-type"].startswith("text/plain")
            found = gauges(answered.text)
            assert found["sends_not_on_slaves SLAVE_NOT_AVAILABLE"] == found["problems too_few_slaves"] == 1
            assert 'quorumscope_broker_role{role="MASTER"} 1.0' in answered.text
            assert "dispatch_behind_entries" not in answered.text, "what it dispatches are bytes"


@story
async def test_both_ends_of_a_pair_say_the_same_place(tmp_path: Path) -> None:
    async with two(tmp_path) as (master, slave), master.client() as client:
        [answer] = await client.send(b"kept by both")
        assert answer.code == Answer.SUCCESS
        end = master.broker.store.log.max_offset
        await until(lambda: slave.broker.store.end_position == end)
        found = []
        for one in (master, slave):
            transport = httpx2.ASGITransport(app=create_app(one.broker.settings), client=("127.0.0.1", 1))
            async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8431") as rest:
                found.append(gauges((await rest.get("/metrics")).text))
    assert found[0]["slave_acked_offset s"] == found[0]["end_offset"] == found[1]["end_offset"] == end
    assert (found[1]["served"], found[1]["behind_bytes"], found[0]["slave_lag_bytes s"]) == (1, 0, 0)
