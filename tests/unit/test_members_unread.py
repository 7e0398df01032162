"""A change of the members that is on record, and whose place cannot be read: it is on trust until it can be (M1, S6).

It may be there, or further on (its leader appended it later), or never have come: then another entry is in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from node.protocol.entry import Magic
from node.protocol.group_members import GroupMembers
from node.protocol.messages import FetchRequest, FetchResponse, PushKind
from node.protocol.slab_encode import encode_slab
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import Solo, store_of
from tests.unit.test_log_repair import OK

FOUR = GroupMembers({"n0": "", "n1": "", "n2": "", "n3": "127.0.0.1:20914"}).body("a").decode()
TWO = GroupMembers({"n0": "", "n1": ""}).body("b").decode()


def log_of(*bodies: str) -> MemoryStore:
    """A durable log; who belongs to the group is said by a CONFIG_CHANGE entry."""
    store = store_of()
    for body in bodies:
        magic = Magic.CONFIG_CHANGE if body.startswith("{") else Magic.NORMAL
        store.append_as_leader([body.encode()], 1, magic)
    ticket = store.prepare_sync()
    assert ticket is not None
    store.finish_sync(ticket)
    return store


def started(make: Callable[[], MemoryStore], *records: tuple[int, str], rotten: int, committed: int = -1) -> Solo:
    """A member with these records, which finds that entry damaged."""
    store = make()
    store.save_hard_state(replace(store.hard_state, term=1, configurations=records))
    store.recovered_commit_index = committed
    store.rot(rotten, known=True)
    return Solo(store)


def heal(solo: Solo, make: Callable[[], MemoryStore]) -> None:
    solo.follow()
    asked = [(to, message) for to, message in solo.sent if isinstance(message, FetchRequest)]
    peer, request = asked[-1]
    answer = FetchResponse(request.seq, OK, solo.store.end_index, make().read_slab(request.first_index, 1))
    solo.receive(peer, answer)
    order = solo.effects.mend
    assert order is not None
    solo.replica.disk.mended(order.log_epoch, order.carry_out(solo.store), "", solo.now)
    solo.take()
    assert solo.store.faults == ()


def voters(solo: Solo) -> str:
    return " ".join(sorted(solo.replica.configuration.voters))


@pytest.mark.parametrize("committed", range(-1, 4))
def test_m1_what_never_came_is_in_effect_no_more_once_its_place_is_mended(committed: int) -> None:
    """Also where the entry that came there is committed: the configuration before it must not be forgotten over it."""

    def make() -> MemoryStore:
        return log_of("x", FOUR, "y", "z")

    solo = started(make, (1, FOUR), (3, TWO), rotten=3, committed=committed)
    assert voters(solo) == "n0 n1" and not solo.replica.member.may_lead()
    heal(solo, make)
    assert voters(solo) == "n0 n1 n2 n3" and solo.store.hard_state.configurations == ((1, FOUR),)
    assert solo.replica.member.may_lead()


def test_m1_what_is_there_stays_in_effect() -> None:
    def make() -> MemoryStore:
        return log_of("x", FOUR, "y", TWO)

    for committed, named in ((2, ((1, FOUR), (3, TWO))), (3, ((3, TWO),))):
        solo = started(make, (1, FOUR), (3, TWO), rotten=3, committed=committed)
        assert voters(solo) == "n0 n1"
        heal(solo, make)
        assert voters(solo) == "n0 n1" and solo.store.hard_state.configurations == named


def test_m1_what_its_leader_appended_further_on_is_found_there() -> None:
    """So a cut behind its first place takes it along."""

    def make() -> MemoryStore:
        return log_of("x", "y", "z", TWO)

    solo = started(make, (1, TWO), rotten=1)
    heal(solo, make)
    assert voters(solo) == "n0 n1" and solo.store.hard_state.configurations == ((3, TWO),)


def test_m1_a_cut_at_the_damage_takes_what_was_on_trust_there() -> None:
    solo = started(lambda: log_of("x", FOUR, "y", "z"), (1, FOUR), (3, TWO), rotten=3)
    configurations = solo.replica.member.configurations
    assert configurations.cut(3) and sorted(configurations.in_effect.voters) == ["n0", "n1", "n2", "n3"]
    assert not configurations.mended(solo.store)


# --- a power loss -------------------------------------------------------------------------------------------------
def test_m1_a_power_loss_brings_back_the_members_before_an_entry_that_was_committed_without_this_disk() -> None:
    """Others hold it durably, and this member has heard so before its own sync was done. At the group's birth it would
    count members that left long ago, and be elected by them."""
    four = log_of("x", FOUR)
    four.recovered_commit_index = 1
    four.save_hard_state(replace(four.hard_state, term=1, configurations=((1, FOUR),)))
    solo = Solo(four)
    solo.follow()
    solo.compare(1)
    last, before = four.get(1), four.meta(1)
    assert last is not None and before is not None and before.chain is not None
    slab = encode_slab([TWO.encode()], 2, 1, last.pos + last.size, before.chain, Magic.CONFIG_CHANGE)
    solo.append(slab, 1)
    solo.append(slab, 1)  # it is on record by now
    solo.push(PushKind.COMMIT, commit_index=2)
    assert voters(solo) == "n0 n1" and solo.replica.committed_index == 2 and four.durable_index == 1
    assert four.hard_state.configurations == ((1, FOUR), (2, TWO))
    four.lose_unsynced()
    again = Solo(four)
    assert voters(again) == "n0 n1 n2 n3"
    again.follow()
    again.compare(1)
    again.append(slab, 1)
    again.append(slab, 1)
    again.sync()
    again.push(PushKind.COMMIT, commit_index=2)
    assert voters(again) == "n0 n1" and four.hard_state.configurations == ((2, TWO),)
