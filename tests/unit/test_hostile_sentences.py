"""Sentences that somebody who broke a group on purpose caught lying: what is said instead.

Invariants: what hangs is not said to be gone, nor what starts again by itself to need a start; what answers is not said
to be silent.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from app.commands.status_table import table_of
from app.console.sample import Clock, NodeSample
from app.health.facts import ATTENTION, Finding
from app.health.group_view import GroupView, StartView
from app.health.next_steps import next_step
from app.times import rfc3339
from tests.unit.fake_control import FakeGroup, FakeNode
from tests.unit.group_story import T0, Story
from tests.unit.test_cli_status import FRESH, NOW, look, member, silent, with_peers


def headline(view: GroupView) -> str:
    return view.sentence.headline


def in_a_demo(view: GroupView) -> GroupView:
    return view.model_copy(update={"cluster": view.cluster.model_copy(update={"demo": True})})


def test_engines_that_all_hang_are_not_control_planes_that_do_not_answer() -> None:
    story = Story()
    story.look(2)
    for one in story.group.nodes.values():
        one.engine = "stale"
    view = story.look(6)
    assert headline(view).startswith("No engine of this group answers its control plane")
    assert [one.code for one in view.problems] == ["engines_silent"] and view.severity == "unknown"
    assert "started" not in view.problems[0].next_step and "processes run" in view.problems[0].means
    step = next_step(Finding("engines_silent", ATTENTION, ""), in_a_demo(view))
    assert step.command == "quorumscope demo heal"


def test_writes_that_are_committed_are_not_said_to_be_stopped() -> None:
    """A member's disk has room again, and its alarm stands for a few seconds more."""
    story = Story()
    story.look(4)
    story.node("n1").alarms = [{"code": "disk_full", "severity": "critical", "text": "the disk of n1 is full"}]
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    assert {"writes_stopped"} <= {one.code for one in story.look(8).problems}

    def committed() -> None:
        story.group.committed += 3
        story.node("n0").end = story.node("n1").end = story.group.committed

    view = story.look(4, committed)
    assert "writes_stopped" not in {one.code for one in view.problems}
    assert "no new write gets through" not in view.sentence.rest
    assert "writes_stopped" in {one.code for one in story.look(8).problems}


def test_what_was_noticed_before_a_suspend_has_not_lasted_meanwhile() -> None:
    """A console that is stopped for a minute, and reads after it what it had read before."""
    story = Story()
    story.look(4)
    story.node("n2").rtt_ms = 250
    assert story.look().pending
    story.looked += 120
    view = story.look()
    assert view.problems == () and view.pending, view.sentence
    (one,) = story.look(2).problems
    assert one.code == "slow_link" and "60 s" not in one.text
    story.looked += 120
    assert [one.code for one in story.look().problems] == ["slow_link"], "what was shown stays"


def test_a_console_whose_looks_are_far_apart_names_what_lasts() -> None:
    """On a machine with far too much to do each look was the first one, and nothing was ever named."""
    story = Story()
    story.look(4)
    story.group.lead(None)
    for _ in range(3):
        story.looked += 12
        view = story.look()
    assert "no_leader" in {one.code for one in view.problems}, view.sentence


def test_who_does_not_vote_yet_is_not_in_step_before_it_is_named() -> None:
    story = Story()
    story.look(4)
    story.node("n2").voter_state = "REJOINING"
    assert headline(story.look()) == "Whether all 3 replicas are in step is not known: n2 does not vote yet."


def test_who_does_not_vote_yet_is_no_spare_member() -> None:
    """It has no share in any quorum (E8), though its leader hears it: one more failure ends writes."""
    story = Story()
    story.look(4)
    story.node("n2").voter_state = "REJOINING"
    view = story.look(8)
    assert "Quorum stands, but one more failure stops writes" in view.sentence.rest
    assert "n2 confirms no new writes" in view.sentence.rest
    (one,) = view.problems
    assert one.code == "voter_restricted" and "survive 1 more failure" not in one.at_stake
    story.node("n1").alive, story.node("n1").ack_ms = False, 9_000
    assert "writes_stopped" in {one.code for one in story.look(8).problems}


