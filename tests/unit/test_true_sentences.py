"""Sentences that were false once: each is a short history of a group, and what may be said of it.

Invariants: what a member said before it fell silent is reported as that; nothing is "over" that nobody looked at; a
cause that follows from a known one is not another cause.
"""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta
from typing import Any

import typer

from app.command_line import app, bring_in
from app.console.preflight import preflight
from app.console.watch import closed, opened
from app.health.facts import Facts
from app.health.group_view import GroupView
from app.health.proof import unproven
from app.times import rfc3339
from node.views.events import EventView
from tests.unit.fake_control import FakeNode
from tests.unit.group_story import T0, Story


def headline(view: GroupView) -> str:
    return view.sentence.headline


def codes(view: GroupView) -> set[tuple[str, str | None]]:
    return {(one.code, one.member) for one in view.problems}


def events_of(story: Story, looks: int, step: Any = lambda: None) -> list[EventView]:
    """What a console writes down over so many looks."""
    found: list[EventView] = []
    for _ in range(looks):
        view = story.look(1, step)
        found += [opened(one, view.as_of) for one in story.recall.openings.opened]
        found += [closed(one, rfc3339(at)) for one, at in story.recall.openings.closed]
    return found


def kinds(events: list[EventView], code: str) -> list[str]:
    return [one.kind or "" for one in events if one.detail is not None and one.detail["code"] == code]


# --- slow links -------------------------------------------------------------------------------------------------------


def test_a_link_that_turned_slow_is_not_in_step_before_it_is_called_slow() -> None:
    story = Story()
    story.look(2)
    story.node("n2").rtt_ms = 250
    view = story.look()
    assert view.problems == () and "is not known: n2 answers the leader in 250 ms" in headline(view)


def test_what_a_slow_leader_does_to_its_followers_is_no_cause_of_its_own() -> None:
    story = Story()
    story.look(2)
    story.node("n1").rtt_ms = story.node("n2").rtt_ms = 500
    story.node("n0").end, story.group.committed = 1_055, 1_000
    story.node("n1").lag_ms = story.node("n2").lag_ms = 1_800
    assert codes(story.look(4)) == {("slow_link", "n0")}


def test_a_member_that_comes_late_by_itself_has_no_slow_link_and_is_named_once_that_lasts() -> None:
    story = Story()
    story.look(2)
    busy = story.node("n2")
    busy.rtt_ms, busy.loop_late_ms = 180, 172.5
    assert codes(story.look(18)) == set(), "a machine that is busy for a moment is no problem"
    assert "is not known: n2 answers the leader in 180 ms" in headline(story.view), "and not in step either"
    text = story.look(6).problems[0].text
    assert re.fullmatch(
        r"n2 answers the leader slowly, for \d+ s: it takes 180 ms, the other follower 0.8 ms,"
        r" and its own timers came up to 172 ms late\.", text,
    )  # fmt: skip
    assert codes(story.view) == {("engine_late", "n2")}


def test_a_slow_link_is_named_though_its_member_came_a_little_late() -> None:
    story = Story()
    story.look(2)
    story.node("n2").rtt_ms, story.node("n2").loop_late_ms = 250, 60
    assert codes(story.look(3)) == {("slow_link", "n2")}


def test_followers_that_come_late_themselves_do_not_accuse_their_leader() -> None:
    story = Story()
    story.look(2)
    for one in ("n1", "n2"):
        story.node(one).rtt_ms, story.node(one).loop_late_ms = 240, 230
    assert codes(story.look(6)) == set()


def test_pushes_that_were_sent_again_into_a_cut_are_not_a_problem_once_it_is_mended() -> None:
    story = Story()
    story.look(3)
    lost = story.node("n2")

    def cut() -> None:
        lost.ack_ms, lost.resends = 9_000, lost.resends + 2

    assert ("cut_off", "n2") in codes(story.look(6, cut))
    lost.ack_ms = 20
    assert codes(story.look(12)) == set()


# --- elections --------------------------------------------------------------------------------------------------------


