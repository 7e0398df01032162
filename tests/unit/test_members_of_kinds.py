"""Members of groups with a state machine, and of broker groups, change like those of plain ones (SAFETY M1 to M6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node.consensus.api import MS, ReplicaConfig
from node.consensus.configurations import PAST_KEPT
from node.consensus.effects import OpenSnapshot
from node.consensus.member_changes import MemberChange
from node.consensus.own_entries import config_changes_in, may_hold_change
from node.message_store.broker_kind import BrokerKind
from node.protocol.codes import ResponseCode
from node.protocol.entry import HEAD_BYTES, Entry, Magic, Slab
from node.protocol.group_entries import about_group, content_in, entry_about_group
from node.protocol.group_kind import PLAIN, Channel, GroupKind
from node.protocol.group_members import GroupMembers, members_in
from node.protocol.inert_records import PLACE_AT
from node.protocol.position_patch import patched
from node.snapshots.directory import SnapshotMeta
from node.state_machine.kind import MachineKind
from node.store.memory_store import MemoryStore
from tests.unit.members_kit import ADD, PROMOTE, REMOVE, Group, address_of
from tests.unit.test_snapshot_install import leading, parts

KINDS: tuple[GroupKind, ...] = (MachineKind("kv"), BrokerKind(lambda: 5))
IDS = [kind.name for kind in KINDS]
BODY = GroupMembers({"n0": "", "n1": ""}, {"n3": "127.0.0.1:20914"}).body("a")


class OfKind(Group):
    """A group of some kind, whose leader appends entries of its own."""

    def __init__(self, kind: GroupKind, count: int = 3) -> None:
        self._of = kind
        super().__init__(count)

    def config_of(self, node_id: str) -> ReplicaConfig:
        self.kind = self._of
        return replace(super().config_of(node_id), kind=self._of)

    def new_store(self, node_id: str, *, forming: bool = True, base: object = None) -> MemoryStore:
        store = super().new_store(node_id, forming=forming)
        assert store.kind == self._of.name
        return store

    def write(self, node_id: str) -> int:
        """One more entry; its index."""
        leadership = self.replica(node_id).leadership
        assert leadership is not None
        leadership.append_noop(self.now, again=True)
        self.carry_out(node_id)
        return self.nodes[node_id].store.end_index

    def held(self, node_id: str) -> list[Entry]:
        store = self.nodes[node_id].store
        found = [store.get(index) for index in range(store.begin_index, store.end_index + 1)]
        return [one for one in found if one is not None]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_member_comes_is_promoted_and_another_one_goes(kind: GroupKind) -> None:
    group = OfKind(kind)
    group.start("n3")
    assert group.change("n0", MemberChange(ADD, "n3", address_of("n3"))) is None
    group.run(1000 * MS)
    for one in ("n0", "n1", "n2", "n3"):
        assert group.voters(one) == ["n0", "n1", "n2", "n3"], one
    assert group.change("n0", MemberChange(REMOVE, "n1")) is None
    group.run(500 * MS)
    assert group.outcomes[-1].code is ResponseCode.SUCCESS and group.voters("n3") == ["n0", "n2", "n3"]
    index = group.write("n0")
    group.run(200 * MS)
    assert group.replica("n3").committed_index == index
    entries = group.held("n3")
    said = [one for one in entries if about_group(kind.name, one) is not None]
    assert len(said) == 3 and all(one.magic == Magic.NORMAL for one in entries)
    if kind.keeps_places:
        places = [int.from_bytes(one.body[PLACE_AT : PLACE_AT + 8]) for one in entries]
        assert places == [one.pos + HEAD_BYTES for one in entries]
    times = [kind.time_ms(one.body) for one in entries]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_m1_a_cut_and_a_start_bring_back_what_the_log_says(kind: GroupKind) -> None:
    group = OfKind(kind)
    group.run(200 * MS)
    group.start("n3")
    group.cut_off("n0")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    group.settle_disks("n0")
    assert group.learners_of("n0") == ["n3"]
    group.crash("n0")
    group.restart("n0")
    assert group.learners_of("n0") == ["n3"], "its entry is in the log, committed or not"
    group.run(3000 * MS)
    leader = group.leader() or ""
    assert leader in ("n1", "n2")
    group.write(leader)
    group.heal()
    group.run(1000 * MS)
    assert group.learners_of("n0") == [] and group.nodes["n0"].store.hard_state.configurations == ()


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_m1_a_follower_writes_it_down_before_it_is_in_its_log(kind: GroupKind) -> None:
    group = OfKind(kind)
    group.run(200 * MS)
    store = group.nodes["n1"].store
    seen: list[bool] = []
    append = store.append_slab

    def watched(slab: Slab) -> None:
        if may_hold_change(kind, slab):
            seen.append(bool(store.hard_state.configurations))
        append(slab)

    store.append_slab = watched  # type: ignore[method-assign]
    group.start("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3"), promote=False))
    group.run(300 * MS)
    assert seen == [True]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_a_release_that_would_not_see_them_is_upgraded_first(kind: GroupKind) -> None:
    group = OfKind(kind)
    hello = group.replica("n0").peers.of["n1"].hello
    assert hello is not None
    group.replica("n0").peers.of["n1"].hello = replace(hello, caps=(f"kind:{kind.name}",))
    refused = group.change("n0", MemberChange(ADD, "n3", address_of("n3")))
    assert refused is not None and refused.code is ResponseCode.ILLEGAL_MEMBER_STATE
    assert "upgrade it first" in refused.detail


@pytest.mark.parametrize("kind", [*KINDS, PLAIN], ids=[*IDS, "plain"])
def test_what_a_log_of_any_kind_says_of_its_group_is_found_in_a_slab(kind: GroupKind) -> None:
    store = MemoryStore(store_id="s", kind=kind.name)
    store.append_as_leader([b"x" * 100, b"y" * 120], 1)
    own = entry_about_group(kind.name, BODY, store.get(1))
    slab = store.append_as_leader([own.body], 1, own.magic, own.channel, own.patch_at)[0]
    store.append_as_leader([b"z" * 100], 1)
    assert may_hold_change(kind, slab)
    whole = store.read_slab(0, 1 << 20)
    assert whole is not None and [one.index for one in config_changes_in(kind, whole)] == [2]
    other = store.read_slab(0, 100)
    assert other is not None and other.count == 1 and not may_hold_change(kind, other)
    entry = store.get(2)
    assert entry is not None and about_group(kind.name, entry) == BODY == content_in(kind.name, entry.body)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_an_operators_entry_is_the_one_that_a_leader_would_make(kind: GroupKind) -> None:
    last = Entry(Magic.NORMAL, 0, 1, 0, kind.first_of_term(77))
    made = entry_about_group(kind.name, BODY, last)
    assert made.body == kind.config_change(BODY, 77) and kind.content_of(made.body) == BODY
    assert (made.magic, made.channel, made.patch_at) == (Magic.NORMAL, Channel.CONFIG_CHANGE, kind.position_at)
    if kind.keeps_places:
        (placed,) = patched([made.body], 4096, made.patch_at)
        assert kind.content_of(placed) == BODY


# --- a snapshot says who belonged to the group where it ends (M1, M6) ----------------------------------------------
def test_m6_a_snapshot_carries_the_members_of_its_own_entry() -> None:
    solo = leading("n1")
    configurations = solo.replica.member.configurations
    store, chain = solo.store, solo.store.base.chain
    bodies = [GroupMembers({"n0": "", "n1": "", "n2": ""}).body(str(number)).decode() for number in range(3)]
    end = store.end_index
    for number, body in enumerate(bodies):
        configurations.own(end + 1 + number, body)
    configurations.committed(end + 3, end + 3)
    assert [configurations.at(end + number) for number in (1, 2, 5)] == [
        (end + 1, bodies[0]), (end + 2, bodies[1]), (end + 3, bodies[2]),
    ]  # fmt: skip
    assert configurations.at(end) is None and len(configurations.records) == 3
    order = solo.snapshots.pop()
    assert isinstance(order, OpenSnapshot)
    solo.replica.disk.snapshot_opened(order, SnapshotMeta(1, 1, chain, 100, 10, 99, {}), "", solo.now)
    (offer,) = parts(solo.take())
    assert offer.members == store.base_on_record.members, "what changed behind it comes with the log"


def test_who_does_not_remember_the_members_there_gives_a_newer_snapshot() -> None:
    solo = leading()
    configurations = solo.replica.member.configurations
    for index in range(10, 10 + PAST_KEPT + 2):
        configurations.own(index, GroupMembers({"n0": ""}).body(str(index)).decode())
    configurations.committed(100, 100)
    assert configurations.known_from == 11 and len(configurations.records) == PAST_KEPT + 1
    assert configurations.at(11) is not None


def test_a_promotion_by_hand_in_a_key_value_group() -> None:
    group = OfKind(KINDS[0])
    group.start("n3")
    group.change("n0", MemberChange(ADD, "n3", address_of("n3"), promote=False))
    group.run(1000 * MS)
    assert group.learners_of("n0") == ["n3"]
    assert group.change("n0", MemberChange(PROMOTE, "n3")) is None
    group.run(500 * MS)
    records = group.nodes["n1"].store.hard_state.configurations
    assert [members_in(body.encode()) is not None for _index, body in records] == [True, True], "both are on record"
