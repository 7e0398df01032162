"""When the faults stop, everything comes back: checked once, after the world has settled.

The world itself waits for a leader, voters, APPEND and equal ends (`World.calm`), and says so when they do not come.
Here the rest: equal bytes, no damage left where an intact copy existed, and everybody answers.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

from node.protocol.entry import HEAD_BYTES, Magic
from tests.simulation.invariants_log import Logs
from tests.simulation.mirror import Mirrors
from tests.simulation.observer import Observer, Violation

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.world import World

FIRST = struct.Struct(">ii")  # magic and size, of a record or a blank


class Liveness(Observer):
    """See the module's docstring."""

    def __init__(self, mirrors: Mirrors, logs: Logs) -> None:
        self._mirrors, self._logs = mirrors, logs

    def healed(self, world: World) -> None:
        self._answered(world)
        self._committed(world)
        self._equal_bytes(world)
        for member in world.present():
            if member.store is not None and member.store.faults:
                raise Violation("liveness", f"{member.id} still has {member.store.faults} in its log")

    def _answered(self, world: World) -> None:
        """The last words: an append at the leader, a read of the whole log at every member."""
        asked = [one for one in world.present() if one.id not in world.learner_ids]
        last = world.history.operations[-len(asked) - 1 :]
        for operation in last:
            if operation.result != "ok":
                raise Violation("liveness", f"in a calm world: {operation.describe()}")

    def _committed(self, world: World) -> None:
        """Whatever was ever committed is in every log."""
        index = self._logs.committed.index
        for mirror in (self._mirrors.of[member.id] for member in world.present()):
            mirror.update()
            if index >= 0 and not mirror.holds(index, self._logs.committed.entries[index].key):
                raise Violation("acknowledged_kept", f"{mirror.member.id} came back without committed entry {index}")

    def _equal_bytes(self, world: World) -> None:
        """The layout is a pure function of the entries (S5): not only the entries, the files are equal."""
        last = self._mirrors.of[world.present()[0].id].entries.last
        assert last is not None
        end_pos = last.pos + last.size
        sound = [one for one in world.present() if not one.damage.rotten]
        # What one of them removed from the front, others may hold yet.
        first_pos = max((one.store.files.begin_pos for one in sound if one.store is not None), default=0)
        for one, other in pairwise(sound):
            if log_bytes(one, first_pos, end_pos) != log_bytes(other, first_pos, end_pos):
                raise Violation("liveness", f"the data files of {one.id} and {other.id} differ")


def log_bytes(member: Member, first_pos: int, end_pos: int) -> dict[str, bytes]:
    """The data files from the log's begin to its end; behind it a misdirected write is the next start's to find."""
    folder = member.directory / "data"
    return {
        name: records_of(member.platform.read_bytes(folder / name)[max(0, first_pos - int(name)) : end_pos - int(name)])
        for name in filter(str.isdigit, member.platform.names(folder))
        if int(name) < end_pos and int(name) + member.world.config.data_file_size > first_pos
    }


def records_of(data: bytes) -> bytes:
    """A file's records, without its filler: nobody relies on that while a store is open, and a start writes it anew."""
    offset = 0
    while offset + FIRST.size <= len(data):
        magic, size = FIRST.unpack_from(data, offset)
        if magic not in (Magic.NORMAL, Magic.NOOP, Magic.CONFIG_CHANGE) or size < HEAD_BYTES:
            break
        offset += size
    return data[:offset]
