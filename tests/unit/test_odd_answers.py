"""Answers that no node of ours gives: every poller goes on, says why, and shows the others as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.console.watch import closed, opened
from app.health.facts import natural
from app.times import shifted, time_of
from node.config import ConfigError, load
from node.protocol.peers import name_in, parse_peers
from node.views.ha import HaView
from node.views.kinds import VIEWS
from node.views.reading import Unreadable, read
from node.views.state import StateView
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import TRUNCATION, FakeGroup, entry
from tests.unit.group_story import Story

NAN, INFINITY = float("nan"), float("inf")
HUGE = 10**40
pytestmark = pytest.mark.usefixtures("samples_stay_new")


def with_field(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the field at a dotted path replaced."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    *way, last = path.split(".")
    place: Any = copy
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return copy


def test_what_our_nodes_answer_fits() -> None:
    group = FakeGroup()
    leader = group.nodes["n0"]
    leader.alarms = ["diverged", {"code": "disk_full", "severity": "critical", "since": None, "text": "full"}]
    leader.faults = [{"first_index": 3, "last_index": 4, "kind": "rot", "detail": ""}]
    answers = {
        "state": leader.state(), "watermarks": group.watermarks(leader), "dispatchers": group.dispatchers(leader),
        "closures": group.closures, "events": {"items": [], "next": None},
        "members": {"index": -1, "needed": 2, "items": [{"id": "n0", "kind": "voter", "joined_index": -1}]},
    }  # fmt: skip
    assert answers.keys() == VIEWS.keys()
    for name, answer in answers.items():
        read(VIEWS[name], answer)


ODD_STATES: list[tuple[str, Any, str]] = [
    ("term", "four", "term is no whole number"),
    ("term", NAN, "term is no whole number"),
    ("term", HUGE, "term is out of range"),
    ("term", True, "term is no whole number"),
    ("log", [1, 2], "log is no object"),
    ("log.end_index", INFINITY, "log.end_index is no whole number"),
    ("log.end_index", {"value": 3}, "log.end_index is no whole number"),
    ("log.committed_index", -HUGE, "log.committed_index is out of range"),
    ("role", 7, "role is no text"),
    ("role", "L" * 100_000, "role is a text of 100000 characters"),
    ("peers", {"n0": "x"}, "peers is no list"),
    ("peers", [3], "peers[0] is no object"),
    ("peers", [{"address": "h:1"}], "peers[0].id is missing"),
    ("peers", [{"id": "n2", "control_url": ["x"]}], "peers[0].control_url is no text"),
    ("alarms", 3, "alarms is no list"),
    ("alarms", [[1]], "alarms[0] is no object"),
    ("faults", [{"first_index": 1}], "faults[0].last_index is missing"),
    ("unknown", [None], "unknown[0] is no object"),
    ("engine", {"is": "ok"}, "engine is no text"),
]


@pytest.mark.parametrize(("path", "value", "says"), ODD_STATES, ids=[f"{p}={str(v)[:12]}" for p, v, _ in ODD_STATES])
def test_an_odd_state_counts_as_no_answer_and_says_why(path: str, value: Any, says: str) -> None:
    state = FakeGroup().nodes["n1"].state()
    with pytest.raises(Unreadable) as said:
        read(StateView, with_field(state, path, value))
    assert str(said.value) == says


def test_a_pairs_metadata_that_cannot_be_written_are_refused() -> None:
    """They were a failure of the list of its brokers in REST (500)."""
    said = {"as_of": "", "broker": "ok", "name": "p", "self_id": "a", "address": "h:1", "ha_address": "h:2"}
    assert read(HaView, {**said, "metadata": {"a": [1.5, "x"]}}).metadata == {"a": [1.5, "x"]}
    for odd, says in (([NAN], "holds a number that is none"), ({"b": "\ud800"}, "is no text that can be written")):
        with pytest.raises(Unreadable) as refused:
            read(HaView, {**said, "metadata": {"a": odd}})
        assert str(refused.value) == f"metadata {says}"


WHOLE_ANSWERS: list[Any] = [[], 7, "up", NAN, b"", b"\xff\xfe", b"[" * 100_000, {"state": 1}]
ODD_VIEWS: list[tuple[str, str, Any]] = [
    ("watermarks", "peers", [{"id": "n1", "last_ack_ms": NAN}]),
    ("watermarks", "peers.1.lag_entries", "many"),
    ("watermarks", "needed", "two"),
    ("dispatchers", "items", [{"peer_id": "n1"}]),
    ("dispatchers", "items.0.transitions", [{"to": "APPEND"}]),
    ("closures", "pending", HUGE),
    ("closures", "groups", [{"needed": 1}]),
    ("events", "items", "none"),
    ("events", "items", [{"at": 7, "kind": ["x"]}]),
    ("events", "next", 12),
    ("events", "items", [{"at": "2026-01-01T00:00:00Z", "kind": "x", "detail": {"a": [NAN]}}]),
]


async def healed(kit: Kit, node_id: str) -> None:
    """The poller of that node still polls: an answer in order is taken in."""
    sample = kit.console.watch_of("demo").pollers[node_id].sample
    rounds = sample.rounds
    await kit.until(lambda: sample.rounds > rounds + 1 and sample.problem is None and not sample.unanswered)


def story(tmp_path: Path, work: Callable[[Kit], Any]) -> None:
    async def reported() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            for poller in kit.console.watch_of("demo").pollers.values():
                poller.interval_s = 0.0  # then it asks as often as it may
            await work(kit)

    run(reported())


def test_a_poller_outlives_whatever_it_is_answered(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        node = kit.group.nodes["n1"]
        sample = kit.console.watch_of("demo").pollers["n1"].sample
        state = node.state()
        for odd in [*WHOLE_ANSWERS, *(with_field(state, path, value) for path, value, _ in ODD_STATES)]:
            node.odd["state"] = odd
            await kit.until(lambda: sample.problem is not None)
            view = kit.console.watch_of("demo").assemble()
            assert view.leader_id == "n0" and view.members[1].problem, odd
            node.odd.clear()
            await kit.until(lambda: sample.problem is None)
        await healed(kit, "n1")

    story(tmp_path, work)


def test_an_odd_view_of_the_leader_is_unknown_and_the_rest_goes_on(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        group, leader = kit.group, kit.group.nodes["n0"]
        watch = kit.console.watch_of("demo")
        plain = {
            "watermarks": group.watermarks(leader), "dispatchers": group.dispatchers(leader),
            "closures": group.closures, "events": {"items": [], "next": None},
        }  # fmt: skip
        for what, path, value in ODD_VIEWS:
            leader.odd[what] = with_field(plain[what], path, value)
            await kit.until(lambda what=what: what in watch.pollers["n0"].sample.unanswered)
            view = watch.assemble()
            (n0,) = (one for one in view.members if one.id == "n0")
            reason = next(one.reason for one in n0.unknown if one.field == what)
            assert reason is not None and reason.startswith(f"http://127.0.0.1:8431: its {what} cannot be read: ")
            assert view.leader_id == "n0"
            leader.odd.clear()
            await kit.until(lambda: not watch.pollers["n0"].sample.unanswered)
        await healed(kit, "n0")

    story(tmp_path, work)


ODD_TIMES: list[tuple[str, str, Any]] = [
    ("state", "as_of", "9999-12-31T23:59:59Z"),  # that member's clock: its other times are moved by the difference
    ("state", "as_of", "0001-01-01T00:00:00+23:59"),
    ("state", "links.0.in_since", "9999-12-31T23:59:59-23:59"),  # in the year 10000 of UTC
    ("state", "links.0.out_since", "yesterday"),
    ("state", "links.0.last_heard_ms", 1e15),  # 30,000 years ago
    ("state", "alarms", [{"code": "x", "severity": "critical", "text": "t", "since": "0001-01-01T00:00:00+01:00"}]),
    ("dispatchers", "items.0.since", "2026-01-01T00:00:00"),
]


def test_a_time_that_is_none_here_is_one_members_trouble_alone(tmp_path: Path) -> None:
    """It ended the view of the whole group, or its page was an error of the console."""

    async def work(kit: Kit) -> None:
        ann, watch = await kit.person("ann"), kit.console.watch_of("demo")
        for node_id in ("n0", "n1"):
            node, sample = kit.group.nodes[node_id], watch.pollers[node_id].sample
            plain = {"state": node.state(), "dispatchers": kit.group.dispatchers(kit.group.nodes["n0"])}
            for what, path, value in ODD_TIMES:
                node.odd[what] = with_field(plain[what], path, value)
                rounds = sample.rounds
                await kit.until(lambda sample=sample, rounds=rounds: sample.rounds > rounds + 1)
                assert watch.assemble().leader_id == "n0" and sample.problem is None, (what, path, value)
                page = await ann.get("/clusters/demo")
                assert page.status_code == 200, (what, path, value)
                node.odd.clear()

    story(tmp_path, work)


def test_names_have_an_order_whatever_stands_in_them() -> None:
    """A member's id with more digits than Python makes a number of ended the view of its group."""
    ordered = ["", "n", "n0", "n2", "n2-1", "n10", "n" + "9" * 5000, "x1"]
    assert sorted({*ordered}, key=natural) == ordered


