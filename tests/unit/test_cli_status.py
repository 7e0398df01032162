"""`status` believes what members say of each other: one that answers us may still be cut off from the rest."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.commands import control_calls
from app.commands import group as commands
from app.commands.endings import Exit, Failure, Silence, Unheard
from app.commands.standing import AskedMember, StatusView
from app.commands.standing import summary_of as summary
from app.commands.status_table import table_of
from app.commands.targets import Target, target_of
from app.health.recall import Recall
from app.times import rfc3339
from node.client import AnotherGroup, Denied, UnknownGroup
from node.views.reading import read
from node.views.state import StateView
from tests.ports import free_ports

Json = dict[str, Any]
NOW = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
IDS = ("n0", "n1", "n2")


def member(node_id: str, *, leader: str | None = "n0", term: int = 4, acks: Json | None = None, **state: Any) -> Json:
    """One that answers; `acks` are a leader's, by member: milliseconds since it heard it."""
    role = "LEADER" if acks is not None else "FOLLOWER"
    log = {"begin_index": 0, "end_index": 9, "durable_index": 9, "committed_index": 9, "applied_index": 9}
    peers = [{"id": one, "address": f"{one}:1", "connected": True} for one in IDS]
    reported = {
        "engine": "ok", "self_id": node_id, "role": role, "term": term, "leader_id": leader, "voter_state": "VOTER",
        "alarms": [], "log": log,
        "flush": "sync", "peers": peers, **state,
        "timing": {"election_timeout_max_ms": 1000, "heart_beat_time_interval_ms": 100},
    }  # fmt: skip
    known = {"id": node_id, "address": f"{node_id}:1", "reach": "ok", "reason": None, "state": reported}
    if acks is None:
        return known
    marks = [{"id": one, "last_ack_ms": age, "lag_entries": 0, "lag_ms": 0} for one, age in acks.items()]
    sent = [{"peer_id": one, "state": "APPEND", "since": "2026-05-04T11:00:00Z"} for one in acks if one != node_id]
    closures = {"pending": 0, "limit": 100, "oldest_age_ms": None}
    return known | {"watermarks": {"peers": marks}, "dispatchers": {"items": sent}, "closures": closures}


def silent(node_id: str) -> Json:
    return {
        "id": node_id, "address": f"{node_id}:1", "reach": "down", "reason": "no answer within 2 s", "state": None,
        "watermarks": None, "silence": "no_word",
    }  # fmt: skip


def gone(node_id: str) -> Json:
    """Its machine answers, and it does not run."""
    return silent(node_id) | {"reason": "connection refused: nothing listens there", "silence": "nothing_listens"}


def without_connection(one: Json, *peers: str) -> Json:
    for peer in one["state"]["peers"]:
        peer["connected"] = peer["id"] not in peers
    return one


FRESH = {"n0": 0, "n1": 20, "n2": 30}


def summary_of(group: str, members: list[Json], now: datetime, recall: Recall | None = None) -> StatusView:
    return summary(group, [read(AskedMember, one) for one in members], now, recall)


def look(members: list[Json]) -> StatusView:
    """What has lasted for three seconds."""
    recall = Recall()
    summary_of("g", members, NOW - timedelta(seconds=3), recall)
    return summary_of("g", members, NOW, recall)


def codes(summary: StatusView) -> list[tuple[str, str | None]]:
    return [(one.code, one.member) for one in summary.problems]


def test_a_group_that_hears_each_other_is_fine() -> None:
    summary = summary_of("g", [member("n0", acks=FRESH), member("n1"), member("n2")], NOW)
    assert (summary.problems, summary.unknown) == ((), ())
    assert summary.quorum.to_json() == {"size": 3, "needed": 2, "answering": 3, "standing": 3, "stands": True}
    assert (summary.leader_id, summary.term, summary.as_of) == ("n0", 4, "2026-05-04T12:00:30.000Z")


def test_a_follower_that_its_leader_does_not_hear_is_cut_off_though_it_answers() -> None:
    leader = member("n0", acks={"n0": 0, "n1": 20, "n2": 7250})
    summary = look([leader, member("n1"), member("n2", leader=None, role="CANDIDATE")])
    (found,) = summary.problems
    assert set(found.to_json()) == {
        "code", "severity", "member", "since", "text", "next_step", "means", "at_stake", "step", "command", "curl",
        "docs",
    }  # fmt: skip
    assert (found.code, found.severity, found.member) == ("cut_off", "attention", "n2")
    assert found.text == "n2 is cut off from n0, for 10 s; it still answers here."
    assert found.since == "2026-05-04T12:00:19.750Z", "what the first look knew"
    assert summary.quorum.stands is True


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([silent("n0"), member("n1"), member("n2")], "the others follow n0, which does not answer; 2 of 3"),
        ([silent("n0"), member("n1", leader=None), member("n2", leader=None)], "no member that answers leads; 2 of 3"),
        ([silent("n0"), silent("n1"), member("n2", leader="n2")], "no member that answers leads; 1 of 3"),
        ([member(one, leader=None) for one in IDS], "no member leads; 3 of 3"),
    ],
)
def test_a_leader_that_may_only_be_silent_is_not_denied(members: list[Json], said: str) -> None:
    assert table_of(summary_of("g", members, NOW))[0].startswith(f"group g: {said} members answer")