def test_an_engine_that_comes_late_for_one_question_is_not_named_and_not_in_step_either() -> None:
    """On a machine with much to do it was said to be silent for one look, and an event told of it."""
    story = Story()
    story.look(4)
    for node in ("n1", "n0"):
        story.node(node).engine = "stale"
        view = story.look()
        assert view.problems == () and view.pending and view.severity == "unknown", view.sentence
        story.node(node).engine = "ok"
        assert headline(story.look()) == "All 3 replicas are in step."
        assert not story.recall.openings.ids
    story.node("n1").engine = "stale"
    assert [(one.code, one.member) for one in story.look(2).problems] == [("replica_silent", "n1")]


def test_a_group_of_which_one_control_plane_is_gone_and_the_others_engines_hang_is_told_member_by_member() -> None:
    story = Story()
    story.look(2)
    story.node("n0").engine = story.node("n1").engine = "stale"
    story.node("n2").alive = False
    texts = {one.member: one.text for one in story.look(8).problems}
    assert texts.keys() == {"n0", "n1", "n2"} and texts["n2"].startswith("n2 is silent")
    assert texts["n0"].startswith("The engine of n0 does not answer its control plane")


def test_before_the_first_question_timed_out_nobody_knows_that_it_is_to_be_started() -> None:
    """For half a second the line that starts it was printed for one that ran."""
    story = Story()
    started = story.look(2).members[2].model_copy(update={"reach": "stale", "problem": None, "answers": None})
    view = story.look(2)
    view = view.model_copy(update={"members": (*view.members[:2], started), "leader_id": None})
    step = next_step(Finding("replica_silent", ATTENTION, "", "n2"), view)
    assert "hangs or is gone" in step.means and not step.command.startswith("quorumscope node")


def test_a_member_that_says_nothing_is_not_said_to_be_gone() -> None:
    """A stopped process takes connections, and never answers."""
    (one,) = look([member("n0", acks=FRESH | {"n2": 9_000}), member("n1"), silent("n2")]).problems
    assert "hangs or is gone" in one.means and "whether its process still runs" in one.step
    assert one.command is not None and one.command.startswith("quorumscope status")


TIMED_OUT = "http://127.0.0.1:8433 did not answer in time"


@pytest.mark.parametrize("why", ["connection refused", TIMED_OUT])
def test_an_engine_that_its_leader_hears_is_not_to_be_started_again(why: str) -> None:
    """Its control plane alone is stopped, or gone, or out of our sight."""
    story = Story(why_silent=why)
    story.look(2)
    story.node("n2").alive = False
    (one,) = story.look(12).problems
    assert one.text.endswith("the leader still hears it."), one.text
    assert one.means.startswith("n2's engine runs, for its leader hears it") and "is gone," not in one.means
    assert one.command == "quorumscope status --node http://127.0.0.1:8433", "its own control plane is asked"
    assert "start" not in one.step
    assert one.at_stake == "writes get through, and survive 1 more failure", "it counts as before"


def test_a_full_disk_says_why_its_member_is_behind() -> None:
    story = Story()
    story.look(2)
    full = story.node("n1")
    full.alarms = [{"code": "disk_full", "severity": "critical", "text": "the disk of n1 is full"}]
    full.lag_ms = 9_000
    story.group.committed = story.node("n0").end = story.node("n2").end = full.end + 2_400
    assert [(one.code, one.member) for one in story.look(20).problems] == [("alarm_disk_full", "n1")]


def test_a_control_plane_that_times_out_is_not_said_to_be_gone() -> None:
    """Its connections are taken and nothing comes: all of the member is stopped, or its machine is."""
    story = Story(why_silent=TIMED_OUT)
    story.look(2)
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    (one,) = story.look(12).problems
    assert "hangs or is gone" in one.means and "whether its process still runs" in one.step
    assert one.command == "quorumscope status --node http://127.0.0.1:8431"
    story.why_silent = "connection refused"
    (one,) = story.look(4).problems
    assert "is gone" in one.means and one.step.startswith("start n2 on its machine")


