"""The word beside a member's name in the waterline: its worst problem, and where that is explained."""

from __future__ import annotations

from app.console.fragments import render_fragments
from app.console.troubles import trouble_of
from app.health.group_view import GroupView
from tests.unit.group_story import Story


def words(view: GroupView) -> dict[str, tuple[str, str, str]]:
    found = {one.id: trouble_of(view, one) for one in view.members}
    return {key: (one.word, one.severity, one.anchor) for key, one in found.items() if one is not None}


def test_only_the_member_in_trouble_has_a_word() -> None:
    story = Story()
    assert words(story.look(3)) == {}
    story.node("n2").rtt_ms = 250
    assert words(story.look(4)) == {"n2": ("slow link", "attention", "problem-slow_link-n2")}


def test_the_worst_of_its_problems_is_said() -> None:
    story = Story()
    story.look()
    story.node("n1").alarms = [{"code": "disk_low", "severity": "warning", "text": "3 % left"}]
    assert words(story.look())["n1"][0] == "disk low"
    story.node("n1").alarms.append({"code": "disk_full", "severity": "critical", "text": "no space"})
    view = story.look()
    assert words(view)["n1"] == ("disk full", "critical", "problem-alarm_disk_full-n1")
    drawn = str(render_fragments(view, "viewer")["waterline"])
    assert ">disk full, 1 more</a>" in drawn, "one word hid that there is another problem"


def test_a_member_that_is_cut_off_is_not_also_said_to_fall_behind() -> None:
    story = Story()
    lost = story.node("n2")

    def cut() -> None:
        story.node("n0").end += 2_000
        story.node("n1").end, story.group.committed = story.node("n0").end, story.node("n0").end
        lost.ack_ms, lost.lag_ms = 9_000, 9_000

    view = story.look(12, cut)
    assert [one.code for one in view.problems] == ["cut_off"] and words(view)["n2"][0] == "cut off"