ODD_MEASURES: list[tuple[str, Any]] = [
    ("timing.election_timeout_max_ms", 1 << 62),  # longer than any time that there is
    ("timing.election_timeout_max_ms", -(1 << 62)),
    ("loop_late_ms", 1 << 62),
    ("alarms", [{"code": "{else}", "severity": "critical"}]),
    ("alarms", [{"code": "a" * 20_000, "severity": "critical"}]),
    ("alarms", [{"code": "disk_full", "severity": "critical", "text": "a" * 20_000}]),
]


@pytest.mark.parametrize(("path", "value"), ODD_MEASURES, ids=[f"{p}={str(v)[:24]}" for p, v in ODD_MEASURES])
def test_what_is_read_ends_no_view_of_the_group(path: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The console showed the group as it was before, be it "in step", for as long as a member said so."""
    story = Story()
    story.look(2)
    for node in story.group.nodes.values():
        monkeypatch.setattr(node, "state", lambda state=node.state: with_field(state(), path, value))
    view = story.look(10)
    assert view.leader_id == "n0" and all(len(one.id) < 100 for one in view.problems)
    for one in view.problems:
        assert opened(one, view.as_of).text and closed(one, view.as_of).text


def test_a_member_that_answers_no_truncations_hides_nobody_elses(tmp_path: Path) -> None:
    """The page and the list were a failure of the console, and what the other members cut could not be seen."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person("ann")
            kit.group.nodes["n1"].truncations = [TRUNCATION]
            odd_cuts = ([TRUNCATION | more] for more in ({"count": [1]}, {"at": {}}, {"seq": None}))
            for items in (["x"], {"a": 1}, "none", [{"seq": 1}], *odd_cuts):
                kit.group.nodes["n2"].odd["truncations"] = {"items": items, "next": None}
                found = (await ann.get("/api/v1/clusters/demo/truncations")).json()
                assert [one["node_id"] for one in found["items"]] == ["n1"], items
                assert [one["field"] for one in found["unknown"]] == ["truncations of n2"]
                page = await ann.get("/clusters/demo/truncations")
                assert page.status_code == 200 and "951" in page.text, items

    run(work())


LISTED = {"begin_index": 0, "items": [entry(1, "one")], "next": None}
ODD_ENTRIES: list[tuple[str, Any, str]] = [
    ("items", "none", "items is no list"),
    ("items", {"a": 1}, "items is no list"),
    ("items", ["x"], "items[0] is no object"),
    ("items.0.index", "one", "items[0].index is no whole number"),
    ("items.0.index", -1, "items[0].index is out of range"),
    ("items.0.term", [4], "items[0].term is no whole number"),
    ("items.0.magic", 7, "items[0].magic is no text"),
    ("items.0.body_bytes", "many", "items[0].body_bytes is no whole number"),
    ("items.0.seal", {}, "items[0].seal is no text"),
    ("items.0.problem", 5, "items[0].problem is no text"),
    ("begin_index", "first", "begin_index is no whole number"),
    ("next", 12, "next is no text"),
    ("next", '">x', "next"),
]


@pytest.mark.parametrize(("path", "value", "says"), ODD_ENTRIES, ids=[f"{p}={v}" for p, v, _ in ODD_ENTRIES])
def test_odd_entries_are_a_page_that_says_what_is_wrong(path: str, value: Any, says: str, tmp_path: Path) -> None:
    """They were a failure of the console: an operator who looks into a broken member's log learnt nothing of it."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, node = await kit.person("ann"), kit.group.nodes["n1"]
            node.odd["entries"] = with_field(LISTED, path, value)
            page = await ann.get("/clusters/demo/log?node=n1")
            assert page.status_code == 200 and "The entries could not be read." in page.text
            assert f"What n1 answers cannot be read: {says}" in page.text

    run(work())


UNWRITABLE: list[tuple[bytes, str]] = [
    (b'"\\ud800"', "half a character"),
    (b"NaN", "a number that is none"),
    (b"[-Infinity]", "a number that is none"),
    (b"1e999", "a number that is none"),
    (b"[0.5,1.5E+400]", "a number that is none"),
    (b"1" * 400 + b".0", "a number that is none"),
    (b"[" * 200 + b"]" * 200, "nested deeper than 128"),
]


@pytest.mark.parametrize(("value", "says"), UNWRITABLE, ids=[str(v[:16]) for v, _ in UNWRITABLE])
def test_what_cannot_be_written_again_is_no_answer(value: bytes, says: str, tmp_path: Path) -> None:
    """It was a failure of the console (500), of an operation each time it was looked at."""
    odd = b'{"items": [], "next": null, "state": "done", "outcome": {"x": ' + value + b"}}"

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            olga, leader = await kit.person("olga", "operator"), kit.group.nodes["n0"]
            for what in ("entries", "segments", "leadership-transfer"):
                leader.odd[what] = odd
            asked = await olga.get("/api/v1/clusters/demo/segments")
            assert asked.status_code == 502 and says in asked.json()["detail"]
            entries = {"entries": ["x"]}
            sent = await olga.change("POST", "/api/v1/clusters/demo/entries", json=entries)
            assert sent.status_code == 504 and sent.json()["outcome"] == "unknown" and says in sent.json()["detail"]
            began = await olga.change("POST", "/api/v1/clusters/demo/leadership-transfer", json={"to": "n1"})
            path = f"/operations/{began.json()['id']}"
            task = kit.console.transfers.background.get(f"transfer {began.json()['id']}")
            if task is not None:
                await task
            known = (await olga.get(f"/api/v1{path}")).json()
            assert known["state"] == "unknown" and says in known["problem"]["detail"]
            assert (await olga.get(path)).status_code == 200

    run(work())


@pytest.mark.parametrize("text", ["e123", "1e999", "\\ud800 as text", "NaN", "ffe1234", "10", "1e99"])
def test_what_only_looks_like_it_is_handed_on(text: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            kit.group.nodes["n0"].listed = [entry(1, text)]
            found = await olga.get("/api/v1/clusters/demo/entries?from=1")
            assert found.json()["items"][0]["body"] == text

    run(work())


ODD_CUTS: list[tuple[str, Any]] = [
    ("from_index", "first"), ("to_index", [1]), ("term", "four"), ("committed_index", {}), ("at", 7), ("reason", []),
    ("begins_behind", "none"), ("below_committed", "no"),
]  # fmt: skip


def test_an_odd_truncation_is_a_page_that_says_what_is_wrong(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, node = await kit.person("ann"), kit.group.nodes["n1"]
            for field, value in ODD_CUTS:
                node.odd["truncations"] = {**TRUNCATION, "items": [], field: value}
                for path in ("truncations/n1/1", "truncations/n1/1/entries"):
                    page = await ann.get(f"/clusters/demo/{path}")
                    assert page.status_code == 502 and f"n1 answers cannot be read: {field} is" in page.text, field
            for path, value, says in ODD_ENTRIES:
                node.odd["truncations"] = with_field({**TRUNCATION, **LISTED}, path, value)
                page = await ann.get("/clusters/demo/truncations/n1/1/entries")
                assert page.status_code == 502 and f"n1 answers cannot be read: {says}" in page.text, path

    run(work())


def test_no_member_speaks_in_anothers_name(tmp_path: Path) -> None:
    """What one answered was shown as another's that it named."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann, node = await kit.person("ann"), kit.group.nodes["n1"]
            node.odd["truncations"] = {"items": [{**TRUNCATION, "node_id": "n0"}], "next": None}
            found = (await ann.get("/api/v1/clusters/demo/truncations")).json()
            assert [one["node_id"] for one in found["items"]] == ["n1"]
            node.odd["entries"] = {**LISTED, "node_id": "n0"}
            page = (await ann.get("/clusters/demo/log?node=n1")).text
            assert "Entry 1 as n1 holds it." in page

    run(work())


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-01-01T00:30:00+01:00", datetime(2025, 12, 31, 23, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
        ("0001-01-01T00:00:00+00:01", None),
        ("9999-12-31T23:59:59-00:01", None),
        ("0000-01-01T00:00:00Z", None),
        ("2026-01-01T00:00:00", None),
        ("now", None),
        (None, None),
    ],
)
def test_a_time_is_one_of_a_year_that_there_is(text: str | None, at: datetime | None) -> None:
    assert time_of(text) == at
    assert shifted(datetime(2026, 1, 1, tzinfo=UTC), 1e20).year == 9999
    assert shifted(datetime(2026, 1, 1, tzinfo=UTC), -1e13).year == 1


