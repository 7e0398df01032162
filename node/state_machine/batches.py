"""What a batch of records holds for a state machine: its commands, as columns where there are many.

Two ways to the same answer: a loop over entries for a few of them, and columns for many (heads, times and bodies are
cut out together, and no entry becomes an object of its own). What is out of the ordinary in a column is left to the
loop, which says what is wrong. Where every entry is a command and all are equally long, not even their bodies are cut
out: `read_run` says where they lie, for a state machine that can do with that.

Invariants: all ways give the same commands and the same errors; nothing is taken from a batch that does not hold
exactly the entries that it says.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from node.protocol.entry import HEAD_BYTES, HEAD_DTYPE, BytesLike, Entry, Magic, unpack_record
from node.protocol.group_kind import Channel, GroupKind
from node.protocol.slab_columns import COLUMNS_FROM
from node.state_machine.interface import Command, Run
from node.state_machine.kind import HEAD, Type, command_in

_SIZE: Final = struct.Struct(">i")
_SIZE_AT: Final = 4  # in a head
ROW: Final = np.dtype([*HEAD_DTYPE.descr, ("type", "u1"), ("time_ms", ">i8")])  # a head, and that of a command
_WHOLE_ROW: Final[tuple[str, ...]] = ROW.names or ()
_SIZE_ALONE: Final = ("size",)
_new_command: Final = partial(tuple.__new__, Command)


class OutOfOrder(Exception):
    """What was handed over does not continue the state: nothing of it was applied. A bug of whoever did it."""


class Batch(NamedTuple):
    """`places`: each command's, among the entries; `offsets`: each entry's, in the records."""

    commands: Sequence[Command]
    places: Sequence[int]
    offsets: Sequence[int]


def read_batch(kind: GroupKind, first_index: int, last_index: int, records: BytesLike, time_ms: int) -> Batch:
    """`time_ms`: of the command before. Raises OutOfOrder, EntryError, struct.error."""
    if last_index - first_index + 1 >= COLUMNS_FROM:
        found = _by_columns(kind, first_index, last_index, records, time_ms)
        if found is not None:
            return found
    return _by_entries(kind, first_index, last_index, records, time_ms)


def read_run(kind: GroupKind, first_index: int, last_index: int, records: BytesLike, time_ms: int) -> Run | None:
    """All of the batch as a run, where it is one; otherwise None, and `read_batch` reads it. `time_ms` as there."""
    count = last_index - first_index + 1
    head_bytes = 0 if kind.is_plain else HEAD.size
    stride, rest = divmod(len(records), max(count, 1))
    if count < COLUMNS_FROM or rest or stride <= max(HEAD_BYTES + head_bytes, ROW.itemsize):
        return None
    if _even_size(records, count) != stride:
        return None
    rows = _rows(records, range(0), stride)
    if not _are_sound(rows, first_index, last_index, head_bytes):
        return None
    if kind.is_plain:
        is_whole = rows["magic"] == Magic.NORMAL
    else:
        is_whole = (rows["channel"] == Channel.MESSAGE) & (rows["type"] == Type.COMMAND)
        time_ms = max(time_ms, int(rows["time_ms"].max()))
    if not bool(is_whole.all()):
        return None
    begin = HEAD_BYTES + head_bytes
    return Run(first_index, count, time_ms, records, begin, stride, stride - begin)


def first_records(records: BytesLike, count: int) -> BytesLike:
    """The first so many of a batch that holds more. Raises struct.error."""
    at = 0
    for _ in range(count):
        at += _SIZE.unpack_from(records, at + _SIZE_AT)[0]
    return records[:at]


def _are_sound(rows: npt.NDArray[Any], first_index: int, last_index: int, head_bytes: int) -> bool:
    """Whether the heads are those of these entries, as far as a state machine's process looks at them."""
    lengths = rows["body_len"] - head_bytes
    sound = (
        (rows["index"] == np.arange(first_index, last_index + 1))
        & (rows["magic"] >= Magic.NORMAL) & (rows["magic"] <= Magic.CONFIG_CHANGE)
        & (rows["size"] == lengths + (HEAD_BYTES + head_bytes)) & (rows["term"] >= 0) & (lengths >= 0)
    )  # fmt: skip
    return bool(sound.all())


