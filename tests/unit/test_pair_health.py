"""What is said of a classic pair: each thing that can be wrong once, with what to do, and "in step" as proven."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path

import pytest

from app.cli import run
from app.commands.endings import Exit, Failure
from app.console.aggregate import ClusterInfo, group_view
from app.console.message_live import unserved_of
from app.console.messages_view import MemberBroker, sentence_of
from app.console.pair_metrics import gauges
from app.console.pair_view import connections_of, context_of, picture_of, rows_of, waiting_of
from app.console.settings import Seed
from app.console.waterline import ZERO_X
from app.health.classify import classify
from app.health.facts import capital
from app.health.group_view import AuditView
from app.health.pair_links import answering, masters_of
from app.health.pair_steps import ADVICE
from app.health.recall import Recall
from app.times import rfc3339
from node.views.message_answers import Broker
from tests.unit.console_kit import running
from tests.unit.fake_brokers import example
from tests.unit.fake_pair import END, T0, FakePair, connection
from tests.unit.pair_states import (
    Change,
    ahead,
    all_silent,
    behind,
    broker_down,
    config_not_saved,
    fenced,
    forked,
    log_broken,
    log_damaged,
    master_full,
    master_silent,
    no_slave,
    refused,
    rocketmq_slave,
    same_id,
    sends_wait,
    slave_full,
    slave_gone,
    slave_silent,
    stranger,
    too_far_behind,
    too_few,
    two_masters,
    unknown_slave_refused,
)

WRONG: dict[Change, tuple[str, set[tuple[str, str | None]], str]] = {
    slave_silent: ("attention", {("ha_silent", "s1")}, "The slave s1 does not answer for"),
    master_silent: (
        "critical", {("ha_no_master", None), ("ha_silent", "m")}, "No broker takes messages for",
    ),
    all_silent: ("critical", {("ha_all_silent", None)}, "No broker of the pair answers for"),
    broker_down: ("attention", {("ha_broker_down", "s2")}, "The broker s2 does not answer its control plane for"),
    slave_gone: ("attention", {("ha_slave_gone", "s1")}, "s1 gets nothing from its master for"),
    ahead: ("critical", {("ha_ahead", "s1")}, "s1 holds more than its master, and gets nothing for"),
    forked: ("critical", {("ha_forked", "s1")}, "s1 holds other records than its master"),
    stranger: ("critical", {("ha_stranger", "s1")}, "s1 holds another pair's log"),
    refused: ("attention", {("ha_refused", "s1")}, "s1 is refused by its master"),
    unknown_slave_refused: ("attention", {("ha_slave_not_served", None)}, "A slave that is not watched here, s9"),
    same_id: ("attention", {("ha_slave_not_served", None)}, "Another slave that calls itself s1 is refused: a slave"),
    two_masters: ("critical", {("ha_two_masters", "s2")}, "m (epoch 2) and s2 (epoch 1) take messages"),
    fenced: ("attention", {("ha_fenced", "m")}, "m was master before epoch 1048576 began elsewhere"),
    too_few: (
        "critical", {("ha_too_few_slaves", "m"), ("ha_slave_gone", "s1"), ("ha_slave_gone", "s2")},
        "Too few slaves of m are near enough",
    ),
    no_slave: (
        "attention", {("ha_no_slave", "m"), ("ha_slave_gone", "s1"), ("ha_slave_gone", "s2")},
        "m alone holds what is sent",
    ),
    behind: ("attention", {("ha_behind", "s1")}, "s1 has not acknowledged what m has had for 9 s"),
    too_far_behind: ("attention", {("ha_behind", "s1")}, "s1 is 314,572,800 bytes behind m, and is not waited for"),
    sends_wait: ("attention", {("ha_sends_wait", "m")}, "3 sends wait at m for s1 and s2"),
    log_broken: ("critical", {("ha_log_broken", "m")}, "m writes nothing for"),
    master_full: ("critical", {("ha_disk_full", "m")}, "m takes no messages for"),
    config_not_saved: ("attention", {("ha_config_not_saved", "m")}, "m cannot save topics, groups and offsets for"),
    slave_full: ("attention", {("ha_disk_full", "s1")}, "s1 stores nothing for"),
    log_damaged: (
        "critical", {("ha_log_damaged", "s1")}, "s1 has a log that is damaged at one place, the first from",
    ),
}  # fmt: skip


GROUPS_ONLY = (
    "leadership", "members", "members/change", "log", "truncations", "truncations/m/1",
    "truncations/m/1/entries", "entries/1/replicas", "nodes/m/repair",
)  # fmt: skip
GROUPS_ACTIONS: dict[str, object] = {
    "clusters/pair/leadership-transfer": {"to": "s1"},
    "clusters/pair/entries": {"entries": ["x"]},
    "clusters/pair/members": {"id": "n9", "address": "127.0.0.1:9"},
    "clusters/pair/nodes/m/repair": {},
}


def test_a_broker_that_may_hang_is_not_to_be_started_beside_itself() -> None:
    """SIGSTOP: what was printed, `quorumscope node …`, found its port and its directory taken."""
    pair = FakePair()
    pair.ha["m"]["started_with"] = "quorumscope node --id m"
    master_silent(pair)
    gone = next(one for one in pair.view().problems if one.code == "ha_silent")
    assert gone.command == "quorumscope node --id m"
    pair.why_silent = "http://127.0.0.1:8431 did not answer in time"
    hangs = next(one for one in pair.view().problems if one.code == "ha_silent")
    assert (hangs.command or "").startswith("quorumscope ha status --node") and "has to go on" in hangs.step
    assert capital(hangs.means, hangs.member).startswith("m is asked and says nothing")
    # Stopped here, or cut off from here alone: its clients may reach it.
    view = pair.view()
    assert view.sentence.headline.startswith("No broker that answers takes messages for ")
    assert "whether m does is not known" in view.sentence.headline + view.sentence.rest
    assert "No broker takes messages" not in view.sentence.headline + view.sentence.rest
    broker_down(down := FakePair())
    (stopped,) = down.view().problems
    assert (stopped.command or "").startswith("quorumscope ha status --node") and "by itself" in stopped.step


def test_a_master_that_nobody_named_is_not_called_lost() -> None:
    """`status --node` of a sound pair's slave said that no broker takes messages, and to promote the slave."""
    pair = FakePair()
    pair.named = ("s1",)
    view = pair.view()
    assert not view.problems and view.severity == "unknown"
    assert "s1 follows a master at 127.0.0.1:10912, whose control plane is not among" in view.sentence.headline
    assert view.sentence.rest == "Whether a broker takes messages is not known."
    pair.leave("s1")
    assert {one.code for one in pair.view().problems} >= {"ha_no_master"}, "it is served no more"


