"""The pages "Messages": what brokers say is drawn, what they do not say is unknown; changes go to the leader."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Awaitable, Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from app.console import live
from app.console.errors import NodeUnreachable
from app.console.message_bodies import with_messages
from app.console.message_live import read
from app.console.messages_view import MemberBroker, master_of, on_our_clock, row_of, sentence_of, timeline_of
from app.console.sample import Clock
from node.message_store.properties import join_properties
from node.message_store.record import encode_record
from node.views.message_answers import Broker, Topic
from tests.browser.states import held_entries
from tests.unit.console_kit import Kit, run, running
from tests.unit.engine_kit import until
from tests.unit.fake_brokers import BrokerGroup, example
from tests.unit.fake_control import entry
from tests.unit.message_kit import record

PAGE = "/clusters/demo/messages"
pytestmark = pytest.mark.usefixtures("samples_stay_new")


def broker(**changes: Any) -> Broker:
    return Broker.model_validate({**example("get /api/v1/broker"), **changes})


def over(tmp_path: Path, work: Callable[[Kit], Awaitable[None]], group: BrokerGroup | None = None) -> None:
    async def all_of_it() -> None:
        async with running(tmp_path, group or BrokerGroup()) as kit:
            await kit.watched()
            await work(kit)

    run(all_of_it())


def test_the_overview_shows_brokers_topics_groups_and_changes_of_role(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        text = (await person.get(PAGE)).text
        topic, group = example("get /api/v1/topics")["items"][0], example("get /api/v1/consumer-groups")["items"][0]
        assert "n0 is master, and every broker&#39;s dispatch is in step." in text
        assert f'{PAGE}/topics/{topic["topic"]}"' in text and f'{PAGE}/groups/{group["group"]}"' in text
        assert "changeToMaster" in text and "Find messages" not in text  # a viewer reads no bodies
        assert "118 delivered since n0" in text and "tickets" in text and "2 transactions open" in text
        assert "Messages are kept until their file is 72 h old" in text and "1.2 kB" in text
        assert f'href="{PAGE}" aria-current="page">Messages' in text
        assert "Messages</a>" in (await person.get("/clusters/demo")).text

    over(tmp_path, work)


def test_the_page_of_an_entry_keeps_the_way_to_the_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.console.audit_pages.entry_on_all", held_entries)

    async def work(kit: Kit) -> None:
        text = (await (await kit.person("olga", "operator")).get("/clusters/demo/entries/77084/replicas")).text
        assert f'href="{PAGE}"' in text

    over(tmp_path, work)


def many(operation: str, name: str, count: int) -> Any:
    one = example(operation)["items"][0]
    return {"items": [one | {name: f"{name}-{at:03}"} for at in range(count)], "next": f"{name}-{count - 1:03}"}


def test_two_hundred_topics_are_turned_over_and_found_by_a_part_of_their_name(tmp_path: Path) -> None:
    """Drawn all at once they made a page of 88,000 px on a telephone."""
    group = BrokerGroup()
    group.changed = {
        "topics": many("get /api/v1/topics", "topic", 20),
        "consumer-groups": many("get /api/v1/consumer-groups", "group", 20),
    }

    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        text = unescape((await person.get(f"{PAGE}?part=jfk+&system=true&groups_after=group-%2641")).text)
        asked = [one for one in group.requests if one.url.path.endswith(("/topics", "/consumer-groups"))][-2:]
        known = {"limit": "20", "system": "true", "contains": "jfk"}
        assert [dict(one.url.params) for one in asked] == [known, known | {"cursor": "group-&41"}]
        turned = "part=jfk&system=true&topics_after=topic-019&groups_after=group-%2641"
        assert f'href="{PAGE}?{turned}#topics-title">More topics' in text and "First groups" in text
        assert f'href="{PAGE}?part=jfk&system=true#groups-title">First groups' in text
        assert 'name="part" type="search" value="jfk"' in text and "20, with “jfk” in their name" in text
        # The page that is open goes on to show the same.
        listed = "part%3Djfk%26system%3Dtrue%26groups_after%3Dgroup-%252641"
        assert f'data-live="/live/messages?cluster=demo&name={listed}"' in text
        shown = (await person.get(f"/live/messages/snapshot?cluster=demo&name={listed}")).text
        assert unescape(shown).count('<a href="/clusters/demo/messages/topics/') == 20
        assert f"{PAGE}?{turned}#topics-title" in unescape(shown)
        assert [one.url.params["contains"] for one in group.requests if one.url.path.endswith("/topics")] == ["jfk"] * 2

    over(tmp_path, work, group)


def test_no_name_that_contains_it_is_no_empty_broker(tmp_path: Path) -> None:
    group = BrokerGroup()
    group.changed = {one: {"items": [], "next": None} for one in ("topics", "consumer-groups")}

    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        text = (await person.get(f"{PAGE}?part=none")).text
        assert "No topic with that in its name." in text and "No group with that in its name." in text
        assert "There is no topic yet" not in text
        assert "There is no topic yet" in (await person.get(PAGE)).text

    over(tmp_path, work, group)


def test_a_group_that_reads_much_shows_what_is_behind_most(tmp_path: Path) -> None:
    one = example("get /api/v1/consumer-groups/{consumer_group}")
    queues = [one["queues"][0] | {"queue_id": at, "lag_messages": at} for at in range(800)]
    group = BrokerGroup()
    group.changed = {
        "consumer-groups": {"items": [one | {"group": "all", "topics": [f"t{at}" for at in range(200)]}]},
        "consumer-groups/all": {"group": "all", "queues": queues},
    }

    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        assert "t0, t1, t2, t3, t4 and 195 more</td>" in (await person.get(PAGE)).text
        text = (await person.get(f"{PAGE}/groups/all")).text
        assert "750 are left out" in text and text.count('data-label="Queue"') == 50
        assert 'data-label="Queue" class="num">799' in text and 'data-label="Queue" class="num">749' not in text

    over(tmp_path, work, group)


def test_a_group_without_brokers_has_no_such_page_among_its_tabs(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person()
        assert "Messages</a>" not in (await person.get("/clusters/demo")).text

    group = BrokerGroup()
    group.has_brokers = False
    over(tmp_path, work, group)


def test_a_broker_that_is_down_is_named_first(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        text = (await (await kit.person()).get(PAGE)).text
        assert "The broker of n2 is down." in text and "It does not run." in text

    group = BrokerGroup()
    group.silent = frozenset({"n2"})
    over(tmp_path, work, group)


def test_a_topic_a_group_and_messages_are_drawn(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person(role="operator")
        text = (await person.get(f"{PAGE}/topics/flights-JFK?sent=7F01")).text
        assert "Send a test message" in text and "find?id=7F01" in text and "Who reads it" in text
        text = (await person.get(f"{PAGE}/groups/boards")).text
        assert example("get /api/v1/consumer-groups/{consumer_group}")["members"][0]["client_id"] in text
        assert "Set 1 offset" not in text
        text = (await person.get(f"{PAGE}/groups/boards?topic=flights-JFK&to=offset&offset=1")).text
        assert "Set 1 offset" in text and "2 messages come again" in text
        message = example("get /api/v1/messages")["items"][0]
        text = (await person.get(f"{PAGE}/find?topic=flights-JFK&key=x")).text
        assert message["message_id"] in text and "its queue unit points here" in text
        text = (await person.get(f"{PAGE}/find?topic=a&key=nobody's")).text
        assert "Nothing was looked for." in text and "does not go with the other parameters" in text
        trail = (await (await kit.person("root")).get("/api/v1/admin-trail")).json()["items"]
        assert any(one["action"] == "read messages" for one in trail)

    over(tmp_path, work)


def encoded(data: bytes) -> dict[str, Any]:
    return entry(1, base64.b64encode(data).decode()) | {"as": "base64"}


def test_the_log_shows_records_as_the_messages_they_are(tmp_path: Path) -> None:
    """They are binary: the page was a column of base64."""
    sent = record(
        b'{"<b>": 1}', topic="flights-\x1b", properties_data=join_properties([("KEYS", "N1 N2"), ("TAGS", "UA")])
    )

    async def work(kit: Kit) -> None:
        kit.group.nodes["n0"].listed = [encoded(encode_record(sent))]
        person = await kit.person(role="operator")
        text = unescape((await person.get("/clusters/demo/log")).text)
        assert f"flights-␛, queue {sent.queue_id}, offset {sent.queue_offset:,}; keys N1, N2; tag UA" in text
        assert '{"<b>": 1}' in text and base64.b64encode(sent.body).decode() not in text
        raw = await person.get("/clusters/demo/log?as=hex")
        assert raw.status_code == 200 and "␛" not in raw.text

    over(tmp_path, work)


@pytest.mark.parametrize("data", [b"", b"\xff", encode_record(record())[:-1], encode_record(record()) + b"\0"])
def test_what_is_no_whole_record_stays_as_it_came(data: bytes) -> None:
    assert with_messages([encoded(data)]) == [encoded(data)]
    assert with_messages([encoded(data) | {"as": "text"}]) == [encoded(data) | {"as": "text"}]
    for body in ("\xe9", "a", "AAAA", "\ud800", 7, None):  # as a member that lies may say
        odd = encoded(data) | {"body": body}
        assert with_messages([odd]) == [odd]


def test_a_message_that_is_no_text_stays_base64() -> None:
    (shown,) = with_messages([encoded(encode_record(record(b"\xff\xfe")))])
    assert shown["message"] and shown["body"] == encoded(encode_record(record(b"\xff\xfe")))["body"]


def test_only_who_may_reads_bodies_and_changes_anything(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        assert (await person.get(f"{PAGE}/find?id=1")).status_code == 403
        for path, form in (("topics/t/send", {"body": "x"}), ("groups/g/reset", {"topic": "t", "to": "latest"})):
            assert (await person.change("POST", f"{PAGE}/{path}", data=form)).status_code == 403
        assert not [one for one in kit.group.requests if one.method == "POST"]

    over(tmp_path, work)


def test_a_test_message_and_a_reset_go_to_the_leader_and_come_back_to_the_page(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person(role="operator")
        answer = await person.change("POST", f"{PAGE}/topics/a%7Cb/send", data={"body": "hello", "key": "k"})
        stored = example("post /api/v1/messages")["message_id"]
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}/topics/a%7Cb?sent={stored}")
        form = {"topic": "t", "to": "offset", "offset": "5", "time": "ignored"}
        answer = await person.change("POST", f"{PAGE}/groups/g/reset", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGE}/groups/g?done=true&topic=t")
        sent, reset = [json.loads(one.content) for one in kit.group.requests if one.method == "POST"]
        assert sent == {"topic": "a|b", "body": "hello", "keys": ["k"]}
        assert reset == {"topic": "t", "to": "offset", "offset": 5, "time": None, "dry_run": False}
        assert (await person.change("POST", f"{PAGE}/topics/t/send", data={"body": ""})).status_code == 422

    over(tmp_path, work)


def sends(kit: Kit) -> int:
    return sum(one.method == "POST" for one in kit.group.requests)


def test_a_form_that_is_sent_twice_stores_one_message(tmp_path: Path) -> None:
    """A double click stored two, and so did a reload of an answer that told of an unknown outcome."""

    async def work(kit: Kit) -> None:
        person, path = await kit.person(role="operator"), f"{PAGE}/topics/t/send"
        drawn = (await person.get(f"{PAGE}/topics/t")).text
        found = re.search(r'name="form" value="([0-9a-f-]{36})"', drawn)
        assert found is not None and found[1] not in (await person.get(f"{PAGE}/topics/t")).text
        form = {"body": "hello", "form": found[1]}
        both = await asyncio.gather(*(person.change("POST", path, data=form) for _ in range(2)))
        both.append(await person.change("POST", path, data=form))
        assert {one.status_code for one in both} == {303} and sends(kit) == 1
        assert len({one.headers["location"] for one in both}) == 1
        assert (await person.change("POST", path, data={**form, "body": "another"})).status_code == 303
        other = await kit.person("bob", role="operator")
        assert (await other.change("POST", path, data=form)).status_code == 303 and sends(kit) == 3

    over(tmp_path, work)


def test_what_came_of_a_message_that_nobody_answered_is_unknown(tmp_path: Path) -> None:
    """The page said to try again."""

    async def work(kit: Kit) -> None:
        person, path, leader = await kit.person(role="operator"), f"{PAGE}/topics/t/send", kit.group.nodes["n0"]
        for n, odd in enumerate(({"topic": 5}, b"no JSON", [])):
            leader.odd["messages"] = leader.odd["consumer-groups"] = odd
            form, before = {"body": "hello", "form": f"f{n}"}, sends(kit)
            for _ in range(2):
                answer = await person.change("POST", path, data=form)
                assert answer.status_code == 504 and "Outcome unknown" in answer.text
                assert "It may have been done, or may yet be." in answer.text and "Do not send it again" in answer.text
            assert sends(kit) == before + 1, "a reload sends nothing"
            reset = await person.change("POST", f"{PAGE}/groups/g/reset", data={"topic": "t", "to": "latest"})
            assert reset.status_code == 504 and "It may have been done, or may yet be." in reset.text
        leader.odd.clear()
        leader.alive = False
        refused = await person.change("POST", path, data={"body": "hello", "form": "g"})
        assert refused.status_code == 502 and "Nothing was changed." in refused.text
        leader.alive = True
        again = await person.change("POST", path, data={"body": "hello", "form": "g"})
        assert again.status_code == 303, "what was refused can be sent again"

    over(tmp_path, work)


def test_a_message_that_no_slave_has_is_not_said_to_be_safe(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        assert isinstance(kit.group, BrokerGroup)
        kit.group.changed = {"messages": {"status": "SLAVE_NOT_AVAILABLE"}}
        person = await kit.person(role="operator")
        answer = await person.change("POST", f"{PAGE}/topics/t/send", data={"body": "x"})
        shown = (await person.get(answer.headers["location"])).text
        assert "Stored, but no slave is connected that could take it: message" in shown

    over(tmp_path, work)


def test_without_a_leader_one_member_tells_all_of_a_page_and_is_named(tmp_path: Path) -> None:
    group = BrokerGroup()

    async def work(kit: Kit) -> None:
        person = await kit.person(role="viewer")
        paths = (PAGE, f"{PAGE}/topics/flights-JFK", f"{PAGE}/groups/boards")
        for path in paths:
            assert "No leader is known" not in (await person.get(path)).text
        for one in group.nodes.values():
            one.role = "CANDIDATE"
        await until(lambda: kit.app.state.console.group_view("demo").leader_id is None)
        for path in paths:
            since = len(group.requests)
            assert "No leader is known: this is what n0's own broker has." in unescape((await person.get(path)).text)
            asked = [
                one for one in group.requests[since:] if one.url.path.split("/")[3] in ("topics", "consumer-groups")
            ]
            assert asked and {str(one.url.port) for one in asked} == {"8431"}, "of one member"

    over(tmp_path, work, group)


# --- while a page is open ---------------------------------------------------------------------------------------------
async def stream_of(kit: Kit, name: str, path: str, work: Callable[[], Awaitable[None]]) -> str:
    """All that a page's own stream says until `work` is done."""
    person = await kit.person(name, "viewer")
    at = re.search(r'data-live="([^"]+)"', (await person.get(path)).text)
    assert at is not None, f"{path} is not live"

    async def then_stop() -> None:
        await work()
        kit.app.state.hub.stop()

    stopping = asyncio.create_task(then_stop())
    try:
        answer = await person.get(unescape(at[1]))
        assert answer.status_code == 200, answer.text
        await stopping
    finally:
        stopping.cancel()
    assert answer.headers["content-type"].startswith("text/event-stream")
    return unescape("\n".join(line.removeprefix("data: ") for line in answer.text.splitlines()))


