"""No look-up of term and chain reads a body, and none reads on the loop (S9)."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.consensus.api import MS
from node.consensus.effects import LookUp
from node.consensus.known_metas import KEPT_MAX, LOOKS_MAX
from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode
from node.protocol.entry import HEAD_BYTES, INDEX_UNIT_BYTES
from node.protocol.messages import HeartBeatRequest, Message, PushKind, PushRequest, PushResponse
from node.protocol.slab_encode import encode_slab
from node.store.errors import ColdEntry, StoreCorrupt
from node.store.file_store import FileStore
from node.store.files.platform import OsPlatform
from node.store.log_store import HardState
from node.store.recent_slabs import RecentSlabs
from tests.unit.core_kit import NOW, Leader, Solo, config_of
from tests.unit.store_layout import flip

LONG = 100_000
ENTRIES = 40
CHAIN_AT = 36  # in a record


class CountingPlatform(OsPlatform):
    """Counts what is read while the loop is said to run."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[int] = []

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        self.reads.append(length)
        return super().pread(fd, length, offset)


def cold_store(tmp_path: Path) -> tuple[FileStore, CountingPlatform]:
    """Entries of LONG bytes in terms 1 and 2, of which only the newest is in memory."""
    platform = CountingPlatform()
    store = FileStore.open(tmp_path / "s", group="g", node_id="n0", init=True, platform=platform)
    for number in range(ENTRIES):
        store.files.ring = RecentSlabs(1)
        store.append_as_leader([b"%d" % number * (LONG // 2)], 1 + number // (ENTRIES // 2))
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.save_hard_state(HardState(term=2, voter_state=store.hard_state.voter_state))
    platform.reads.clear()
    return store, platform


def test_a_look_reads_heads_and_no_body(tmp_path: Path) -> None:
    store, platform = cold_store(tmp_path)
    try:
        for index in (0, 7, ENTRIES - 2):
            with pytest.raises(ColdEntry):
                store.meta_at_hand(index)
            assert platform.reads == []
            found = store.read_meta(index)
            assert sum(platform.reads) <= 3 * (HEAD_BYTES + INDEX_UNIT_BYTES)  # its own, twice, and the one before
            assert found == store.meta(index) and found.term == store.term_at(index)
            platform.reads.clear()
        assert store.meta_at_hand(ENTRIES - 1) is not None
        assert store.meta_at_hand(ENTRIES) is None
        with pytest.raises(KeyError):
            store.read_meta(ENTRIES)
    finally:
        store.close()


def test_a_look_at_a_chain_that_rotted_names_that_entry_alone(tmp_path: Path) -> None:
    """Taken at its word it would be an entry of another history."""
    store, _ = cold_store(tmp_path)
    try:
        for index in (0, 7, ENTRIES - 3):
            rot_chain(store, index)
            for look in (store.read_meta, store.meta):
                with pytest.raises(StoreCorrupt) as raised:
                    look(index)
                assert [(one.first_index, one.last_index) for one in raised.value.faults] == [(index, index)]
            for sound in {max(index - 1, 0), index + 1} - {index}:
                assert store.read_meta(sound) == store.meta(sound)  # the one behind says what it always said
            store.note_faults(raised.value.faults)
    finally:
        store.close()


def rot_chain(store: FileStore, index: int) -> None:
    pos = store.read_slab(index, 1).pos
    segment = store.files.data.find(pos)
    assert segment is not None
    flip(segment.path, pos - segment.start + CHAIN_AT)


def test_a_rotten_chain_at_the_end_of_a_snapshot_is_no_other_history(tmp_path: Path) -> None:
    """The advice would be to move a sound snapshot away."""
    store, _ = cold_store(tmp_path)
    try:
        at = 7
        meta = store.meta(at)
        assert meta is not None
        rot_chain(store, at)
        store.note_progress(ENTRIES - 1, -1)
        store.durability.recovered_commit_index = ENTRIES - 1
        replica = Replica(replace(config_of(), applies=True), store, random.Random(7), NOW)
        replica.applying.ready(at, meta.term, NOW, at_chain=meta.chain)
        effects = replica.take_effects()
        (order,) = effects.looks
        found = None
        try:
            found = store.read_meta(order.index)
        except StoreCorrupt as error:
            replica.disk.log_damaged(error.faults, NOW)
        replica.disk.looked(order, found, NOW)
        assert "applier_diverged" not in {code for code, _ in replica.member.alarms}
        fed = replica.take_effects().apply
        assert fed is not None and fed.first_index == at + 1
    finally:
        store.close()


class ColdFollower:
    """A replica over a cold log; the test plays its leader n1, and the thread that looks."""

    def __init__(self, store: FileStore, platform: CountingPlatform) -> None:
        self.store, self.platform, self.now = store, platform, NOW
        self.replica = Replica(config_of(), store, random.Random(7), self.now)
        self.replica.take_effects()
        self.looks: list[LookUp] = []
        platform.reads.clear()

    def receive(self, message: Message) -> list[Message]:
        """What is answered; the loop reads nothing."""
        self.replica.receive("n1", message, self.now)
        effects = self.replica.take_effects()
        self.looks += effects.looks
        assert self.platform.reads == []
        return [send.message for send in effects.sends]

    def look(self) -> None:
        looks, self.looks = self.looks, []
        for order in looks:
            meta = self.store.read_meta(order.index)
            self.platform.reads.clear()
            self.replica.disk.looked(order, meta, self.now)
            assert self.platform.reads == []

    def push(self, kind: PushKind, **fields: Any) -> PushResponse:
        """Asked again as often as it takes; the last answer."""
        for _ in range(30):
            push = PushRequest(5, kind, "n1", 3, 1, -1, **fields)
            (answer,) = self.receive(push)
            assert isinstance(answer, PushResponse)
            if answer.code is not ResponseCode.PUSH_REQUEST_IS_FULL:
                return answer
            assert self.looks
            self.look()
        raise AssertionError("it never had looked")


def test_a_follower_compares_with_what_is_cold_and_reads_nothing_on_the_loop(tmp_path: Path) -> None:
    store, platform = cold_store(tmp_path)
    try:
        metas = [store.meta(index) for index in range(ENTRIES)]
        one = ColdFollower(store, platform)
        for index in (3, 30):
            meta = metas[index]
            assert meta is not None
            answer = one.push(PushKind.COMPARE, prev_index=index, prev_term=meta.term, prev_chain=meta.chain)
            assert (answer.code, answer.verified_index) == (ResponseCode.SUCCESS, index)
        answer = one.push(PushKind.COMPARE, prev_index=35, prev_term=3, prev_chain=1)
        assert (answer.code, answer.x_term, answer.x_index) == (ResponseCode.INCONSISTENT_STATE, 2, 31)
        beat = HeartBeatRequest(9, "n1", 3, 10, metas[10].chain if metas[10] else None)
        one.receive(beat)
    finally:
        store.close()


@pytest.mark.parametrize("differs_from", [None, 9, 25])
def test_an_overlap_with_what_is_cold_is_settled_by_a_few_looks(tmp_path: Path, differs_from: int | None) -> None:
    store, platform = cold_store(tmp_path)
    try:
        before = store.meta(4)
        assert before is not None and before.chain is not None
        pos = store.read_slab(5, 1).pos
        bodies = [b"%d" % number * (LONG // 2) for number in range(5, 30)]
        split = 20 if differs_from is None else min(differs_from, 20)
        slab = encode_slab(bodies[: split - 5], 5, 1, pos, before.chain)
        one = ColdFollower(store, platform)
        one.push(PushKind.COMPARE, prev_index=4, prev_term=1, prev_chain=before.chain)
        platform.reads.clear()
        asked = one.push(PushKind.APPEND, prev_index=4, prev_term=1, prev_chain=before.chain, first_index=5, slab=slab)
        assert (asked.code, asked.verified_index) == (ResponseCode.SUCCESS, split - 1)
        if differs_from is None:
            return
        last = store.meta(split - 1)
        assert last is not None and last.chain is not None
        other = encode_slab(bodies, split, 3, store.read_slab(split, 1).pos, last.chain)
        platform.reads.clear()
        asked = one.push(
            PushKind.APPEND, prev_index=split - 1, prev_term=last.term, prev_chain=last.chain, first_index=split,
            slab=other,
        )  # fmt: skip
        assert asked.code is ResponseCode.INCONSISTENT_STATE and asked.verified_index == split - 1
    finally:
        store.close()


def test_a_leader_looks_before_it_compares_and_pushes() -> None:
    leader = Leader()
    leader.propose([b"%d" % number for number in range(9)])
    leader.solo.sync()
    leader.solo.store.recent_from = 8
    leader.solo.looks_at_once = False
    leader.solo.replica.links.lost("n1", leader.solo.now)
    leader.solo.take()
    leader.solo.replica.links.connected("n1", leader.solo.now)
    leader.solo.take()
    leader.solo.connect("n1", end_index=3)
    assert not [m for to, m in leader.solo.take() if to == "n1" and isinstance(m, PushRequest)]
    orders = list(leader.solo.effects.looks)
    leader.solo.replica.tick(leader.solo.now + MS)
    orders += leader.solo.replica.take_effects().looks
    assert len({order.index for order in orders}) == len(orders) <= 1  # not asked for twice while it is under way


def test_looks_and_what_they_found_are_bounded_and_belong_to_their_log() -> None:
    solo = Solo()
    known = solo.replica.member.known_metas
    orders = [known.order(index, 0) for index in range(2 * LOOKS_MAX)]
    assert sum(order is not None for order in orders) == LOOKS_MAX
    first = orders[0]
    assert first is not None
    store = Leader().solo.store
    meta = store.meta(0)
    known.found(first, meta, 1)  # the log was cut since
    assert known.get(0) is None
    again = known.order(0, 1)
    assert again is not None
    known.found(again, meta, 1)
    assert known.get(0) == meta
    for index in range(KEPT_MAX + 1):
        assert meta is not None
        known.keep(type(meta)(100 + index, 1, 1))
    assert known.get(0) is None
    known.forget()
    assert known.get(150) is None