@pytest.mark.parametrize("change", WRONG, ids=lambda one: one.__name__)
def test_what_is_wrong_is_said_once_and_what_to_do(change: Change) -> None:
    pair = FakePair()
    change(pair)
    view = pair.view()
    severity, codes, headline = WRONG[change]
    assert {(one.code, one.node_id) for one in view.problems} == codes
    assert len(view.problems) == len(codes)
    assert (view.severity, view.sentence.headline[: len(headline)]) == (severity, headline)
    for one in view.problems:
        assert not one.text[0].islower() or one.text.split()[0] in pair.ha, "a list of problems begins with it as it is"
        assert one.means and one.at_stake and one.step and one.command and one.curl
        assert "{" not in one.means + one.at_stake + one.step + one.command
        compares = one.code in ("ha_ahead", "ha_forked", "ha_unchecked", "ha_log_damaged")
        assert one.docs == "docs/classic-ha.md#" + ("audit-master-against-slaves" if compares else "problems-of-a-pair")
        assert not {"DIR", "URL", "FILE", "HOST", "PORT"} & set(one.command.split()), "it runs as it is printed"
        assert not one.actions, "what is there for groups does nothing for a pair"
    assert context_of(view)["picture"]


def test_why_a_slave_is_refused_is_not_what_its_next_attempt_met() -> None:
    """Each second the cause of a fork was another one."""
    pair = FakePair()
    forked(pair)
    pair.ha["s1"]["following"]["reason"] = "127.0.0.1 answers no handshake: it hangs, or is RocketMQ's"
    (one,) = pair.view().problems
    assert one.code == "ha_forked" and one.text.endswith(": its record at 51200 is not this master's.")


