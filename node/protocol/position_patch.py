"""Writes each entry's own place into its body: a format that holds absolute positions needs it, and no client knows it.

The place of an entry is decided when its batch is laid out (a data file may end in the middle of it), so this comes
after the layout and before the body's CRC: sizes, positions, patch, body CRC, chain.

Invariants: the caller's bytes are never changed, what is returned is a copy of our own; only the 8 bytes at `patch_at`
of each body differ; they hold the big-endian position of the body, which is its entry's position plus HEAD_BYTES.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import numpy as np

from node.protocol.entry import HEAD_BYTES
from node.protocol.packed_bodies import PackedBodies, lengths_of

PATCH_BYTES: Final = 8
_POSITION: Final = struct.Struct(">q")


def fits_patch(bodies: Sequence[bytes], patch_at: int) -> bool:
    """Whether every body has PATCH_BYTES at `patch_at`."""
    return patch_at >= 0 and bool(np.min(lengths_of(bodies)) >= patch_at + PATCH_BYTES)


def patched(bodies: Sequence[bytes], pos: int, patch_at: int) -> Sequence[bytes]:
    """The bodies of consecutive entries, the first of which is at absolute position `pos`, with their places in them.

    The caller has made sure of `fits_patch`.
    """
    if type(bodies) is PackedBodies:
        data = np.frombuffer(bodies.data, np.uint8, offset=bodies.start).copy()
        begins = np.cumsum(bodies.lengths) - bodies.lengths
        places = pos + HEAD_BYTES + begins + HEAD_BYTES * np.arange(len(bodies))
        at = (begins + patch_at)[:, None] + np.arange(PATCH_BYTES)
        data[at] = places.astype(">i8").view(np.uint8).reshape(-1, PATCH_BYTES)
        return PackedBodies(data.data.toreadonly(), 0, bodies.lengths)
    result: list[bytes] = []
    for body in bodies:
        own = bytearray(body)
        _POSITION.pack_into(own, patch_at, pos + HEAD_BYTES)
        result.append(bytes(own))
        pos += HEAD_BYTES + len(body)
    return result