def test_who_is_cut_off_does_not_say_that_the_others_commit_nothing() -> None:
    """`status --node` of a member on the wrong side of a cut said that the quorum was lost, while it stood."""
    alone = member("n2", leader=None, role="CANDIDATE")
    summary = look([silent("n0"), silent("n1"), alone])
    assert codes(summary)[0] == ("quorum_out_of_sight", None)
    assert summary.problems[0].at_stake == "whether writes get through is not known"
    assert summary.quorum.stands is None and "whether a quorum stands is unknown" in table_of(summary)[0]
    two = [gone(one) for one in ("n0", "n1")]
    lost = look([*two, alone])
    assert codes(lost)[0] == ("quorum_lost", None) and lost.quorum.stands is False


def test_a_leader_that_hears_nobody_has_no_quorum_though_all_answer() -> None:
    leader = member("n0", acks={"n0": 0, "n1": 9000, "n2": None})
    summary = look([leader, member("n1", leader=None), member("n2", leader=None)])
    assert codes(summary) == [("quorum_lost", None), ("cut_off", "n1"), ("cut_off", "n2")]
    assert "n0 leads and does not hear n1 and n2" in summary.problems[0].text
    assert summary.quorum.to_json() == {"size": 3, "needed": 2, "answering": 3, "standing": 1, "stands": False}
    assert "NO QUORUM" in table_of(summary)[0]


def test_a_deposed_leader_that_does_not_know_it_yet_is_cut_off() -> None:
    old = member("n0", acks={"n0": 0, "n1": 900, "n2": 900}, term=4)
    new = member("n1", acks={"n1": 0, "n2": 15, "n0": None}, term=5, leader="n1")
    summary = summary_of("g", [old, new, member("n2", leader="n1", term=5)], NOW)
    assert (summary.leader_id, summary.term, summary.quorum.stands) == ("n1", 5, True)
    assert codes(summary) == [("cut_off", "n0")]
    assert "still believes that it leads term 4" in summary.problems[0].text


def test_one_that_follows_somebody_else_is_cut_off() -> None:
    summary = look([member("n0", acks=FRESH), member("n1", leader="n2"), member("n2")])
    assert codes(summary) == [("cut_off", "n1")]
    assert "it follows n2, not the leader n0" in summary.problems[0].text


def test_followers_without_a_connection_to_each_other_are_named_once() -> None:
    n1, n2 = without_connection(member("n1"), "n2"), without_connection(member("n2"), "n1")
    summary = look([member("n0", acks=FRESH), n1, n2])
    assert codes(summary) == [("not_connected", "n1")]
    assert summary.problems[0].text == "n1 and n2 have no connection to each other."
    one_way = look([member("n0", acks=FRESH), member("n1"), without_connection(member("n2"), "n1")])
    assert [one.text for one in one_way.problems] == ["n2 has no connection to n1."]


def moved(known: Json, member_id: str, address: str) -> Json:
    """What the log of this one says of a member since its address was changed: nobody reaches it there."""
    for peer in known["state"]["peers"]:
        if peer["id"] == member_id:
            peer.update(address=address, connected=False)
    return known


ELSEWHERE = "The group looks for n2 at n2:99, as its log says, and does not reach it there; n2 says that it is at n2:1."


def test_a_wrong_address_in_the_log_is_named_as_the_cause_of_a_cut() -> None:
    leader = moved(member("n0", acks={"n0": 0, "n1": 20, "n2": 7250}), "n2", "n2:99")
    n2 = without_connection(member("n2", leader=None, role="CANDIDATE"), "n0", "n1")
    summary = look([leader, moved(member("n1"), "n2", "n2:99"), n2])
    assert codes(summary) == [("wrong_address", "n2")]
    (found,) = summary.problems
    assert found.text == ELSEWHERE
    assert "members address n2 n2:1 --peers" in found.command
    leader["state"]["links"] = [{"peer_id": one, "in_since": None, "last_heard_ms": 30} for one in ("n1", "n2")]
    asks = look([leader, moved(member("n1"), "n2", "n2:99"), n2])
    assert asks.problems[0].at_stake == "writes get through, and one more failure stops them", "it asks for votes there"
    connected = member("n0", acks=FRESH)
    connected["state"]["peers"][2]["address"] = "n2:99"
    assert codes(look([connected, member("n1"), member("n2")])) == [], "it is reached there, by another name"


