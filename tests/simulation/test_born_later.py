"""Groups whose log goes on from another one's: the same faults, the same promises, from whatever index on."""

from __future__ import annotations

import pytest

from tests.simulation.entry_list import EntryList
from tests.simulation.invariants import checks
from tests.simulation.swarm import Swarm
from tests.simulation.world import World

BORN = {"born_term": 7, "born_chain": 0x1234_5678}


@pytest.mark.parametrize(
    ("seed", "index", "pos"),
    [(1, 0, 0), (2, 999, 5 * 4096 + 1000), (3, 2**33, 3 * 4096), (4, 5, 4088)],
)
def test_a_group_born_later_keeps_every_promise(seed: int, index: int, pos: int) -> None:
    """With a learner, state machines, replaced disks, rot and crashes in the middle of writes."""
    born = BORN | {"born_index": index, "born_pos": pos, "data_file_size": 4096}
    faults = {"learner": 1.0, "applier": True, "wipe": 1.0, "rot": 1.0, "crash_at_io": 2.0, "isolate_leader": 1.0}
    world = World.from_seed(seed, observers=checks(), **born, **faults)
    world.run(1500)
    world.heal_and_settle()
    for member in world.present():
        assert member.store is not None and member.store.end_index > index
        assert member.store.begin_index == index + 1 and member.store.base.index == index
    assert len(world.history) > 10


def test_some_seeds_are_born_later_and_the_others_as_they_were() -> None:
    swarms = [Swarm.from_seed(seed) for seed in range(200)]
    later = [one for one in swarms if one.born_at() is not None]
    assert 5 <= len(later) <= 40
    assert {one.born_pos % one.data_file_size == 0 for one in later} == {True, False}
    assert all(Swarm(**one.as_json()) == one for one in later)


def test_no_group_is_born_where_no_log_can_begin() -> None:
    """A group that is trimmed has files of another size than the one that its birth was drawn for: one seed of many
    thousands began 6 bytes before a file's end, and the store refused it."""
    drawn = Swarm.from_seed(880135037)
    assert drawn.trim and drawn.born_pos == 6979584
    assert Swarm.from_seed(1, born_index=5, born_pos=2 * 4096 - 7, data_file_size=4096).born_pos == 2 * 4096
    assert Swarm.from_seed(1, born_index=5, born_pos=2 * 4096 - 8, data_file_size=4096).born_pos == 2 * 4096 - 8


def test_an_entry_list_knows_nothing_below_its_begin() -> None:
    held: EntryList[str] = EntryList(1000)
    held.append("a")
    held.append("b")
    held[1001] = "c"
    assert (held[1000], held[1001], held.end, held.last, list(held)) == ("a", "c", 1002, "c", ["a", "c"])
    for index in (-1, 0, 999, 1002):
        with pytest.raises(IndexError, match=f"{index} is not in"):
            held[index]
    assert held.since(1001) == ["c"] and held.since(0) == ["a", "c"] and "c" in held
    held.cut(1001)
    assert (len(held), held.end) == (1, 1001)
