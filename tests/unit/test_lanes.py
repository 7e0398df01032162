"""Lanes in the core: one at a time, in sequence, whole or not at all, and over with the first append that is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from node.consensus.api import Appended, LaneTicket, Outcome, Proposal
from node.consensus.lanes import LaneOpened
from node.protocol.codes import NOT_APPENDED, ResponseCode
from node.protocol.entry import HEAD_BYTES, Entry
from node.protocol.group_kind import NO_PATCH, Channel
from node.protocol.messages import Hello, PushRequest
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import GROUP_ID, Leader, Solo, store_of
from tests.unit.group_kind_kit import STAMPED, body_of, place_in

SUCCESS = ResponseCode.SUCCESS


class LaneLeader(Leader):
    """n0 leads; its lanes are tried."""

    def open(self, origin: str = "a") -> LaneOpened:
        return self.solo.replica.open_lane(origin, self.solo.now)

    def proposal(self, opened: LaneOpened, sequence: int, bodies: Sequence[bytes], origin: str = "a",
                 **more: Any) -> Proposal:  # fmt: skip
        ticket = LaneTicket(opened.term, opened.lane, sequence, **more)
        one = Proposal(bodies, self.done.append, origin=origin, lane=ticket)
        self.solo.replica.lanes.watch(one)
        return one

    def send(self, *proposals: Proposal) -> list[PushRequest]:
        self.solo.replica.propose_many(proposals, self.solo.now)
        return [m for to, m in self.solo.take() if to == "n1" and isinstance(m, PushRequest)]

    def over(self, opened: LaneOpened, sequence: int, *bodies: bytes, **more: Any) -> Outcome | None:
        """One append; its outcome, if it has one at once."""
        before = len(self.done)
        self.send(self.proposal(opened, sequence, bodies, **more))
        return self.done[-1] if len(self.done) > before else None

    def commit(self) -> None:
        """Everything that was sent so far is acknowledged by n1 and synced here."""
        self.solo.sync()
        pushes = [m for to, m in self.solo.sent if to == "n1" and isinstance(m, PushRequest) and m.slab is not None]
        self.solo.ack("n1", pushes[-1], self.solo.store.end_index)

    def entry(self, index: int) -> Entry:
        entry = self.solo.store.get(index)
        assert entry is not None
        return entry


def refused(outcome: Outcome | None, code: ResponseCode, *words: str) -> None:
    assert outcome is not None and (outcome.code, outcome.appended) == (code, Appended.NOT_APPENDED)
    assert code in NOT_APPENDED and all(word in outcome.detail for word in words), outcome.detail


def test_a_lane_says_where_the_log_ends_and_what_may_wait() -> None:
    leader = LaneLeader()
    config = leader.solo.replica.config
    opened = leader.open()
    assert opened == LaneOpened(
        SUCCESS, 1, 1, 0, config.pending_requests_max // 4, config.unsynced_bytes_max // 4, -1, "n0"
    )
    assert leader.over(opened, 0, b"a", b"b") is None and leader.over(opened, 2, b"c") is None
    leader.commit()
    assert [(one.first_index, one.last_index, one.appended) for one in leader.done] == [
        (1, 2, Appended.YES), (3, 3, Appended.YES),
    ]  # fmt: skip
    assert [leader.entry(index).body for index in (1, 2, 3)] == [b"a", b"b", b"c"]


def test_another_lane_voids_the_one_before_also_of_the_same_connection() -> None:
    leader = LaneLeader()
    first = leader.open("a")
    leader.over(first, 0, b"a")
    for origin in ("b", "a"):
        second = leader.open(origin)
        assert second.lane > first.lane and second.end_index == leader.solo.store.end_index
        refused(leader.over(first, 1, b"late"), ResponseCode.LANE_ENDED, "not open", "opened after it", "open another")
        assert leader.over(second, 0, b"mine", origin=origin) is None
        first = second
    leader.commit()
    assert leader.entry(leader.solo.store.end_index).body == b"mine"


def test_what_waits_in_the_voided_lane_still_gets_its_outcome_and_ends_no_other() -> None:
    leader = LaneLeader()
    first = leader.open()
    leader.over(first, 0, b"a")
    second = leader.open()
    assert second.end_index == 1 and not leader.done
    leader.commit()
    assert leader.done[0].appended is Appended.YES
    assert leader.over(second, 0, b"b") is None


@pytest.mark.parametrize("sequence", [0, 2, 1 << 60])
def test_a_wrong_sequence_ends_the_lane(sequence: int) -> None:
    leader = LaneLeader()
    opened = leader.open()
    leader.over(opened, 0, b"a")
    refused(leader.over(opened, sequence, b"x"), ResponseCode.LANE_ENDED, "entry 1 of lane 1 comes next")
    refused(leader.over(opened, 1, b"x"), ResponseCode.LANE_ENDED, "an append of it ended with LANE_ENDED")
    assert leader.solo.store.end_index == 1


def test_in_one_turn_nothing_comes_behind_what_was_refused() -> None:
    leader = LaneLeader()
    opened = leader.open()
    too_long = bytes(5 * 1024 * 1024)
    leader.send(
        leader.proposal(opened, 0, [b"a"]), leader.proposal(opened, 1, [too_long]), leader.proposal(opened, 2, [b"c"]),
        leader.proposal(opened, 1, [b"d"]),
    )  # fmt: skip
    assert [one.code for one in leader.done] == [ResponseCode.UNEXPECTED_ARGUMENT] + [ResponseCode.LANE_ENDED] * 2
    assert leader.solo.store.end_index == 1


def test_a_lane_belongs_to_its_connection() -> None:
    leader = LaneLeader()
    opened = leader.open("a")
    refused(leader.over(opened, 0, b"x", origin="b"), ResponseCode.LANE_ENDED, "not open for this connection")
    assert leader.over(opened, 0, b"a") is None  # that was not the lane's
    leader.solo.replica.lanes.lost("b")
    assert leader.over(opened, 1, b"b") is None
    leader.solo.replica.lanes.lost("a")
    refused(leader.over(opened, 2, b"c"), ResponseCode.LANE_ENDED, "its connection was lost")


def test_a_time_out_ends_the_lane() -> None:
    leader = LaneLeader()
    opened = leader.open()
    leader.over(opened, 0, b"a")
    leader.solo.now += leader.solo.replica.config.timing.closure_timeout_ns
    assert leader.leadership.closures.pending
    leader.leadership.closures.expire(leader.solo.now, "n0")
    assert leader.done[0].appended is Appended.UNKNOWN
    refused(leader.over(opened, 1, b"b"), ResponseCode.LANE_ENDED, "WAIT_QUORUM_ACK_TIMEOUT")


def test_a_full_disk_ends_the_lane_with_all_that_came_with_it() -> None:
    leader = LaneLeader()
    opened = leader.open()
    leader.solo.store.full = True
    leader.send(
        leader.proposal(opened, 0, [b"a" * 40]), leader.proposal(opened, 1, [b"b" * 40], patch_at=8),
        leader.proposal(opened, 2, [b"c" * 40]),
    )  # fmt: skip
    assert [one.code for one in leader.done] == [ResponseCode.DISK_FULL] * 3
    lanes = leader.solo.replica.lanes
    assert lanes.current is None and leader.solo.store.end_index == 0
    assert leader.open().code in (ResponseCode.DISK_FULL, ResponseCode.LEADER_TRANSFERRING)


def test_the_end_of_the_leadership_is_the_end_of_its_lanes() -> None:
    leader = LaneLeader()
    opened = leader.open()
    leader.over(opened, 0, b"a")
    leader.solo.replica.member.adopt_term(2, leader.solo.now, "a test")
    assert leader.done[0].appended is Appended.UNKNOWN and leader.solo.replica.lanes.current is None
    refused(leader.over(opened, 1, b"b"), ResponseCode.NOT_LEADER)
    assert leader.open().code is ResponseCode.NOT_LEADER


def test_within_its_window_a_lane_is_not_refused_for_load_and_beyond_it_ends() -> None:
    leader = LaneLeader(pending_requests_max=8, pending_entries_max=40, pending_bytes_max=4000)
    opened = leader.open()
    assert (opened.window_entries, opened.window_bytes) == (2, 1000)
    leader.propose(*[[b"x"]] * 8)  # all requests that may wait do
    leader.propose([b"x"])
    assert leader.done[-1].code is ResponseCode.LEADER_PENDING_FULL
    assert leader.over(opened, 0, b"a") is None and leader.over(opened, 1, b"b") is None
    refused(leader.over(opened, 2, b"c"), ResponseCode.LEADER_PENDING_FULL, "of this lane wait")
    refused(leader.over(opened, 2, b"c"), ResponseCode.LANE_ENDED, "LEADER_PENDING_FULL")


def test_one_append_alone_is_let_in_whatever_its_size_and_outcomes_give_the_window_back() -> None:
    leader = LaneLeader(pending_bytes_max=4000)
    opened = leader.open()
    for sequence in range(5):
        assert leader.over(opened, sequence, bytes(1500)) is None
        leader.commit()
    assert [one.appended for one in leader.done] == [Appended.YES] * 5


def test_lanes_that_are_filled_one_after_the_other_stay_within_what_may_wait() -> None:
    leader = LaneLeader(pending_bytes_max=4000)
    codes = []
    for _ in range(8):
        opened = leader.open()
        codes.append(opened.code)
        if opened.code is SUCCESS:
            assert leader.over(opened, 0, bytes(1000)) is None
    assert codes == [SUCCESS] * 4 + [ResponseCode.LEADER_PENDING_FULL] * 4
    leader.commit()
    assert leader.open().code is SUCCESS


def test_positions_are_patched_request_by_request_through_gathering() -> None:
    leader = LaneLeader()
    opened = leader.open()
    leader.send(
        leader.proposal(opened, 0, [b"a" * 16]), leader.proposal(opened, 1, [b"b" * 16] * 2, patch_at=8),
        leader.proposal(opened, 3, [b"c" * 16], patch_at=8), leader.proposal(opened, 4, [b"d" * 16], patch_at=0),
    )  # fmt: skip
    leader.commit()
    assert [(one.first_index, one.last_index) for one in leader.done] == [(1, 1), (2, 3), (4, 4), (5, 5)]

    def place(index: int) -> bytes:
        return (leader.entry(index).pos + HEAD_BYTES).to_bytes(8, "big")

    assert leader.entry(1).body == b"a" * 16
    assert [leader.entry(index).body for index in (2, 3, 4)] == [
        b"b" * 8 + place(2), b"b" * 8 + place(3), b"c" * 8 + place(4),
    ]  # fmt: skip
    assert leader.entry(5).body == place(5) + b"d" * 8


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"patch_at": 9}, "too short"),
        ({"channel": Channel.FIRST_OF_TERM}, "made by the leader itself"),
        ({"channel": Channel.CONFIG_CHANGE}, "made by the leader itself"),
        ({"channel": Channel.METADATA}, "a plain log has no entries of channel 3"),
    ],
)
def test_what_no_log_like_this_takes_ends_the_lane(more: dict[str, int], words: str) -> None:
    leader = LaneLeader()
    opened = leader.open()
    refused(leader.over(opened, 0, b"x" * 16, **more), ResponseCode.UNEXPECTED_ARGUMENT, words)
    refused(leader.over(opened, 0, b"x" * 16), ResponseCode.LANE_ENDED)
    assert leader.solo.store.end_index == 0


def test_without_its_first_entry_a_leader_opens_no_lane() -> None:
    leader = LaneLeader()
    leader.leadership.own_term_from = leader.solo.store.end_index + 1  # as where the disk was full when it was elected
    opened = leader.open()
    assert (opened.code, opened.lane) == (ResponseCode.LEADER_NOT_READY, -1)


# --- a group that is not plain ----------------------------------------------------------------------------------------
class StampedLeader:
    """n0 leads a group of another kind, alone as far as these tests go."""

    def __init__(self) -> None:
        class Peers(Solo):
            def hello_of(self, peer: str, *, seq: int = 1, **changes: object) -> Hello:
                return super().hello_of(peer, seq=seq, **{"caps": ("kind:stamped",), **changes})

        store = store_of()
        store = MemoryStore(store_id="s0", kind="stamped", hard_state=store.hard_state)
        assert store.hard_state.group_id == GROUP_ID
        self.solo = Peers(store, kind=STAMPED)
        self.solo.lead()
        self.done: list[Outcome] = []

    def over(self, sequence: int, bodies: Sequence[bytes], channel: int, patch_at: int) -> Outcome | None:
        opened = self.solo.replica.open_lane("a", self.solo.now)
        ticket = LaneTicket(opened.term, opened.lane, sequence, channel, patch_at)
        one = Proposal(bodies, self.done.append, origin="a", lane=ticket)
        self.solo.replica.lanes.watch(one)
        before = len(self.done)
        self.solo.replica.propose_many([one], self.solo.now)
        return self.done[-1] if len(self.done) > before else None


@pytest.mark.parametrize("channel", [Channel.MESSAGE, Channel.METADATA, Channel.SNAPSHOT_PART])
def test_valid_bodies_enter_with_their_place_and_their_channel(channel: Channel) -> None:
    leader = StampedLeader()
    assert leader.over(0, [body_of(b"a", 2_000_000), body_of(b"b", 2_000_001)], channel, STAMPED.position_at) is None
    entry = leader.solo.store.get(2)
    assert entry is not None and (entry.magic, entry.channel) == (1, channel)
    assert place_in(entry) == entry.pos + HEAD_BYTES and STAMPED.content_of(entry.body) == b"b"
    assert leader.solo.replica.open_lane("b", leader.solo.now).last_time_ms == 2_000_001


@pytest.mark.parametrize(
    ("body", "channel", "patch_at"),
    [
        (b"no record at all", 0, 9),
        (body_of(b"", 1), 0, NO_PATCH),
        (body_of(b"", 1), 0, 1),
        (body_of(b"", 1), 1, 9),
        (body_of(b"", 1), 2, 9),
    ],
)
def test_what_is_no_body_of_the_kind_is_refused_by_the_leader(body: bytes, channel: int, patch_at: int) -> None:
    leader = StampedLeader()
    end = leader.solo.store.end_index
    refused(leader.over(0, [body], channel, patch_at), ResponseCode.UNEXPECTED_ARGUMENT)
    assert leader.solo.store.end_index == end and leader.solo.replica.lanes.current is None