@pytest.mark.parametrize(
    ("path", "asked", "before", "after"),
    [
        ("", "broker", "every broker's dispatch is in step", "The broker of n2 is down."),
        ("/topics/new", "topics/new", "0 were stored", "98,204,993 were stored"),
        ("/groups/boards", "consumer-groups/boards", "still to read: nothing", "77,084 messages"),
    ],
)
def test_a_page_that_is_open_hears_of_what_changes_over_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, asked: str, before: str, after: str
) -> None:
    monkeypatch.setattr(live, "ASKED_INTERVAL_S", 0.02)
    group = BrokerGroup()

    async def work(kit: Kit) -> None:
        async def change() -> None:
            await until(lambda: bool(kit.app.state.hub.topics))
            group.silent = frozenset({"n2"})
            ever, lag = {"messages_ever": 98_204_993}, {"lag_messages": 77_084}
            group.changed = {"topics/new": ever, "consumer-groups/boards": lag}
            since, two_rounds = len(group.requests), 2 * len(group.nodes)
            await until(lambda: sum(one.url.path.endswith(asked) for one in group.requests[since:]) > two_rounds)

        text = await stream_of(kit, "vic", PAGE + path, change)
        assert 'id="live-' in text and 'data-as-of="' in text
        assert before in text and after in text and text.index(before) < text.index(after)
        assert "hx-trigger" not in (await (await kit.person("zoe", "viewer")).get(PAGE + path)).text

    over(tmp_path, work, group)


