"""The checkpoint: what was durable at least, in two alternating slots (SAFETY S2).

Invariants: slots lie 4 KiB apart, are numbered, and carry a CRC; the newer sound one counts; a slot names only what was
durable *before* it was written, so it needs no order against the data's own sync.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Final

from node.protocol.entry import crc32
from node.protocol.messages import MemberMark
from node.protocol.value_class import value_class
from node.store.errors import StoreIOError, is_unreadable, wrap
from node.store.files.os_files import sync_directory, sync_fd, write_all
from node.store.files.platform import OS, Platform

CHECKPOINT: Final = "quorumscope.checkpoint"  # `checkpoint` is what RocketMQ's older DLedger calls a file of its own
SLOT_SPACING_BYTES = 4096
UNREADABLE = b"\xee"  # stands for a slot that the disk cannot read: bytes that are none
_SLOT = struct.Struct(">4sIQqqqqIqqqqB40s")
_MAGIC = b"QSCP"
_VERSION = 1
_CHAIN_KNOWN, _CLEAN = 1, 2
_MARKS_AT = 512  # a sector of its own, behind the slot's: version 1 neither reads nor writes there
_MARKS = struct.Struct(">4sII")
_MARKS_MAGIC = b"QSMK"
_MARKS_BYTES_MAX = SLOT_SPACING_BYTES - _MARKS_AT - _MARKS.size


@value_class(slots=True, frozen=True)
class Slot:
    """`end_pos` is the position right after the durable entry; `index_durable` is the index file's own end (S7)."""

    durable_index: int = -1
    begin_index: int = 0
    end_pos: int = 0
    term: int = -1
    chain: int | None = 0
    committed_index: int = -1
    applied_index: int = -1
    index_durable: int = -1
    sealed_from: int = 0
    clean: bool = False
    boot_id: str = ""
    number: int = 0
    marks: tuple[MemberMark, ...] = ()


def pack_slot(slot: Slot) -> bytes:
    """The slot's bytes, CRC last; then, where there are any, the marks of peers (SAFETY E8) with a CRC of their own."""
    flags = (_CHAIN_KNOWN if slot.chain is not None else 0) | (_CLEAN if slot.clean else 0)
    raw = _SLOT.pack(
        _MAGIC, _VERSION, slot.number, slot.durable_index, slot.begin_index, slot.end_pos, slot.term, slot.chain or 0,
        slot.committed_index, slot.applied_index, slot.index_durable, slot.sealed_from, flags,
        slot.boot_id.encode()[:40],
    )  # fmt: skip
    raw += struct.pack(">I", crc32(raw))
    return raw.ljust(_MARKS_AT, b"\0") + _pack_marks(slot.marks) if slot.marks else raw


def _pack_marks(marks: tuple[MemberMark, ...]) -> bytes:
    """As many as fit: a slot's space is bounded, and one mark less is only a little protection less."""
    rows = [[mark.member_id, mark.index, mark.term] for mark in marks]
    while len(text := json.dumps(rows).encode()) > _MARKS_BYTES_MAX:
        rows.pop()
    return _MARKS.pack(_MARKS_MAGIC, len(text), crc32(text)) + text


def _unpack_marks(data: bytes) -> tuple[MemberMark, ...]:
    """Empty where any bit of them is wrong."""
    if len(data) < _MARKS.size:
        return ()
    magic, size, seal = _MARKS.unpack_from(data)
    text = data[_MARKS.size : _MARKS.size + size]
    if magic != _MARKS_MAGIC or len(text) != size or crc32(text) != seal:
        return ()
    try:
        rows = json.loads(text)
        return tuple(MemberMark(str(member), int(index), int(term)) for member, index, term in rows)
    except (ValueError, TypeError, RecursionError):
        return ()