def test_who_answers_by_its_control_plane_only_is_not_to_be_started_again() -> None:
    says = member("n2", leader=None, role="CANDIDATE")["state"] | {"started_with": "quorumscope node --id n2"}
    n2 = silent("n2") | {"address": "n2:99", "start": says, "control_url": "http://127.0.0.1:3"}
    leader = moved(member("n0", acks={"n0": 0, "n1": 20, "n2": 7250}), "n2", "n2:99")
    summary = look([leader, member("n1"), n2])
    assert [(one.code, one.text) for one in summary.problems] == [("wrong_address", ELSEWHERE)]
    cut = look([member("n0", acks=FRESH), member("n1"), n2])
    assert codes(cut) == [("member_unreachable", "n2")]
    assert cut.problems[0].step.startswith("start nothing: ") and "--node http://127.0.0.1:3" in cut.problems[0].command


def test_a_member_that_does_not_answer_is_not_also_cut_off_or_unconnected() -> None:
    leader = without_connection(member("n0", acks={"n0": 0, "n1": 20, "n2": 60_000}), "n2")
    summary = summary_of("g", [leader, member("n1"), silent("n2")], NOW)
    assert codes(summary) == [("member_unreachable", "n2")]
    assert summary.problems[0].severity == "attention"


def test_a_leader_that_does_not_answer_here_may_lead_all_the_same() -> None:
    summary = look([silent("n0"), member("n1"), member("n2")])
    assert codes(summary) == [("leader_out_of_sight", None), ("member_unreachable", "n0")]
    assert "The leader n0 does not answer, though replicas follow it" in summary.problems[0].text
    assert summary.quorum.stands is None and summary.unknown, "nobody that answers knows"


def test_without_a_leader_there_is_no_quorum() -> None:
    summary = look([member(one, leader=None, role="CANDIDATE") for one in IDS])
    assert codes(summary) == [("no_leader", None)] and summary.problems[0].severity == "critical"
    assert summary.quorum.stands is False


def test_since_when_is_said_of_what_was_seen_to_begin_and_of_nothing_else() -> None:
    """A group that had no leader for an hour had none "for 2 s": for as long as `status` looked."""
    lost = [member(one, leader=None, role="CANDIDATE") for one in IDS]
    (there,) = look(lost).problems
    assert (there.text, there.since) == ("There is no leader: no write can be accepted.", None)
    recall, begun = Recall(), NOW - timedelta(seconds=3)
    summary_of("g", [member("n0", acks=FRESH), member("n1"), member("n2")], NOW - timedelta(seconds=4), recall)
    summary_of("g", lost, begun, recall)
    (seen,) = summary_of("g", lost, NOW, recall).problems
    assert (seen.text, seen.since) == ("There is no leader: no write can be accepted, for 3 s.", rfc3339(begun))


def test_what_may_be_over_in_a_moment_is_no_problem_yet_and_not_fine_either() -> None:
    members = [member("n0", acks={"n0": 0, "n1": 20, "n2": 450}), member("n1"), member("n2")]
    summary = summary_of("g", members, NOW)
    assert summary.problems == ()
    assert [(one.member, one.reason) for one in summary.unknown] == [("n2", "n0 heard n2 0.5 s ago")]
    members[0]["state"]["links"] = [
        {"peer_id": one, "rtt_ms": rtt, "last_heard_ms": 20} for one, rtt in (("n1", 2.0), ("n2", 250.0))
    ]
    first = summary_of("g", members, NOW)
    assert first.pending and first.problems == ()
    assert codes(look(members)) == [("slow_link", "n2")]


def test_a_leader_that_does_not_tell_whom_it_hears_leaves_that_unknown() -> None:
    leader = member("n0", acks=FRESH)
    leader["watermarks"] = None
    summary = summary_of("g", [leader, member("n1"), member("n2")], NOW)
    assert (summary.problems, summary.quorum.stands) == ((), True)
    assert [one.member for one in summary.unknown if one.reason.startswith("whether n0 hears")] == ["n1", "n2"]
    assert table_of(summary)[-1].startswith("? ")


@pytest.mark.parametrize(
    ("alarm", "code", "severity", "text"),
    [
        ("diverged", "alarm_diverged", "attention", "n1 reports diverged."),
        (
            {"code": "disk_full", "severity": "critical", "text": "x"}, "alarm_disk_full", "critical",
            "n1's disk is full: x.",
        ),
    ],
)  # fmt: skip
def test_alarms_keep_their_code_and_severity(alarm: Any, code: str, severity: str, text: str) -> None:
    summary = summary_of("g", [member("n0", acks=FRESH), member("n1", alarms=[alarm]), member("n2")], NOW)
    (found,) = summary.problems
    assert (found.code, found.severity, found.member, found.text) == (code, severity, "n1", text)


