"""A broker over REST: a control plane beside a real engine and its broker; what is shown, changed, refused."""

from __future__ import annotations

import asyncio
import base64
import json
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from node.access_rows import Right
from node.broker.client_port import ClientPort
from node.control.app import create_app
from node.control.rights import is_recorded, needed
from node.message_client import MessageConsumer, MessageProducer, OutgoingMessage
from node.operator_trail import NAME
from node.rocketmq.codes import Answer
from tests.openapi_kit import Document
from tests.ports import free_ports
from tests.unit.broker_kit import Client, broker_of, engine_of, settings_of
from tests.unit.classic_kit import classic, classic_settings, pair_ports, pulled, story
from tests.unit.engine_kit import until

Json = dict[str, Any]


class Rest:
    """A control plane's client, each of whose answers is held against the control plane's own document."""

    def __init__(self, http: httpx.AsyncClient, document: Document, address: str, data: Path) -> None:
        self.http, self.document, self.address, self.data = http, document, address, data
        self.seen: dict[str, Json] = {}
        self.alarms: Any = None  # of the control plane, which looks at the broker once it is started

    async def call(self, method: str, path: str, status: int = 200, **named: Any) -> Json:
        """Asks again after a 503: on a busy machine the engine may be too slow for a control plane's patience."""
        for _ in range(1200):
            answer = await self.http.request(method, path, **named)
            if answer.status_code != 503 or status == 503:
                break
            await asyncio.sleep(0.05)
        assert answer.status_code == status, answer.text
        self.document.check(method, answer.request.url.path, status, answer.headers, answer.content)
        found: Json = answer.json()
        operation = self.document.operation(method, answer.request.url.path)
        if operation is not None and status == 200:
            asked = {"request": named["json"]} if "json" in named else {}
            self.seen.setdefault(operation[0], {"response": found, **asked})
        return found

    async def get(self, path: str, status: int = 200, **params: Any) -> Json:
        return await self.call("GET", path, status, params=params)


def run(tmp_path: Path, work: Callable[[Rest], Awaitable[None]], *, with_broker: bool = True) -> None:
    async def all_of_it() -> None:
        (port,) = free_ports(1)
        settings = settings_of(tmp_path, free_ports(1), **{"broker.address": f"127.0.0.1:{port}"})
        app = create_app(settings)
        url = f"http://{settings.control.address}/api/v1"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url, timeout=60) as http:
            rest = Rest(http, Document(app.openapi()), f"127.0.0.1:{port}", settings.node.data)
            rest.alarms = app.state.parts.broker_alarms
            async with engine_of(settings):
                if not with_broker:
                    await work(rest)
                else:
                    async with broker_of(settings) as broker:
                        clients = ClientPort(broker)
                        await clients.open("127.0.0.1", port)
                        try:
                            await work(rest)
                        finally:
                            clients.close()
            app.state.parts.link.close()
            await app.state.parts.broker.close()

    asyncio.run(all_of_it())


async def sent(rest: Rest, count: int, topic: str = "flights-JFK") -> None:
    async with MessageProducer([rest.address]) as producer:
        messages = [
            OutgoingMessage(topic, b'{"flight":%d}' % one, keys=(f"N{one}",), tags="AA", shard="N1")
            for one in range(count)
        ]
        for one in messages:
            await producer.send(one)


