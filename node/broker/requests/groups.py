"""Groups of consumers: what is configured of each, and how far each has consumed which queue.

A broker's master writes each change into the log: of a group before it counts, of an offset a moment later.

Invariants: both tables are bounded; a commit (15) goes where a client says, also backwards, as RocketMQ's do: it is how
tools reset a group. Offsets that ride on pulls only go on (`pulls.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from node.rocketmq.bodies import NAME_CHARS_MAX, DataVersion, GroupConfig, offsets_answer
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Refusal
from node.rocketmq.java_json import dump

GROUPS_MAX: Final = 20_000
ASKED_GROUPS_MAX: Final = 15_000  # where so many are there only those are made that somebody makes by hand
OFFSETS_MAX: Final = 400_000  # of queues, of all groups
# Slaves, and the next start of a broker in classic mode, read each table at once: encoded, it is below 16 MiB.
OFFSETS_BYTES_MAX: Final = 14 << 20
QUEUE_BYTES_MAX: Final = 32  # of an encoded offset: the queue's number, its own, and what stands between
GROUP_NAMES_BYTES_MAX: Final = 4 << 20  # each is in the table twice, beside some 220 bytes of a group
_SYSTEM: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip


def name_bytes(name: str) -> int:
    """Of a name as it is encoded: what cannot be printed takes six for each character."""
    return len(dump(name))


OffsetItems = list[tuple[tuple[str, str], dict[int, int]]]  # by topic and group, then by queue


class GroupTable:
    """A group that is not there is made when it is first asked for, unless `auto_create` is off. `write` is given each
    change before it is made, and raises Refusal where it may not be; where `keeps` says no (a slave), a group that is
    not there is answered as one would be made, and not kept."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.groups: dict[str, GroupConfig] = {name: GroupConfig(name) for name in _SYSTEM}
        self.version = DataVersion(0, now_ms())
        self._made = dict(self.groups)
        self._names_bytes = 0
        self._count_names()
        self.auto_create = True
        self.keeps: Callable[[], bool] = lambda: True
        self.write: Callable[[GroupConfig], None] = lambda _group: None

    def find(self, name: str) -> GroupConfig | None:
        """Raises Refusal where it has no room."""
        found = self.groups.get(name)
        if found is None and self.auto_create:
            found = GroupConfig(name)
            try:
                return self._put(found, ASKED_GROUPS_MAX) if self.keeps() else found
            except Refusal as refusal:
                if refusal.reply.code != Answer.SYSTEM_BUSY:
                    raise  # busy: it is kept with a later request, and nobody has to wait for that
        return found

    def put(self, group: GroupConfig) -> GroupConfig:
        """Sets a group's configuration, as an operator asked. Raises Refusal."""
        return self._put(group, GROUPS_MAX)

    def _put(self, group: GroupConfig, most: int) -> GroupConfig:
        bytes_most = GROUP_NAMES_BYTES_MAX * most // GROUPS_MAX
        has_room = len(self.groups) < most and self._names_bytes + name_bytes(group.name) <= bytes_most
        if len(group.name) > NAME_CHARS_MAX or (group.name not in self.groups and not has_room):
            text = (
                f"no room for another group: {most} are kept, with names of {NAME_CHARS_MAX} characters"
                f" and of {bytes_most} bytes together"
            )
            raise Refusal(Answer.SYSTEM_ERROR, text + (", and more by hand" if most < GROUPS_MAX else ""))
        if self.groups.get(group.name) != group:
            self.write(group)
            self.take(group.name, group)
        return group

    def _count_names(self) -> None:
        self._names_bytes = sum(map(name_bytes, self.groups))

    def take(self, name: str, group: GroupConfig | None) -> None:
        """As the log has it from now on; None: it is deleted."""
        if self.groups.get(name) == group:
            return
        if group is None:
            del self.groups[name]
            self._names_bytes -= name_bytes(name)
        else:
            self._names_bytes += 0 if name in self.groups else name_bytes(name)
            self.groups[name] = group
        self._changed()

    def take_all(self, groups: dict[str, GroupConfig]) -> None:
        """These, and those that every broker has."""
        before, self.groups = self.groups, self._made | groups
        self._count_names()
        if self.groups != before:
            self._changed()

    def load(self, groups: dict[str, GroupConfig], version: DataVersion) -> None:
        """As they were kept, with the version that they had."""
        self.groups = self._made | groups
        self._count_names()
        self.version = version

    def _changed(self) -> None:
        self.version = replace(self.version, counter=self.version.counter + 1, timestamp_ms=self._now_ms())