def test_a_quorum_that_hears_each_other_and_stores_nothing_is_not_said_to_stand_and_no_more() -> None:
    full = [{"code": "disk_full", "severity": "critical", "text": "x"}]
    members = [member("n0", acks=FRESH), member("n1", alarms=full), member("n2", alarms=full)]
    summary = look(members)
    assert table_of(summary)[0] == (
        "group g: n0 leads in term 4; 3 of 3 members answer, NO NEW WRITE GETS THROUGH: n1 and n2 confirm none"
    )
    assert summary.quorum.stands is True and summary.to_json()["writes_stopped"] == "n1 and n2 confirm none"
    assert codes(summary)[0] == ("writes_stopped", None)
    served = look([*members[:2], member("n2")])
    assert table_of(served)[0].endswith("3 of 3 members answer, the quorum stands")
    assert served.to_json()["writes_stopped"] == ""


def test_json_says_as_well_that_a_leader_with_a_full_disk_takes_no_write() -> None:
    full = [{"code": "disk_full", "severity": "critical", "text": "x"}]
    summary = look([member("n0", acks=FRESH, alarms=full), member("n1"), member("n2")])
    stopped = summary.to_json()["writes_stopped"]
    assert stopped == "n0 takes none while it leads, for its disk is full"
    assert table_of(summary)[0].endswith(f"NO NEW WRITE GETS THROUGH: {stopped}")


@pytest.mark.parametrize(
    ("code", "severity", "said", "stake"),
    [
        ("applier_diverged", "critical", "n1's state machine holds a state of another log", "questions at n1"),
        ("applier_behind", "critical", "n1's state machine lost its state", "questions at n1"),
        ("snapshot_damaged", "warning", "a snapshot of n1's is damaged", "writes get through"),
    ],
)
def test_a_state_that_is_not_the_logs_says_what_to_do(code: str, severity: str, said: str, stake: str) -> None:
    alarm = {"code": code, "severity": severity, "text": "x"}
    (found,) = look([member("n0", acks=FRESH), member("n1", alarms=[alarm]), member("n2")]).problems
    assert (found.code, found.member) == (f"alarm_{code}", "n1")
    assert (found.text, found.at_stake[: len(stake)]) == (f"{said}: x.", stake)
    assert "snapshot" in found.means + found.step or "state" in found.means
    assert "alarms" not in (found.docs or "")


def test_a_state_that_cannot_be_saved_says_what_to_mend_and_when_it_is_tried_again() -> None:
    alarm = {"code": "snapshot_failed", "severity": "warning", "text": "no room"}
    (found,) = look([member("n0", acks=FRESH), member("n1", alarms=[alarm]), member("n2")]).problems
    assert found.text == "n1's state machine cannot save its state: no room."
    assert "the log" in found.means
    assert "within 5 minutes" in found.step and "cannot be applied" in found.step, "it is not tried while one cannot be"


def test_a_group_of_one_needs_to_hear_nobody() -> None:
    alone = member("n0", acks={"n0": 0}, peers=[{"id": "n0", "connected": True}])
    summary = summary_of("g", [alone], NOW)
    assert (summary.problems, summary.quorum.stands) == ((), True)


def test_a_member_that_is_down_is_started_as_its_control_plane_says_wherever_that_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given --peers alone, nobody but the other members knows where the dead one's control plane is."""
    line = "quorumscope node --config /etc/quorumscope/n2.toml"
    asked: list[tuple[str, str | None]] = []

    def control_plane(url: str, _group: str | None, token: str | None, *_: object) -> StateView:
        asked.append((url, token))
        return StateView(engine="down", engine_reason="killed by signal 9", self_id="n2", started_with=line)

    monkeypatch.setattr(commands, "control_state", control_plane)
    others = [member("n0", acks={"n0": 0, "n1": 20, "n2": 9_000}), member("n1")]
    for one in others:
        one["state"]["peers"][2]["control_url"] = "http://127.0.0.1:8433"
    views = [read(AskedMember, one) for one in (*others, silent("n2"))]
    target = Target({one: f"{one}:1" for one in IDS}, "g", "secret")
    known = [asyncio.run(commands.completed(one, views, target)) for one in views]
    (down,) = summary("g", known, NOW).problems
    assert (down.code, down.member, down.command) == ("member_unreachable", "n2", line)
    assert down.text == "The engine of n2 is down: killed by signal 9."
    assert asked == [("http://127.0.0.1:8433", None)], "an address that a member named gets no token"


def test_engines_that_are_down_by_their_control_planes_word_go_on_nowhere() -> None:
    """Two data directories were exchanged: both refuse, and no quorum is out of sight."""
    refused = [
        silent(one) | {"reason": "engine down: it holds another store", "start": {"engine": "down", "self_id": one}}
        for one in ("n1", "n2")
    ]
    summary = look([member("n0", leader=None, role="CANDIDATE"), *refused])
    assert codes(summary)[0] == ("quorum_lost", None)
    assert (summary.quorum.standing, summary.quorum.stands, summary.unknown) == (0, False, ())


