"""Marks of peers lie with the checkpoint slots (E8): read back, bounded, and no matter for version 1's readers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.protocol.messages import MemberMark
from node.store.files.checkpoint import (
    CHECKPOINT,
    SLOT_SPACING_BYTES,
    Checkpoint,
    Slot,
    pack_slot,
    read_checkpoint,
    unpack_slot,
)
from tests.unit.store_fixtures import fill, kill, open_store, sync

SLOT = Slot(17, 3, 4711, 2, 99, 16, 15, 17, 0, False, "boot", 5)
MARKS = (MemberMark("n1", 16, 2), MemberMark("n2", 3, 1))


def test_a_slot_with_marks_comes_back_and_its_first_sector_is_version_1s() -> None:
    slot = replace(SLOT, marks=MARKS)
    raw, plain = pack_slot(slot), pack_slot(SLOT)
    assert unpack_slot(raw) == slot
    assert raw[:512] == plain.ljust(512, b"\0")
    assert unpack_slot(raw[: len(plain)]) == SLOT


def test_torn_or_rotten_marks_void_only_the_marks() -> None:
    raw = pack_slot(replace(SLOT, marks=MARKS))
    for at in range(512, len(raw)):
        rotten = bytearray(raw)
        rotten[at] ^= 4
        assert unpack_slot(bytes(rotten)) == SLOT
        assert unpack_slot(raw[:at]) == SLOT


def test_more_marks_than_a_slot_has_room_for_are_left_out() -> None:
    many = tuple(MemberMark(f"member-{number:03}".ljust(64, "x"), number, 1) for number in range(64))
    raw = pack_slot(replace(SLOT, marks=many))
    assert len(raw) <= SLOT_SPACING_BYTES
    found = unpack_slot(raw)
    assert found is not None and 20 < len(found.marks) < 64 and found.marks == many[: len(found.marks)]


def test_a_slot_that_an_older_release_wrote_leaves_the_other_ones_marks(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint = Checkpoint(path)
    checkpoint.write(replace(SLOT, marks=MARKS))
    checkpoint.write(SLOT)
    found = read_checkpoint(path)
    assert found is not None and (found.number, found.marks) == (2, MARKS)


def test_a_store_gives_back_what_it_was_told(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 3)
    sync(store)
    store.note_marks(MARKS)
    ticket = store.prepare_checkpoint()
    assert ticket is not None, "marks alone are worth a slot"
    ticket.run()
    store.finish_sync(ticket)
    assert store.prepare_checkpoint() is None
    kill(store)
    assert open_store(tmp_path).recovered_marks == MARKS
