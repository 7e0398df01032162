"""Memory for one long frame: of its own, and the system's again as soon as nothing refers to it.

From MAPPED_BYTES_MIN on it is an anonymous mapping, taken page by page as bytes arrive. The allocator would put such
lengths on its heap as soon as one of them was freed: thirty unfinished frames of 4 to 16 MiB, of which 48 MiB were
there at a time, left 166 MiB behind. Below, its heap is quicker and what it keeps is little.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

import numpy as np

MAPPED_BYTES_MIN: Final = 1024 * 1024


def own_memory(size_bytes: int) -> memoryview:
    """What is in it is undefined."""
    if size_bytes < MAPPED_BYTES_MIN:
        return np.empty(size_bytes, np.uint8).data
    mapping = mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # where the system gives huge pages unasked, one byte would take 2 MiB
        with contextlib.suppress(OSError):  # a kernel without any
            mapping.madvise(mmap.MADV_NOHUGEPAGE)
    return memoryview(mapping)
