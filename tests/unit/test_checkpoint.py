"""Checkpoint slots: alternating, numbered, sealed; a torn one never counts; they never say more than the disk holds."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.store.errors import StoreFull, StoreIOError
from node.store.files.checkpoint import (
    CHECKPOINT,
    SLOT_SPACING_BYTES,
    Checkpoint,
    Slot,
    pack_slot,
    read_checkpoint,
    unpack_slot,
)
from node.store.files.platform import OsPlatform
from tests.unit.store_fixtures import fill, kill, open_store, record, sync

INDEX = st.integers(-1, 2**62)


@given(
    st.builds(
        Slot,
        durable_index=INDEX,
        begin_index=INDEX,
        end_pos=INDEX,
        term=INDEX,
        chain=st.none() | st.integers(0, 2**32 - 1),
        committed_index=INDEX,
        applied_index=INDEX,
        index_durable=INDEX,
        sealed_from=INDEX,
        clean=st.booleans(),
        boot_id=st.from_regex(r"[0-9a-f-]{0,36}", fullmatch=True),
        number=st.integers(0, 2**63),
    )
)
def test_a_slot_comes_back_as_it_was(slot: Slot) -> None:
    assert unpack_slot(pack_slot(slot)) == slot


def test_any_flipped_bit_voids_a_slot() -> None:
    raw = pack_slot(Slot(17, 3, 4711, 2, 99, 16, 15, 17, 0, False, "boot", 5))
    for bit in range(len(raw) * 8):
        damaged = bytearray(raw)
        damaged[bit // 8] ^= 1 << bit % 8
        assert unpack_slot(bytes(damaged)) is None
    assert all(unpack_slot(raw[:length]) is None for length in range(len(raw)))


def test_slots_alternate_and_the_older_one_is_the_fallback(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    checkpoint = Checkpoint(path)
    assert checkpoint.last is None
    for number in range(1, 8):
        checkpoint.write(Slot(durable_index=number))
        newest = read_checkpoint(path)
        assert newest is not None and (newest.durable_index, newest.number) == (number, number)
        torn = bytearray(path.read_bytes())
        torn[number % 2 * SLOT_SPACING_BYTES + 10] ^= 1
        other = tmp_path / "torn"
        other.write_bytes(bytes(torn))
        before = read_checkpoint(other)
        assert (before.durable_index if before else 0) == number - 1
    checkpoint.close()
    again = Checkpoint(path)
    again.write(Slot(durable_index=8))
    assert read_checkpoint(path) == Slot(durable_index=8, number=8)
    again.close()


def test_a_store_whose_first_slot_cannot_be_written_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_checkpoint: Checkpoint, _slot: Slot) -> None:
        raise StoreIOError("a test said so")

    open_store(tmp_path).close()
    held = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched, pytest.raises(StoreIOError):
        patched.setattr(Checkpoint, "write_both", refuse)
        open_store(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == held
    open_store(tmp_path).close()


def test_slots_say_what_was_durable_and_never_more(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    store.note_progress(25, 25)  # a commit index beyond the own end is never recorded
    path = tmp_path / CHECKPOINT
    assert read_checkpoint(path) == replace(Slot(), boot_id="boot-1", number=2)
    sync(store)
    slot = read_checkpoint(path)
    assert slot is not None
    assert (slot.durable_index, slot.index_durable, slot.committed_index, slot.clean) == (19, 19, 19, False)
    assert (slot.end_pos, slot.term, slot.chain) == (store.durable_position, 2, store.end_chain)
    assert store.prepare_checkpoint() is None and store.prepare_sync() is None
    store.note_progress(18, 18)
    ticket = store.prepare_checkpoint()
    assert ticket is not None
    ticket.run()
    assert store.prepare_checkpoint() is None
    store.close()
    clean = read_checkpoint(path)
    assert clean is not None and clean.clean


def test_both_slots_are_lowered_before_a_cut(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    sync(store)
    store.truncate(12, record(store, 12))
    raw = (tmp_path / CHECKPOINT).read_bytes()
    slots = [unpack_slot(raw[at:]) for at in (0, SLOT_SPACING_BYTES)]
    assert [slot.durable_index for slot in slots if slot is not None] == [11, 11]
    kill(store)
    again = open_store(tmp_path)
    assert (again.end_index, again.durable_index, again.alarms) == (11, 11, ())
    again.close()


def test_a_slot_that_disagrees_with_the_log_means_a_full_scan_and_an_alarm(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3, 10)
    store.close()
    checkpoint = Checkpoint(tmp_path / CHECKPOINT)
    assert checkpoint.last is not None
    checkpoint.write_both(replace(checkpoint.last, chain=1234, durable_index=20))
    checkpoint.close()
    again = open_store(tmp_path)
    assert again.end_index == 29
    assert any("does not agree" in alarm for alarm in again.alarms)
    again.close()


def test_a_slot_that_finds_no_space_leaves_the_newer_one(tmp_path: Path) -> None:
    """However often: the place that is written over is always the older slot's."""
    disk = OsPlatform()
    checkpoint = Checkpoint(tmp_path / CHECKPOINT, disk)
    checkpoint.write_both(Slot(durable_index=1))
    checkpoint.write(Slot(durable_index=2))
    places: list[int] = []

    def no_space(_fd: int, _data: bytes | memoryview, offset: int) -> int:
        places.append(offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk.pwrite = no_space  # type: ignore[assignment, method-assign]
    for _ in range(3):
        with pytest.raises(StoreFull):
            checkpoint.write(Slot(durable_index=3))
    assert len(set(places)) == 1
    newest = read_checkpoint(tmp_path / CHECKPOINT)
    assert newest is not None and newest.durable_index == 2
    checkpoint.close()
