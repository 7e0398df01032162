"""Describes the machine that a bench ran on: figures of different machines cannot be compared.

The disk's own fdatasync time is measured in the very directory that the engines will write to, before they start. How
fast Python runs is measured with a fixed piece of work: shared machines swing, and builds without profile-guided
optimisation are slower.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import platform
import statistics
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from app.bench.common import percentile

SYNCS: Final = 64
SYNC_BYTES: Final = 4096
_MAP_FAILED: Final = ctypes.c_void_p(-1).value
TOUCH_BYTES_MAX: Final = 4 << 30
FILLED_BYTES_PER_S: Final = 500_000_000
PYTHON_STEPS: Final = 5_000
PYTHON_PROBES: Final = 5


def machine(directory: Path) -> dict[str, Any]:
    """Cores, CPU, memory, Python, kernel, the directory's file system and its fdatasync time, and the load so far."""
    sync_ms, sync_p99_ms = fdatasync_ms(directory)
    return {
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": _first_field("/proc/cpuinfo", "model name"),
        "memory_mb": _memory_mb(),
        "python": platform.python_version(),
        "python_optimised": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
        "python_step_ns": spread_of(python_step_ns()),
        "system": platform.platform(),
        "kernel": platform.release(),
        "directory": str(directory),
        "file_system": file_system(directory),
        "fdatasync_ms": round(sync_ms, 3),
        "fdatasync_p99_ms": round(sync_p99_ms, 3),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def python_step_ns() -> list[float]:
    """Nanoseconds that one step of a fixed piece of work takes, measured some times: a call, a look-up, an addition."""

    def step(number: int, table: dict[int, int]) -> int:
        return number + table[number & 63]

    table = dict.fromkeys(range(64), 1)
    found: list[float] = []
    for _ in range(PYTHON_PROBES):
        total, began = 0, time.perf_counter_ns()
        for number in range(PYTHON_STEPS):
            total += step(number, table)
        found.append((time.perf_counter_ns() - began) / PYTHON_STEPS)
    return found


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {
        "median": round(statistics.median(values), 1),
        "least": round(min(values), 1),
        "most": round(max(values), 1),
    }


def fdatasync_ms(directory: Path, seconds: float = 0.0) -> tuple[float, float]:
    """Median and p99, in milliseconds, of writing 4 KiB over allocated space and syncing it, one after the other.

    `seconds`: at least for so long.
    """
    path = directory / "fdatasync-probe"
    took_ms: list[float] = []
    block = os.urandom(SYNC_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.pwrite(fd, bytes(SYNC_BYTES * SYNCS), 0)
        os.fsync(fd)
        until = time.perf_counter() + seconds
        for number in itertools.count():
            if number >= SYNCS and time.perf_counter() >= until:
                break
            os.pwrite(fd, block, number % SYNCS * SYNC_BYTES)
            began = time.perf_counter()
            os.fdatasync(fd)
            took_ms.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)
    return statistics.median(took_ms), percentile(sorted(took_ms), 0.99)


def touch_memory(busy_s: float) -> None:
    """Writes to as much memory as a load of `busy_s` seconds may fill, and frees it; a quarter of it at most.

    A virtual machine's memory costs several times as much at its first touch, and again after the host took it back:
    a price of the machine that whoever is measured first would pay.
    """
    words = _first_field("/proc/meminfo", "MemAvailable").split()
    free_bytes = int(words[0]) * 1024 if words else 0
    size = min(TOUCH_BYTES_MAX, free_bytes // 4, int(busy_s * FILLED_BYTES_PER_S))
    populate = getattr(mmap, "MAP_POPULATE", 0)
    if size <= 0 or not populate:
        return
    # Not by `mmap.mmap`, which holds the interpreter for the second that it takes: relays between members may run here.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | populate
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if address != _MAP_FAILED:
        libc.munmap(address, size)


def file_system(directory: Path) -> str:
    """The type of the mount that holds `directory`; "" where that is unknown."""
    here, best, kind = str(directory.resolve()), "", ""
    mounts = Path("/proc/self/mounts")
    for line in mounts.read_text(errors="replace").splitlines() if mounts.exists() else []:
        _device, point, this_kind = line.split(" ")[:3]
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):  # of two mounts at one point the later one is seen
            best, kind = point, this_kind
    return kind


def _first_field(path: str, name: str) -> str:
    source = Path(path)
    for line in source.read_text(errors="replace").splitlines() if source.exists() else []:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _memory_mb() -> int:
    words = _first_field("/proc/meminfo", "MemTotal").split()
    return int(words[0]) // 1024 if words else 0
