"""A learner in the console's picture: nothing waits for it, so it is no member in trouble and no part of the quorum."""

from __future__ import annotations

from datetime import datetime

from app.console.sample import NodeSample
from app.health.facts import INFO
from tests.unit.fake_control import FakeNode
from tests.unit.group_story import Story


class WithLearner(Story):
    """n2 learns, as every member's log says."""

    def sample(self, node: FakeNode, now: datetime) -> NodeSample:
        one = super().sample(node, now)
        if one.state is not None:
            peers = [peer.model_copy(update={"is_voter": peer.id != "n2"}) for peer in one.state.peers or ()]
            one.state = one.state.model_copy(update={"peers": tuple(peers)})
        return one


def test_the_quorum_is_the_voters() -> None:
    story = WithLearner()
    view = story.look(4, story.grow(n0=5, n1=5, n2=5))
    assert [one.id for one in view.members if one.is_learner] == ["n2"]
    assert (view.quorum.size, view.quorum.answering, view.quorum.standing) == (2, 2, 2)
    assert Story().look(4).quorum.size == 3


def test_a_learner_that_is_behind_is_not_in_trouble_as_a_voter_is() -> None:
    severities = {}
    for kind in (Story, WithLearner):
        story = kind()
        view = story.look(40, story.grow(n0=5000, n1=5000))
        severities[kind] = {one.severity for one in view.problems if one.member == "n2"}
    assert severities[Story] and INFO not in severities[Story]
    assert severities[WithLearner] == {INFO}


def test_voters_that_are_in_step_are_said_to_be_so_beside_a_learner_that_is_not() -> None:
    story = WithLearner()
    story.node("n2").lag_ms = 4_000
    view = story.look(40, story.grow(n0=5000, n1=5000))
    assert (view.severity, view.sentence.headline) == ("ok", "All 2 voters are in step.")
    assert "n2 is" in view.sentence.rest and "entries behind" in view.sentence.rest


def test_what_is_not_known_of_a_learner_is_said_and_does_not_block() -> None:
    story = WithLearner()
    story.look(4)
    story.node("n2").dispatcher = "COMPARE"
    view = story.look()
    assert view.sentence.headline == "All 2 voters are in step."
    assert "Not known of those that learn: n2 is in COMPARE." in view.sentence.rest
    story.node("n1").dispatcher = "COMPARE"
    assert story.look().sentence.headline == "Whether all 2 voters are in step is not known: n1 is in COMPARE."