def unpack_slot(data: bytes) -> Slot | None:
    """None unless the slot is whole and its CRC is right."""
    if len(data) < _SLOT.size + 4:
        return None
    raw = data[: _SLOT.size]
    (seal,) = struct.unpack_from(">I", data, _SLOT.size)
    if seal != crc32(raw):
        return None
    fields = _SLOT.unpack(raw)
    if fields[:2] != (_MAGIC, _VERSION):
        return None
    number, durable, begin, end_pos, term, chain, committed, applied, index_durable, sealed, flags, boot = fields[2:]
    known, clean = bool(flags & _CHAIN_KNOWN), bool(flags & _CLEAN)
    if not boot.isascii():
        return None
    return Slot(
        durable, begin, end_pos, term, chain if known else None, committed, applied, index_durable, sealed, clean,
        boot.rstrip(b"\0").decode(), number, _unpack_marks(data[_MARKS_AT:]),
    )  # fmt: skip


def read_checkpoint(path: Path, platform: Platform = OS) -> Slot | None:
    """The newer sound slot; None where there is none."""
    return _read_slots(path, platform)[0]


def _read_slots(path: Path, platform: Platform) -> tuple[Slot | None, bool]:
    """The newer sound slot, and whether one of the two is damaged: it may have been the newer one.

    A slot is in one sector, so no power cut leaves half of one: bytes that are no slot are rot. So is what the disk
    cannot read; the other slot lies on another page.
    """
    try:
        fd = platform.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None, False
    except OSError as error:
        raise StoreIOError(f"reading {path}: {error.strerror}") from error
    try:
        parts = [_read_slot(fd, at, path, platform) for at in (0, SLOT_SPACING_BYTES)]
    finally:
        platform.close(fd)
    slots = [unpack_slot(part) for part in parts]
    damaged = any(slot is None and any(part[:_MARKS_AT]) for slot, part in zip(slots, parts, strict=True))
    sound = sorted((slot for slot in slots if slot is not None), key=lambda slot: slot.number)
    newest = sound[-1] if sound else None
    if newest is not None and not newest.marks:  # torn, or an older release wrote that slot: older marks hold as well
        newest = replace(newest, marks=sound[0].marks)
    return newest, damaged


def _read_slot(fd: int, offset: int, path: Path, platform: Platform) -> bytes:
    try:
        return platform.pread(fd, SLOT_SPACING_BYTES, offset)
    except OSError as error:
        if is_unreadable(error):
            return UNREADABLE
        raise StoreIOError(f"reading {path}: {error.strerror}") from error


class Checkpoint:
    """The writing side; used by one thread at a time."""

    def __init__(self, path: Path, platform: Platform = OS) -> None:
        self.path = path
        self._platform = platform
        self.last, self.is_doubtful = _read_slots(path, platform)
        self._number = self.last.number if self.last else 0
        created = not platform.exists(path)
        try:
            self._fd = platform.open(path, os.O_RDWR | os.O_CREAT)
            if platform.file_size(self._fd) < 2 * SLOT_SPACING_BYTES:
                platform.ftruncate(self._fd, 2 * SLOT_SPACING_BYTES)
        except OSError as error:
            raise wrap(error, f"opening {path}") from error
        if created:
            sync_directory(path.parent, platform)

    def write(self, slot: Slot, *, sync: bool = True) -> None:
        """The next slot, over the older one. Raises StoreFull: then the newer one still counts, and stays."""
        number = self._number + 1
        raw = pack_slot(replace(slot, number=number))
        place, attempt = number % 2 * SLOT_SPACING_BYTES, f"writing {self.path}"
        try:
            write_all(self._fd, raw, place, attempt, self._platform)
        except StoreIOError as error:
            if not is_unreadable(error):
                raise
            write_all(self._fd, raw.ljust(SLOT_SPACING_BYTES, b"\0"), place, attempt, self._platform)
        self._number, self.last = number, slot
        if sync:
            sync_fd(self._fd, f"syncing {self.path}", self._platform)

    def write_both(self, slot: Slot) -> None:
        """Both slots say the same: neither an older nor a torn one can say more (before a cut)."""
        self.write(slot)
        self.write(slot)

    def close(self) -> None:
        """Closes the file; idempotent."""
        if self._fd >= 0:
            self._platform.close(self._fd)
            self._fd = -1