@pytest.mark.parametrize("stops", [master_full, log_broken])
def test_a_master_that_stores_nothing_is_not_said_to_take_messages(stops: Change) -> None:
    """Each send was refused for a full disk, and the sentence read: the slaves are in step, m takes messages."""
    pair = FakePair()
    stops(pair)
    view = pair.view()
    assert view.sentence.rest.startswith("m is SYNC_MASTER in epoch 2 and takes no messages; 2 slaves are served.")
    assert next(one for one in rows_of(view) if one.id == "m").takes.startswith("no: ")


def test_a_broker_that_ends_again_and_again_beside_a_control_plane_is_not_called_a_machine_that_is_gone() -> None:
    pair = FakePair()
    for name in ("m", "s1", "s2"):
        pair.ha[name] = {**pair.ha[name], "broker": "down", "reason": "its broker does not answer: look at its log"}
    view = pair.view()
    assert {one.code for one in view.problems} == {"ha_broker_down"}
    assert view.sentence.headline.startswith("The broker m does not answer its control plane for ")


def test_a_slave_that_is_not_served_while_another_one_is_is_named_though_their_master_is_not_heard() -> None:
    """Cut off from the console, it serves s2: that s1 gets nothing is no part of that."""
    pair = FakePair()
    pair.alive["m"] = False
    pair.ha["s1"]["following"] |= {"state": "ready", "reason": "connection refused"}
    assert ("ha_slave_gone", "s1") in {(one.code, one.node_id) for one in pair.view().problems}


def test_that_nobody_takes_messages_is_said_once() -> None:
    master_silent(pair := FakePair())
    sentence = pair.view().sentence
    assert sentence.headline.startswith("No broker takes messages for ") and "takes messages" not in sentence.rest


def test_the_page_of_messages_knows_who_is_served() -> None:
    """A slave names no leader: of each sound pair the page said that no slave follows."""
    pair = FakePair()
    assert unserved_of(pair.view()) == []
    slave_gone(pair)
    assert unserved_of(pair.view()) == ["s1"]
    said = [Broker.model_validate(example("get /api/v1/broker") | one) for one in (
        {"role": "MASTER", "leader_id": "m"}, {"role": "SLAVE", "leader_id": None})]  # fmt: skip
    brokers = [MemberBroker(name, one) for name, one in zip(("m", "s1"), said, strict=True)]
    assert sentence_of(brokers, []).severity == "ok"
    assert sentence_of(brokers, ["s1"]).headline == "The broker of s1 does not follow m."
    brokers[1] = MemberBroker("s1", said[1].model_copy(update={"broker": "down", "role": None, "reason": "No answer."}))
    assert sentence_of(brokers, []).rest == "No answer. Clients cannot read there.", "a pair's brokers have no vote"


def test_a_broker_that_hangs_is_not_said_to_have_ended() -> None:
    broker_down(pair := FakePair())
    lanes = {one.id: one for one in picture_of(pair.view()).lanes}
    assert lanes["s2"].sub == "its broker does not answer"
    assert lanes["s2"].trouble is not None and lanes["s2"].trouble.word == "broker silent"


def test_a_broker_that_hangs_keeps_what_it_said_last() -> None:
    """Its control plane answers, and says nothing of its log: the lane was empty, as that of one never reached."""
    pair = FakePair()
    pair.before["s2"] = pair.ha["s2"] | {"end_offset": END - 4096, "flushed_offset": END - 4096}
    broker_down(pair)
    lane = next(one for one in picture_of(pair.view()).lanes if one.id == "s2")
    assert (lane.reach, lane.never, lane.role) == ("stale", False, "slave")
    assert (lane.end_text, lane.behind_text) == (f"{END - 4096:,}", "4.1 kB")
    assert lane.sub == "its broker does not answer; as at 08:00:00" and lane.bars
    assert "s2" not in {one.id for one, _said in answering(pair.view())}


