"""What a hand-over or an adoption found and did, for people and scripts. Sentences under `done` have no tense."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.printable import escaped


class Refused(Exception):
    """It may not be done here; the text says why, and what to do. Nothing was changed that counts."""


@dataclass(slots=True)
class Report:
    """One hand-over or adoption."""

    directory: Path
    action: str
    dry_run: bool
    group: str = ""
    node_id: str = ""
    begin_index: int = 0
    end_index: int = -1
    committed_index: int = -1
    messages: int = 0
    queues: int = 0
    old_log: dict[str, object] | None = None  # RocketMQ's own commit log beside the replicated one
    done: list[str] = field(default_factory=list)
    proven: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    broker_conf: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory), "action": self.action, "dry_run": self.dry_run, "group": self.group,
            "node_id": self.node_id, "begin_index": self.begin_index, "end_index": self.end_index,
            "committed_index": self.committed_index, "messages": self.messages, "queues": self.queues,
            "old_log": self.old_log,
            "done": self.done, "proven": self.proven, "notes": self.notes, "broker_conf": self.broker_conf,
            "next": self.next,
        }  # fmt: skip

    def as_text(self) -> str:
        span = f"entries {self.begin_index} to {self.end_index}, committed up to {self.committed_index}"
        lines = [f"{self.node_id} of group {self.group}, {self.directory}: {span}"]
        title = "Dry run. Nothing was changed. It would do this:" if self.dry_run else "Done:"
        for heading, part in (
            (title, self.done), ("Proven by reading back:", self.proven), ("Also:", self.notes),
            ("broker.conf:", self.broker_conf), ("Next:", self.next),
        ):  # fmt: skip
            if part:
                lines += ["", heading, *(f"  {one}" for one in part)]
        return "\n".join(map(escaped, lines))
