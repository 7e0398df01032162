"""A log of 100 million entries, mostly holes: what a start, a look-up and reading its end cost, beside a short log's.

`python -m tests.bench.big_log [--entries 100000000] [--directory DIR] [--keep]`

The directory is one that recovery believes: all index records are real, so are fillers, the first entry, the last
`--tail-mb` of data and one island of entries per sample; between them the data files are holes. Each store is opened in
a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from node.protocol.entry import BLANK_BYTES, HEAD_BYTES, INDEX_DTYPE, INDEX_UNIT_BYTES, pack_blank
from node.protocol.slab_encode import encode_slab
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT, Checkpoint, Slot
from node.store.log_store import HardState
from node.store.reader import StoreReader

DATA_FILE_BYTES = 1024 * 1024 * 1024
INDEX_FILE_BYTES = 160 * 1024 * 1024
ISLAND_ENTRIES = 64
ISLANDS = 5000
UNITS_AT_ONCE = 1_000_000


@dataclass(slots=True, frozen=True)
class Shape:
    """Entries of one size, so that every place follows from the index."""

    entries: int
    body_bytes: int = 256
    terms: int = 1000
    data_file_bytes: int = DATA_FILE_BYTES

    @property
    def size(self) -> int:
        return HEAD_BYTES + self.body_bytes

    @property
    def per_file(self) -> int:
        return (self.data_file_bytes - BLANK_BYTES) // self.size

    def pos(self, index: int) -> int:
        return index // self.per_file * self.data_file_bytes + index % self.per_file * self.size

    def term(self, index: int) -> int:
        return 1 + index * self.terms // self.entries


def islands(shape: Shape) -> list[int]:
    """First indexes of the runs that are real, besides the log's two ends."""
    chosen = random.Random(shape.entries)
    return sorted({chosen.randrange(shape.entries) // ISLAND_ENTRIES * ISLAND_ENTRIES for _ in range(ISLANDS)})


def make(directory: Path, shape: Shape, tail_bytes: int, *, clean: bool) -> None:
    """Writes the whole directory."""
    settings = {"data_file_size": shape.data_file_bytes, "index_file_size": INDEX_FILE_BYTES}
    store = FileStore.open(directory, group="bench", node_id="n0", init=True, **settings)  # type: ignore[arg-type]
    store.save_hard_state(HardState(term=shape.terms, voter_state=store.hard_state.voter_state))
    store.close()
    _make_index(directory / "index", shape)
    chain, end_pos = _make_data(directory / "data", shape, tail_bytes)
    last = shape.entries - 1
    checkpoint = Checkpoint(directory / CHECKPOINT)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    checkpoint.write_both(
        Slot(last, 0, end_pos, shape.term(last), chain, last, last, last, 0, clean=clean, boot_id=boot_id)
    )
    checkpoint.close()


def _make_index(folder: Path, shape: Shape) -> None:
    per_file = INDEX_FILE_BYTES // INDEX_UNIT_BYTES
    for first in range(0, shape.entries, per_file):
        with (folder / f"{first * INDEX_UNIT_BYTES:020d}").open("wb") as file:
            file.truncate(INDEX_FILE_BYTES)
            for start in range(first, min(first + per_file, shape.entries), UNITS_AT_ONCE):
                numbers = np.arange(start, min(start + UNITS_AT_ONCE, first + per_file, shape.entries), dtype=np.int64)
                units = np.empty(len(numbers), dtype=INDEX_DTYPE)
                units["magic"], units["size"], units["index"] = 1, shape.size, numbers
                units["pos"] = numbers // shape.per_file * shape.data_file_bytes + numbers % shape.per_file * shape.size
                units["term"] = 1 + numbers * shape.terms // shape.entries
                file.write(units.tobytes())


def _make_data(folder: Path, shape: Shape, tail_bytes: int) -> tuple[int, int]:
    """The chain and the position at the end."""
    files: dict[int, int] = {}
    for start in range(0, shape.pos(shape.entries - 1) + 1, shape.data_file_bytes):
        fd = files[start] = os.open(folder / f"{start:020d}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, shape.data_file_bytes)
        filled = shape.per_file * shape.size
        if start + filled < shape.pos(shape.entries - 1):
            os.pwrite(fd, pack_blank(shape.data_file_bytes - filled), filled)
    chain = 0
    for first, stop in _runs(shape, tail_bytes):
        bodies = [index.to_bytes(8, "big") * (shape.body_bytes // 8) for index in range(first, stop)]
        slab = encode_slab(bodies, first, shape.term(first), shape.pos(first), chain)
        start = slab.pos // shape.data_file_bytes * shape.data_file_bytes
        os.pwrite(files[start], slab.data, slab.pos - start)
        assert slab.last_chain is not None
        chain = slab.last_chain
    for fd in files.values():
        os.fsync(fd)
        os.close(fd)
    return chain, shape.pos(shape.entries - 1) + shape.size


def _runs(shape: Shape, tail_bytes: int) -> Iterator[tuple[int, int]]:
    """[first, stop) of what is real: inside one file and one term, ascending; the chain goes on over the holes."""
    tail_from = max(0, shape.entries - tail_bytes // shape.size)
    spans = [(first, min(first + ISLAND_ENTRIES, tail_from)) for first in [0, *islands(shape)] if first < tail_from]
    at = 0
    for first, stop in [*spans, (tail_from, shape.entries)]:
        at = max(at, first)
        while at < stop:
            upto = min(stop, at + 4096, (at // shape.per_file + 1) * shape.per_file)
            while shape.term(upto - 1) != shape.term(at):
                upto -= 1
            yield at, upto
            at = upto


# --- measuring, in a process of its own -------------------------------------------------------------------------------


def _forget(path: Path) -> None:
    """The file's pages leave memory: a start after a boot reads from the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def anonymous_mb(pid: int | str = "self") -> float:
    """RssAnon of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(directory: Path, shape: Shape, tail_bytes: int) -> dict[str, Any]:
    """Opens the store, looks entries up, reads the log's end."""
    for path in directory.glob("*/*"):
        _forget(path)
    before_mb = anonymous_mb()
    cpu_s, began = time.process_time(), time.perf_counter()
    store = FileStore.open(
        directory, group="bench", node_id="n0", data_file_size=shape.data_file_bytes, index_file_size=INDEX_FILE_BYTES
    )
    start_s, start_cpu_s = time.perf_counter() - began, time.process_time() - cpu_s
    assert (store.end_index, store.faults, store.alarms) == (shape.entries - 1, (), ()), (
        store.end_index,
        len(store.faults),
        store.alarms,
    )
    memory_mb = anonymous_mb() - before_mb
    cold_us, get_us = _look_ups(store, shape)
    tail_from = max(0, shape.entries - tail_bytes // shape.size)
    verified = _rate(_read_verified(store, tail_from))
    reader = StoreReader(directory)
    raw = max(_rate(len(slab.data) for slab in reader.slabs(tail_from, shape.entries - 1)) for _ in range(3))
    files = len(list((directory / "data").glob("[0-9]*"))) + len(list((directory / "index").glob("[0-9]*")))
    store.close()
    return {
        "entries": shape.entries, "files": files, "terms": shape.terms, "start_s": round(start_s, 3),
        "start_cpu_s": round(start_cpu_s, 3), "memory_mb": round(memory_mb, 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "get_us_median": round(statistics.median(get_us), 1), "get_us_p99": round(get_us[len(get_us) * 99 // 100], 1),
        "get_from_disk_us_median": round(statistics.median(cold_us), 1),
        "tail_raw_gb_per_s": round(raw / 1e9, 2), "tail_verified_gb_per_s": round(verified / 1e9, 2),
    }  # fmt: skip


def _look_ups(store: FileStore, shape: Shape) -> tuple[list[float], list[float]]:
    """Microseconds of each store call, spread over the whole log: from the disk, and again when it is in memory."""
    chosen = random.Random(1)
    places = [min(first + chosen.randrange(ISLAND_ENTRIES), shape.entries - 1) for first in islands(shape)]
    both: list[list[float]] = []
    for _ in range(2):
        took: list[float] = []
        for index in places:
            began = time.perf_counter_ns()
            entry = store.get(index)
            took.append((time.perf_counter_ns() - began) / 1000)
            assert entry is not None and entry.body[:8] == index.to_bytes(8, "big")
        both.append(sorted(took))
    return both[0], both[1]


def _read_verified(store: FileStore, index: int) -> Iterator[int]:
    """What a lagging peer is sent: every CRC is checked."""
    while index <= store.end_index:
        slab = store.read_slab(index, 1024 * 1024)
        yield len(slab.data)
        index = slab.last_index + 1


def _rate(pieces: Iterator[int]) -> float:
    began = time.perf_counter()
    return sum(pieces) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000_000)
    parser.add_argument("--beside", type=int, default=1_000_000, help="the short log to compare with; 0: none")
    parser.add_argument("--body-bytes", type=int, default=256)
    parser.add_argument("--terms", type=int, default=1000)
    parser.add_argument("--data-file-mb", type=int, default=1024)
    parser.add_argument("--tail-mb", type=int, default=256)
    parser.add_argument("--clean", action="store_true", help="as after a clean stop; otherwise as after SIGKILL")
    parser.add_argument("--directory", type=Path, help="where to make it, or where it lies from an earlier --keep")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    tail_bytes = options.tail_mb * 1_000_000
    data_file_bytes = options.data_file_mb * 1024 * 1024
    if options.measure:
        shape = Shape(options.entries, options.body_bytes, options.terms, data_file_bytes)
        print(json.dumps(measure(options.directory, shape, tail_bytes)))
        return
    parent = options.directory or Path(tempfile.mkdtemp(prefix="quorumscope-big-log-"))
    try:
        for entries in filter(None, (options.beside, options.entries)):
            shape = Shape(entries, options.body_bytes, options.terms, data_file_bytes)
            directory = parent / f"{entries}-{options.body_bytes}-{options.terms}-{options.data_file_mb}"
            if not directory.exists():
                began = time.perf_counter()
                make(directory, shape, tail_bytes, clean=options.clean)
                print(f"{entries:,} entries made in {time.perf_counter() - began:.1f} s", file=sys.stderr)
            command = [sys.executable, "-m", "tests.bench.big_log", "--measure", "--directory", str(directory)]
            for name in ("body_bytes", "terms", "data_file_mb", "tail_mb"):
                command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
            subprocess.run([*command, "--entries", str(entries)], check=True)
    finally:
        if not options.keep:
            shutil.rmtree(parent, ignore_errors=True)


if __name__ == "__main__":
    main()
