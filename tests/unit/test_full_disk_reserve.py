"""Snapshot parts on a disk that counts as full: they go on within a reserve, else no space might ever come again."""

from __future__ import annotations

import pytest

from node.consensus import full_disk
from node.protocol.codes import ResponseCode
from node.protocol.group_kind import Channel
from tests.unit.core_kit import store_of
from tests.unit.group_kind_kit import STAMPED, body_of
from tests.unit.test_base_install import following
from tests.unit.test_lanes import SUCCESS, LaneLeader, StampedLeader

AT = STAMPED.position_at
PART = Channel.SNAPSHOT_PART


def full(leader: StampedLeader) -> None:
    """By the configured ratio: the disk itself still takes a write. Nobody else could lead."""
    member = leader.solo.replica.member
    member.no_space("95 % of the disk is used", leader.solo.now)
    leader.solo.replica._full_disk._left = True


def body(content: bytes = b"p") -> bytes:
    return body_of(content, 2_000_000)


def test_parts_of_a_snapshot_get_in_and_nothing_else() -> None:
    leader = StampedLeader()
    full(leader)
    end = leader.solo.store.end_index
    for channel in (Channel.MESSAGE, Channel.METADATA):
        refused = leader.over(0, [body()], channel, AT)
        assert refused is not None and refused.code is ResponseCode.DISK_FULL
    assert leader.solo.store.end_index == end
    assert leader.over(0, [body()], PART, AT) is None
    assert leader.solo.store.end_index == end + 1


def test_the_reserve_ends_and_is_there_again_once_there_was_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_disk, "RESERVE_BYTES", 100)
    leader = StampedLeader()
    full(leader)
    size = len(body())
    for _ in range(100 // size):
        assert leader.over(0, [body()], PART, AT) is None
    refused = leader.over(0, [body()], PART, AT)
    assert refused is not None and refused.code is ResponseCode.DISK_FULL
    replica, solo = leader.solo.replica, leader.solo
    for _ in range(3):  # as the driver does every now and then
        replica.disk.disk_full(False, solo.now, still_short=False)
        assert leader.over(0, [body()], Channel.MESSAGE, AT) is None
    assert not replica.member.short_of_space
    full(leader)
    assert leader.over(0, [body()], PART, AT) is None


def test_where_the_disk_itself_refuses_a_part_is_refused() -> None:
    leader = StampedLeader()
    full(leader)
    leader.solo.store.full = True
    refused = leader.over(0, [body()], PART, AT)
    assert refused is not None and refused.code is ResponseCode.DISK_FULL


def test_a_plain_group_has_none() -> None:
    leader = LaneLeader()
    leader.solo.replica.member.no_space("full", leader.solo.now)
    leader.solo.replica._full_disk._left = True
    assert leader.open().code is ResponseCode.DISK_FULL is not SUCCESS


# --- what ends the alarm ----------------------------------------------------------------------------------------------
def test_a_member_whose_disk_is_below_the_ratio_again_says_so_though_nobody_appends() -> None:
    """It was refused no write that would have to succeed first."""
    follower = following(store_of([1, 1, 1], term=2), committed=1)
    disk, member = follower.replica.disk, follower.replica.member
    disk.disk_full(True, follower.now, by_ratio=True)
    assert member.short_of_space and "disk_full_ratio" in member.alarms["disk_full", None].text
    disk.disk_full(False, follower.now, still_short=True)
    assert ("disk_full", None) in member.alarms, "the disk itself has none by now"
    disk.disk_full(False, follower.now)
    assert ("disk_full", None) not in member.alarms and not member.short_of_space


@pytest.mark.parametrize("by_disk_first", [True, False])
def test_a_member_that_the_disk_itself_refused_a_write_waits_for_one_whatever_the_ratio(by_disk_first: bool) -> None:
    follower = following(store_of([1, 1, 1], term=2), committed=1)
    disk, member = follower.replica.disk, follower.replica.member
    for by_ratio in (not by_disk_first, by_disk_first):
        disk.disk_full(True, follower.now, by_ratio=by_ratio)
    for _ in range(3):
        disk.disk_full(False, follower.now)
    assert ("disk_full", None) in member.alarms
    member.wrote_while_short()
    disk.disk_full(False, follower.now)
    assert ("disk_full", None) not in member.alarms
    disk.disk_full(True, follower.now, by_ratio=True)
    disk.disk_full(False, follower.now)
    assert ("disk_full", None) not in member.alarms, "what the disk refused once does not count for ever"