async def toured(rest: Rest) -> None:
    """Each call that succeeds, once: the examples in the OpenAPI document come from here."""
    await sent(rest, 6)
    topics = await rest.get("/topics")
    [topic] = topics["items"]
    assert (topic["topic"], topic["messages"], topic["messages_ever"]) == ("flights-JFK", 6, 6)
    assert topic["newest_at"].endswith("Z") and topic["perm"] == 6 and topics["next"] is None
    assert any(one["is_system"] for one in (await rest.get("/topics", system=True))["items"])
    assert len((await rest.get("/topics", contains="GHTS-jf"))["items"]) == 1
    assert (await rest.get("/topics", contains="ORD"))["items"] == []
    await rest.get("/topics")
    queues = (await rest.get("/topics/flights-JFK/queues"))["items"]
    full = next(one for one in queues if one["messages"])
    assert (len(queues), full["min_offset"], full["max_offset"]) == (4, 0, 6)
    assert full["oldest_at"] <= full["newest_at"] == topic["newest_at"]
    empty = next(one for one in queues if not one["messages"])
    assert (empty["oldest_at"], empty["newest_at"]) == (None, None)

    async with MessageConsumer([rest.address], "boards", "flights-JFK", tags="AA || UA") as consumer:
        got = 0
        async for _message in consumer:
            got += 1
            if got == 4:  # of which three are done
                break
        group = await rest.get("/consumer-groups/boards")
        [member] = group["members"]
        assert member["client_id"] == consumer.client_id and member["heard_at"].endswith("Z")
        assert group["subscriptions"] == [{"topic": "flights-JFK", "expression": "AA || UA", "type": "TAG"}]
        running = await rest.call(
            "POST", "/consumer-groups/boards/reset", 409, json={"topic": "flights-JFK", "to": "earliest"}
        )
        assert running["members"] == [consumer.client_id] and running["outcome"] == "not_appended"
        assert {(one["client_id"], one["assigned_by"]) for one in group["queues"]} == {(consumer.client_id, "average")}
        listed = [one["group"] for one in (await rest.get("/consumer-groups"))["items"]]
        assert listed == ["boards"]
    group = await rest.get("/consumer-groups/boards")
    one = next(one for one in group["queues"] if one["max_offset"] == 6)
    assert (one["committed_offset"], one["lag_messages"]) == (3, 3) and one["lag_ms"] >= 0
    assert (one["client_id"], one["assigned_by"]) == (None, None)
    assert (group["members"], group["lag_messages"]) == ([], 3) and group["lag_since"] is not None
    [brief] = (await rest.alarms._link.group_stands(10, None)).items
    assert (brief.oldest_at, brief.members) == (("flights-JFK", full["queue_id"], 3), 0)
    body: Json = {"topic": "flights-JFK", "to": "offset", "offset": 1, "queue_id": full["queue_id"]}
    would = await rest.call("POST", "/consumer-groups/boards/reset", json=body | {"dry_run": True})
    assert would["items"] == [{"queue_id": full["queue_id"], "before": 3, "after": 1}]
    assert (await rest.get("/consumer-groups/boards"))["lag_messages"] == 3, "nothing was set"
    await rest.call("POST", "/consumer-groups/boards/reset", json=body)
    assert (await rest.get("/consumer-groups/boards"))["lag_messages"] == 5
    assert len((await rest.get("/consumer-groups", limit=1))["items"]) == 1

    new = {"topic": "flights-JFK", "body": "a test", "keys": ["K"], "tag": "UA", "properties": {"colour": "blue"}}
    produced = await rest.call("POST", "/messages", json=new)
    found = (await rest.get("/messages", id=produced["message_id"]))["items"][0]
    assert found["body"]["text"] == "a test" and found["properties"]["colour"] == "blue"
    where = found["where"]
    assert where["queue_unit"]["points_here"] and where["entry_index"] > 0 and where["index_files"]
    again = (await rest.get("/messages", offset=where["offset"]))["items"][0]
    assert again == found
    assert (await rest.get("/messages", topic="flights-JFK", key="K"))["items"] == [found]
    assert (await rest.get("/messages", topic="flights-JFK", key=produced["unique_key"]))["items"] == [found]

    made = await rest.call("PUT", "/topics/new", json={"read_queues": 2, "write_queues": 2})
    assert (made["read_queues"], made["messages"]) == (2, 0)
    assert await rest.get("/topics/new") == made
    assert await rest.call("DELETE", "/topics/new") == {"topic": "new", "deleted": True}
    await rest.get("/topics/new", 404)
    state = await rest.get("/broker")
    assert (state["broker"], state["role"], state["broker_id"]) == ("ok", "MASTER", 0)
    assert state["dispatch"]["behind_entries"] == 0 and state["role_changes"][-1]["outcome"] == "done"
    assert state["counts"]["topics"] > 5