def test_a_master_that_hangs_keeps_its_end_and_is_master_no_more() -> None:
    pair = FakePair()
    pair.before["m"] = dict(pair.ha["m"])
    pair.ha["m"] = {key: pair.ha["m"][key] for key in ("as_of", "name", "self_id", "address", "ha_address")}
    pair.ha["m"] |= {"broker": "down", "reason": "nothing answers"}
    picture = picture_of(view := pair.view())
    assert picture.end_text == f"{END:,}" and not masters_of(view)
    assert next((one.id, one.role_class, one.never) for one in picture.lanes) == ("m", "", False)


def test_who_is_tried_in_turn_is_not_called_the_master() -> None:
    """The address at which a slave was found, of two that look for their master, was said to be the master's."""
    pair = FakePair()
    pair.leave("s1", reason="a slave is there, no master")
    pair.ha["s1"]["following"]["address"] = "127.0.0.1:11112"
    (one,) = pair.view().problems
    assert re.fullmatch(
        r"s1 gets nothing from its master for \d+ s, tried last at 127.0.0.1:11112: a slave is there, no master[.]",
        one.text,
    )


@pytest.mark.parametrize(
    "since", [{"last_heard_ms": 9_000}, {"last_heard_ms": 1_400, "lag_bytes": 512, "lag_ms": 1_500}]
)
def test_a_slave_that_hangs_is_not_called_served(since: dict[str, int]) -> None:
    """SIGSTOP: its connection is there until haHousekeepingInterval is over."""
    pair = FakePair()
    here = pair.ha["m"]["connections"]
    broker_down(pair)
    pair.ha["m"]["connections"] = [here[0], connection("s2", **since)]
    view = pair.view()
    assert view.sentence.rest == ("m takes messages as SYNC_MASTER in epoch 2; 1 slave is served, and s2 says nothing.")
    assert [(one.slave, one.state, one.reason) for one in connections_of(view)] == [
        ("s1", "served", ""), ("s2", "says nothing", ""),
    ]  # fmt: skip
    served = next(values for name, _about, _labels, values in gauges([view]) if name == "pair_slave_served")
    assert served == {("pair", "s1"): 1, ("pair", "s2"): 0}
    for late in (
        {"lag_bytes": 0, "lag_ms": 0},
        {"lag_bytes": 1 << 30, "lag_ms": 9_000},
        {"lag_bytes": 5, "lag_ms": None},
    ):
        pair.link("s2").update(last_heard_ms=12, **late)  # only its control plane does not hear it
        assert "2 slaves are served." in pair.view().sentence.rest


@pytest.mark.parametrize(
    ("master", "slave"),
    [
        ({"last_heard_ms": 7_000}, {"last_heard_ms": 7_000}),  # nothing is sent but heartbeats
        ({"last_heard_ms": 1_400, "lag_bytes": 512, "lag_ms": 1_400}, {"last_heard_ms": 1_300}),
        ({"last_heard_ms": 7_000}, {"last_heard_ms": 12}),  # one way only
    ],
)
def test_a_slave_that_is_cut_off_and_answers_here_is_named(master: dict[str, int], slave: dict[str, int]) -> None:
    """Where nothing was sent, "in step" was said until haHousekeepingInterval was over."""
    pair = FakePair()
    pair.link("s1").update(master)
    pair.ha["s1"]["following"].update(slave)
    assert "in step." not in pair.view(0.5).sentence.headline, "from the first look on"
    view = pair.view(1.5)
    assert [(one.code, one.member) for one in view.problems] == [("ha_slave_gone", "s1")]
    assert view.sentence.headline.startswith("m hears nothing of its slave s1 for ")
    assert "1 slave is served, and s1 says nothing." in view.sentence.rest


def test_brokers_that_say_something_less_often_are_not_called_cut_off() -> None:
    """haSendHeartbeatInterval is theirs to set: where nothing was sent, a slave was cut off and in step in turns."""
    pair = FakePair()
    for name in ("s1", "s2"):
        pair.ha[name]["heartbeat_ms"] = 15_000
        pair.link(name)["last_heard_ms"] = pair.ha[name]["following"]["last_heard_ms"] = 14_000
    assert pair.view().sentence.headline == "Both slaves are in step."
    pair.alive["s1"] = False
    assert "2 slaves are served." in pair.view().sentence.rest, "what it said last counts where it does not answer here"
    pair.alive["s1"], pair.link("s1")["last_heard_ms"] = True, 17_000
    assert [(one.code, one.member) for one in pair.view().problems] == [("ha_slave_gone", "s1")]