def _by_entries(kind: GroupKind, first_index: int, last_index: int, records: BytesLike, time_ms: int) -> Batch:
    entries = list(_entries_in(records))
    if [one.index for one in entries] != list(range(first_index, last_index + 1)):
        raise OutOfOrder(f"a batch of {first_index}..{last_index} holds other entries")
    commands: list[Command] = []
    places: list[int] = []
    offsets: list[int] = []
    at = 0
    for place, entry in enumerate(entries):
        offsets.append(at)
        at += entry.size
        command = command_in(kind, entry, time_ms)
        if command is not None:
            time_ms = command.time_ms
            commands.append(command)
            places.append(place)
    return Batch(commands, places, offsets)


def _entries_in(records: BytesLike) -> Iterator[Entry]:
    offset = 0
    while offset < len(records):
        entry = unpack_record(records, offset)
        yield entry
        offset += entry.size


def _by_columns(kind: GroupKind, first_index: int, last_index: int, records: BytesLike, time_ms: int) -> Batch | None:
    """None: something is out of the ordinary."""
    head_bytes = 0 if kind.is_plain else HEAD.size
    count, data = last_index - first_index + 1, bytes(records)
    even = _even_size(data, count)
    offsets = range(0, len(data), even) if even else _walked(data, count)
    if offsets is None or even == HEAD_BYTES + head_bytes:
        return None
    rows = _rows(data, offsets, even)
    if not _are_sound(rows, first_index, last_index, head_bytes):
        return None
    contents: list[bytes | None] = [*_contents(data, offsets, even, HEAD_BYTES + head_bytes)]
    if kind.is_plain:
        is_own, times = rows["magic"] == Magic.NORMAL, [time_ms] * count
    else:
        is_own, stamps = rows["channel"] == Channel.MESSAGE, rows["time_ms"]
        times = np.maximum.accumulate(np.maximum(np.where(is_own, stamps, time_ms), time_ms)).tolist()
        for other in np.flatnonzero(rows["type"] != Type.COMMAND).tolist():
            contents[other] = None
    commands = list(map(_new_command, zip(range(first_index, last_index + 1), times, contents, strict=True)))
    if bool(is_own.all()):
        return Batch(commands, range(count), offsets)
    places = np.flatnonzero(is_own).tolist()
    return Batch([commands[place] for place in places], places, offsets)


def _even_size(data: BytesLike, count: int) -> int:
    """The bytes of each record, where all are equally long; 0 where they are not."""
    size, rest = divmod(len(data), count)
    if rest or size < HEAD_BYTES:
        return 0
    sizes = np.frombuffer(data, _row_of(size, _SIZE_ALONE))["size"]
    return size if bool((sizes == size).all()) else 0


@lru_cache(maxsize=128)
def _row_of(stride: int, fields: tuple[str, ...]) -> np.dtype[Any]:
    """Those fields of a ROW, in records of `stride` bytes; made once for a length: it costs more than what is read
    with it."""
    found: Any = ROW.fields
    formats, places = [found[name][0] for name in fields], [found[name][1] for name in fields]
    row: Any = {"names": [*fields], "formats": formats, "offsets": places, "itemsize": stride}
    made: np.dtype[Any] = np.dtype(row)
    return made


def _walked(data: bytes, count: int) -> list[int] | None:
    """Where each record begins; None where they are not `count`, or do not fill the bytes."""
    found: list[int] = []
    at, total, unpack = 0, len(data), _SIZE.unpack_from
    while total - at >= HEAD_BYTES and len(found) < count:
        (size,) = unpack(data, at + _SIZE_AT)
        if size < HEAD_BYTES:
            return None
        found.append(at)
        at += size
    return found if at == total and len(found) == count else None


def _rows(data: BytesLike, offsets: Sequence[int], even: int) -> npt.NDArray[Any]:
    """Each record's head, and what stands before a command; of a shorter body that is no such thing."""
    if even >= ROW.itemsize:
        return np.frombuffer(data, _row_of(even, _WHOLE_ROW))
    row_bytes = ROW.itemsize
    rows = b"".join([data[at : at + row_bytes] for at in offsets])
    return np.frombuffer(rows.ljust(len(offsets) * row_bytes, b"\0"), ROW)


def _contents(data: bytes, offsets: Sequence[int], even: int, begin: int) -> list[bytes]:
    """Of each record what is behind `begin`."""
    if even:
        content: Any = {"names": ["content"], "formats": [f"V{even - begin}"], "offsets": [begin], "itemsize": even}
        cut: Any = np.frombuffer(data, np.dtype(content))
        each: list[bytes] = cut["content"].tolist()
        return each
    ends = [*offsets[1:], len(data)]
    return [data[at + begin : end] for at, end in zip(offsets, ends, strict=True)]
