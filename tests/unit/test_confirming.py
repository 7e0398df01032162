"""A quorum that hears each other is not one that writes get through: who confirms nothing, and what is said then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from app.console.members_pages import rows_of
from app.health.confirming import confirm_nothing, survives, takes_no_writes
from app.health.group_view import GroupView
from app.times import rfc3339
from tests.unit.fake_control import FakeGroup
from tests.unit.group_story import T0, Story
from tests.unit.test_learners_in_view import WithLearner

FULL = {"code": "disk_full", "severity": "critical", "text": "0 bytes left"}
FAULTS = [{"first_index": 5, "last_index": 7, "kind": "crc_invalid", "detail": ""}]


def peer_full(peer: str) -> dict[str, Any]:
    return {"code": "peer_disk_full", "severity": "critical", "peer_id": peer, "text": f"{peer}: its disk is full"}


def stakes(view: GroupView) -> set[str]:
    return {one.at_stake for one in view.problems}


def test_sentence_and_stake_agree_about_one_full_disk() -> None:
    story = Story()
    story.node("n1").alarms = [FULL]
    view = story.look(4)
    assert (
        view.sentence.rest == "Quorum stands, but one more failure stops writes"
        " (3 of 3 answer, 2 needed; n1 confirms no new writes)."
    )
    assert stakes(view) == {"n1 confirms no new writes; writes get through, and one more failure stops them"}


def test_a_leaders_word_for_a_full_disk_counts_as_the_members_own() -> None:
    story = Story()
    story.node("n0").alarms = [peer_full("n1")]
    assert confirm_nothing(story.look(3)) == {"n1": "its disk is full"}


def test_with_two_full_disks_of_three_nobody_says_that_writes_get_through() -> None:
    story = Story()
    story.node("n1").alarms = story.node("n2").alarms = [FULL]
    view = story.look(4)
    assert (
        view.sentence.rest.partition(". ")[0] == "Members hear each other, but no new write gets through:"
        " n1 and n2 confirm none (3 of 3 answer, 2 needed)"
    )
    assert stakes(view) == {
        "no new write gets through: n1 and n2 confirm none",
    }
    assert [one.code for one in view.problems] == ["writes_stopped", "alarm_disk_full", "alarm_disk_full"]
    assert view.sentence.headline == (
        "No new write gets through, for 1 s, though the quorum stands"
        " (n1 confirms none: its disk is full; n2 confirms none: its disk is full)."
    )
    assert survives(view) == -1


def test_one_full_disk_and_one_member_cut_off_stop_the_writes() -> None:
    story = Story()
    story.look()
    story.node("n1").alarms, story.node("n2").ack_ms = [FULL], 9_000
    view = story.look(6)
    assert {one.code for one in view.problems} == {"writes_stopped", "alarm_disk_full", "cut_off"}
    assert "no new write gets through: n1 confirms none" in view.sentence.rest
    assert all("no new write gets through: n1 confirms none" in one.at_stake for one in view.problems)


def test_where_no_write_gets_through_it_is_critical_whatever_the_causes_are() -> None:
    story = Story()
    story.look()
    story.node("n1").alive, story.node("n1").ack_ms, story.node("n2").faults = False, 60_000, FAULTS
    view = story.look(8)
    assert (view.severity, view.problems[0].code) == ("critical", "writes_stopped")
    assert "(n2 confirms none: it cannot read part of its log)" in view.sentence.headline


def test_a_lost_quorum_names_all_who_are_missing() -> None:
    story = Story()
    story.look()
    story.node("n1").alive = False
    story.node("n1").ack_ms = story.node("n2").ack_ms = 41_000
    view = story.look(8)
    assert view.sentence.headline.startswith(
        "The quorum is lost: n1 does not answer and n0 leads and does not hear n2; nothing can be committed"
    )


def test_without_a_leader_it_is_said_who_does_not_answer() -> None:
    story = Story()
    story.look()
    story.node("n0").alive, story.node("n0").role = False, "FOLLOWER"
    view = story.look(8)
    assert view.sentence.headline.startswith("There is no leader, and n0 does not answer: no write can be accepted")


def test_a_slow_link_beside_a_full_disk_survives_no_more_failure() -> None:
    story = Story()
    story.look()
    story.node("n1").alarms, story.node("n2").rtt_ms = [FULL], 250.0
    view = story.look(6)
    slow = next(one for one in view.problems if one.code == "slow_link")
    assert slow.at_stake == "writes get through, and one more failure stops them"


def test_a_leader_with_a_full_disk_takes_no_writes_whoever_else_stands() -> None:
    story = Story(FakeGroup(size=5))
    story.node("n0").alarms = [FULL]
    view = story.look(4)
    assert "no new write gets through: n0 takes none while it leads, for its disk is full" in view.sentence.rest


@pytest.mark.parametrize("state", ["COMPARE", "INSTALL_SNAPSHOT", "DIVERGED"])
def test_who_is_not_in_append_is_no_spare(state: str) -> None:
    story = Story()
    story.look()
    story.node("n2").dispatcher, story.node("n2").dispatcher_since = state, rfc3339(T0 - timedelta(seconds=9))
    view = story.look(6)
    assert "one more failure stops writes" in view.sentence.rest and "n2 confirms no new writes" in view.sentence.rest


def test_a_moment_of_compare_and_a_learner_cost_nothing() -> None:
    story = WithLearner()
    story.node("n2").alarms = [FULL]
    story.node("n1").dispatcher, story.node("n1").dispatcher_since = "COMPARE", rfc3339(T0)
    view = story.look()
    assert confirm_nothing(view) == {}


def test_who_is_not_heard_is_not_taken_off_twice() -> None:
    story = Story(FakeGroup(size=5))
    story.look()
    story.node("n1").alarms, story.node("n1").ack_ms = [FULL], 9_000
    view = story.look(6)
    assert (view.quorum.standing, confirm_nothing(view), survives(view)) == (4, {}, 1)


def rows(story: Story) -> dict[str, str]:
    return {one.id: one.catching for one in rows_of(story.view, None)}


def test_the_members_page_says_what_is_really_so() -> None:
    story = Story()
    story.group.committed = 90_000
    for one in story.group.nodes.values():
        one.end = one.durable = 90_000
    story.look(3)
    late = story.node("n1")
    late.end = late.durable = 80_000
    late.alarms = [FULL]
    story.look(3)
    assert rows(story)["n1"] == "takes nothing new in: its disk is full"
    late.alarms, late.faults = [], FAULTS
    story.look(3)
    assert rows(story)["n1"] == "takes nothing new in: it cannot read part of its log"
    late.faults, late.dispatcher = [], "DIVERGED"
    story.look(3)
    assert rows(story)["n1"] == "takes nothing new in: it has DIVERGED"
    late.dispatcher, late.ack_ms = "COMPARE", 12_000
    story.look(3)
    assert rows(story)["n1"] == "n0 has not heard it for 12 s"
    late.ack_ms, late.engine = 20, "down"
    story.look(3)
    assert rows(story)["n1"] == "its engine is down"
    story.node("n0").alarms = [FULL]
    story.look(1)
    assert rows(story)["n0"] == "leads, and takes nothing new in: its disk is full"


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        (
            ["http://127.0.0.1:8431: connection refused", "http://127.0.0.1:8432: connection refused"],
            "for 2 s: connection refused, each of 2.",
        ),
        (
            ["http://127.0.0.1:8431: connection refused", "http://127.0.0.1:8432 did not answer in time"],
            "for 2 s (n0: connection refused; n1: did not answer in time).",
        ),
    ],
)
def test_where_nobody_answers_it_is_said_why(reasons: list[str], said: str) -> None:
    story = Story(FakeGroup(size=2))
    story.look()
    for node in story.group.nodes.values():
        node.alive = False
    kept, story.sample = story.sample, None  # type: ignore[assignment]

    def sample(node: Any, now: Any) -> Any:
        one = kept(node, now)
        one.problem = dict(zip(story.group.nodes, reasons, strict=True))[node.id]
        return one

    story.sample = sample  # type: ignore[method-assign]
    view = story.look(4)
    assert view.sentence.headline == f"No control plane of this group has answered {said}"


def test_no_write_gets_through_is_known_or_not_said() -> None:
    story = Story()
    assert takes_no_writes(story.look(3)) is False
    story.node("n1").alarms = [FULL]
    assert takes_no_writes(story.look(4)) is False
    story.node("n0").alarms = [FULL]  # the leader's own
    assert takes_no_writes(story.look(5)) is True
    story.node("n0").alarms, story.node("n2").alarms = [], [FULL]
    assert takes_no_writes(story.look(6)) is True