def test_what_a_stream_draws_depends_on_the_role(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        path = "/live/message-topic/snapshot?cluster=demo&name=flights-JFK"
        assert "find?topic" not in (await (await kit.person("vic", "viewer")).get(path)).text
        assert "find?topic" in (await (await kit.person("olga", "operator")).get(path)).text

    over(tmp_path, work)


def test_a_page_whose_topic_is_gone_is_told_so(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        person = await kit.person()
        path = "/live/message-topic{}?cluster=demo&name=gone"
        for suffix in ("", "/snapshot"):
            assert (await person.get(path.format(suffix))).status_code == 404

    group = BrokerGroup()
    group.gone = frozenset({"topics/gone"})
    over(tmp_path, work, group)


def test_an_odd_answer_is_no_page_of_its_own_making(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        for one in kit.group.nodes.values():
            one.odd = {"topics": {"items": [{"topic": 5}]}, "broker": []}
        text = (await (await kit.person()).get(PAGE)).text
        assert "No broker&#39;s state is known." in text and "Topics and groups are not known" in text

    over(tmp_path, work)


# --- the sentence -----------------------------------------------------------------------------------------------------
def headline(*brokers: Broker | None) -> tuple[str, str]:
    said = sentence_of([MemberBroker(f"n{at}", one, "no answer") for at, one in enumerate(brokers)])
    return said.severity, said.headline


def test_the_sentence_says_the_worst_that_is_known() -> None:
    master, slave = broker(role="MASTER"), broker(role="SLAVE")
    dispatch = example("get /api/v1/broker")["dispatch"]
    stopped = dispatch | {"stopped_by": "entry 7 cannot be read"}
    slow = dispatch | {"behind_ms": 2000, "behind_entries": 9}
    lost = [{"address": "h:1", "registered_at": None}]
    assert headline(master, slave, slave)[0] == "ok"
    cut_off = broker(role="SLAVE", leader_id=None)  # in step with what it has, 4,000 entries behind
    assert headline(master, slave, cut_off) == ("attention", "The broker of n2 does not follow n0.")
    assert headline(slave, slave, slave) == ("critical", "No broker is master: nothing can be sent.")
    assert headline(None, None) == ("unknown", "No broker's state is known.")
    assert headline(master, None) == ("unknown", "n1 cannot be asked.")
    assert headline(broker(role="MASTER", dispatch=stopped), slave)[0] == "critical"
    assert headline(broker(role="MASTER", dispatch=slow), slave)[0] == "critical"
    assert headline(master, broker(role="SLAVE", dispatch=stopped))[1].startswith("Dispatch stands at n1")
    assert headline(broker(role="MASTER", name_servers=lost))[1] == "The master, n0, is registered nowhere."
    schedule = example("get /api/v1/broker")["schedule"]
    late = schedule | {"levels": [schedule["levels"][0] | {"overdue_ms": 41_000}]}
    assert (
        headline(broker(role="MASTER", schedule=late), slave)[1] == "Messages with a delay are due and not delivered."
    )
    asked = example("get /api/v1/broker")["transactions"] | {"unanswered": 2}
    assert headline(broker(role="MASTER", transactions=asked), slave)[1].startswith("2 transactions were asked about")
    half = [*lost, {"address": "i:1", "registered_at": "2026-01-01T00:00:00.000Z"}]
    assert headline(broker(role="MASTER", name_servers=half))[1] == "n0 is not registered at h:1."
    found = headline(master, broker(role="SLAVE", name_servers=lost), broker(role="SLAVE", name_servers=half))
    assert found == ("attention", "n1 and n2 are not registered at h:1.")


def test_changes_of_role_are_in_the_order_of_time_whatever_their_brokers_clocks_say() -> None:
    (change,) = example("get /api/v1/broker")["role_changes"][:1]

    def made(*of: tuple[str, int]) -> Broker:
        return broker(role_changes=[{**change, "at": f"2026-01-01T{at}Z", "term": term} for at, term in of])

    slow = on_our_clock(made(("11:00:00.000", 1), ("11:00:20.000", 3)), Clock(-3_600_000.0, 10.0))
    right = on_our_clock(made(("12:00:10.000", 2), ("12:00:30.000", 4), ("12:00:30.000", 5)), Clock(20.0, 500.0))
    found = timeline_of([MemberBroker("n0", slow), MemberBroker("n1", right)])
    assert [one.term for _, one in found] == [5, 4, 3, 2, 1]
    assert found[2][1].at == "2026-01-01T12:00:20.000Z" and found[1][1].at == "2026-01-01T12:00:30.000Z"


def test_a_broker_that_cannot_be_asked_may_be_master() -> None:
    """What the console does not hear is not gone: the slaves follow it."""
    slave = broker(role="SLAVE", term=3, leader_id="n0")
    severity, text = headline(None, slave, slave)
    assert severity == "unknown" and text.startswith("Whether n0 takes messages is not known")
    leaderless = broker(role="SLAVE", term=3, leader_id=None)
    assert headline(None, leaderless, leaderless) == ("critical", "No broker is master: nothing can be sent.")


def test_a_master_of_a_term_that_is_over_is_none() -> None:
    """Paused or cut off it goes on saying so, also before the new leader's broker is master."""
    old, new = broker(role="MASTER", term=3), broker(role="SLAVE", term=4, leader_id="n1")
    said = sentence_of([MemberBroker("n0", old), MemberBroker("n1", new), MemberBroker("n2", new)])
    assert (said.severity, said.headline) == ("critical", "No broker is master of term 4: nothing can be sent.")
    assert said.rest == "n0 still says that it is master, of term 3, which is over."


def test_a_broker_whose_engine_hangs_is_not_said_to_be_in_step() -> None:
    """It had dispatched all that its own engine had said: 1,300 entries behind, it was "in step"."""
    there = MemberBroker("n0", broker(role="MASTER"))
    alone = MemberBroker("n1", broker(role="SLAVE"), has_engine=False)
    said = sentence_of([there, alone])
    assert (said.severity, said.headline) == ("unknown", "What the broker of n1 lacks is not known.")
    assert row_of(there).dispatch.startswith("in step, entry ")
    assert row_of(alone).dispatch.endswith("; its engine does not answer") and row_of(alone).tone == "attention-text"


def test_the_master_of_the_newest_term_is_the_master() -> None:
    """A resumed one says so until it hears better."""
    both = [MemberBroker("n0", broker(role="MASTER", term=3)), MemberBroker("n1", broker(role="MASTER", term=4))]
    assert master_of(both) is both[1]
    assert [one for one, _ in timeline_of(both, most=2)] != []


@pytest.mark.parametrize("endless", [float("inf"), float("nan"), "9" * 400])
def test_a_time_without_end_is_no_answer(endless: Any) -> None:
    """The page Messages failed at it with 500."""
    said = example("get /api/v1/broker")
    for where in (said["role_changes"][0], said["role_changes"][0]["steps"][0]):
        before, where["took_ms"] = where["took_ms"], endless
        with pytest.raises(NodeUnreachable):
            read(Broker, said)
        where["took_ms"] = before
    with pytest.raises(NodeUnreachable):
        read(Topic, example("get /api/v1/topics")["items"][0] | {"messages_per_s": endless})
    assert read(Broker, said).role_changes


def test_a_number_that_no_page_can_reckon_with_is_no_answer(tmp_path: Path) -> None:
    """The pages failed (500) where one member answered an age of 400 digits."""

    async def work(kit: Kit) -> None:
        assert isinstance(kit.group, BrokerGroup)
        person, huge = await kit.person(), 10**400
        for at, field, path in (
            ("consumer-groups/g", "lag_ms", "/groups/g"), ("topics/t", "size_bytes", "/topics/t"),
        ):  # fmt: skip
            kit.group.changed = {at: {field: huge}}
            page = await person.get(f"{PAGE}{path}")
            assert page.status_code == 502 and "answers something else than is expected" in page.text, at
        said = example("get /api/v1/broker")
        late = {"dispatch": said["dispatch"] | {"behind_ms": huge}}
        for node in kit.group.nodes.values():
            node.odd["broker"] = said | {"self_id": node.id} | late
        page = await person.get(PAGE)
        assert page.status_code == 200 and "No broker&#39;s state is known." in page.text

    over(tmp_path, work)
