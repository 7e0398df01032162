"""A state machine that hangs is never "in step", however well its log is; one that is busy is no problem."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from app.console.sample import NodeSample
from tests.unit.fake_control import FakeNode
from tests.unit.group_story import Story
from tests.unit.test_cli_status import FRESH, NOW, look, member, summary_of


class WithMachine(Story):
    """Each member has applied up to what `applied` says; all of it where it says nothing."""

    applied: dict[str, int]
    committed = 1000

    def sample(self, node: FakeNode, now: datetime) -> NodeSample:
        one = super().sample(node, now)
        if one.state is not None and one.state.log is not None:
            marks = {"committed_index": self.committed, "applied_index": self.applied.get(node.id, self.committed)}
            log = one.state.log.model_copy(update=marks)
            one.state = one.state.model_copy(update={"log": log})
        return one


def story_of(**applied: int) -> WithMachine:
    story = WithMachine()
    story.applied = {}
    story.look(4)
    story.applied = applied
    return story


def committing(story: WithMachine, by: int, applied_by: int = 0) -> Callable[[], None]:
    def step() -> None:
        story.committed += by
        story.applied = {one: at + applied_by for one, at in story.applied.items()}

    return step


def test_a_leader_whose_state_machine_hangs_is_named() -> None:
    story = story_of(n0=1000)
    view = story.look(6, committing(story, 3))
    assert [(one.code, one.member, one.severity) for one in view.problems] == [("not_applying", "n0", "critical")]
    said = "The state machine of n0 applies nothing: 18 committed entries wait, for 2 s."
    assert view.sentence.headline == said, view.sentence
    assert "get no result in time" in view.problems[0].at_stake


def test_a_follower_whose_state_machine_hangs_is_named_too_and_it_is_over_once_it_goes_on() -> None:
    story = story_of(n1=999)
    view = story.look(3)
    assert view.sentence.headline.endswith("in step is not known: n1 has not applied a committed entry, for 1.0 s.")
    view = story.look(2)
    assert [(one.code, one.member, one.severity) for one in view.problems] == [("not_applying", "n1", "attention")]
    story.applied = {}
    assert story.look().sentence.headline == "All 3 replicas are in step."


def test_a_busy_state_machine_that_is_a_little_behind_all_the_time_is_in_step() -> None:
    story = story_of(n0=500, n1=600, n2=700)
    view = story.look(20, committing(story, 1000, 1000))
    assert (view.problems, view.sentence.headline) == ((), "All 3 replicas are in step.")


def test_one_that_applies_again_what_it_had_is_said_to_be_behind() -> None:
    story = story_of(n2=0)
    story.committed = 90_000
    view = story.look(8, committing(story, 0, 1000))
    assert view.sentence.headline == "The state machine of n2 is 82,000 entries behind what is committed, for 3 s."


def test_one_look_of_status_is_no_proof_that_a_state_machine_goes_on() -> None:
    behind = {"begin_index": 0, "end_index": 9, "durable_index": 9, "committed_index": 9, "applied_index": 5}
    members = [member("n0", acks=FRESH, log=behind), member("n1"), member("n2")]
    first = summary_of("g", members, NOW)
    assert [one.reason for one in first.unknown] == ["n0 has 4 committed entries to apply, since when is unknown"]
    assert [(one.code, one.member) for one in look(members).problems] == [("not_applying", "n0")]
