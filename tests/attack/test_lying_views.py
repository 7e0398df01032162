"""A member that answers its console with far more than there can be: lists of tens of thousands, answers of megabytes.

Drawn from a seed (ATTACK_SEED has others drawn). The console compared each with each, several times a second, and
parsed 16 MiB for a second at a time: one member of one group had all of its loop. What it lies about counts as no
answer, or its beginning alone does; other members, and pages, are as before.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from app.console.nodes import BYTES_MAX, VIEW_BYTES_MAX
from app.console.sampler import EVENTS_LIMIT
from node.views.base import ALARMS_MAX, FAULTS_MAX, PEERS_MAX
from node.views.events import DETAIL_BYTES_MAX, EventsView
from node.views.state import StateView
from tests.attack.remoting_kit import drawn
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup, FakeNode

OTHER_PROBLEMS_MAX = 30


def many(one: dict[str, Any], name: str, rng: random.Random, least: int = PEERS_MAX) -> list[dict[str, Any]]:
    return [one | {name: f"x{number}"} for number in range(rng.randrange(least + 1, 6_000))]


def peers(node: FakeNode, rng: random.Random) -> tuple[str, Any]:
    named = {"id": "", "address": "10.0.0.1:1", "control_url": f"http://10.0.0.{rng.randrange(256)}:8431"}
    return "state", node.state() | {"peers": many(named, "id", rng)}


def links(node: FakeNode, rng: random.Random) -> tuple[str, Any]:
    return "state", node.state() | {"links": many({"last_heard_ms": 5}, "peer_id", rng)}


def watermarks(node: FakeNode, rng: random.Random) -> tuple[str, Any]:
    said = node.group.watermarks(node)
    return "watermarks", said | {"peers": many(said["peers"][1], "id", rng)}


def dispatchers(node: FakeNode, rng: random.Random) -> tuple[str, Any]:
    said = node.group.dispatchers(node)
    return "dispatchers", said | {"items": many(said["items"][0], "peer_id", rng)}


def nothing_at_all(node: FakeNode, rng: random.Random) -> tuple[str, Any]:
    """Parsed as it should be, and all of it in vain."""
    what = rng.choice(["state", "watermarks", "dispatchers", "closures"])
    sent = json.dumps(node.state() if what == "state" else {}).encode()
    junk = rng.choice([b"[]", b"0", b'""', b"{}"])
    count = BYTES_MAX.get(what, VIEW_BYTES_MAX) // (len(junk) + 1) + 1
    return what, sent[:-1] + (b"," if len(sent) > 2 else b"") + b'"junk":[' + b",".join([junk] * count) + b"]}"


async def refused(kit: Kit, node: FakeNode, what: str) -> None:
    sample = next(one for one in kit.console.watches["demo"].samples if one.node_id == node.id)
    await kit.until(lambda: sample.problem if what == "state" else sample.unanswered.get(what))
    why = sample.problem if what == "state" else sample.unanswered[what]
    assert why is not None and (" items" in why or "answered more than" in why), why


@pytest.mark.parametrize("lie", [peers, links, watermarks, dispatchers, nothing_at_all], ids=lambda lie: lie.__name__)
def test_more_than_there_can_be_is_no_answer(tmp_path: Path, lie: Any) -> None:
    rng = drawn(f"lies of {lie.__name__}")

    async def work() -> None:
        async with running(tmp_path, group := FakeGroup()) as kit:
            await kit.watched()
            leader = group.nodes["n0"]
            what, said = lie(leader, rng)
            leader.odd[what] = said
            await refused(kit, leader, what)
            ann = await kit.person()
            assert (await ann.get("/clusters/demo")).status_code == 200
            del leader.odd[what]
            await kit.until(lambda: kit.console.watches["demo"].view.leader_id == "n0")

    run(work())


def test_of_very_many_alarms_the_first_are_problems(tmp_path: Path) -> None:
    rng = drawn("alarms")

    async def work() -> None:
        async with running(tmp_path, group := FakeGroup()) as kit:
            await kit.watched()
            weighs = rng.choice(["critical", "warning", "info"])
            group.nodes["n1"].alarms = many({"severity": weighs, "text": "y" * 50}, "code", rng, ALARMS_MAX)
            watch = kit.console.watches["demo"]
            await kit.until(lambda: len(watch.view.problems) >= ALARMS_MAX)
            assert len(watch.view.problems) <= ALARMS_MAX + OTHER_PROBLEMS_MAX
            ann = await kit.person()
            assert (await ann.get("/clusters/demo")).status_code == 200

    run(work())


def test_a_log_that_is_damaged_all_over_fits_a_state() -> None:
    """The longest that is said of an entry: its index record is anything at all."""
    said = f"its index record says {(-(1 << 31), -(1 << 63), -(1 << 31), -(1 << 63), -(1 << 63))}"
    detail = f"{said}, the record {(1 << 30, 1 << 50, 1 << 22, 1 << 40, 1 << 20)}"
    fault = {"first_index": 1 << 40, "last_index": 1 << 40, "kind": "index_record_mismatch", "detail": detail}
    state = StateView.model_validate(FakeGroup().nodes["n0"].state() | {"faults": [fault] * (2 * FAULTS_MAX)})
    assert state.faults is not None and len(state.faults) == FAULTS_MAX
    assert len(json.dumps(state.model_dump())) < BYTES_MAX["state"]


def test_as_many_events_as_are_asked_for_fit_an_answer() -> None:
    """Where they did not, the console asked for the same ones again, and learned of no event any more."""
    long = {"id": "9089bc6c2133-12345678", "at": "2026-11-21T06:45:39.410Z", "kind": "k" * 40, "severity": "critical"}
    long |= {"detail": {"text": "x" * (DETAIL_BYTES_MAX - len('{"text": ""}'))}}
    answer = EventsView.model_validate({"engine": "ok", "items": [long] * EVENTS_LIMIT})
    assert answer.items is not None and len(str(answer.items[0].detail)) > DETAIL_BYTES_MAX - 20
    assert len(json.dumps(answer.model_dump())) < BYTES_MAX["events"]
