"""Who holds the log, as a member knows: nothing goes that another is not known to hold (`consensus/held_entries`)."""

from __future__ import annotations

from node.protocol.messages import HeartBeatRequest, PushRequest
from node.transport.bodies import decode_request, encode_message, load, request_code
from tests.unit.core_kit import Leader, Solo


def told(leader: Leader, peer: str = "n1") -> int:
    """What the next round of heartbeats says."""
    sent = leader.solo.tick(150)
    return [m.held_index for to, m in sent if to == peer and isinstance(m, HeartBeatRequest)][-1]


def write(leader: Leader, *acks: tuple[str, int]) -> PushRequest:
    """One more entry, which n1 and n2 acknowledge as durable up to these."""
    pushes = leader.propose([b"x"])
    for peer, durable in acks:
        leader.solo.ack(peer, pushes[-1], pushes[-1].slab.last_index if pushes[-1].slab else -1, durable=durable)
    leader.solo.sync()
    return pushes[-1]


def test_a_leader_removes_what_every_member_showed_durably_and_no_more() -> None:
    leader = Leader()
    held = leader.solo.replica.held
    assert (held.removable_through(), held.needs(), told(leader)) == (0, [], 0)
    write(leader, ("n1", 1), ("n2", 0))
    assert held.removable_through() == 1, "n1 and n0 are a quorum"
    (need,) = held.needs()
    assert (need.owner, need.from_index) == ("voter n2", 1)
    assert need.why == "is known to hold entries up to 0 on its disk"
    assert told(leader) == 0


def test_a_voter_that_is_away_keeps_what_it_is_not_known_to_hold() -> None:
    leader = Leader()
    leader.solo.replica.links.lost("n2", leader.solo.now)
    write(leader, ("n1", 1))
    held = leader.solo.replica.held
    (need,) = held.needs()
    assert (need.owner, need.from_index) == ("voter n2", 1)
    assert need.why == "is not connected; it is known to hold entries up to 0"
    leader.solo.connect("n2", end_index=1)
    assert [one.from_index for one in held.needs()] == [1], "its word of an end is not a match"


def test_a_voter_that_comes_back_with_less_needs_what_it_lost() -> None:
    leader = Leader()
    write(leader, ("n1", 1), ("n2", 1))
    held = leader.solo.replica.held
    assert held.needs() == []
    leader.solo.replica.links.lost("n2", leader.solo.now)
    assert held.needs() == [], "what it held, it holds while it is away"
    leader.solo.connect("n2", end_index=-1, store_id="another disk")
    assert [(one.owner, one.from_index) for one in held.needs()] == [("voter n2", 0)]
    assert told(leader) == -1


def test_a_damaged_voter_needs_its_damaged_entries() -> None:
    leader = Leader()
    push = write(leader, ("n1", 1), ("n2", 1))
    leader.solo.ack("n2", push, 1, faulty_from=1)
    (need,) = leader.solo.replica.held.needs()
    assert (need.from_index, need.why) == (1, "is damaged from entry 1 on")


def test_a_learner_is_needed_for_like_a_voter() -> None:
    leader = Leader()
    leader.solo.replica.reconfiguration.add_learner("n9", "127.0.0.1:20999", leader.solo.now)
    (need,) = leader.solo.replica.held.needs()
    assert (need.owner, need.from_index) == ("learner n9", 0)


def test_nothing_of_an_earlier_leadership_counts() -> None:
    leader = Leader()
    write(leader, ("n1", 1), ("n2", 1))
    solo = leader.solo
    solo.follow(term=9)
    assert [(one.owner, one.from_index) for one in solo.replica.held.needs()] == [("the group", 0)]
    solo.replica.links.lost("n1", solo.now)
    solo.grant(solo.grant(solo.tick(3000), ("n2",)), ("n2",))
    assert solo.replica.leadership is not None
    assert {one.from_index for one in solo.replica.held.needs()} == {0}


def test_a_follower_removes_what_its_leader_says_that_all_hold() -> None:
    solo = Leader().solo
    solo.follow(term=5)
    solo.compare(0, term=5, commit_index=0)
    held = solo.replica.held
    (need,) = held.needs()
    assert (need.owner, need.from_index) == ("the group", 0), "no heartbeat of this term has come"
    solo.receive("n1", HeartBeatRequest(1, "n1", 5, 0, None, (), -1))
    (need,) = held.needs()
    assert (need.owner, need.from_index) == ("leader n1", 0)
    solo.receive("n1", HeartBeatRequest(2, "n1", 5, 0, None, (), 0))
    assert held.needs() == []
    solo.receive("n1", HeartBeatRequest(3, "n1", 5, 0, None, (), -1))
    assert [one.from_index for one in held.needs()] == [0], "a member lost its log since: its newest word counts"
    solo.receive("n1", HeartBeatRequest(4, "n1", 5, 0, None, (), 0))
    solo.receive("n2", HeartBeatRequest(5, "n2", 6, 0, None, (), 0))
    assert [one.owner for one in held.needs()] == ["the group"], "adopting a term ends what was said in the one before"


def test_a_heartbeat_carries_it_as_a_number_that_older_releases_skip() -> None:
    beat = HeartBeatRequest(7, "n0", 3, 5, None, (), 4)
    body = encode_message(beat, "g", "n0", "n1")
    fields = load(body)
    assert fields.values["heldIndex"] == 4
    assert decode_request(request_code(beat), body, 7) == beat
    nothing = HeartBeatRequest(7, "n0", 3, 5)
    assert "heldIndex" not in load(encode_message(nothing, "g", "n0", "n1")).values
    assert decode_request(request_code(nothing), encode_message(nothing, "g", "n0", "n1"), 7) == nothing


def test_a_group_of_one_needs_nobody() -> None:
    solo = Solo(connect=False, peers={"n0": "127.0.0.1:20911"})
    solo.tick(1500)
    solo.sync()
    assert solo.replica.leadership is not None
    assert solo.replica.held.needs() == []