class ConsumerOffsets:
    """By topic and group, then by queue: the next message that the group wants. `on_change` is called with topic and
    group where a queue has another one."""

    def __init__(self) -> None:
        self.on_change: Callable[[tuple[str, str]], None] = lambda _name: None
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0
        self._names_bytes = 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._table.get((topic, group), {}).get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Raises Refusal where it has no room, and where it is none."""
        if offset < 0:
            raise Refusal(Answer.SYSTEM_ERROR, f"{offset} is no offset: 0 is a queue's first", {})
        queues = self._table.get((topic, group), {})
        if queue_id not in queues:
            if max(len(group), len(topic)) > NAME_CHARS_MAX or not 0 <= queue_id < 1 << 31:
                raise Refusal(Answer.SYSTEM_ERROR, "the offset is not kept: no such queue, or names too long", {})
            names_bytes = self._names_bytes + (0 if queues else pair_bytes(topic, group))
            taken_bytes = names_bytes + (self._count + 1) * QUEUE_BYTES_MAX
            if self._count >= OFFSETS_MAX or taken_bytes > OFFSETS_BYTES_MAX:
                text = f"no room for an offset: {OFFSETS_MAX} are kept, of {OFFSETS_BYTES_MAX} bytes with their names"
                raise Refusal(Answer.SYSTEM_ERROR, text, {})
            self._count += 1
            self._names_bytes = names_bytes
        if queues.get(queue_id) != offset:
            self._table.setdefault((topic, group), {})[queue_id] = offset
            self.on_change((topic, group))

    def queues(self, topic: str, group: str) -> Mapping[int, int]:
        return self._table.get((topic, group), {})

    def names(self) -> set[tuple[str, str]]:
        """Topics and groups that have offsets."""
        return set(self._table)

    def of_topic(self, topic: str) -> list[str]:
        """The groups that have offsets of it."""
        return [group for name, group in self._table if name == topic]

    def take(self, topic: str, group: str, queues: Mapping[int, int]) -> None:
        """As the log has them from now on; none: they are gone."""
        before = self._table.pop((topic, group), {})
        self._count += len(queues) - len(before)
        self._names_bytes += (bool(queues) - bool(before)) * pair_bytes(topic, group)
        if queues:
            self._table[topic, group] = dict(queues)

    def clear(self) -> None:
        self._table.clear()
        self._count = self._names_bytes = 0

    @property
    def count(self) -> int:
        """How many offsets are kept: one for each queue of each group."""
        return self._count

    def items(self) -> OffsetItems:
        """By topic and group, all that there are now; what is in the queues changes on."""
        return list(self._table.items())

    def as_said(self) -> dict[str, Mapping[int, int]]:
        """By `topic@group`, as Java has it."""
        return {f"{topic}@{group}": queues for (topic, group), queues in self._table.items()}


def pair_bytes(topic: str, group: str) -> int:
    """Of a topic and a group as they are encoded, with what stands around the offsets of their queues."""
    return name_bytes(f"{topic}@{group}") + len(":{},")


def offsets_of(items: OffsetItems) -> bytes:
    """As Java has them, by `topic@group`. Also beside the loop, which goes on to change what is in the queues: each
    group's are copied in one step of the interpreter, so they are as they were at one moment since they were taken."""
    return offsets_answer({f"{topic}@{group}": queues.copy() for (topic, group), queues in items})