def test_a_slave_that_says_that_it_is_not_served_is_not_in_step_though_its_master_has_its_connection_still() -> None:
    pair = FakePair()
    pair.ha["s1"]["following"].update(state="ready", reason="connection refused")
    assert "s1 says that it is not served" in pair.view(0.5).sentence.headline
    assert [(one.code, one.member) for one in pair.view().problems] == [("ha_slave_gone", "s1")]


def test_a_slave_that_is_slow_to_store_what_it_goes_on_hearing_is_not_called_cut_off() -> None:
    pair = FakePair()
    pair.link("s1").update(last_heard_ms=3_000, lag_bytes=1 << 20, lag_ms=3_000)
    assert not pair.view().problems and "s1 has not acknowledged" in pair.view().sentence.headline


def test_in_step_is_said_of_what_is_proven() -> None:
    view = FakePair().view()
    assert (view.severity, view.problems, view.unproven) == ("ok", (), ())
    assert view.sentence.headline == "Both slaves are in step."
    assert view.sentence.rest == "m takes messages as SYNC_MASTER in epoch 2; 2 slaves are served."


@pytest.mark.parametrize(
    ("field", "value", "doubt"),
    [
        ("acked_offset", None, "how far s1 is, is unknown"),
        ("stand", None, "s1 is not served"),
        ("state", "asked", "s1 is not served"),
        ("lag_ms", 1_500, "s1 has not acknowledged what m has had for 1 s"),
    ],
)
def test_what_is_not_proven_is_not_called_in_step(field: str, value: object, doubt: str) -> None:
    pair = FakePair()
    pair.link("s1").update({"lag_bytes": 100, field: value})
    view = pair.view(0.5)
    assert view.severity == "unknown"
    assert view.sentence.headline == f"Whether every slave is in step is not known: {doubt}."


def test_what_rocketmq_s_protocol_does_not_allow_to_check_is_said() -> None:
    pair = FakePair()
    rocketmq_slave(pair)
    view = pair.view()
    assert view.severity == "ok"
    assert view.sentence.headline == "All 3 slaves acknowledge everything."
    assert "what its log holds cannot be compared" in view.sentence.rest
    assert [one.code for one in view.problems] == ["ha_unchecked"]
    stand = connections_of(view)[0].stand
    assert "says nothing of what it holds" in stand and "in step" not in stand
    assert "in step" not in view.sentence.headline + view.sentence.rest
    assert [bar.kind for bar in picture_of(view).lanes[3].bars] == ["unvouched"]


def test_every_code_has_advice_and_no_advice_is_left_over() -> None:
    said = {code for _, codes, _ in WRONG.values() for code, _ in codes} | {"ha_unchecked"}
    assert said | {"audit_divergent", "audit_incomplete"} == set(ADVICE)


@pytest.mark.parametrize(
    ("verdict", "severity"), [("divergent", "critical"), ("unauditable", "info"), ("consistent", None)]
)
def test_the_last_audit_of_a_pair_is_a_problem_where_it_found_one(verdict: str, severity: str | None) -> None:
    pair, now = FakePair(), T0
    view = group_view(ClusterInfo("pair", "pair", "pair"), [pair.sample(name, now) for name in ("m", "s1", "s2")], now)
    audit = AuditView(
        id="a", state="done", verdict=verdict, depth="bytes", finished_at=rfc3339(now), first="offset 5 on s1"
    )
    judged = classify(view.model_copy(update={"audit": audit}), Recall(), now)
    assert [one.severity for one in judged.problems] == ([] if severity is None else [severity])
    for one in judged.problems:
        assert (one.command or "").startswith("quorumscope audit --ha --node http://")
        assert run([*shlex.split(one.command or "")[1:3], "--help"]) == 0