def test_elections_that_have_settled_are_not_said_not_to() -> None:
    story = Story()
    story.look(4)
    for leader in ("n1", "n2", "n1"):
        story.group.lead(leader)
        story.look(12)
    assert ("term_flapping", None) in codes(story.view)
    assert codes(story.look(12)) == set(), "the last one was more than ten seconds ago"


# --- one way ----------------------------------------------------------------------------------------------------------


def test_a_cut_both_ways_is_not_one_way_because_the_leader_was_asked_before() -> None:
    story = Story()
    story.look(3)
    for leader_answers, ack_ms, heard_ms in ((True, 900, 900), (False, 900, 1_400), (False, 900, 1_900)):
        story.node("n0").alive = leader_answers
        story.node("n1").ack_ms, story.node("n1").heard_ms["n0"] = ack_ms, heard_ms
        view = story.look()
        assert "one_way" not in {one.code for one in view.problems}, view.problems
        assert "in step." not in headline(view) or "not known" in headline(view)


def test_a_way_that_is_cut_is_named_as_soon_as_both_ends_tell() -> None:
    story = Story()
    story.look(3)
    story.node("n1").heard_ms["n0"] = 1_600  # the leader heard it 20 ms ago
    assert ("one_way", "n1") in codes(story.look())


# --- what a silent member said ----------------------------------------------------------------------------------------


def broken(story: Story, node: FakeNode) -> None:
    node.faults = [{"first_index": 5, "last_index": 7, "kind": "crc_invalid", "detail": ""}]
    node.alarms = [
        {"code": "log_damaged", "severity": "critical", "since": "2026-01-01T12:00:00.000Z"},
        {"code": "disk_low", "detail": "3 % left", "since": "2026-01-01T12:00:00.000Z"},
    ]
    node.voter_state = "REJOINING"


def test_what_a_member_said_before_it_fell_silent_is_told_as_that() -> None:
    story = Story()
    story.look()
    broken(story, story.node("n1"))
    assert {"log_damaged", "alarm_disk_low", "voter_restricted"} <= {one.code for one in story.look(8).problems}
    story.node("n1").alive, story.node("n1").ack_ms = False, 9_000
    view = story.look(8)
    said = {one.code: one.text for one in view.problems if one.member == "n1"}
    assert said["replica_silent"].startswith("n1 is silent")
    for code in ("log_damaged", "alarm_disk_low", "voter_restricted"):
        assert said[code].startswith("Before it fell silent, n1"), said[code]
    assert headline(view).startswith("n1 is silent"), "what is so now comes first"


def test_an_engine_that_ended_is_not_said_to_do_what_it_did() -> None:
    story = Story()
    story.look()
    broken(story, story.node("n1"))
    story.look(8)
    story.node("n1").engine, story.node("n1").ack_ms = "down", 9_000
    said = {one.code: one.text for one in story.look(8).problems if one.member == "n1"}
    assert said["log_damaged"].startswith("Before its engine went down, n1")


# --- openings and closings --------------------------------------------------------------------------------------------


def test_a_problem_that_flaps_has_one_opening_one_closing_and_one_duration() -> None:
    story = Story()
    story.look(3)
    looks = iter([5_000, 5_000, 20, 5_000, 20, 20, 5_000, 5_000])

    def flap() -> None:
        story.node("n1").ack_ms = next(looks, 20)

    events = events_of(story, 20, flap)
    assert kinds(events, "cut_off") == ["problem_opened", "problem_closed"]
    over = next(one for one in events if one.kind == "problem_closed")
    assert over.text is not None and "Over after 9 s" in over.text, over.text  # it was heard last 5 s before


def test_what_nobody_looked_at_is_not_over() -> None:
    story = Story()
    story.look(3)
    story.node("n1").ack_ms = 5_000
    events = events_of(story, 3)
    story.node("n1").alive = False  # its control plane goes, too
    events += events_of(story, 14)
    assert kinds(events, "cut_off") == ["problem_opened"]
    story.node("n1").alive, story.node("n1").ack_ms = True, 20
    events += events_of(story, 10)
    assert kinds(events, "cut_off") == ["problem_opened", "problem_closed"]
    assert kinds(events, "replica_silent") == ["problem_opened", "problem_closed"]