def test_a_console_that_begins_anew_does_not_say_that_a_member_was_never_reached() -> None:
    """An earlier one kept how n2 is started, and may have kept since when it is silent."""
    story = Story(starts={"n2": StartView(started_with="quorumscope node --id n2")})
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    (one,) = story.look(12).problems
    assert (one.code, one.command) == ("replica_silent", "quorumscope node --id n2")
    assert one.text.startswith("n2 has not answered since this console started (connection refused), for 5 s")
    fell_silent = T0 - timedelta(minutes=12)
    story.recall.began["replica_silent:n2"] = fell_silent
    (one,) = story.look(1).problems
    assert one.text == "n2 is silent (connection refused), for 12 min." and one.since == rfc3339(fell_silent)
    story.node("n2").alive, story.node("n2").ack_ms = True, 2
    story.look(12)
    story.node("n2").alive = False
    (one,) = story.look(12).problems
    assert one.since > rfc3339(T0), "another silence began later"


def test_what_an_earlier_console_reported_and_this_one_saw_to_be_over_begins_anew() -> None:
    """The console was killed right after a problem had ended, before it could keep that."""
    story = Story()
    earlier = T0 - timedelta(minutes=12)
    story.recall.began = {"quorum_lost:": earlier, "replica_silent:n1": earlier}
    assert story.look(2).severity == "ok"
    for node_id in ("n1", "n2"):
        story.node(node_id).alive, story.node(node_id).ack_ms = False, 9_000
    problems = story.look(12).problems
    assert {"quorum_lost", "replica_silent"} == {one.code for one in problems}
    assert all(one.since >= rfc3339(T0) for one in problems), problems


def test_who_was_silent_before_and_answers_is_silent_anew_though_another_problem_stands() -> None:
    """For a minute after a console was started again, the silence before it lent its beginning to the next one."""
    story = Story(starts={one: StartView(started_with=f"quorumscope node --id {one}") for one in ("n1", "n2")})
    earlier = T0 - timedelta(minutes=12)
    story.recall.began = {"replica_silent:n1": earlier, "replica_silent:n2": earlier}
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    assert [one.id for one in story.look(12).problems] == ["replica_silent:n2"]
    story.node("n1").alive, story.node("n1").ack_ms = False, 9_000
    since = {one.id: one.since for one in story.look(12).problems}
    assert since["replica_silent:n1"] >= rfc3339(T0)
    assert since["replica_silent:n2"] == rfc3339(earlier), "that one never answered"


def test_a_silence_that_a_moment_interrupted_is_as_old_as_it_is() -> None:
    """It said "silent for 51 s" of a member that had answered four seconds before: one problem, another silence."""
    story = Story()
    story.look(2)
    story.node("n2").alive = False
    first = story.look(100).problems[0]
    story.node("n2").alive = True
    assert story.look(3).problems == ()
    story.node("n2").alive = False
    (again,) = story.look(8).problems
    assert (again.id, again.since) == (first.id, first.since), "one problem, with one opening"
    assert again.text.startswith("n2 is silent (connection refused), for 4 s"), again.text


def test_what_stood_before_a_restart_and_is_over_begins_anew_though_another_problem_stands() -> None:
    """For a minute anything else than a silence took an earlier console's beginning over."""
    story = Story()
    earlier = T0 - timedelta(minutes=12)
    story.recall.began = {"cut_off:n1": earlier, "alarm_disk_low:n0": earlier, "alarm_disk_low:n1": earlier}
    low = [{"code": "disk_low", "severity": "warning", "text": "3 % left"}]
    story.node("n0").alarms = low
    assert [one.id for one in story.look(30).problems] == ["alarm_disk_low:n0"]
    story.node("n1").alarms = low
    since = {one.id: one.since for one in story.look(4).problems}
    assert since["alarm_disk_low:n1"] >= rfc3339(T0)
    assert since["alarm_disk_low:n0"] == rfc3339(earlier), "that one never ended"
    assert list(story.recall.began) == ["alarm_disk_low:n0"]


