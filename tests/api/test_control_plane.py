"""The control planes of a real group, call by call as INTERFACES lays them down."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import signal
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from node.control.openapi import examples
from tests.api.group import Group, running_group, undisturbed

pytestmark = pytest.mark.process
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("group")) as running:
        yield running


@pytest.fixture
def leader(group: Group) -> str:
    return group.leader()


def append(group: Group, leader: str, *bodies: str) -> dict[str, Any]:
    answer = group.post(leader, "/api/v1/entries", json={"entries": list(bodies)})
    assert answer.status_code == 200, answer.text
    reported: dict[str, Any] = answer.json()
    return reported


@undisturbed
def test_what_it_is(group: Group, leader: str) -> None:
    about = group.get(leader, "/api/v1").json()
    assert about["kind"] == "node" and about["version"] and about["self_id"] == leader


@undisturbed
def test_state_names_everything(group: Group, leader: str) -> None:
    state = group.state(leader)
    wanted = "as_of engine boot_id group self_id role term leader_id voted_for transferee flush log peers disk alarms"
    assert {*wanted.split(), "version"} <= set(state)
    marks = "begin_index end_index end_term durable_index committed_index applied_index size_bytes committed_chain_crc"
    assert set(marks.split()) <= set(state["log"])
    assert {one["id"]: one["control_url"] for one in state["peers"]} == group.urls
    assert state["role"] == "LEADER" and state["engine"] == "ok" and state["flush"] == "sync"


@undisturbed
def test_followers_send_observers_to_the_leader(group: Group, leader: str) -> None:
    follower = next(one for one in group.ids if one != leader)
    marks = group.get(follower, "/api/v1/watermarks").json()
    assert marks["peers"] == [] and marks["reason"] and marks["leader_control_url"] == group.urls[leader]
    assert {one["id"] for one in group.get(leader, "/api/v1/watermarks").json()["peers"]} == set(group.ids)
    assert len(group.get(leader, "/api/v1/dispatchers").json()["items"]) == 2
    assert group.get(leader, "/api/v1/closures").json()["limit"] == 10_000


@undisturbed
def test_appends_and_reads_in_every_form(group: Group, leader: str) -> None:
    first = append(group, leader, "one", '{"two": 2}', "drei ü")["first_index"]
    odd = base64.b64encode(b"\xff\x00").decode()
    sent = group.post(leader, "/api/v1/entries", json={"entries": [odd], "as": "base64"})
    assert sent.json()["last_index"] == first + 3 and sent.json()["durable"] is True
    raw = {"content-type": "application/octet-stream"}
    assert group.post(leader, "/api/v1/entries", content=b"five", headers=raw).json()["first_index"] == first + 4

    def body(index: int, form: str) -> Any:
        return group.get(leader, f"/api/v1/entries/{index}?as={form}").json()["body"]

    assert body(first, "text") == "one" and body(first, "hex") == b"one".hex()
    assert body(first + 1, "json") == {"two": 2} and body(first + 2, "text") == "drei ü"
    assert body(first + 3, "base64") == odd
    lossless = group.get(leader, f"/api/v1/entries/{first + 3}?as=text").json()
    assert lossless["as"] == "base64" and lossless["body"] == odd and lossless["note"]
    page = group.get(leader, f"/api/v1/entries?from={first}&limit=2").json()
    assert [one["body"] for one in page["items"]] == ["one", '{"two": 2}'] and page["next"] == str(first + 2)
    for query in (f"cursor={page['next']}", f"from={first}&cursor={page['next']}"):
        following = group.get(leader, f"/api/v1/entries?{query}&limit=1").json()
        assert [one["index"] for one in following["items"]] == [first + 2], query
    assert group.get(leader, "/api/v1/entries?cursor=x").status_code == 422
    assert page["consistency"].startswith("stale")
    newest = group.get(leader, "/api/v1/entries?limit=1").json()
    assert newest["items"][0]["body"] == "five" and newest["next"] is None
    for node_id in group.ids:
        path = f"/api/v1/entries?from={first}&consistency=linearizable"
        found = group.get(node_id, path).json()
        assert found["consistency"] == "linearizable" and found["items"][0]["body"] == "one"


@undisturbed
def test_what_is_not_there_is_404_with_the_range(group: Group, leader: str) -> None:
    missing = group.get(leader, "/api/v1/entries/999999")
    assert missing.status_code == 404 and missing.json()["code"] == 410
    assert missing.headers["content-type"] == "application/problem+json"
    assert group.get(leader, f"/api/v1/entries/{1 << 70}").status_code == 422
    assert group.get(leader, "/api/v1/operations/none").status_code == 404
    assert "'/api/v1/nothing'" in group.get(leader, "/api/v1/nothing").json()["detail"]
    assert "takes GET" in group.post(leader, "/api/v1/state", json={}).json()["detail"]


@undisturbed
def test_an_append_elsewhere_is_421_and_names_the_leader(group: Group, leader: str) -> None:
    follower = next(one for one in group.ids if one != leader)
    sent = group.post(follower, "/api/v1/entries", json={"entries": ["x"]})
    reported = sent.json()
    assert sent.status_code == 421 and reported["outcome"] == "not_appended" and reported["code"] == 404
    assert (
        reported["leader_id"] == leader
        and reported["leader_api_url"] == group.urls[leader]
        and reported["leader_address"]
    )


@undisturbed
def test_expected_index_guards_an_append(group: Group, leader: str) -> None:
    end = append(group, leader, "x")["last_index"]
    stale = group.post(leader, "/api/v1/entries", json={"entries": ["y"], "expected_index": end})
    assert stale.status_code == 409 and stale.json()["code"] == 408 and stale.json()["outcome"] == "not_appended"
    assert stale.json()["end_index"] >= end, "where to look for what an append of unknown outcome became"
    exact = group.post(leader, "/api/v1/entries", json={"entries": ["y"], "expected_index": end + 1})
    assert exact.json()["first_index"] == end + 1


@pytest.mark.parametrize(
    "content",
    [b"{", b'{"entries":[]}', b'{"entries":[1]}', b'{"entries":["a"],"more":1}', b'{"entries":["?"],"as":"base64"}',
     b'{"entries":["\xff"]}', b'{"entries":["\\ud800"]}', b"[]"],
)  # fmt: skip
@undisturbed
def test_malformed_appends_are_refused_and_not_appended(group: Group, leader: str, content: bytes) -> None:
    before = group.state(leader)["log"]["end_index"]
    refused = group.post(leader, "/api/v1/entries", content=content, headers=JSON)
    assert refused.status_code == 422 and refused.json()["outcome"] == "not_appended"
    assert refused.json()["detail"][:1] != ":"
    assert group.state(leader)["log"]["end_index"] == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"sec-fetch-site": "cross-site"}, 403),
    ],
)
@undisturbed
def test_other_sites_cannot_write(group: Group, leader: str, headers: dict[str, str], status: int) -> None:
    sent = group.post(leader, "/api/v1/entries", content=b'{"entries":["x"]}', headers={**JSON, **headers})
    assert sent.status_code == status and sent.headers["x-content-type-options"] == "nosniff"


@undisturbed
def test_another_group_is_unknown(group: Group, leader: str) -> None:
    assert group.get(leader, "/api/v1/state?group=other").json()["code"] == 400
    assert group.get(leader, "/api/v1/state?group=api").status_code == 200


@undisturbed
def test_segments_by_range_up_to_the_durable_end(group: Group, leader: str) -> None:
    last = append(group, leader, "segment body")["last_index"]
    # The quorum may be the two others: the leader's own disk then comes a little later.
    group.until(lambda: group.state(leader)["log"]["durable_index"] >= last)
    state = group.state(leader)
    items = group.get(leader, "/api/v1/segments").json()["items"]
    data = next(one for one in items if one["kind"] == "data")
    path = f"/api/v1/segments/data/{data['name']}"
    part = group.get(leader, path, headers={"range": "bytes=0-47"})
    end = state["durable_position"] - data["start"]
    assert part.status_code == 206 and len(part.content) == 48
    assert part.headers["content-range"] == f"bytes 0-47/{end}"
    tail = group.get(leader, path, headers={"range": f"bytes={end - 12}-{end + 100}", "if-match": part.headers["etag"]})
    assert tail.content == b"segment body"
    assert group.get(leader, path, headers={"range": f"bytes={end}-"}).status_code == 416
    assert group.get(leader, path, headers={"range": "bytes=x"}).status_code == 416
    assert group.get(leader, path, headers={"if-match": '"other-0"'}).status_code == 412
    assert group.get(leader, "/api/v1/segments/data/" + "9" * 20).status_code == 404
    assert group.get(leader, "/api/v1/segments/data/../../etc").status_code == 404
    unit = group.get(leader, f"/api/v1/segments/index/{'0' * 20}", headers={"range": "bytes=0-31"})
    assert struct.unpack(">iqiqq", unit.content)[3] == 0


@undisturbed
def test_digests_are_those_of_the_entries_and_equal_on_all_replicas(group: Group, leader: str) -> None:
    last = append(group, leader, *[f"digest {n}" for n in range(25)])["last_index"]
    group.until(lambda: all(group.state(one)["log"]["committed_index"] >= last for one in group.ids))
    path = f"/api/v1/digests?from=3&to={last}&block=10"
    answers = [group.get(one, path).json()["items"] for one in group.ids]
    bare = [
        [{key: one[key] for key in ("from_index", "to_index", "count", "digest")} for one in reported]
        for reported in answers
    ]
    assert bare[0] == bare[1] == bare[2]
    blocks = [(one["from_index"], one["to_index"]) for one in answers[0]]
    assert group.get(leader, f"{path}&cursor=10").json()["items"][0]["from_index"] == 10
    assert blocks[0] == (3, 9) and blocks[1] == (10, 19) and blocks[-1][1] == last
    hashed = hashlib.sha256()
    for index in range(3, 10):
        one = group.get(leader, f"/api/v1/entries/{index}?as=hex").json()
        body = bytes.fromhex(one["body"])
        magic = {"NORMAL": 1, "NOOP": 2, "CONFIG_CHANGE": 3}[one["magic"]]
        hashed.update(struct.pack(">iqqi", magic, index, one["term"], len(body)) + body)
    assert answers[0][0]["digest"] == hashed.hexdigest() and answers[0][0]["read_at"]


@undisturbed
def test_events_page_and_stream(group: Group, leader: str) -> None:
    reported = group.get(leader, "/api/v1/events?limit=1").json()
    assert len(reported["items"]) == 1 and reported["next"] == reported["items"][0]["id"]
    rest = group.get(leader, f"/api/v1/events?cursor={reported['next']}").json()["items"]
    assert reported["items"][0]["id"] not in [one["id"] for one in rest]
    boot = group.state(leader)["boot_id"]
    assert all(one["id"].startswith(f"{boot}-") for one in rest)
    with group.client.stream(
        "GET", f"{group.urls[leader]}/api/v1/events", headers={"accept": "text/event-stream"}
    ) as stream:
        lines = stream.iter_lines()
        assert next(lines) == f"id: {reported['items'][0]['id']}"
    lost = group.get(leader, "/api/v1/events?cursor=another-7").json()["items"]
    assert lost[0]["kind"] == "gap"


@undisturbed
def test_health_and_metrics(group: Group, leader: str) -> None:
    follower = next(one for one in group.ids if one != leader)
    assert group.get(follower, "/healthz").status_code == group.get(follower, "/readyz").status_code == 200
    assert group.get(leader, "/leaderz").status_code == 200 and group.get(follower, "/leaderz").status_code == 503
    text = group.get(leader, "/metrics").text
    assert 'quorumscope_role{role="LEADER"} 1.0' in text and 'quorumscope_peer_lag_entries{peer="n1"}' in text
    assert f"quorumscope_files_made_late {float(group.state(leader)['files_made_late'])}" in text


@undisturbed
def test_truncations_of_a_sound_group_are_none(group: Group, leader: str) -> None:
    assert group.get(leader, "/api/v1/truncations").json()["items"] == []
    assert group.get(leader, "/api/v1/truncations/1").status_code == 404
    assert group.get(leader, "/api/v1/truncations?cursor=x").status_code == 422


@undisturbed
def test_transfers_are_checked_then_followed(group: Group, leader: str) -> None:
    target, other = (one for one in group.ids if one != leader)
    path, term = "/api/v1/leadership-transfer", group.state(leader)["term"]
    assert group.post(leader, path, json={"to": target, "if_term": term + 5}).status_code == 412
    assert group.post(leader, path, json={"to": "n9"}).status_code == 422
    assert group.post(leader, path, json={"to": leader}).status_code == 409
    assert group.post(other, path, json={"to": target}).status_code == 421
    dry = group.post(leader, path, json={"to": target, "dry_run": True})
    assert dry.status_code == 200 and dry.json()["dry_run"]
    key = {"idempotency-key": "once"}
    asked = group.post(leader, path, json={"to": target, "if_term": term}, headers=key)
    assert asked.status_code == 202 and asked.headers["location"].endswith(asked.json()["id"])

    def ended() -> Any:
        reported = group.get(leader, f"/api/v1/operations/{asked.json()['id']}").json()
        return reported if reported["state"] != "running" else None

    done = group.until(ended)
    assert done["state"] == "done" and done["outcome"]["leader_id"] == target and done["outcome"]["term"] > term
    assert group.leader() == target
    again = group.post(leader, path, json={"to": target, "if_term": term}, headers=key)
    assert again.json()["id"] == asked.json()["id"]


@undisturbed
def test_a_paused_engine_is_stale_and_a_killed_one_down_then_back(group: Group, leader: str) -> None:
    victim = next(one for one in group.ids if one != leader)
    pid = group.engine_pid(victim)
    before = group.state(victim)
    os.kill(pid, signal.SIGSTOP)
    try:
        stale = group.until(lambda: reported if (reported := group.state(victim))["engine"] == "stale" else None)
        assert stale["log"]["end_index"] == before["log"]["end_index"], "the last marks stay"
        assert stale["engine_reason"] and any(one["field"] == "state" for one in stale["unknown"])
        assert group.get(victim, "/readyz").status_code == 503
    finally:
        os.kill(pid, signal.SIGKILL)
    group.until(lambda: group.state(victim)["engine"] == "ok" and group.state(victim)["boot_id"] != before["boot_id"])


@undisturbed
def test_without_its_engine_the_files_still_speak(group: Group, leader: str) -> None:
    """The path of a control plane that starts beside a dead engine, in this process."""
    import asyncio
    import json

    from node.config import load
    from node.control.app import make_parts
    from node.views.replication import WatermarksView
    from node.views.state import StateView

    last = append(group, leader, "seen by files")["last_index"]
    node = {"node.id": leader, "node.group": "api", "node.data": str(group.place / leader)}
    settings = load({**node, "peers": f"{leader}-127.0.0.1:1"}, environ={})

    async def look() -> tuple[dict[str, Any], dict[str, Any]]:
        parts = make_parts(settings)
        reported = await parts.snapshots.get(StateView), await parts.snapshots.get(WatermarksView)
        return json.loads(reported[0].to_bytes()), json.loads(reported[1].to_bytes())

    state, watermarks = asyncio.run(look())
    assert state["engine"] == "down" and state["role"] is None and state["term"] is None
    assert state["log"]["end_index"] >= last and state["engine_reason"]
    assert watermarks["peers"] == [] and watermarks["quorum_index"] is None and watermarks["unknown"]


def entry_at(group: Group, node_id: str, index: int) -> Any:
    """An entry that is committed. While an engine is slow to answer (0.4 s), the control plane goes by the files, whose
    committed index is from their last checkpoint: 404 until the engine answers again."""

    def look() -> Any:
        answer = group.get(node_id, f"/api/v1/entries/{index}")
        return answer.json() if answer.status_code == 200 else None

    return group.until(look)


@undisturbed
def test_rot_on_a_disk_is_shown_where_it_is(group: Group, leader: str) -> None:
    index = append(group, leader, "before", "rotten body", "after")["first_index"] + 1
    victim = next(one for one in group.ids if one != leader)
    group.until(lambda: group.state(victim)["log"]["committed_index"] > index)
    sound = entry_at(group, victim, index)
    assert sound["seal"] == "sealed" and sound["body"] == "rotten body"
    file = group.place / victim / f"dledger-{victim}" / "data" / ("0" * 20)
    with file.open("r+b") as opened:
        opened.seek(sound["pos"] + 48)
        opened.write(b"R")
    rotten = entry_at(group, victim, index)
    assert rotten["seal"] == "invalid" and rotten["body"] == "Rotten body"
    block = f"/api/v1/digests?from={index}&to={index}&block=1"
    mine, theirs = (group.get(one, block).json()["items"][0]["digest"] for one in (victim, leader))
    assert mine != theirs, "digests come from the disk, not from stored CRCs"
    neighbour = f"/api/v1/digests?from={index + 1}&to={index + 1}&block=1"
    assert (
        group.get(victim, neighbour).json()["items"][0]["digest"]
        == group.get(leader, neighbour).json()["items"][0]["digest"]
    )


@pytest.mark.parametrize("what", ["state", "watermarks", "dispatchers", "closures", "entries", "segments", "digests"])
@undisturbed
def test_the_documented_examples_have_the_fields_of_real_answers(group: Group, leader: str, what: str) -> None:
    append(group, leader, "an example")
    query = {"entries": "?limit=1", "digests": "?from=0&to=0&block=1"}.get(what, "")
    answer = group.get(leader, f"/api/v1/{what}{query}").json()
    example = examples()[f"get /api/v1/{what}"]["response"]
    assert set(example) == set(answer)
    for listed in ("items", "peers", "links"):
        if answer.get(listed) and example.get(listed):
            assert set(example[listed][0]) == set(answer[listed][0])


def ended(group: Group, node_id: str, operation: Any) -> Any:
    def look() -> Any:
        reported = group.get(node_id, f"/api/v1/operations/{operation['id']}").json()
        return reported if reported["state"] != "running" else None

    return group.until(look)


@undisturbed
def test_a_scrub_is_an_operation_of_the_node_that_is_asked(group: Group, leader: str) -> None:
    append(group, leader, "to be", "read")
    term = group.state(leader)["term"]
    for one in group.ids:
        assert group.post(one, "/api/v1/scrub", json={"if_term": term + 5}).status_code == 412
        dry = group.post(one, "/api/v1/scrub", json={"dry_run": True})
        assert (dry.status_code, dry.json()["dry_run"]) == (200, True)
        asked = group.post(one, "/api/v1/scrub", headers={"idempotency-key": f"scrub-{one}"}, json={})
        assert asked.status_code == 202 and asked.headers["location"].endswith(asked.json()["id"])
        done = ended(group, one, asked.json())
        assert done["state"] == "done" and done["outcome"]["last_index"] <= group.state(one)["log"]["durable_index"]
        again = group.post(one, "/api/v1/scrub", headers={"idempotency-key": f"scrub-{one}"}, json={})
        assert again.json()["id"] == asked.json()["id"]
        assert group.state(one)["scrub"]["last"]["reason"] == "request"
    passes = re.search(r"^quorumscope_scrub_passes (\d+)", group.get(leader, "/metrics").text, re.MULTILINE)
    assert passes is not None and int(passes[1]) >= 1


@undisturbed
def test_repairs_of_a_sound_log_are_done_at_once(group: Group, leader: str) -> None:
    asked = group.post(leader, "/api/v1/repairs", json={})
    assert asked.status_code == 202 and asked.json()["kind"] == "repair"
    done = ended(group, leader, asked.json())
    assert done["state"] == "done" and done["outcome"]["hopeless"] == 0
    assert group.state(leader)["faults"] == []
    assert "quorumscope_damaged_ranges 0.0" in group.get(leader, "/metrics").text
