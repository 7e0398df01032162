"""Tables of groups and offsets are bounded in encoded bytes: slaves, and the next start, read each of them at once."""

from __future__ import annotations

import random

import pytest

from node.broker.requests import groups
from node.broker.requests.groups import ConsumerOffsets, GroupTable, offsets_of
from node.rocketmq.bodies import NAME_CHARS_MAX, GroupConfig, groups_answer
from node.rocketmq.dispatch import Refusal

LETTERS = ["a", "é", "\u2028", "\x01", '"', "\\", "\U0001f600"]


def name_of(chance: random.Random) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randrange(1, NAME_CHARS_MAX)))


@pytest.mark.parametrize("seed", range(5))
def test_offsets_stop_before_they_are_too_long_and_go_on_when_some_are_gone(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(groups, "OFFSETS_BYTES_MAX", 20_000)
    chance = random.Random(seed)
    offsets = ConsumerOffsets()

    def fill() -> None:
        with pytest.raises(Refusal, match="20000 bytes"):
            while True:
                offsets.put(name_of(chance), name_of(chance), chance.randrange(1 << 31), chance.randrange(1 << 63))
                assert len(offsets_of(offsets.items())) <= 20_000 + len('{"offsetTable":{}}')

    fill()
    topic, group = chance.choice(list(offsets.names()))
    offsets.put(group, topic, next(iter(offsets.queues(topic, group))), 7)  # what is there goes on
    for topic, group in list(offsets.names()):
        offsets.take(topic, group, {})
    assert (offsets.count, offsets._names_bytes) == (0, 0)
    fill()


@pytest.mark.parametrize("seed", range(5))
def test_groups_stop_before_they_are_too_long(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(groups, "GROUP_NAMES_BYTES_MAX", 20_000)
    chance = random.Random(seed)
    table = GroupTable(lambda: 0)
    empty = len(groups_answer(table.version, [])) + 40
    with pytest.raises(Refusal, match="20000 bytes together"):
        while True:
            table.put(GroupConfig(name_of(chance)))
            assert (
                len(groups_answer(table.version, table.groups.values())) <= 2 * 20_000 + 220 * len(table.groups) + empty
            )
    for name in list(table.groups):
        table.take(name, None)
    assert table._names_bytes == 0
    table.put(GroupConfig(name_of(chance)))


def test_the_longest_tables_are_within_an_answer() -> None:
    """Of the widest numbers, and of names that are all there may be."""
    assert groups.OFFSETS_BYTES_MAX < 16 << 20 and len(f"{(1 << 31) - 1}:{(1 << 63) - 1},") <= groups.QUEUE_BYTES_MAX
    assert 2 * groups.GROUP_NAMES_BYTES_MAX + 220 * groups.GROUPS_MAX < 16 << 20
