"""What goes wrong with a simulated disk: knobs that a nemesis turns, all of them off by default.

Invariants: a knob named `…_next` is good for one call and turns itself off; `clear` turns everything off.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

BEFORE, MIDDLE, AFTER = "before", "middle", "after"


class SimulatedCrash(BaseException):
    """The process ends inside an I/O call; nothing in it may catch this."""


@dataclass(slots=True)
class DiskFaults:
    """See the module's docstring."""

    crash_at_op: int | None = None  # the call with this number (see `op_count`) is the process's last
    crash_how: str | None = None  # where in that call: BEFORE, MIDDLE (of a write) or AFTER its effect; None: by chance
    fsync_error_next: bool = False  # one fdatasync or fsync of a file fails
    lose_writes_of: str = ""  # the next sync of a file with this in its path calls durable what never gets to the disk
    enospc: bool = False  # nothing new can be allocated; what is allocated can be written
    no_space_for: int = 0  # so many writes are refused for that, also over what is allocated (a disk that copies it),
    no_space_in: int = 0  # once so many have been taken
    free_bytes: int | None = None  # so many can be allocated still, in whole sectors; None: no bound
    short_write_next: bool = False  # one write takes only a part of its bytes
    misdirect_next: bool = False  # one write lands elsewhere in its file, the right place keeps what it had
    misdirect_to_other_file_next: bool = False  # one write lands in another file of this disk
    slow_ns: int = 0  # how much longer each call takes: see SimulatedPlatform.duration_ns

    def clear(self) -> None:
        """Switches everything off."""
        for one in fields(self):
            setattr(self, one.name, one.default)
