"""Verbs of scripts about broker groups (`group 3 broker`).

send n0 a lane=1 from=0 x y [at=+5] [channel=3] [patch=28]
                            appends the records of x and y over that lane; stored so many ms after the group's birth
spoil n0 a lane=1 from=0 x  the same of a record that is cut off
records n0                  all entries: magic, channel, topic, when stored, whether the record says where it lies
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from node.message_store.record import PHYSICAL_OFFSET_AT, decode_record
from node.protocol.entry import HEAD_BYTES
from node.protocol.group_kind import ENGINES_OWN
from tests.scenarios.cluster import BORN_MS, Cluster
from tests.simulation.broker_records import record_of

if TYPE_CHECKING:
    from tests.scenarios.lanes import LaneVerbs
    from tests.scenarios.runner import Command


class BrokerVerbs:
    """Carries them out. `say`: a line of the script's output."""

    def __init__(self, cluster: Cluster, lanes: LaneVerbs, say: Callable[[str], None]) -> None:
        self._cluster, self._lanes, self._say = cluster, lanes, say
        self.verbs: Mapping[str, Callable[[Command], None]] = {
            "send": self._send, "spoil": self._spoil, "records": self._records,
        }  # fmt: skip

    def _bodies(self, command: Command) -> list[bytes]:
        time_ms = BORN_MS + int(command.options.get("at", "0"))
        channel = command.number("channel", 0)
        return [record_of(word.encode(), time_ms, channel) for word in command.words[2:]]

    def _send(self, command: Command) -> None:
        self._lanes.over(command, self._bodies(command), command.number("patch", PHYSICAL_OFFSET_AT))

    def _spoil(self, command: Command) -> None:
        self._lanes.over(command, [body[:-1] for body in self._bodies(command)], PHYSICAL_OFFSET_AT)

    def _records(self, command: Command) -> None:
        (node_id,) = command.words
        store = self._cluster.nodes[node_id].store
        for index in range(store.begin_index, store.end_index + 1):
            entry = store.get(index)
            assert entry is not None
            found = decode_record(entry.body)
            place = (
                "in its place" if found.physical_offset == entry.pos + HEAD_BYTES else f"says {found.physical_offset}"
            )
            words = "" if entry.channel in ENGINES_OWN else f" {found.body.decode()}"
            self._say(
                f"{node_id} {entry.index}:{entry.term} magic {entry.magic} channel {entry.channel} {found.topic}{words}"
                f" +{found.store_timestamp_ms - BORN_MS} ms, {place}"
            )
