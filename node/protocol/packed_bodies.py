"""Bodies as a client's frame carries them: back to back in one buffer, with their lengths.

A batch of a thousand bodies as a thousand `bytes` costs more to make than to seal; here nothing is made per body that
its CRC does not need. Invariants: the lengths add up to the buffer's bytes; nobody changes a buffer that was handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final, overload

import numpy as np
import numpy.typing as npt

from node.protocol.entry import HEAD_BYTES, BytesLike, EntryError, Magic, Slab
from node.protocol.slab_columns import COLUMNS_FROM, RAW_HEAD, Heads, Sizes
from node.protocol.slab_encode import encode_slab, interleave, seal

PACKED_FROM = COLUMNS_FROM  # fewer are quicker as a list


@final
class PackedBodies(Sequence[bytes]):
    """`data[start:]` holds bodies of `lengths` (int64), back to back; reads as a sequence of bytes.

    Asked for by `type(...) is`: `isinstance` goes through the abstract class, several times an append.
    """

    __slots__ = ("_even_bytes", "_offsets", "data", "lengths", "size_bytes", "start")

    def __init__(self, data: BytesLike, start: int, lengths: npt.NDArray[np.int64]) -> None:
        """Raises EntryError where the lengths do not add up to what is there."""
        self.data, self.start, self.lengths = data, start, lengths
        self.size_bytes = int(lengths.sum())
        if not len(lengths) or start + self.size_bytes != len(data):
            raise EntryError(f"{len(lengths)} bodies of {self.size_bytes} bytes in {len(data) - start}")
        self._offsets: npt.NDArray[np.int64] | None = None
        self._even_bytes: int | None = None

    @classmethod
    def join(cls, runs: Sequence[PackedBodies]) -> PackedBodies:
        """One run after the other."""
        if len(runs) == 1:
            return runs[0]
        data = b"".join([memoryview(run.data)[run.start :] for run in runs])
        return cls(data, 0, np.concatenate([run.lengths for run in runs]))

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Where in `data` each body begins."""
        if self._offsets is None:
            self._offsets = np.cumsum(self.lengths) - self.lengths + self.start
        return self._offsets

    @property
    def longest(self) -> int:
        """Bytes of the longest body."""
        return int(self.lengths.max())

    @property
    def even_bytes(self) -> int:
        """The bytes of each body where all are equally long; 0 where they are not, or empty."""
        if self._even_bytes is None:
            first = int(self.lengths[0])
            self._even_bytes = first if bool((self.lengths == first).all()) else 0
        return self._even_bytes

    def __eq__(self, other: object) -> bool:
        """Equal to any sequence of the same bodies."""
        return isinstance(other, Sequence) and self.to_list() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> PackedBodies: ...
    def __getitem__(self, at: int | slice) -> bytes | PackedBodies:
        if isinstance(at, slice):
            first, stop, step = at.indices(len(self))
            if step != 1 or stop <= first:
                raise ValueError(f"a run of bodies is cut from left to right, and is not empty: {at}")
            begin = int(self.offsets[first])
            end = int(self.offsets[stop - 1] + self.lengths[stop - 1])
            return PackedBodies(self.data[begin:end], 0, self.lengths[first:stop])
        begin = int(self.offsets[at])
        return bytes(self.data[begin : begin + int(self.lengths[at])])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def to_list(self) -> list[bytes]:
        """Every body as an object of its own."""
        if self.even_bytes:
            each: list[bytes] = np.frombuffer(self.data, f"V{self.even_bytes}", offset=self.start).tolist()
            return each
        data = bytes(self.data)
        ends = (self.offsets + self.lengths).tolist()
        return [data[begin:end] for begin, end in zip(self.offsets.tolist(), ends, strict=True)]


def with_head(bodies: Sequence[bytes], head: bytes) -> Sequence[bytes]:
    """Each body behind those bytes."""
    if type(bodies) is not PackedBodies:
        return [head + body for body in bodies]
    data = head + head.join(bodies.to_list())
    return PackedBodies(data, 0, bodies.lengths + len(head))


def first_bytes_of(bodies: PackedBodies) -> npt.NDArray[np.uint8]:
    """Of each body; none of them is empty."""
    return np.frombuffer(bodies.data, np.uint8)[bodies.offsets]


def size_of(bodies: Sequence[bytes]) -> int:
    """The bytes of all bodies together."""
    return bodies.size_bytes if type(bodies) is PackedBodies else sum(map(len, bodies))


def lengths_of(bodies: Sequence[bytes]) -> Sequence[int] | npt.NDArray[np.int64]:
    """The bytes of each body."""
    return bodies.lengths if type(bodies) is PackedBodies else list(map(len, bodies))


def longest_of(bodies: Sequence[bytes]) -> int:
    """The bytes of the longest body."""
    return bodies.longest if type(bodies) is PackedBodies else max(map(len, bodies))


def gather(batches: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    """All batches as one run: packed where every one of them is."""
    if len(batches) == 1:
        return batches[0]
    packed = [batch for batch in batches if type(batch) is PackedBodies]
    if len(packed) == len(batches):
        return PackedBodies.join(packed)
    return [body for batch in batches for body in batch]


def encode_bodies(
    bodies: Sequence[bytes],
    first_index: int,
    term: int,
    pos: int,
    prev_chain: int,
    magic: int = Magic.NORMAL,
    channel: int = 0,
) -> Slab:
    """`encode_slab` for bodies that may have come packed: the same bytes, made with fewer objects."""
    if type(bodies) is not PackedBodies:
        return encode_slab(bodies, first_index, term, pos, prev_chain, magic, channel)
    each, even_bytes = bodies.to_list(), bodies.even_bytes
    sizes: Sizes = HEAD_BYTES + (even_bytes or bodies.lengths)
    heads, records, chain = seal(sizes, each, first_index, term, pos, prev_chain, magic, channel)
    data = _rows(heads, bodies) if even_bytes else interleave(heads, each)
    return Slab(first_index, len(each), pos, data, records, term, term, prev_chain, chain)


def _rows(heads: Heads, bodies: PackedBodies) -> BytesLike:
    """Each head before its body, where all bodies are equally long: two strided copies."""
    body = f"V{bodies.even_bytes}"
    row = np.dtype([("head", RAW_HEAD), ("body", body)])
    rows = np.empty(len(heads), row)
    rows["head"] = heads.view(RAW_HEAD).ravel()
    rows["body"] = np.frombuffer(bodies.data, body, offset=bodies.start)
    return rows.view(np.uint8).data.toreadonly()