def test_a_quorum_that_was_lost_before_and_stands_is_lost_anew_though_a_member_is_still_away() -> None:
    story = Story(starts={"n2": StartView(started_with="quorumscope node --id n2")})
    earlier = T0 - timedelta(minutes=12)
    story.recall.began = {"quorum_lost:": earlier, "replica_silent:n2": earlier}
    story.node("n2").alive, story.node("n2").ack_ms = False, 9_000
    (away,) = story.look(12).problems
    story.node("n1").alive, story.node("n1").ack_ms = False, 9_000
    since = {one.id: one.since for one in story.look(12).problems}
    assert since["quorum_lost:"] >= rfc3339(T0)
    assert away.since == since["replica_silent:n2"] == rfc3339(earlier), "what still stands began when it began"


def test_a_group_that_was_silent_before_the_console_began_anew_was_reached() -> None:
    """Also where its members do not say how they are started, so that nothing but the silence is kept of them."""
    story = Story()
    for node in story.group.nodes.values():
        node.alive = False
    story.recall.began["all_silent:"] = T0 - timedelta(minutes=12)
    (one,) = story.look(12).problems
    assert one.text.startswith("No control plane of this group has answered for 12 min"), one.text


def test_a_group_is_silent_since_its_last_member_was_seen() -> None:
    """As its rows say, not since somebody noticed."""
    story = Story()
    story.look(2)
    for number, node in enumerate(story.group.nodes.values()):
        story.look(number)
        node.alive = False
    view = story.look(12)
    (one,) = view.problems
    assert one.since == max(member.last_seen or "" for member in view.members) and one.code == "all_silent"


def test_a_group_that_an_earlier_console_knew_has_answered_before() -> None:
    story = Story(starts={one: StartView(data_dir="/var/lib/q") for one in ("n0", "n1", "n2")})
    for node in story.group.nodes.values():
        node.alive = False
    assert [one.code for one in story.look(12).problems] == ["all_silent"]


def test_a_member_that_the_console_may_not_ask_yet_is_not_said_to_be_gone() -> None:
    story = Story(
        why_silent="the address http://10.0.0.3:8433, which a member named for it, waits for an admin's approval"
    )
    story.unnamed.add("n2")
    story.node("n2").alive = False
    (one,) = story.look(12).problems
    assert one.code == "never_reached"
    assert one.means.startswith("this console does not ask n2") and "is gone" not in one.means
    assert "Addresses" in one.step and "start it" not in one.step


@pytest.mark.parametrize(
    "start", [None, {"engine": "down", "self_id": "n2", "started_with": "quorumscope node --id n2"}]
)
def test_a_file_that_says_how_a_member_is_started_does_not_say_that_it_is_gone(start: dict[str, str] | None) -> None:
    (one,) = look([member("n0", acks=FRESH | {"n2": 9_000}), member("n1"), silent("n2") | {"start": start}]).problems
    assert "hangs or is gone" in one.means
    assert one.command is not None and one.command.startswith("quorumscope status")


def test_an_engine_that_its_supervisor_starts_again_is_not_to_be_started_by_hand() -> None:
    for reason in ("the engine was killed by signal 9", "nothing answers at its port (refused)"):
        start = {"engine": "down", "engine_reason": reason, "self_id": "n2", "started_with": "quorumscope node --id n2"}
        gone = silent("n2") | {"reason": f"engine down: {reason}", "start": start}
        (one,) = look([member("n0", acks=FRESH | {"n2": 9_000}), member("n1"), gone]).problems
        assert one.command is not None and one.command.startswith("quorumscope status"), reason
        assert "starts it again by itself" in one.means


def test_an_engine_that_refused_is_started_once_what_it_says_is_settled_and_its_other_process_has_ended() -> None:
    start = {"engine": "down", "engine_reason": "hardstate is damaged", "started_with": "quorumscope node --id n2"}
    gone = silent("n2") | {"reason": "engine down: hardstate is damaged", "start": start | {"self_id": "n2"}}
    (one,) = look([member("n0", acks=FRESH | {"n2": 9_000}), member("n1"), gone]).problems
    assert one.command == "quorumscope node --id n2"
    assert "starts nothing" in one.means and "end what is left of n2, and start it again" in one.step