def test_an_address_that_no_resolver_takes_is_passed_over(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        kit.group.nodes["n1"].alive = False
        sample = kit.console.watch_of("demo").pollers["n1"].sample
        state = kit.group.nodes["n0"].state()
        for url in ("http://a..b:1", "http://[::1", "ftp://x", "http://" + "a" * 300):
            kit.group.nodes["n0"].odd["state"] = with_field(state, "peers.1.control_url", url)
            misses = sample.misses
            await kit.until(lambda misses=misses: sample.misses > misses + 1)
            assert sample.control_url == "http://127.0.0.1:8432"
        kit.group.nodes["n0"].odd.clear()
        kit.group.nodes["n1"].alive = True
        await healed(kit, "n1")

    story(tmp_path, work)


def test_an_error_that_nobody_foresaw_ends_no_poller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(kit: Kit) -> None:
        poller = kit.console.watch_of("demo").pollers["n1"]
        with monkeypatch.context() as patch:

            def broken() -> None:
                raise UnicodeError("label empty or too long")

            patch.setattr(poller, "round", broken)
            await kit.until(lambda: poller.sample.misses > 3)
            assert poller.sample.problem == "UnicodeError: label empty or too long"
        await healed(kit, "n1")
        said = [record for record in caplog.records if record.getMessage() == "polling n1 failed"]
        assert len(said) == 1, "once, not with every sample"

    story(tmp_path, work)


def test_a_seed_that_answers_nonsense_is_tried_until_it_makes_sense(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.nodes["n0"].odd["state"] = with_field(group.nodes["n0"].state(), "peers", "many")
        async with running(tmp_path, group) as kit:
            await kit.until(lambda: kit.console.seed_problems)
            assert kit.console.seed_problems == {
                "http://127.0.0.1:8431": "http://127.0.0.1:8431: its state cannot be read: peers is no list"
            }
            group.nodes["n0"].odd.clear()
            await kit.watched()
            assert not kit.console.seed_problems

    run(work())


def test_a_transfer_that_is_answered_with_nonsense_ends_unknown(tmp_path: Path) -> None:
    async def work(kit: Kit) -> None:
        olga = await kit.person("olga", "operator")
        for odd in ({"state": "running"}, {"state": ["done"]}, {"state": "running", "id": {}}):
            kit.group.nodes["n0"].odd["leadership-transfer"] = odd
            body = {"to": "n1", "if_term": 4}
            asked = await olga.change("POST", "/api/v1/clusters/demo/leadership-transfer", json=body)
            assert asked.status_code == 202
            task = kit.console.transfers.background.get(f"transfer {asked.json()['id']}")
            if task is not None:
                await task
            reported = (await olga.get(f"/api/v1/operations/{asked.json()['id']}")).json()
            assert reported["state"] in ("unknown", "failed"), odd

    story(tmp_path, work)


@pytest.mark.parametrize("host", ["a..b", ".", "a" * 64, "a b", "x" * 300, "a\0b", "münchen..de"])
def test_a_host_name_that_can_be_none_is_refused_where_it_is_configured(host: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no host name"):
        parse_peers(f"n0-127.0.0.1:1;n1-{host}:2")
    with pytest.raises(ConfigError, match=r"peers: .*is no host name"):
        load({"node.id": "n0", "peers": f"n0-127.0.0.1:1;n1-{host}:2"}, None, {})


@pytest.mark.parametrize(
    "host", ["localhost", "n0.svc.cluster.local", "my_host", "[::1]", "[fe80::1%eth0]", "münchen.de"]
)
def test_host_names_that_are_some_are_taken(host: str) -> None:
    assert parse_peers(f"n0-{host}:2") == {"n0": f"{host}:2"}


@pytest.mark.parametrize("more", ["evil@{}", "{}/evil", "{}?", "{}#evil", "evil\\@{}", "a:b@{}"])
def test_a_host_header_is_a_name_and_a_port(more: str) -> None:
    for host in ("127.0.0.1:8421", "[::1]:8421", "localhost"):
        assert name_in(host) in ("127.0.0.1", "::1", "localhost")
        assert name_in(more.format(host)) == ""


def test_httpx_raises_what_is_caught_here() -> None:
    """Host names are judged before they are asked for; this is what would come out otherwise."""
    with pytest.raises((httpx2.InvalidURL, UnicodeError, httpx2.HTTPError)):
        httpx2.get("http://a..b:1/", trust_env=False)