def test_a_member_whose_control_plane_hangs_is_not_said_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its port refuses; its supervisor, which says nothing, may be starting an engine."""

    def hanging(url: str, *_: object) -> None:
        raise Unheard(Exit.UNREACHABLE, f"{url} cannot be reached: timed out", Silence.NO_WORD)

    monkeypatch.setattr(commands, "control_state", hanging)
    refused = gone("n2")
    asked = read(AskedMember, refused).model_copy(update={"control_url": "http://127.0.0.1:8433"})
    starts = {"n2": "quorumscope node --id n2"}
    target = Target({one: f"{one}:1" for one in IDS}, "g", starts=starts)
    known = commands.startable(asyncio.run(commands.completed(asked, [asked], target)), target)
    others = [read(AskedMember, one) for one in (member("n0", acks=FRESH | {"n2": 9_000}), member("n1"))]
    found = summary("g", [*others, known], NOW)
    (one,) = found.problems
    assert "hangs or is gone" in one.means and one.command != starts["n2"]
    assert next(line.split() for line in table_of(found) if line.startswith("  n2 "))[1] == "(silent)"


def test_the_control_plane_of_a_member_that_is_late_is_asked_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other took 13 s where all of a node was stopped."""
    was_asked = threading.Event()

    def hanging(url: str, *_: object) -> None:
        was_asked.set()
        raise Unheard(Exit.UNREACHABLE, f"{url} cannot be reached: timed out", Silence.NO_WORD)

    async def late(_client: object, member_id: str, address: str) -> AskedMember:
        assert await asyncio.to_thread(was_asked.wait, 20)
        return read(AskedMember, silent(member_id))

    monkeypatch.setattr(commands, "control_state", hanging)
    monkeypatch.setattr(commands, "ask_member", late)
    monkeypatch.setattr(commands, "LATE_S", 0.0)
    target = Target({"n2": "127.0.0.1:1"}, "g", control_urls={"n2": "http://127.0.0.1:8433"})
    (one,) = asyncio.run(commands.ask_all(target))
    assert (one.reach, one.reason) == ("down", "no answer within 2 s")
    was_asked.clear()
    assert asyncio.run(commands.completed(one, [one], target)) == one and not was_asked.is_set()


@pytest.mark.parametrize(("arrives", "said"), [(None, 1), ("2026-05-04T11:00:00.000Z", 0)])
def test_a_one_way_link_between_two_followers_is_named(arrives: str | None, said: int) -> None:
    """Each said in its `links` what it had of the other, and nothing was made of that."""
    up = "2026-05-04T11:00:00.000Z"
    deaf = member("n1", links=[{"peer_id": "n2", "in_since": arrives, "out_since": up, "last_heard_ms": 60_000}])
    other = member("n2", links=[{"peer_id": "n1", "in_since": up, "out_since": up, "last_heard_ms": 60_000}])
    found = [one for one in look([member("n0", acks=FRESH), deaf, other]).problems if one.code == "not_connected"]
    assert [(one.member, one.text) for one in found] == [
        ("n1", "What n2 sends does not reach n1: a one-way link.")
    ] * said
    assert all("n0" not in one.means + one.step and "n1 and the other member" in one.step for one in found)