def test_the_waterline_is_of_the_master_s_instant() -> None:
    pair = FakePair()
    pair.link("s1").update(acked_offset=END - 4_000, lag_bytes=4_000, lag_ms=300)
    pair.ha["s1"]["end_offset"] = END - 1_000  # it was asked later
    picture = picture_of(pair.view())
    master, late, level = picture.lanes
    assert (master.end_x, level.end_x, picture.enough_x) == (ZERO_X, ZERO_X, ZERO_X)
    assert late.end_x is not None and late.end_x < ZERO_X
    assert (late.end_text, late.behind_text) == ("77,920", "4.0 kB")


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_what_a_slave_acknowledged_with_sync_flush_is_drawn_as_on_its_disk(flush: str) -> None:
    """It was asked before its flush ended, its master after the acknowledgement."""
    pair = FakePair()
    pair.ha["s1"] |= {"flush": flush, "flushed_offset": END - 1_000}
    slave = picture_of(pair.view()).lanes[1]
    assert (slave.not_durable is None) == (flush == "SYNC_FLUSH")


def test_a_lane_names_its_trouble_and_sends_that_wait_long_are_listed() -> None:
    pair = FakePair()
    behind(pair)
    short = {"offset": END, "waits_for": ["s1"], "slaves_needed": 1, "age_ms": 3}
    pair.ha["m"] |= {"waiting_count": 2, "waiting": [short, short | {"age_ms": 800}]}
    view = pair.view()
    trouble = picture_of(view).lanes[1].trouble
    assert trouble is not None
    assert (trouble.word, trouble.severity, trouble.anchor) == ("behind", "attention", "problem-ha_behind-s1")
    waiting, count = waiting_of(view)
    assert ([one.age_ms for one in waiting], count) == ([800], 2)


def test_a_broker_that_is_silent_says_nothing_about_now() -> None:
    pair = FakePair()
    pair.why_silent = ""
    slave_silent(pair)
    row = rows_of(pair.view())[1]
    assert (row.id, row.end, row.takes) == ("s1", "unknown", "does not answer")


def test_ha_status_is_the_consoles_judgement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = FakePair()
    names = {url: name for name, url in pair.urls.items()}

    def answer(_method: str, url: str, _resource: str, *_: object, **__: object) -> tuple[int, object]:
        if not pair.alive[names[url]]:
            raise Failure(Exit.UNREACHABLE, f"{url} cannot be reached: connection refused")
        return 200, pair.ha[names[url]]

    monkeypatch.setattr("app.commands.ha.control_answer", answer)
    monkeypatch.setattr("app.commands.ha.LOOK_AGAIN_S", 0.0)
    words = ["ha", "status", *(word for url in pair.urls.values() for word in ("--node", url))]
    assert run(words) == Exit.FINE
    assert "Both slaves are in step." in capsys.readouterr().out
    forked(pair)
    assert run([*words, "--json"]) == Exit.FINDING
    said = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["member"]) for one in said["problems"]] == [("ha_forked", "s1")]
    assert (said["master_id"], said["epoch"], len(said["brokers"])) == ("m", 2, 3)
    pair.alive = dict.fromkeys(pair.alive, False)
    assert run(words) == Exit.UNREACHABLE