def asking(story: Story, **unheard: tuple[str, ...]) -> None:
    """Nobody leads, all ask for votes; who does not hear whom."""
    for one in story.group.nodes.values():
        one.role = "CANDIDATE"
        one.heard_ms = {other: 9_000 if other in unheard.get(one.id, ()) else 300 for other in story.group.nodes}


def test_without_a_leader_it_is_said_who_does_not_hear_whom() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "There is no leader: no write can be accepted"),
        (
            {"n0": ("n1", "n2"), "n1": ("n0", "n2"), "n2": ("n0", "n1")},
            "There is no leader, and n0, n1 and n2 do not hear each other: no write can be accepted",
        ),
        ({"n1": ("n2",)}, "There is no leader, and n1 does not hear n2: no write can be accepted"),
    ]
    for unheard, said in cases:
        story = Story()
        story.look(2)
        asking(story, **unheard)
        view = story.look(6)
        assert headline(view).startswith(said), (headline(view), said)
        assert next_step(Finding("no_leader", ATTENTION, ""), in_a_demo(view)).command == "quorumscope demo heal"


def test_pushes_into_a_link_that_was_deaf_one_way_are_no_problem_once_it_is_mended() -> None:
    story = Story()
    story.look(2)

    def deaf() -> None:
        story.node("n2").heard_ms["n0"] = 3_000
        story.node("n2").resends += 2

    assert [one.code for one in story.look(6, deaf).problems] == ["one_way"]
    story.node("n2").heard_ms.clear()
    assert story.look(2).problems == ()


class OddClocks(Story):
    """n0 and n1 write times by a clock that differs from ours, and all of what they tell began five seconds ago."""

    ahead_s = 0.0

    def sample(self, node: FakeNode, now: datetime) -> NodeSample:
        node.dispatcher_since = rfc3339(T0 + timedelta(seconds=self.ahead_s))
        one = super().sample(node, now)
        one.last_clock = Clock(self.ahead_s * 1000, 500.0) if node.id != "n2" else None
        if one.state is not None and node.id != "n2":
            began = rfc3339(T0 + timedelta(seconds=self.ahead_s))
            one.state = one.state.model_copy(update={"role_since": began})
        return one


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_ages_are_ages_whatever_a_members_clock_says(ahead_s: float) -> None:
    story = OddClocks()
    story.ahead_s = ahead_s
    story.node("n2").dispatcher = "COMPARE"
    story.node("n1").alarms = [
        {"code": "disk_low", "text": "3 % left", "since": rfc3339(T0 + timedelta(seconds=ahead_s))}
    ]
    view = story.look(11)
    texts = {one.code: one.text for one in view.problems}
    assert texts["not_append"].startswith("The dispatcher of n2 has been in COMPARE for 5 s"), texts
    assert {one.since for one in view.problems} == {rfc3339(T0)}
    assert view.member("n0") is not None and view.members[0].state is not None
    assert view.members[0].state.role_since == rfc3339(T0)


@pytest.mark.parametrize("ahead_s", [0.0, 3600.0, -3600.0])
def test_a_deaf_follower_is_named_whatever_its_leaders_clock_says(ahead_s: float) -> None:
    story = OddClocks()
    story.ahead_s = ahead_s
    story.look(8)
    story.node("n1").heard_ms["n0"] = 3_000
    view = story.look(2)
    assert [(one.code, one.member) for one in view.problems] == [("one_way", "n1")]


def test_status_reads_the_times_of_a_member_by_that_members_clock() -> None:
    theirs = rfc3339(NOW - timedelta(hours=1))
    alarm = {"code": "disk_low", "severity": "attention", "text": "3 % left", "since": theirs}
    leader = member("n0", acks=FRESH, alarms=[alarm], as_of=theirs)
    (one,) = look([leader, member("n1"), member("n2")]).problems
    assert one.code == "alarm_disk_low" and one.since is not None and one.since >= rfc3339(NOW - timedelta(seconds=9))


