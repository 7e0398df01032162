"""What must hold when everything is over, read from every member's files and from what the clients were told.

Invariants: nothing here asks an engine; logs are read with the read-only half of the store. A finding says what was
promised, to whom, and what lies there instead.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from node.protocol.entry import Entry, Magic, decode_slab
from node.store.errors import StoreError
from node.store.reader import StoreReader
from tests.process.chaos_clients import Recorder
from tests.process.chaos_nodes import Part
from tests.simulation.linearizability import check

SAID_MAX: Final = 5
TRACEBACK_CHARACTERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Violation:
    """`rule`: what was broken, in one word that stays the same; `detail`: where and how."""

    rule: str
    detail: str

    def as_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "detail": self.detail}


def ends_by_themselves(said: str, ordered: Mapping[Part, int]) -> list[str]:
    """How processes of one node ended that nobody ended: from what its supervisor logged, as JSON, of each end.

    `ordered`: how often each was sent SIGKILL while its supervisor ran.
    """
    found: list[str] = []
    left = {f"{part}_ended": count for part, count in ordered.items()}
    for line in said.splitlines():
        if not line.startswith("{") or "_ended" not in line:
            continue
        event = json.loads(line)
        name, code = str(event.get("event")), event.get("exit_code")
        if event.get("process") != "supervisor" or not name.endswith("_ended") or code is None:
            continue
        if code == -signal.SIGKILL and left.get(name, 0) > 0:
            left[name] -= 1
        else:
            found.append(str(event.get("reason")))
    return found


def last_traceback(said: str) -> str | None:
    """The last lines of the last traceback in what a node wrote: where it came from and the error. None: there is none.

    Logs of JSON hold one in a line; what is not logged (an interpreter that ends) comes as it is, between such lines.
    """
    _, found, after = said.rpartition("Traceback")
    if not found:
        return None
    own = [line for line in takewhile(lambda line: not line.startswith("{"), after.splitlines()) if line.strip()]
    return " / ".join(own[-3:])[-TRACEBACK_CHARACTERS:]


@dataclass(slots=True)
class Log:
    """One member's log as it lies on its disk; `raw` holds its records, which begin at index 0."""

    member: str
    entries: list[Entry]
    raw: list[bytes]


def read_log(member: str, store: Path) -> Log:
    """The whole log. Raises StoreError where it cannot be read."""
    reader = StoreReader(store)
    entries: list[Entry] = []
    raw: list[bytes] = []
    for slab in reader.slabs(reader.begin_index, reader.end_index):
        decoded = decode_slab(slab)
        offset = 0
        for entry in decoded:
            raw.append(bytes(slab.data[offset : offset + entry.size]))
            offset += entry.size
        entries += decoded
    return Log(member, entries, raw)


def read_logs(stores: Mapping[str, Path]) -> tuple[list[Log], list[Violation]]:
    """All logs, and one violation for each that cannot be read or does not pass `store verify`."""
    logs: list[Log] = []
    found: list[Violation] = []
    for member, store in stores.items():
        try:
            logs.append(read_log(member, store))
            problems = StoreReader(store).verify().problems
        except StoreError as error:
            found.append(Violation("log_unreadable", f"{member}: {error}"))
            continue
        found += [Violation("log_damaged", f"{member}: {problem}") for problem in problems[:SAID_MAX]]
    return logs, found


def check_logs(logs: Sequence[Log], recorder: Recorder) -> list[Violation]:
    """Equal logs; the history is that of one log, and of this one; every promise is kept on every member."""
    if not logs:
        return []
    longest = max(logs, key=lambda one: len(one.entries))
    found = check_equal(logs)
    left = {entry.index: entry.body if entry.magic == Magic.NORMAL else None for entry in longest.entries}
    found += [Violation(one.rule, one.detail) for one in check(recorder.history, left)[:SAID_MAX]]
    for log in logs:
        found += _promises(log, recorder)
    return found


def check_equal(logs: Sequence[Log]) -> list[Violation]:
    """All logs hold the same entries, as many as the longest: the group has settled, so all of them are committed."""
    found: list[Violation] = []
    committed_index = max((len(log.raw) for log in logs), default=0) - 1
    for log in logs:
        if len(log.raw) <= committed_index:
            found.append(
                Violation("committed_missing", f"{log.member} ends at {len(log.raw) - 1}, committed {committed_index}")
            )
    for log in logs[1:]:
        first = logs[0]
        for index, (left, right) in enumerate(zip(first.raw, log.raw, strict=False)):
            if left != right and index <= committed_index:
                found.append(
                    Violation(
                        "logs_differ",
                        f"entry {index}: {first.member} holds {_reported(first.entries[index])},"
                        f" {log.member} holds {_reported(log.entries[index])}",
                    )
                )
                break
    return found


def _promises(log: Log, recorder: Recorder) -> list[Violation]:
    """Said again without the checker's help: this is what the whole system is for."""
    found: list[Violation] = []
    for operation in recorder.history:
        if operation.kind != "append" or operation.result != "ok":
            continue
        for offset, body in enumerate(operation.bodies):
            index = operation.first_index + offset
            held = log.entries[index] if index < len(log.entries) else None
            if held is None or held.body != body or held.index != index:
                there = "nothing" if held is None else _reported(held)
                text = f"{log.member}: entry {index} was acknowledged as {_name(body)}, there is {there}"
                found.append(Violation("acknowledged_lost", text))
        expected = recorder.expected.get(operation.number, operation.first_index)
        if operation.first_index != expected:
            text = f"{_name(operation.bodies[0])} expected {expected} and was told {operation.first_index}"
            found.append(Violation("expected_index", text))
    return found[:SAID_MAX]


def _name(body: bytes) -> str:
    return body[:40].rstrip(b".").decode(errors="replace")


def _reported(entry: Entry) -> str:
    return f"{_name(entry.body) or 'an empty entry'} of term {entry.term}"