def test_what_only_a_leader_tells_is_not_over_while_none_is_known() -> None:
    story = Story()
    story.look(3)
    story.node("n2").rtt_ms = 250
    events = events_of(story, 6)
    leader = story.node("n0")
    leader.role, leader.alive = "FOLLOWER", False
    events += events_of(story, 12)
    assert kinds(events, "slow_link") == ["problem_opened"]


def test_what_another_problem_explains_is_not_over() -> None:
    story = Story()
    story.look(3)
    one = story.node("n2")
    story.node("n0").end += 1
    story.node("n1").end, one.lag_ms = 1_001, 4_000
    events = events_of(story, 3)
    assert kinds(events, "lagging") == ["problem_opened"]
    one.ack_ms = 9_000
    events += events_of(story, 12)
    assert kinds(events, "lagging") == ["problem_opened"]
    assert kinds(events, "cut_off") == ["problem_opened"]


def test_the_first_look_opens_nothing() -> None:
    """What was there when a console began is no event."""
    story = Story()
    story.node("n2").ack_ms = 9_000
    assert events_of(story, 1) == []
    assert story.recall.openings.ids == {"cut_off:n2"}


def test_a_moment_long_ago_lends_no_age_to_what_begins_now() -> None:
    story = Story()
    story.look(3)
    story.node("n2").rtt_ms = 250
    story.look(4)
    story.node("n2").rtt_ms = 0.8
    story.look(20)
    story.node("n2").rtt_ms = 250
    (slow,) = story.look(4).problems
    began = T0 + timedelta(seconds=0.5 * (story.looked - 4))
    assert datetime.fromisoformat(slow.since) >= began


def test_the_time_of_an_event_is_that_of_the_look() -> None:
    story = Story()
    story.look(2)
    story.node("n1").ack_ms = 5_000
    (event,) = events_of(story, 1)
    assert event.at == story.view.as_of


def test_silence_between_two_followers_is_no_silence_of_the_one_that_leads_now() -> None:
    story = Story()
    story.look(4)
    story.group.lead("n2")
    now = rfc3339(T0 + timedelta(seconds=0.5 * story.looked - 0.2))
    told = story.node("n2").state
    story.node("n2").state = lambda: told() | {"role_since": now}  # type: ignore[method-assign]
    story.node("n0").heard_ms["n2"] = story.node("n1").heard_ms["n2"] = 4_000  # as followers they said nothing
    assert codes(story.look()) == set()


def test_a_cut_both_ways_is_not_one_way_because_a_new_leader_leads() -> None:
    """The old leader heard the new one last when nobody could know yet that it would lead."""
    story = Story()
    story.look(4)
    story.group.lead("n1")
    old, led = story.node("n0"), rfc3339(T0 + timedelta(seconds=0.5 * story.looked - 0.6))
    told = story.node("n1").state
    story.node("n1").state = lambda: told() | {"role_since": led}  # type: ignore[method-assign]
    old.ack_ms, old.heard_ms["n1"] = 2_000, 2_000
    assert "one_way" not in {one.code for one in story.look(1).problems}


def test_a_cut_that_is_mended_is_not_one_way_for_a_look() -> None:
    """The follower was asked just after, the leader just before."""
    story = Story()
    story.look(3)
    story.node("n1").ack_ms = 5_000
    assert ("cut_off", "n1") in codes(story.look(4))
    story.node("n0").alive = False  # not asked again yet: its word is of half a second ago
    story.node("n1").heard_ms["n0"] = 10
    assert "one_way" not in {one.code for one in story.look().problems}
    story.node("n0").alive, story.node("n1").ack_ms = True, 10
    assert codes(story.look()) == set()


# --- a first leadership of the Java original --------------------------------------------------------------------------


def of_java(story: Story) -> None:
    for node in story.group.nodes.values():
        told = node.state
        node.state = lambda told=told: told() | {"is_java": True}  # type: ignore[method-assign,misc]


