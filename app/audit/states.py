"""What state machines made of the log: the snapshots that members saved behind the same entry, by their checksums.

The log says what was to be applied, not what came of it. Members that applied the same entries to different effect (a
state machine that looks at a clock, at anything random, at the order of a set) have equal logs, and answer differently.
A snapshot stands for every entry up to its last one, so two of them behind the same entry are of the same state, or the
state machine is not what it has to be.

It is no part of the verdict, which is about the logs: they agree, and nothing that mends a log mends a state.

Invariants: only what stands behind one and the same entry (index, term, chain) is compared; the checksum is the one
with which the snapshot was saved, which the members' scrub holds against their disks; what cannot be asked is not
compared, and fails no audit.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.audit.classify import Finding, finding, names
from app.audit.fence import Fence
from app.audit.replicas import FENCE_TIMEOUT_S, ControlPlane, ReplicaSpec
from node.protocol.group_kind import PLAIN_NAME, has_state_machine
from node.state_machine.kind import SHIPPED
from node.views.files import SegmentsView, SnapshotListView
from node.views.reading import read

SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot with a checksum: behind which entry, and of what bytes."""

    index: int
    term: int
    chain: int
    data_bytes: int
    data_crc: int


@dataclass(frozen=True, slots=True)
class State:
    """What one replica saved. `kind`: its group's."""

    replica: str
    kind: str
    saved: tuple[Saved, ...]


def saved_states(specs: Sequence[ReplicaSpec], fence: Fence) -> list[State]:
    """Of every replica that was read, all at once; one that says nothing of it saved nothing."""
    pairs = [(spec, one.id) for spec, one in zip(specs, fence.replicas, strict=True) if not (one.problem or one.java)]
    with ThreadPoolExecutor(max_workers=max(1, len(pairs))) as pool:
        return list(pool.map(lambda pair: _state_of(*pair), pairs))


def _state_of(spec: ReplicaSpec, replica: str) -> State:
    try:
        kind, saved = _from_control(spec) if spec.kind == "http" else _from_directory(Path(spec.location))
    except Exception:  # an older release, a right that the token lacks, a directory of another format
        return State(replica, PLAIN_NAME, ())
    return State(replica, kind, tuple(saved))


def _from_control(spec: ReplicaSpec) -> tuple[str, list[Saved]]:
    """Raises ReadFailed, Unreadable."""
    plane = ControlPlane(spec, FENCE_TIMEOUT_S)
    try:
        store = read(SegmentsView, plane.get_json("/segments", limit=1)).store
        if store is None or not has_state_machine(store.kind):
            return PLAIN_NAME, []
        items = read(SnapshotListView, plane.get_json("/snapshots")).items
    finally:
        plane.close()
    found = [(one.index, one.term, one.chain_crc, one.data_bytes, one.data_crc) for one in items]
    return store.kind, [Saved(*numbers) for numbers in found if None not in numbers]  # type: ignore[arg-type]


def _from_directory(place: Path) -> tuple[str, list[Saved]]:
    """Raises ReadFailed, StoreError."""
    from app.audit.fencing import store_directory
    from node.snapshots.directory import snapshots_in
    from node.store.files.identity import read_identity

    root = store_directory(place)
    identity = read_identity(root)
    if identity is None or not has_state_machine(identity.kind):
        return PLAIN_NAME, []
    metas = [one.meta for one in snapshots_in(root)]
    found = [(one.index, one.term, one.chain, one.data_bytes, one.data_crc) for one in metas]
    return identity.kind, [Saved(*numbers) for numbers in found if None not in numbers]  # type: ignore[arg-type]


def compare_states(states: Sequence[State], fence: Fence) -> list[Finding]:
    """Whose saves differ though they stand behind the same entry."""
    found = []
    for one, sides in sorted(_behind_one_entry(states, fence).items()):
        if len(sides) < 2:
            continue
        index = one[0]
        is_shipped = any(state.kind in SHIPPED for state in states)
        parts = " against ".join(
            f"{names(replicas)} ({data_bytes:,} bytes, CRC {data_crc & 0xFFFFFFFF:08x})"
            for (data_bytes, data_crc), replicas in sorted(sides.items(), key=lambda side: side[1])
        )
        why = "" if is_shipped else ", or saves equal states as different bytes"
        text = (
            f"the states that were saved behind entry {index:,} differ, and the logs agree there: {parts}; the state"
            f" machine does not make the same of the same entries{why}"
        )
        involved = sorted(replica for replicas in sides.values() for replica in replicas)
        found.append(finding("state_mismatch", involved, index, index, text))
    return found


def about_states(states: Sequence[State], fence: Fence) -> str:
    """What was compared of them, for what an audit proves; empty where the group has no state machine."""
    if all(state.kind == PLAIN_NAME for state in states):
        return ""
    compared = sorted(
        {one[0] for one, sides in _behind_one_entry(states, fence).items() if sum(map(len, sides.values())) > 1}
    )
    if not compared:
        return " States were not compared: no two replicas have a snapshot behind the same entry."
    more = f" and {len(compared) - SHOWN:,} more" if len(compared) > SHOWN else ""
    listed = ", ".join(f"{one:,}" for one in compared[-SHOWN:])
    return f" Saved states were compared by their checksums behind entry {listed}{more}."


Entry = tuple[int, int, int]
Sides = dict[tuple[int, int], list[str]]


def _behind_one_entry(states: Sequence[State], fence: Fence) -> dict[Entry, Sides]:
    """By entry (index, term, chain): who saved which bytes (length, checksum)."""
    low, high = fence.asked_from or 0, fence.asked_to
    found: dict[Entry, Sides] = {}
    for state in states:
        for one in state.saved:
            if low <= one.index and (high is None or one.index <= high):
                sides = found.setdefault((one.index, one.term, one.chain), {})
                sides.setdefault((one.data_bytes, one.data_crc), []).append(state.replica)
    return found
