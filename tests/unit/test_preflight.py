"""What is said before leadership is moved: a member with a damaged log would be refused, so it is not called fit."""

from __future__ import annotations

from app.console.preflight import Preflight, preflight
from app.times import rfc3339
from tests.unit.group_story import T0, Story
from tests.unit.test_learners_in_view import WithLearner

FAULT = {"first_index": 5, "last_index": 7, "kind": "crc_invalid", "detail": ""}


def states(checked: Preflight) -> dict[str, str]:
    return {one.name: one.state for one in checked.checks}


def test_a_member_with_a_damaged_log_is_refused_and_not_proposed() -> None:
    story = Story()
    assert preflight(story.look(2), None).to == "n1"
    story.node("n1").faults = [FAULT]
    view = story.look()
    checked = preflight(view, "n1")
    assert not checked.allowed and states(checked)["log"] == "refused"
    (text,) = [one.text for one in checked.checks if one.name == "log"]
    assert text == "n1 cannot read part of its log: it may not lead before that is mended"
    assert preflight(view, None).to == "n2" and preflight(view, None).allowed


def test_a_member_without_a_vote_is_refused_and_not_proposed() -> None:
    story, learners = Story(), WithLearner()
    story.node("n1").voter_state = "REJOINING"
    for view, one, why in ((story.look(2), "n1", "it is REJOINING"), (learners.look(2), "n2", "it is a learner")):
        checked = preflight(view, one)
        assert not checked.allowed and states(checked)["target"] == "refused"
        assert f"{one} has no vote: {why}" in [check.text for check in checked.checks]
        assert preflight(view, None).to not in (None, one) and preflight(view, None).allowed
    learners.node("n1").faults = [FAULT]
    assert preflight(learners.look(), None).to is None


def test_what_an_audit_found_is_weighed_by_people() -> None:
    story = Story()
    story.audit = {"verdict": "divergent", "finished_at": rfc3339(T0), "first": "n2, entry 7", "node_id": "n2"}
    view = story.look(2)
    assert states(preflight(view, "n2"))["log"] == "attention" and preflight(view, "n2").allowed
    assert states(preflight(view, "n1"))["log"] == "ok"
    story.audit["node_id"] = None
    assert states(preflight(story.look(), "n1"))["log"] == "attention", "in which of them is not known"