def test_a_pair_is_attached_broker_by_broker_and_shown_as_one(tmp_path: Path) -> None:
    async def work() -> None:
        pair = FakePair()
        seeds = tuple(Seed(url) for url in pair.urls.values())
        async with running(tmp_path, pair, seeds=seeds) as kit:  # type: ignore[arg-type]
            await kit.until(lambda: "pair" in kit.console.watches)
            watch = kit.console.watches
            await kit.until(lambda: len(watch["pair"].view.members) == 3 and watch["pair"].view.severity == "ok")
            assert list(watch) == ["pair"]
            ann = await kit.person()
            assert '<td data-label="Flush">sync</td>' in (await ann.get("/")).text, "its own page says it, too"
            page = (await ann.get("/clusters/pair")).text
            for said in ("Slaves of the master", "127.0.0.1:10912", 'id="broker-s2"'):
                assert said in page
            assert "/clusters/pair/leadership" not in page
            for path in GROUPS_ONLY:
                answer = await ann.get(f"/clusters/pair/{path}")
                assert (answer.status_code, "it has no replicated log" in answer.text) == (404, True), path
            for path in ("events", "addresses"):
                assert "/clusters/pair/truncations" not in (await ann.get(f"/clusters/pair/{path}")).text
            before = len((await ann.get("/api/v1/operations")).json()["items"])
            for path, body in GROUPS_ACTIONS.items():
                answer = await ann.change("POST", f"/api/v1/{path}", json=body)
                assert (answer.status_code, answer.json()["title"]) == (404, "No replicated log"), path
            assert len((await ann.get("/api/v1/operations")).json()["items"]) == before
            asked = {"cluster": "pair", "dry_run": True}
            would = (await ann.change("POST", "/api/v1/audits", json=asked)).json()
            assert [one["source"] for one in would["replicas"]] == list(pair.urls.values())
            for more in ({"depth": "chain"}, {"depth": "digest"}, {"from_index": 1}, {"to_index": 1}):
                for body in ({"cluster": "pair", **more}, {**asked, **more}):
                    answer = await ann.change("POST", "/api/v1/audits", json=body)
                    assert (answer.status_code, "audited as a whole" in answer.text) == (422, True), body
            page = (await ann.get("/clusters/pair/audits")).text
            assert "Start audit" in page and 'name="depth"' not in page and "Every byte" not in page
            answer = (await ann.get("/api/v1/clusters/pair/ha")).json()
            assert (answer["master_id"], [one["id"] for one in answer["items"]]) == ("m", ["m", "s1", "s2"])
            assert (await ann.get("/clusters/pair/nodes/s1")).headers["location"] == "/clusters/pair#broker-s1"
            gauges = (await ann.get("/metrics")).text
            for line in (
                'pair_has_master{cluster="pair"} 1.0', 'pair_slave_lag_bytes{cluster="pair",slave="s1"} 0.0',
                'pair_end_offset{cluster="pair",member="s2"} 81920.0', 'pair_sends_waiting{cluster="pair"} 0.0',
            ):  # fmt: skip
                assert f"quorumscope_console_{line}" in gauges
            assert 'group_quorum_stands{cluster="pair"}' not in gauges
            assert 'group_writes_stopped{cluster="pair"}' not in gauges
            home = (await ann.get("/")).text
            assert 'id="cluster-pair"' in home and "no replicated log" in home
            forked(pair)
            async with asyncio.timeout(60):  # a page is of its own moment: on a busy machine a broker is silent for one
                while True:
                    page = (await ann.get("/clusters/pair")).text
                    if "holds other records than its master" in page and "not served: forked" in page:
                        break
                    await asyncio.sleep(0.02)
            pair.ha["s2"] = {key: pair.ha["s2"][key] for key in ("as_of", "name", "self_id", "address", "ha_address")}
            pair.ha["s2"] |= {"broker": "down", "reason": "nothing answers"}
            lane = await kit.until(lambda: next(
                (one for one in picture_of(watch["pair"].view).lanes if one.id == "s2" and one.reach == "stale"), None
            ))  # fmt: skip
            assert not lane.never and lane.sub.startswith("its broker does not answer; as at ")

    asyncio.run(work())


def test_the_printed_commands_are_the_command_line_s() -> None:
    pair = FakePair()
    behind(pair)
    command = pair.view().problems[0].command or ""
    words = shlex.split(command)
    assert words[:3] == ["quorumscope", "ha", "status"]
    assert run([*words[1:3], "--help"]) == 0


def test_status_of_a_broker_of_a_pair_is_that_of_the_pair(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = FakePair()
    url = pair.urls["m"]

    def answer(_method: str, _url: str, resource: str, *_: object, **__: object) -> tuple[int, object]:
        if resource == "ha":
            return 200, pair.ha["m"]
        return (200, {"kind": "classic"}) if resource == "" else (404, {"title": "Not Found", "detail": "none"})

    for module in ("ha", "control_calls"):
        monkeypatch.setattr(f"app.commands.{module}.control_answer", answer)
    monkeypatch.setattr("app.commands.ha.LOOK_AGAIN_S", 0.0)
    said = []
    for words in (["ha", "status"], ["status"]):
        assert run([*words, "--node", url, "--json"]) == Exit.FINE
        said.append(json.loads(capsys.readouterr().out) | {"as_of": ""})
    assert said[0]["master_id"] == "m" and said[0]["severity"] == said[1]["severity"]
    assert said[0]["brokers"] == said[1]["brokers"]
    assert run(["append", "--node", url]) == Exit.USAGE
    assert f"quorumscope ha status --node {url}" in capsys.readouterr().err
