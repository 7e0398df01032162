"""Groups of consumers: what is configured of each, and how far each has consumed which queue.

Invariants: both tables are bounded; offsets go where a client says, also backwards, as RocketMQ's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from node.rocketmq.bodies import NAME_CHARS_MAX, DataVersion, GroupConfig
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Refusal

GROUPS_MAX: Final = 20_000
OFFSETS_MAX: Final = 400_000  # of queues, of all groups
_SYSTEM: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip


class GroupTable:
    """A group that is not there is made when it is first asked for, unless `auto_create` is off."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self.groups: dict[str, GroupConfig] = {name: GroupConfig(name) for name in _SYSTEM}
        self.version = DataVersion(0, now_ms())
        self.auto_create = True

    def find(self, name: str) -> GroupConfig | None:
        """Raises Refusal where it has no room."""
        found = self.groups.get(name)
        if found is None and self.auto_create:
            found = self.put(GroupConfig(name))
        return found

    def put(self, group: GroupConfig) -> GroupConfig:
        """Raises Refusal."""
        if len(group.name) > NAME_CHARS_MAX or (group.name not in self.groups and len(self.groups) >= GROUPS_MAX):
            text = f"no room for another group: {GROUPS_MAX} are kept, with names of {NAME_CHARS_MAX} characters"
            raise Refusal(Answer.SYSTEM_ERROR, text)
        self.groups[group.name] = group
        self.version = replace(self.version, counter=self.version.counter + 1, timestamp_ms=self._now_ms())
        return group


class ConsumerOffsets:
    """By topic and group, then by queue: the next message that the group wants."""

    def __init__(self) -> None:
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        self._count = 0

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._table.get((topic, group), {}).get(queue_id)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Raises Refusal where it has no room."""
        queues = self._table.get((topic, group), {})
        if queue_id not in queues:
            if (
                self._count >= OFFSETS_MAX
                or max(len(group), len(topic)) > NAME_CHARS_MAX
                or not 0 <= queue_id < 1 << 31
            ):
                raise Refusal(Answer.SYSTEM_ERROR, f"no room for an offset: {OFFSETS_MAX} are kept", {})
            self._count += 1
        self._table.setdefault((topic, group), {})[queue_id] = offset

    def as_said(self) -> dict[str, Mapping[int, int]]:
        """By `topic@group`, as Java has it."""
        return {f"{topic}@{group}": queues for (topic, group), queues in self._table.items()}
