"""Since when a member votes is another entry than the one that it came with; both are known from the log alone."""

from __future__ import annotations

import json

import pytest

from app.commands.members import line_of
from node.consensus.configuration import Configuration
from node.protocol.group_members import GroupMembers, members_in
from node.views.members import MemberView

BIRTH = Configuration({"n0": "h:1", "n1": "h:2"})


def at(index: int, named: GroupMembers) -> Configuration:
    """As a member reads it from its log."""
    read = members_in(named.body("c"))
    assert read is not None
    return Configuration.at_entry(index, read, BIRTH)


def test_a_voter_is_one_since_the_entry_that_promoted_it() -> None:
    came = at(12, BIRTH.to_change().with_learner("n2", "h:3", promote=True))
    assert (came.joined["n2"], came.voting) == (12, {"n0": -1, "n1": -1})
    votes = at(90, came.to_change().promoted("n2"))
    moved = at(95, votes.to_change().at_address("n2", "h:9"))
    for one in (votes, moved):
        assert (one.joined["n2"], one.voting["n2"], one.voting["n0"]) == (12, 90, -1)
    left = at(99, moved.to_change().without("n2", None))
    again = at(101, left.to_change().with_learner("n2", "h:3", promote=False))
    assert again.joined["n2"] == 101 and "n2" not in again.voting


def test_what_an_older_release_wrote_does_not_say_since_when_it_votes() -> None:
    named = GroupMembers({"n0": "", "n2": "h:3"}, joined={"n2": 12})
    assert "voting" not in json.loads(named.body("c"))["members"]
    assert at(90, named).voting == {"n0": -1}
    assert members_in(b'{"members": {"voters": {"n0": ""}, "learners": {}, "voting": {"n0": -7}}}') is None


def test_the_entry_that_names_the_survivors_makes_voters_of_learners_alone() -> None:
    """The log's newest entry promoted n2; the one behind it, which names the survivors, is not that one."""
    grown = at(12, BIRTH.to_change().with_learner("n2", "h:3", promote=True)).to_change().with_learner(
        "n3", "h:4", promote=False
    )  # fmt: skip
    promoted = at(80, grown).to_change().promoted("n2")
    survivors = at(120, promoted.only({"n2": "h:3", "n3": "h:4"}, {}, None))
    assert survivors.voting == {"n3": 120}
    known = at(120, at(90, promoted).to_change().only({"n0": "h:1", "n2": "h:3"}, {}, None))
    assert known.voting == {"n0": -1, "n2": 90}


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (
            MemberView(id="n2", kind="voter", joined_index=12, voter_index=90),
            "voter, since entry 90; it came with entry 12",
        ),
        (MemberView(id="n2", kind="voter", joined_index=12), "voter, since when is not known; it came with entry 12"),
        (MemberView(id="n2", kind="voter", joined_index=-1, voter_index=-1), "voter, since the group began"),
        (MemberView(id="n2", kind="learner", joined_index=12), "learner, since entry 12"),
    ],
)
def test_people_read_both(member: MemberView, said: str) -> None:
    assert said in line_of(member)
