"""What a fuzz target is, and how one input is run: the rules that every decoder has to keep.

A decoder may answer with a value or with the exceptions that it documents. Anything else fails: another exception,
memory beyond the target's bound, or an AssertionError of the target's own properties (a round trip, two paths that
disagree).
"""

from __future__ import annotations

import gc
import signal
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

KIB = 1024
HANG_AFTER_S = 20.0  # many times what the slowest input takes on a busy machine


@dataclass(frozen=True, slots=True)
class Target:
    """`bytes_fixed + bytes_per_byte * len(input)` is what it may hold at its peak, the input itself not counted.

    `repair` makes a mutated input pass its outer checks again (CRCs), so that what lies behind them is reached.
    """

    name: str
    run: Callable[[bytes], object]
    seeds: Callable[[], Sequence[bytes]]
    allowed: tuple[type[Exception], ...] = ()
    repair: Callable[[bytes], bytes] | None = None
    bytes_fixed: int = 256 * KIB
    bytes_per_byte: int = 16
    heavy: bool = False  # an input takes milliseconds, not microseconds: the tests run fewer

    def bound_bytes(self, size_bytes: int) -> int:
        return self.bytes_fixed + self.bytes_per_byte * size_bytes


class Broken(AssertionError):
    """A target broke a rule; the message holds the input."""


class Hang(BaseException):
    """Not an Exception: no handler of the code under test may take it for one of its own."""


def _too_long(_signal: int, _frame: object) -> None:
    raise Hang


def shown(data: bytes) -> str:
    """How to run this input again."""
    return data.hex() if len(data) <= 4096 else f"{data[:64].hex()}… ({len(data)} bytes)"


def run_one(target: Target, data: bytes) -> bool:
    """Runs one input; whether it decoded. Raises Broken."""
    was = signal.signal(signal.SIGALRM, _too_long)
    signal.setitimer(signal.ITIMER_REAL, HANG_AFTER_S)
    try:
        target.run(data)
    except target.allowed:
        return False
    except (Exception, Hang) as error:
        text = f"{target.name}: {type(error).__name__}: {error}\n  --target {target.name} --input {shown(data)}"
        raise Broken(text) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, was)
    return True


def run_counted(target: Target, data: bytes) -> bool:
    """`run_one`, with its memory counted: nothing may be taken because a length field says so. Raises Broken."""
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        gc.collect(0)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        decoded = run_one(target, data)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        if started:
            tracemalloc.stop()
    if peak > target.bound_bytes(len(data)):
        text = f"{target.name}: {peak} bytes held for an input of {len(data)}; {target.bound_bytes(len(data))} allowed"
        raise Broken(f"{text}\n  --target {target.name} --input {shown(data)}")
    return decoded
