"""A log that begins anew behind its leader's base: what fails on the way, what is left of the old one (M6, S1, S8)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from node.store.errors import StoreIOError
from node.store.faults.results import Fault
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT, read_checkpoint
from node.store.files.hard_state import RESERVE
from node.store.files.identity import BASE, Base
from node.store.files.platform import OsPlatform
from node.store.log_store import EntryMeta
from tests.unit.store_fixtures import fill, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES


class OneFails(OsPlatform):
    """The next fdatasync fails once it is `armed`, and those behind it say that all is well, as Linux has it."""

    armed = False

    def fdatasync(self, fd: int) -> None:
        if self.armed:
            self.armed = False
            raise OSError(errno.EIO, "Input/output error")
        os.fdatasync(fd)


class FullBeside(OsPlatform):
    """A disk that has room for a new base only once the reserve was given up."""

    armed = False

    def open(self, path: Path, flags: int) -> int:
        if self.armed and path.name == f"{BASE}.tmp" and (path.parent / RESERVE).exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().open(path, flags)


def begin_behind(store: FileStore, index: int) -> None:
    store.begin_behind(Base(EntryMeta(index, 4, 0x77), 7 * DATA_BYTES), record(store, 0))


def test_s1_after_a_sync_of_the_old_log_that_failed_no_close_says_that_all_is_durable(tmp_path: Path) -> None:
    platform = OneFails()
    store = open_store(tmp_path, platform=platform)
    fill(store, 1, 8)
    durable = sync(store)
    fill(store, 1, 8)
    platform.armed = True
    with pytest.raises(StoreIOError, match="syncing"):
        begin_behind(store, 500)
    store.close()
    slot = read_checkpoint(tmp_path / CHECKPOINT)
    assert slot is not None and not slot.clean and slot.durable_index == durable


def test_s6_damage_where_the_old_log_ended_heals_by_what_the_new_one_was(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 1, 20)
    sync(store)
    kill(store)
    store = open_store(tmp_path)
    old_end = store.end_index
    begin_behind(store, old_end - 9)
    fill(store, 1, 20)
    sync(store)
    sound, pos = store.read_slab(old_end, 1), store.position_at_hand(old_end)
    assert sound.last_index == old_end and pos is not None
    segment = store.files.data.find(pos)
    assert segment is not None
    segment.write(pos, b"rot")
    store.note_faults([Fault(old_end, old_end, "crc_invalid", "a test said so")])
    result = store.mend(sound)
    assert result.healed and store.faults == (), result.detail
    store.close()


def test_s8_on_a_full_disk_the_reserve_is_there_for_the_new_base(tmp_path: Path) -> None:
    """Without it the engine ended there, and at every start that was to go on with it."""
    platform = FullBeside()
    store = open_store(tmp_path, platform=platform)
    fill(store, 1, 20)
    sync(store)
    platform.armed = True
    begin_behind(store, 100)
    assert (store.begin_index, store.end_index) == (101, 100)
    store.close()
