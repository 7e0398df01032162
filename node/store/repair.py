"""What only a person may decide about a store: `python -m node.store.repair DIR --set-term N | --adopt`.

Invariants: the engine must not run (the lock is taken); a term is never set below the log's own; after either repair
the node grants no vote in the term that it starts with; nothing in the log is changed here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from node.protocol.codes import VoterState
from node.store.file_store import FileStore
from node.store.hard_state import load_hard_state, read_currterm, save_hard_state
from node.store.identity import IDENTITY, DirectoryLock, Identity, read_identity, write_identity
from node.store.log_store import HardState, StoreError, StoreRefused
from node.store.reader import StoreReader


def set_term(directory: Path, term: int) -> HardState:
    """Gives a store whose term file was lost a term, and no vote up to it (SAFETY E2)."""
    _ours(directory)
    lock = DirectoryLock(directory)
    try:
        reader = StoreReader(directory)
        java = read_currterm(directory)
        lowest = max(reader.end_term, java[0] if java is not None else 0)
        if term < lowest:
            raise StoreRefused(f"term {term} is below {lowest}, which this store has seen: give the group's highest")
        state = HardState(term, None, VoterState.VOTER, vote_floor=term)
        save_hard_state(directory, state)
        return state
    finally:
        lock.release()


def adopt(directory: Path) -> Identity:
    """Takes back a directory of ours that a Java node wrote to since: what it wrote counts as its heritage."""
    known = _ours(directory)
    hard = load_hard_state(directory, has_entries=False) or HardState()
    DirectoryLock(directory).release()
    for name in (IDENTITY, "checkpoint"):
        (directory / name).unlink(missing_ok=True)
    store = FileStore.open(
        directory,
        group=known.group,
        node_id=known.node_id,
        data_file_size=known.data_file_size,
        index_file_size=known.index_file_size,
    )
    term = max(store.hard_state.term, hard.term)
    store.save_hard_state(
        replace(store.hard_state, term=term, vote_floor=term, voter_state=hard.voter_state, store_ids=hard.store_ids)
    )
    store.close()
    identity = replace(known, sealed_from=store.sealed_from)
    write_identity(directory, identity)
    return identity


def _ours(directory: Path) -> Identity:
    identity = read_identity(directory)
    if identity is None:
        raise StoreRefused(f"{directory} has no {IDENTITY}: it is opened as it is, there is nothing to repair")
    return identity


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: done; 1: refused, with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m node.store.repair", description=__doc__)
    parser.add_argument("directory", type=Path)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--set-term", type=int, metavar="N")
    what.add_argument("--adopt", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.adopt:
            print(f"adopted: sealed from entry {adopt(options.directory).sealed_from} on")
        else:
            print(f"term {set_term(options.directory, options.set_term).term}, no vote up to it")
    except StoreError as error:
        print(f"repair: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
