"""The report of a repair by hand: what is wrong, what it did, what may be lost, what to do next.

One shape for all of them, as JSON for scripts and as short sentences for operators. The sentences under `done`
have no tense of their own: a dry run says the same ones under another heading.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from node.printable import escaped
from node.store.faults.ranges import in_words
from node.store.faults.results import Fault
from node.store.file_store import FileStore
from node.store.files.hard_state import hard_state_to_json
from node.store.log_store import HardState


@dataclass(slots=True, frozen=True)
class Problem:
    """One thing that is wrong. `ways`: sentences, with the exact command where there is one, the best way first."""

    what: str
    why: str
    ways: tuple[str, ...]


@dataclass(slots=True)
class Report:
    """The result of one `store repair` or `store adopt`. `has_findings`: something is wrong (still)."""

    directory: Path
    action: str = "look"
    dry_run: bool = False
    group: str | None = None
    node_id: str | None = None
    state: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    archived: list[dict[str, Any]] = field(default_factory=list)
    may_be_lost: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)

    @property
    def has_findings(self) -> bool:
        return bool(self.problems)

    def see(self, store: FileStore) -> None:
        """Takes in what the store holds now."""
        self.state = {
            "begin_index": store.begin_index,
            "end_index": store.end_index,
            "end_term": store.end_term,
            **_of(store.hard_state),
            "faults": [
                {"first_index": one.first_index, "last_index": one.last_index, "class": one.kind, "detail": one.detail}
                for one in store.faults
            ],
        }

    def see_hard_state(self, state: HardState, end_index: int, end_term: int) -> None:
        """The same where only term and vote were looked at."""
        self.state = {"end_index": end_index, "end_term": end_term, **_of(state)}

    def as_json(self) -> dict[str, Any]:
        """Exactly the documented object."""
        return {
            "directory": str(self.directory),
            "group": self.group,
            "node_id": self.node_id,
            "action": self.action,
            "dry_run": self.dry_run,
            "problems": [{"what": one.what, "why": one.why, "ways": list(one.ways)} for one in self.problems],
            "notes": self.notes,
            "done": self.done,
            "archived": self.archived,
            "may_be_lost": self.may_be_lost,
            "next": self.next,
            "state": self.state,
        }

    def as_text(self) -> str:
        """The report as text for operators."""
        name = f"{self.node_id} of group {self.group}" if self.node_id else "a store of unknown owner"
        lines = [f"{name}, {self.directory}"]
        state = [_state_line(self.state)] if self.state else []
        if self.action == "look":
            lines += state
        lines += _listed("Dry run. Nothing was changed. It would do this:" if self.dry_run else "Done:", self.done)
        if self.action != "look":
            lines += _listed("Then:" if self.dry_run else "Now:", state)
        lines += _listed("It would keep for you:" if self.dry_run else "Kept for you:", map(_kept, self.archived))
        lines += _listed("What may be lost:", self.may_be_lost)
        for problem in self.problems:
            lines += ["", f"! {problem.what}", f"  {problem.why}", *(f"  -> {way}" for way in problem.ways)]
        lines += _listed("Also:", self.notes)
        lines += _listed("Next:", self.next)
        if self.action == "look" and self.state and not self.problems:
            lines += ["", "Nothing is wrong: every record and every snapshot was read. There is nothing to repair."]
        return "\n".join(map(escaped, lines))


def range_in_words(first_index: int, last_index: int) -> str:
    """ "entry 5" or "entries 5..7"."""
    return in_words([Fault(first_index, last_index, "")]).removesuffix(" ()")


def sentence(text: str) -> str:
    """With a capital."""
    return text[:1].upper() + text[1:]


def _of(state: HardState) -> dict[str, Any]:
    kept = hard_state_to_json(state)
    del kept["store_ids"]
    return kept


def _state_line(state: dict[str, Any]) -> str:
    if state["end_index"] < 0:
        log = "The log is empty"
    else:
        begins = f"begins at entry {state['begin_index']} and " if state.get("begin_index") else ""
        log = f"The log {begins}ends at entry {state['end_index']} of term {state['end_term']}"
    floor = state["vote_floor"]
    votes = f", no vote in terms up to {floor}" if floor >= 0 else ""
    return f"{log}. {state['voter_state']}, term {state['term']}{votes}."


def _kept(archive: dict[str, Any]) -> str:
    span = range_in_words(archive["from_index"], archive["to_index"])
    what = span if archive["to_index"] >= archive["from_index"] else "the state before"
    return f"{archive['path']}: {what}, {archive['size_bytes']:,} bytes ({archive['reason']})"


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    listed = [f"  {one}" for one in lines]
    return ["", title, *listed] if listed else []