def test_topics_groups_and_messages_are_shown_and_changed(tmp_path: Path) -> None:
    run(tmp_path, toured)


def test_messages_are_found_by_queue_and_time_page_by_page(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        await sent(rest, 7)
        queues = (await rest.get("/topics/flights-JFK/queues"))["items"]
        full = next(one for one in queues if one["messages"])
        place = {"topic": "flights-JFK", "queue_id": full["queue_id"]}
        page = await rest.get("/messages", **place, queue_offset=0, limit=3)
        assert [one["queue_offset"] for one in page["items"]] == [0, 1, 2] and page["next"] == "3"
        rest_of_it = await rest.get("/messages", **place, cursor=page["next"], limit=9)
        assert [one["queue_offset"] for one in rest_of_it["items"]] == [3, 4, 5, 6] and rest_of_it["next"] is None
        later = await rest.get("/messages", **place, from_time=page["items"][2]["stored_at"])
        assert later["items"][-1]["queue_offset"] == 6 and later["items"][0]["queue_offset"] <= 2
        everywhere = await rest.get("/messages", topic="flights-JFK", from_time="2020-01-01T00:00:00Z", limit=4)
        assert [one["queue_offset"] for one in everywhere["items"]] == [0, 1, 2, 3] and everywhere["next"]
        none = await rest.get("/messages", topic="flights-JFK", from_time="2100-01-01T00:00:00Z")
        assert none["items"] == []
        early = await rest.get("/messages", topic="flights-JFK", from_time="2000-01-01", to_time="2001-01-01")
        assert early["items"] == []
        assert (await rest.get("/topics/flights-JFK/queues", limit=3))["next"] == "3"
        assert [one["queue_id"] for one in (await rest.get("/topics/flights-JFK/queues", cursor="3"))["items"]] == [3]

    run(tmp_path, work)


BAD_SEARCHES: list[tuple[Json, int]] = [
    ({}, 422), ({"id": "xx"}, 422), ({"id": "7F0000010000277F0000000000000000"}, 404), ({"offset": 1 << 60}, 404),
    ({"id": "7F0000010000277F0000000000000000", "topic": "T"}, 422), ({"topic": "T"}, 422),
    ({"topic": "none", "queue_id": 0, "queue_offset": 0}, 404), ({"topic": "none", "from_time": "2020-01-01"}, 404),
    ({"topic": "flights-JFK", "queue_id": 9, "queue_offset": 0}, 404), ({"topic": "flights-JFK", "queue_id": 0}, 422),
    ({"topic": "flights-JFK", "key": "k", "queue_id": 0}, 422), ({"topic": "x", "from_time": "never"}, 422),
]  # fmt: skip


def test_what_compressed_bodies_open_to_is_bounded_in_one_answer(tmp_path: Path) -> None:
    """A stranger's 12 records of 4 KiB, which would be 48 MiB."""

    async def work(rest: Rest) -> None:
        host, _, port = rest.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        bomb = zlib.compress(bytes(4 << 20), 9)
        for answer in await Client(reader, writer).send(*[bomb] * 12, b="plain", f="1"):
            assert answer.code == Answer.SUCCESS, answer.remark
        writer.close()

        async def items() -> list[Json]:
            found = await rest.get("/messages", topic="plain", queue_id=0, queue_offset=0, limit=256)
            listed: list[Json] = found["items"]
            return listed

        async with asyncio.timeout(60):
            while len(await items()) < 12:  # noqa: ASYNC110 - dispatched soon
                await asyncio.sleep(0.05)
        first, *others = await items()
        assert first["body"]["opened"] and first["body"]["bytes"] == 4 << 20
        for one in others:
            assert not one["body"]["opened"] and "ask for this one alone" in one["body"]["why"]
            assert one["body"]["stored_bytes"] == len(bomb) and base64.b64decode(one["body"]["base64"]) == bomb
        (alone,) = (await rest.get("/messages", id=others[-1]["message_id"]))["items"]
        assert alone["body"]["opened"] and alone["body"]["bytes"] == 4 << 20

    run(tmp_path, work)


def test_what_is_asked_wrongly_is_a_problem_that_says_what_to_do(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        await sent(rest, 1)
        for params, status in BAD_SEARCHES:
            assert (await rest.get("/messages", status, **params))["detail"]
        assert (await rest.get("/messages", topic="none", key="k"))["items"] == []
        await rest.get("/topics/none/queues", 404)
        await rest.get("/consumer-groups/none", 404)

    run(tmp_path, work)


def produced(**changes: Any) -> Json:
    return {"topic": "flights-JFK", "body": "x"} | changes


BAD_MESSAGES: list[tuple[Json, int, int | None]] = [
    (produced(topic="none"), 404, 17), (produced(topic="a b"), 422, 1), (produced(topic="T" * 200), 422, 1),
    (produced(topic="rmq_sys_quorumscope_x"), 422, 13), (produced(topic="SCHEDULE_TOPIC_XXXX"), 409, 16),
    (produced(body="x" * (4 << 20)), 422, 13), (produced(properties={"p": "x" * 40_000}), 422, None),
    (produced(properties={"p": "a\x02b"}), 422, None), (produced(body="=", **{"as": "base64"}), 422, None),
    (produced(queue_id=9), 422, 1), (produced(body=""), 422, None), (produced(delay_level=19), 422, None),
]  # fmt: skip


def test_what_no_message_may_be_is_refused_with_the_code_and_stores_nothing(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        await sent(rest, 1)
        for body, status, code in BAD_MESSAGES:
            problem = await rest.call("POST", "/messages", status, json=body)
            assert problem["detail"] and problem.get("code") == code, body.keys()
            assert (status == 422 and code is None) or problem["outcome"] == "not_appended"
        topics = (await rest.get("/topics"))["items"]
        assert [(one["topic"], one["messages"]) for one in topics] == [("flights-JFK", 1)]
        raw = base64.b64encode(b"\xff\x00").decode()
        stored = await rest.call("POST", "/messages", json=produced(body=raw, **{"as": "base64"}))
        found = (await rest.get("/messages", id=stored["message_id"]))["items"][0]
        assert found["body"]["base64"] == raw

    run(tmp_path, work)


BAD_RESETS: list[tuple[Json, int]] = [
    ({"to": "offset"}, 422), ({"to": "latest", "offset": 1}, 422), ({"to": "time"}, 422),
    ({"to": "earliest", "topic": "none"}, 404),
    ({"to": "offset", "offset": 99}, 422), ({"to": "latest", "queue_id": 99}, 404),
    ({"to": "latest", "if_term": 99}, 412),
]  # fmt: skip


def test_nothing_is_sent_into_a_topic_that_is_only_to_be_read(tmp_path: Path) -> None:
    """Brokers take it, as RocketMQ's do: it is the sender that looks at the topic's route."""

    async def work(rest: Rest) -> None:
        await rest.call("PUT", "/topics/closed", json={"perm": 4})
        refused = await rest.call("POST", "/messages", 409, json=produced(topic="closed"))
        assert (refused["code"], refused["outcome"]) == (Answer.NO_PERMISSION, "not_appended")
        assert refused["detail"] == "the topic[closed] sending message is forbidden"
        assert (await rest.get("/topics/closed"))["messages_ever"] == 0
        await rest.call("PUT", "/topics/closed", json={"perm": 2})
        assert (await rest.call("POST", "/messages", json=produced(topic="closed")))["queue_offset"] == 0

    run(tmp_path, work)


@story
async def test_what_a_classic_master_has_alone_is_stored_and_said_to_be(tmp_path: Path) -> None:
    """It was refused with `outcome: not_appended`, and lay in the log: whoever sent it again had it twice."""
    settings = classic_settings(tmp_path, "m", "sync_master", pair_ports("m", "s"))
    app = create_app(settings)
    url = f"http://{settings.control.address}/api/v1"
    async with (
        classic(settings) as master,
        master.client() as client,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=url, timeout=60) as http,
    ):
        await client.send(b"first")
        answer = await http.post("/messages", json={"topic": "TopicTest", "body": "alone", "queue_id": 0})
        assert answer.status_code == 200, answer.text
        assert (answer.json()["status"], answer.json()["queue_offset"]) == ("SLAVE_NOT_AVAILABLE", 1)
        Document(app.openapi()).check("POST", "/api/v1/messages", 200, answer.headers, answer.content)
        assert await pulled(client, 2) == [b"first", b"alone"]
        await app.state.parts.broker.close()


def test_a_reset_that_cannot_be_moves_nothing(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        await sent(rest, 3)
        async with MessageConsumer([rest.address], "G", "flights-JFK") as consumer:
            await until(lambda: len(consumer.queues) == 4)
        before = (await rest.get("/consumer-groups/G"))["queues"]
        for body, status in BAD_RESETS:
            await rest.call("POST", "/consumer-groups/G/reset", status, json={"topic": "flights-JFK"} | body)
        await rest.call("POST", "/consumer-groups/none/reset", 404, json={"topic": "flights-JFK", "to": "latest"})
        for name, body, status in (("TBW102", {}, 422), ("a b", {}, 422), ("T", {"perm": 9}, 422)):
            await rest.call("PUT", f"/topics/{name}", status, json=body)
        await rest.call("DELETE", "/topics/none", 404)
        await rest.call("DELETE", "/topics/SELF_TEST_TOPIC", 422)
        now = (await rest.get("/consumer-groups/G"))["queues"]
        assert [one["committed_offset"] for one in now] == [one["committed_offset"] for one in before]
        for to, after in (("latest", 3), ("earliest", 0), ("time", 3)):
            time = {"time": "2100-01-01T00:00:00Z"} if to == "time" else {}
            done = await rest.call("POST", "/consumer-groups/G/reset", json={"topic": "flights-JFK", "to": to} | time)
            assert max(one["after"] for one in done["items"]) == after

    run(tmp_path, work)


def test_changes_are_in_the_trail(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        await rest.call("PUT", "/topics/T", json={})
        await rest.call("POST", "/messages", json={"topic": "T", "body": "secret"})
        lines = [json.loads(line) for line in (rest.data / NAME).read_text().splitlines()]
        text = json.dumps(lines)
        assert "PUT /api/v1/topics/T" in text and "POST /api/v1/messages" in text and "body_bytes" in text
        assert "secret" not in text

    run(tmp_path, work)


def test_a_broker_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    async def work(rest: Rest) -> None:
        state = await rest.get("/broker")
        assert state["broker"] == "down" and "does not answer" in state["reason"] and state["role"] is None
        await rest.get("/topics", 503)
        problem = await rest.call("POST", "/messages", 503, json={"topic": "T", "body": "x"})
        assert problem["outcome"] == "not_appended"

    run(tmp_path, work, with_broker=False)


@pytest.mark.parametrize(
    ("method", "path", "right", "recorded"),
    [
        ("GET", "/api/v1/topics", Right.OBSERVE, False), ("GET", "/api/v1/broker", Right.OBSERVE, False),
        ("GET", "/api/v1/consumer-groups/G", Right.OBSERVE, False), ("GET", "/api/v1/messages", Right.READ, False),
        ("GET", "/api/v1/messages/", Right.READ, False), ("POST", "/api/v1/messages", Right.APPEND, True),
        ("POST", "/api/v1/messages/", Right.APPEND, True), ("PUT", "/api/v1/topics/T", Right.OPERATE, True),
        ("DELETE", "/api/v1/topics/T", Right.OPERATE, True),
        ("POST", "/api/v1/consumer-groups/G/reset", Right.OPERATE, True),
    ],
)  # fmt: skip
def test_each_call_needs_its_right(method: str, path: str, right: Right, recorded: bool) -> None:
    assert needed(method, path) == right
    assert is_recorded(method, path) is recorded
