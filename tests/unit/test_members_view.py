"""What a leader says of its group's members: who lacks what, whom a change waits for, what a change would mean."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from app.commands.members import listed
from app.commands.members import preflight as said_to_people
from app.commands.targets import Target
from node.consensus.api import MS
from node.consensus.member_changes import MemberChange
from node.consensus.status import ReplicaStatus
from node.engine.member_requests import preflight
from node.engine.members_view import members_view
from node.views.members import MembersView, MemberView
from tests.unit.members_kit import ADD, ADDRESS, REMOVE, Group, address_of

RATE = 1000


def status_of(group: Group, node_id: str) -> ReplicaStatus:
    return group.replica(node_id).status(group.now)


def unknowns(view: MembersView) -> list[dict[str, Any]]:
    """As a client gets them."""
    found: list[dict[str, Any]] = json.loads(view.to_bytes())["unknown"]
    return found


def test_a_pending_change_names_the_voters_that_it_waits_for() -> None:
    group = Group()
    for one in ("n1", "n2"):
        group.cut_off(one)
    assert group.change("n0", MemberChange(ADD, "n3", address_of("n3"))) is None
    for _ in range(20):
        group.settle_disks("n0")
        group.carry_out("n0")
    view = members_view(status_of(group, "n0"), "boot")
    assert view.pending is not None and view.pending.index == view.index
    assert (view.pending.waits_for, view.pending.needed) == (("n1", "n2"), 1)
    assert [one.id for one in view.items or () if one.promoting] == ["n3"]
    other = members_view(status_of(group, "n1"), "boot")
    assert other.pending is None and {one.field for one in other.unknown or ()} >= {"lag_entries", "caught_up"}
    assert all(set(one) == {"field", "reason", "since"} for one in unknowns(other))


def test_what_a_learner_lacks_and_how_long_that_takes_at_most() -> None:
    group = Group()
    for _ in range(9):
        group.propose("n0", b"x")
    group.run(300 * MS)
    group.start("n3")
    group.cut_off("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3"), promote=False))
    group.run(300 * MS)
    status = status_of(group, "n0")
    entries = status.log.end_index - status.log.begin_index + 1
    view = members_view(status, "boot", size_bytes=entries * 100, bytes_per_s=RATE)
    items = {one.id: one for one in view.items or ()}
    new = items["n3"]
    assert (new.kind, new.connected, new.lag_entries, new.caught_up) == ("learner", False, None, None)
    assert new.lag_bytes == entries * 100 and new.catch_up_s_at_most == round(entries * 100 / RATE, 1)
    assert [one.field for one in view.unknown or ()] == ["items.n3.lag_entries"]
    assert [set(one) for one in unknowns(view)] == [{"field", "reason", "since"}]
    assert (items["n1"].lag_entries, items["n1"].caught_up, items["n1"].catch_up_s_at_most) == (0, True, 0)
    group.heal()
    group.dial()
    group.run(1500 * MS)
    view = members_view(status_of(group, "n0"), "boot", size_bytes=entries * 100, bytes_per_s=RATE)
    assert {one.id: one.caught_up for one in view.items or ()}["n3"] and not view.unknown and view.pending is None


def test_a_preflight_says_how_many_failures_are_survived_before_and_after() -> None:
    group = Group()
    said = preflight(group.replica("n0"), MemberChange(ADD, "n3", address_of("n3")))
    assert said["refused"] is None
    assert (said["before"]["needed"], said["before"]["survives"]) == (2, 1)
    after = said["after"]
    assert (after["needed"], after["answering"], after["survives"]) == (3, ["n0", "n1", "n2", "n3"], 1)
    said = preflight(group.replica("n0"), MemberChange(REMOVE, "n2"))
    assert (said["after"]["needed"], said["after"]["survives"]) == (2, 0)
    group.cut_off("n1")
    group.run(50 * MS)
    said = preflight(group.replica("n0"), MemberChange(REMOVE, "n2"))
    assert said["refused"] is not None and said["after"]["survives"] == -1


def test_a_member_that_is_down_answers_nothing_though_its_address_changes() -> None:
    group = Group()
    group.cut_off("n2")
    group.run(3000 * MS)
    said = preflight(group.replica("n0"), MemberChange(ADDRESS, "n2", "127.0.0.1:9999"))
    assert (said["after"]["answering"], said["after"]["survives"]) == (["n0", "n1"], 0)


def test_what_a_member_lacks_that_leaves_or_moves_is_said_in_bytes_as_well() -> None:
    group = Group()
    group.cut_off("n2")
    for _ in range(9):
        group.propose("n0", b"x")
    group.run(3000 * MS)
    replica = group.replica("n0")
    replica.store.size_bytes = 100 * (replica.store.end_index - replica.store.begin_index + 1)  # type: ignore[attr-defined]
    for change in (MemberChange(REMOVE, "n2"), MemberChange(ADDRESS, "n2", "127.0.0.1:9999")):
        said = preflight(replica, change)
        assert said["lagEntries"] >= 9 and said["lagBytes"] == 100 * said["lagEntries"], said
    assert preflight(replica, MemberChange(REMOVE, "n9"))["lagEntries"] == 0


def test_one_voter_makes_a_quorum_and_two_make_one() -> None:
    alone, both = ["n0"], ["n0", "n1"]
    before = {"voters": alone, "needed": 1, "answering": alone}
    lines = said_to_people("add n1", {"before": before, "after": {"voters": both, "needed": 2, "answering": both}})
    assert lines[1:3] == [
        "  now: 1 of 1 voter makes a quorum, 1 answer: 0 of them may fail",
        "  then: 2 of 2 voters make a quorum, 2 answer, n1 among them once it has caught up: 0 of them may fail",
    ]


def test_a_demos_list_says_where_its_members_listen() -> None:
    """Its log names the relays, and a client that took their addresses went where links are cut."""
    found = MembersView(needed=1, items=(MemberView(id="n0", address="127.0.0.1:39411", kind="voter"),))
    target = Target({"n0": "127.0.0.1:20911"}, "demo", demo=True)
    assert listed(target, found)[-1] == (
        "  (a demo's members reach each other over relays; they listen: n0 at 127.0.0.1:20911)"
    )
    assert len(listed(replace(target, demo=False), found)) == 2