def test_a_cut_is_not_one_way_because_the_leader_came_late_to_read_what_was_sent_before_it() -> None:
    """It stood still before the cut: it sent nothing meanwhile, and read then what had come."""
    for late_ms, codes in ((700.0, ["cut_off"]), (None, ["one_way"])):
        story = Story()
        story.look(4)
        story.node("n0").loop_late_ms = late_ms
        story.node("n2").ack_ms, story.node("n2").heard_ms["n0"] = 950, 2_300
        found = [one.code for one in story.look().problems]
        story.node("n2").ack_ms, story.node("n2").heard_ms["n0"] = 1_450, 2_800
        assert (found or [one.code for one in story.look(2).problems]) == codes


def test_where_another_node_answers_its_member_is_not_to_be_started_again() -> None:
    for reason in (
        "http://127.0.0.1:8433 is n5, not n2",
        "http://127.0.0.1:8433 belongs to another group of this name",
    ):

        class Mixed(Story):
            def sample(self, node: FakeNode, now: datetime, why: str = reason) -> NodeSample:
                one = super().sample(node, now)
                one.problem = why if one.problem else None
                return one

        story = Mixed()
        story.look(2)
        story.node("n2").alive = False
        (one,) = story.look(8).problems
        assert reason in one.text and "another node answers" in one.means
        assert (one.command, one.curl) == (
            "quorumscope status --node http://127.0.0.1:8433", "curl -s http://127.0.0.1:8433/api/v1/state",
        )  # fmt: skip


def test_who_is_needed_is_of_the_same_configuration_as_who_there_is() -> None:
    """The leader's state and its watermarks are two answers: a member may have left, or come, in between."""
    story = Story(group=FakeGroup(size=4))
    story.group.members = {"n0", "n1", "n2"}
    quorum = story.look(2).quorum
    assert (quorum.size, quorum.needed, quorum.answering, quorum.standing) == (3, 2, 3, 3)
    assert Story(group=FakeGroup(size=4)).look(2).quorum.needed == 3


def test_status_counts_voters_where_a_member_learns() -> None:
    ids = ("n0", "n1", "n2")
    leader = with_peers(member("n0", acks=FRESH), *ids, learners=("n2",))
    summary = look([leader, *(with_peers(member(one), *ids, learners=("n2",)) for one in ids[1:])])
    assert "2 of 2 voters answer" in table_of(summary)[0]
    assert "3 of 3 members answer" in table_of(look([member("n0", acks=FRESH), member("n1"), member("n2")]))[0]


def test_a_heartbeat_that_nobody_has_answered_for_long_is_no_proof() -> None:
    """A link that turned slow, or a leader that timed it long ago: the time is known when the answer comes."""
    story = Story()
    story.look(2)
    story.node("n2").unanswered_ms = 250
    assert headline(story.look()) == "All 3 replicas are in step."
    story.node("n2").unanswered_ms = 450
    assert headline(story.look()).endswith("in step is not known: n2 has not answered n0 for 0.5 s.")


def test_what_another_leader_sent_again_long_ago_is_nothing_that_happens_now() -> None:
    """Each leader counts its own resends, since its process started."""
    story = Story()
    story.look(3)
    story.group.lead("n1")
    story.node("n2").resends = 12
    assert "resends" not in {one.code for one in story.look(4).problems}


def test_a_member_that_is_back_after_a_cut_is_not_said_not_to_catch_up() -> None:
    """Its lag grew while it was away: "5,971 entries behind and not catching up" was said when it did nothing else."""
    story = Story()
    story.look(4)
    back = story.node("n2")
    back.ack_ms = 9_000
    assert [one.code for one in story.look(20, story.grow(n0=2_000, n1=2_000)).problems] == ["cut_off"]
    back.ack_ms, said = 2, set[str]()
    for _ in range(12):
        view = story.look(1, story.grow(n0=100, n1=100, n2=2_500))
        said |= {one.code for one in view.problems}
        assert "in step." not in headline(view)
    assert "catching_up" in said and "not_catching_up" not in said, said