def test_a_plain_member_that_never_led_is_a_hazard_and_no_transfer_goes_to_it() -> None:
    story = Story()
    of_java(story)
    story.look(2)
    story.group.lead("n1")
    view = story.look(2)
    (hazard,) = [one for one in view.problems if one.code == "first_leadership_hazard"]
    assert hazard.text.startswith("n2 has not led") and "wipes" in hazard.text
    refused = [one.text for one in preflight(view, "n2").checks if one.state == "refused"]
    assert len(refused) == 1 and "n2 has not been seen to lead" in refused[0]
    assert preflight(view, "n0").allowed, "n0 was seen to lead since its process started"
    again = story.node("n0").state
    story.node("n0").state = lambda: again() | {"boot_id": "boot-2"}  # type: ignore[method-assign]
    assert not preflight(story.look(2), "n0").allowed, "another process of it has not"


def test_a_group_of_ours_knows_no_such_hazard() -> None:
    story = Story()
    view = story.look(2)
    assert codes(view) == set() and preflight(view, "n2").allowed


# --- what is printed runs ---------------------------------------------------------------------------------------------


def test_the_line_that_a_transfer_prints_is_understood() -> None:
    story = Story()
    line = preflight(story.look(2), "n2").commands.cli
    words = shlex.split(line)
    assert words[0] == "quorumscope"
    bring_in(words[1:])
    parsed = typer.main.get_command(app).make_context("quorumscope", words[1:], resilient_parsing=False)
    assert parsed is not None
    transfer = typer.main.get_command(app).commands["transfer"]  # type: ignore[attr-defined]
    assert transfer.make_context("transfer", words[2:]).params["to"] == "n2"


def test_a_cut_is_not_one_way_because_one_end_stood_still_before_it() -> None:
    """What each end heard last lies apart, but neither has heard anything for long enough."""
    story = Story()
    story.look(3)
    story.node("n1").ack_ms, story.node("n1").heard_ms["n0"] = 700, 1_400
    story.look()
    story.node("n0").alive = False  # not asked again yet: what it heard is 1.2 s ago now
    story.node("n1").heard_ms["n0"] = 1_900
    assert "one_way" not in {one.code for one in story.look().problems}


# --- old samples ------------------------------------------------------------------------------------------------------


def test_what_was_reported_a_while_ago_proves_nothing_now() -> None:
    """A poller that waits for an answer has missed none yet."""
    story = Story()
    view = story.look(3)
    old = tuple(one.model_copy(update={"age_ms": 1_800.0}) if one.id == "n1" else one for one in view.members)
    doubts = unproven(Facts(view.model_copy(update={"members": old}), story.recall, T0))
    assert [(one.member, one.text) for one in doubts] == [("n1", "n1 reported its state 1.8 s ago")]


def test_a_commit_index_that_was_not_asked_for_again_does_not_stand_still() -> None:
    story = Story()
    story.look(2)
    story.node("n0").end = 1_010
    story.look(4)
    story.node("n0").alive = False
    assert "commit_stalled" not in {one.code for one in story.look(2).problems}


def test_a_follower_that_lacks_entries_is_not_accused_before_the_slow_leader_is_known() -> None:
    """The age of what it lacks passes a second before two late heartbeats are answered."""
    story = Story()
    story.look(2)
    story.node("n0").end = 1_052
    story.node("n1").lag_ms = story.node("n2").lag_ms = 1_100
    view = story.look()
    assert view.problems == () and "not known" in headline(view)
    story.node("n1").rtt_ms = story.node("n2").rtt_ms = 500

    def confirmed() -> None:
        story.group.committed += 1

    assert codes(story.look(4, confirmed)) == {("slow_link", "n0")}


def test_who_stays_cut_off_is_so_also_while_a_new_leader_is_new() -> None:
    """Neither hears the other: that the one leads only since half a second makes that no better."""
    story = Story()
    story.look(4)
    story.group.lead("n1")
    led = rfc3339(T0 + timedelta(seconds=0.5 * story.looked - 0.3))
    told = story.node("n1").state
    story.node("n1").state = lambda: told() | {"role_since": led}  # type: ignore[method-assign]
    story.node("n0").ack_ms = story.node("n0").heard_ms["n1"] = 1_600
    assert ("cut_off", "n0") in codes(story.look())