def test_a_control_plane_that_others_name_is_asked_meanwhile_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status --peers` waited for a member that hangs, and then as long for its control plane."""
    was_asked = threading.Event()
    asked: list[tuple[str, str | None]] = []

    def hanging(url: str, _group: object, token: str | None, *_: object) -> None:
        asked.append((url, token))
        was_asked.set()
        raise Unheard(Exit.UNREACHABLE, f"{url} cannot be reached: timed out", Silence.NO_WORD)

    async def ask(_client: object, member_id: str, address: str) -> AskedMember:
        if member_id == "n1":
            assert await asyncio.to_thread(was_asked.wait, 20)
            return read(AskedMember, silent("n1"))
        leader = member("n0", acks=FRESH)
        leader["state"]["peers"][1]["control_url"] = "http://127.0.0.1:8432"
        return read(AskedMember, leader)

    monkeypatch.setattr(commands, "control_state", hanging)
    monkeypatch.setattr(commands, "ask_member", ask)
    found = asyncio.run(commands.ask_all(Target({"n0": "127.0.0.1:1", "n1": "127.0.0.1:1"}, "g", "secret")))
    assert asked == [("http://127.0.0.1:8432", None)] and found[1].was_looked_up


def test_one_that_said_nothing_holds_up_no_further_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look waited as long for it as the first one."""

    async def never(_client: object, _member_id: str, _address: str) -> AskedMember:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(commands, "ask_member", never)
    monkeypatch.setattr(commands, "AGAIN_S", 0.0)
    before = read(AskedMember, silent("n1"))
    assert asyncio.run(commands.ask_all(Target({"n1": "127.0.0.1:1"}, "g"), {"n1": before})) == [before]


def test_a_node_that_does_not_answer_costs_no_look_at_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is what was printed as the next step for a member that hangs, and it ended with 69 and named nobody."""
    url, (port,) = "http://127.0.0.1:1", free_ports(1)
    with pytest.raises(Failure, match="another member's control plane") as ended:
        target_of(None, url, None, None)
    assert ended.value.code == Exit.UNREACHABLE
    monkeypatch.setenv("QUORUMSCOPE_PEERS", f"n0-127.0.0.1:{port}")
    target = target_of(None, url, None, None)
    assert dict(target.peers) == {"n0": f"127.0.0.1:{port}"} and target.unanswered.startswith(url)
    assert "asked at their own ports" in capsys.readouterr().err


def test_an_engine_that_hangs_is_not_to_be_started_again() -> None:
    start = {
        "engine": "stale", "engine_reason": "no answer within 0.4 s", "self_id": "n2",
        "started_with": "quorumscope node --config n2.toml",
    }  # fmt: skip
    hangs = silent("n2") | {"reason": "engine stale: no answer within 0.4 s", "start": start}
    acks = {"n0": 0, "n1": 20, "n2": 9_000}
    found = look([member("n0", acks=acks), member("n1"), hangs])
    (problem,) = [one for one in found.problems if one.code == "member_unreachable"]
    assert problem.means.startswith("n2's process runs, but its engine does not come to answer")
    assert problem.command is not None and "quorumscope node" not in problem.command
    assert problem.text == "The engine of n2 does not answer its control plane: no answer within 0.4 s."
    row = next(line.split() for line in table_of(found) if line.startswith("  n2 "))
    assert row[1] == "(silent)", "nobody knows that it is down"
    assert "    n2's process runs" in "\n".join(table_of(found))
    ended = gone("n2") | {"start": start | {"engine": "down", "engine_reason": None}}
    found = look([member("n0", acks=acks), member("n1"), ended])
    assert [one.command for one in found.problems if one.code == "member_unreachable"] == [start["started_with"]]


# --- who belongs to the group is what its leader's log says ---


def with_peers(one: Json, *ids: str, learners: tuple[str, ...] = ()) -> Json:
    """A state in which the configuration is that."""
    one["state"]["peers"] = [
        {"id": peer, "address": f"{peer}:1", "connected": True, "is_voter": peer not in learners} for peer in ids
    ]
    return one


REMOVED = [
    {"code": "removed", "severity": "warning", "text": "n2 was removed from the group by entry 7", "since": None}
]


def test_a_removed_member_that_still_runs_is_no_member_that_is_cut_off() -> None:
    leader = with_peers(member("n0", acks={"n0": 0, "n1": 20}), "n0", "n1")
    other = with_peers(member("n1"), "n0", "n1")
    gone = member("n2", leader=None, role="CANDIDATE", alarms=REMOVED)
    summary = look([leader, other, gone])
    assert codes(summary) == [("member_removed", "n2")] and summary.problems[0].severity == "info"
    assert [one.id for one in summary.members] == ["n0", "n1"] and [one.id for one in summary.others] == ["n2"]
    assert summary.quorum.to_json() == {"size": 2, "needed": 2, "answering": 2, "standing": 2, "stands": True}
    assert not summary.unknown
    assert "NO MEMBER" in next(line for line in table_of(summary) if line.lstrip().startswith("n2"))


@pytest.mark.parametrize(("asked", "severity"), [("n0", "info"), ("n2", "attention")])
def test_a_removed_member_is_a_finding_for_whoever_asked_that_one(asked: str, severity: str) -> None:
    leader = with_peers(member("n0", acks={"n0": 0, "n1": 20}), "n0", "n1")
    gone = member("n2", leader=None, role="CANDIDATE", alarms=REMOVED)
    given = [read(AskedMember, one) for one in (leader, with_peers(member("n1"), "n0", "n1"), gone)]
    found = summary("g", given, NOW, asked=asked)
    assert [(one.code, one.severity) for one in found.problems] == [("member_removed", severity)]
    assert bool(commands.pressing_of(found)) is (severity == "attention")


def test_a_removed_member_that_was_stopped_is_no_problem() -> None:
    leader = with_peers(member("n0", acks={"n0": 0, "n1": 20}), "n0", "n1")
    summary = look([leader, with_peers(member("n1"), "n0", "n1"), silent("n2")])
    assert (codes(summary), summary.unknown, summary.quorum.size) == ([], (), 2)


def test_one_that_was_never_added_is_said_to_be_no_member() -> None:
    leader = with_peers(member("n0", acks=FRESH), *IDS)
    stranger = member("n9", leader=None, role="CANDIDATE", voter_state="REJOINING")
    summary = look([leader, member("n1"), member("n2"), stranger])
    assert codes(summary) == [("not_a_member", "n9")] and summary.quorum.size == 3


def test_a_leader_that_removed_itself_does_not_count_itself() -> None:
    leader = with_peers(member("n0", acks=FRESH), "n1", "n2")
    summary = look([leader, with_peers(member("n1"), "n1", "n2"), with_peers(member("n2"), "n1", "n2")])
    assert (summary.leader_id, summary.quorum.size, summary.quorum.standing) == ("n0", 2, 2)


def test_without_a_leader_one_that_says_it_was_removed_is_no_voter_that_is_missed() -> None:
    gone = member("n2", leader=None, role="CANDIDATE", alarms=REMOVED)
    summary = look([member("n0", leader=None, role="CANDIDATE"), silent("n1"), gone])
    assert (summary.quorum.size, summary.quorum.answering) == (2, 1)


def test_without_a_leader_the_newest_log_says_who_the_members_are() -> None:
    """n3 came later, n2 went: who is asked by an old list is not who counts."""
    log = {"begin_index": 0, "end_index": 12, "end_term": 4}
    newest = with_peers(member("n0", leader=None, role="CANDIDATE", log=log), "n0", "n1", "n3", "n4")
    summary = look([newest, silent("n1"), member("n2", leader=None, role="CANDIDATE"), gone("n3"), gone("n4")])
    assert [one.id for one in summary.members] == ["n0", "n1", "n3", "n4"] and summary.others[0].id == "n2"
    assert (summary.quorum.size, summary.quorum.needed, summary.quorum.answering) == (4, 3, 1)


@pytest.mark.parametrize("leads", [True, False])
def test_members_that_only_the_group_knows_are_asked_too(monkeypatch: pytest.MonkeyPatch, leads: bool) -> None:
    marks: Json = {"acks": {**FRESH, "n3": 10}} if leads else {"leader": None, "role": "CANDIDATE"}
    answers = {
        "n0": with_peers(member("n0", **marks), *IDS, "n3"),
        **{one: with_peers(member(one, leader="n0" if leads else None), *IDS, "n3") for one in ("n1", "n2", "n3")},
    }
    asked: list[tuple[str, str, str | None]] = []

    class Client:
        def __init__(self, token: str | None) -> None:
            self.token = token

        async def close(self) -> None:
            pass

    async def ask_member(client: Client, member_id: str, address: str) -> AskedMember:
        asked.append((member_id, address, client.token))
        return read(AskedMember, answers[member_id])

    monkeypatch.setattr(Target, "client", lambda self, *_args, **_more: Client(self.token))
    monkeypatch.setattr(commands, "ask_member", ask_member)
    target = Target({one: f"{one}:1" for one in IDS}, "g", "the token")
    summary = asyncio.run(commands.ask_group(target))
    assert [one.id for one in summary.members] == ["n0", "n1", "n2", "n3"] and summary.quorum.size == 4
    assert asked == [(one, f"{one}:1", "the token") for one in IDS] + [("n3", "n3:1", None)]  # nobody gave it for n3


def test_a_removed_member_that_was_added_again_with_its_old_directory_is_not_called_cut_off() -> None:
    back = member("n2", leader=None, role="CANDIDATE", alarms=REMOVED)
    summary = look([member("n0", acks={"n0": 0, "n1": 20, "n2": None}), member("n1"), back])
    assert codes(summary) == [("alarm_removed", "n2")]


def test_a_removed_member_that_was_asked_shows_though_its_own_log_has_it_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = with_peers(member("n2", leader=None, role="CANDIDATE", alarms=REMOVED), "n0", "n1")["state"]
    own |= {"group": "g", "group_id": None}
    monkeypatch.setattr(control_calls, "control_call", lambda *_args, **_more: own)
    target = target_of(None, "http://127.0.0.1:1", None, None)
    assert sorted(target.peers) == ["n0", "n1"] and target.asked == "n2"

    async def ask_all(asked: Target, _silent: object) -> list[AskedMember]:
        leader = with_peers(member("n0", acks={"n0": 0, "n1": 20}), "n0", "n1")
        answers = {"n0": leader, "n1": with_peers(member("n1"), "n0", "n1")}
        return [read(AskedMember, answers[one]) for one in asked.peers]

    monkeypatch.setattr(commands, "ask_all", ask_all)
    found = asyncio.run(commands.ask_group(target))
    assert [one.id for one in found.others] == ["n2"] and codes(found) == [("member_removed", "n2")]
    assert commands.pressing_of(found), "it is what was asked for"


IDS_OF_GROUPS = ("1d" * 16, "2e" * 16)


def test_members_of_two_groups_of_one_name_are_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that was restored beside the old one, and an address of either in `--peers`."""
    ours, theirs = IDS_OF_GROUPS
    answers = {
        "n0": member("n0", term=1, group_id=theirs), "n1": member("n1", leader="n1", acks=FRESH, group_id=ours),
        "n2": member("n2", leader="n1", group_id=ours),
    }  # fmt: skip

    async def ask_all(asked: Target, _silent: object) -> list[AskedMember]:
        return [read(AskedMember, answers[one]) for one in asked.peers]

    monkeypatch.setattr(commands, "ask_all", ask_all)
    found = asyncio.run(commands.ask_group(Target({one: f"{one}:1" for one in IDS}, "g")))
    assert codes(found) == [("member_unreachable", "n0")] and found.quorum.answering == 2
    said = f"n0 does not answer: it belongs to another group of this name: its id is {theirs}, not {ours}."
    assert found.problems[0].text == said
    assert found.problems[0].means.startswith("a member of another group of this name answers at n0:1")


def test_a_member_of_another_group_keeps_nobody_from_seeing_the_others() -> None:
    class Client:
        async def introspect(self, member_id: str, what: str) -> Json:
            raise AnotherGroup(f"{member_id} at n0:1 belongs to another group 'g': its id is x, not y")

    one = asyncio.run(commands.ask_member(Client(), "n0", "n0:1"))  # type: ignore[arg-type]
    assert (one.reach, one.reason) == ("down", "it belongs to another group 'g': its id is x, not y")


def test_a_member_of_a_group_of_another_name_keeps_nobody_from_seeing_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Client:
        async def introspect(self, member_id: str, what: str) -> Json:
            raise UnknownGroup(f"{member_id} at n1:1 answers UNKNOWN_GROUP")

    stranger = asyncio.run(commands.ask_member(Client(), "n1", "n1:1"))  # type: ignore[arg-type]
    answers = [read(AskedMember, member("n0", acks=FRESH)), stranger, read(AskedMember, member("n2"))]

    async def ask_all(asked: Target, _silent: object) -> list[AskedMember]:
        return [one for one in answers if one.id in asked.peers]

    monkeypatch.setattr(commands, "ask_all", ask_all)
    target = Target({one: f"{one}:1" for one in IDS}, "g")
    found = asyncio.run(commands.ask_group(target))
    assert codes(found)[0] == ("member_unreachable", "n1") and found.quorum.answering == 2
    assert found.problems[0].text == "n1 does not answer: it belongs to a group of another name."
    assert found.problems[0].step.startswith("see on its machine (n1:1) as which group it was started")
    assert found.problems[0].command.startswith("quorumscope members list ")
    answers[:] = [stranger, read(AskedMember, gone("n0")), read(AskedMember, gone("n2"))]
    with pytest.raises(Denied, match="n1 at n1:1 answers UNKNOWN_GROUP"):  # nobody knows it: the name may be wrong
        asyncio.run(commands.ask_group(target))


def test_a_stranger_that_its_own_group_does_not_let_in_is_one_problem() -> None:
    alarm = {"code": "hello_refused", "severity": "warning", "peer_id": "n2", "text": "n2: it is of another group"}
    leader = with_peers(member("n0", acks=FRESH | {"n2": 9_000}, alarms=[alarm]), *IDS)
    leader["state"]["peers"][2]["connected"] = False
    for why in ("it belongs to another group 'g': its id is x, not y", "it belongs to a group of another name"):
        assert codes(look([leader, member("n1"), gone("n2") | {"reason": why}])) == [("kept_out", "n2")]
    assert ("member_unreachable", "n2") in codes(look([leader, member("n1"), gone("n2")])), "it is gone since"


# --- on a terminal ---


def test_on_a_narrow_terminal_no_line_is_longer_but_a_command_and_what_is_left_out_is_named() -> None:
    """80 columns at three in the morning: a row that breaks in the middle is read wrongly."""
    big = dict.fromkeys(("begin_index", "end_index", "durable_index", "committed_index"), 1204772978)
    log = big | {"applied_index": 1_204_772_978}
    refused = gone("n2") | {"address": "10.20.30.40:20911"}
    members = [member("n0", acks=FRESH | {"n2": 9_000}, log=log), member("n1", log=log), refused]
    summary = look(members)
    full, narrow = table_of(summary), table_of(summary, 80)
    assert max(map(len, full)) > 120 and table_of(summary, 500)[1:5] != full[1:5], "as wide as it needs"
    commands = [line for line in narrow if line.startswith("      ")]
    assert commands == [line for line in full if line.startswith("      ")] != [], "whole, to be pasted"
    assert all(len(line) <= 80 for line in narrow if line not in commands)
    head = next(line.split() for line in narrow if line.startswith("  id"))
    assert {"id", "role", "term", "end", "behind"} <= set(head)
    left_out = next(line for line in narrow if "no room here" in line)
    assert all((name in head) != (name in left_out) for name in ("begin", "applied", "flush", "durable", "address"))
    row = next(at for at, line in enumerate(narrow) if line.startswith("  n2 "))
    assert narrow[row + 1] == "    connection refused: nothing listens there"
    said = " ".join(" ".join(line.split()) for line in narrow)
    for one in summary.problems:
        assert one.text in said and one.at_stake in said, "nothing is lost"
