"""The state of metadata with which a broker begins: as of the entry up to which its queues and index are sound.

Invariant: whatever it begins with, all that the log says behind that is applied, up to that entry and not beyond.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final, Protocol

from node.broker.own_entries import own_entries
from node.client.errors import Trimmed
from node.message_store.adopted import read_adopted
from node.message_store.metadata_state import MetadataState, state_at_begin
from node.message_store.read_files import Files
from node.message_store.recent_entries import pieces_of
from node.message_store.state_file import read_state
from node.transport.slab_frames import ReadAnswer

AGAIN_S: Final = 0.05


class Source(Protocol):
    """Where committed entries are read."""

    async def entries_from(self, index: int) -> ReadAnswer: ...


async def replayed(root: Path, source: Source, upto_index: int, files: Files) -> MetadataState:
    """Raises LedgerError, MessageFormatError, MessageStoreError."""
    state, adopted = read_state(root, files), read_adopted(root, files)
    if state is not None and state.index > upto_index:  # the queues are written anew, and it knows nothing of these
        state = None
    begin = None if adopted is None else adopted.state
    if state is None or (begin is not None and state.index < begin.as_of_index):
        state = state_at_begin(0, begin)
    index = state.index + 1
    while index <= upto_index:
        try:
            answer = await source.entries_from(index)
        except Trimmed as trimmed:
            if trimmed.begin_index <= index:
                raise
            index = trimmed.begin_index
            state = state_at_begin(index, begin)
            continue
        for piece in pieces_of(answer.records, answer.first_index) if answer.count else ():
            for one in own_entries(piece):
                if one.index <= upto_index and state.take(one).snapshot is not None:
                    state.snapshot_at = piece.position
            index = piece.last_index + 1
        if not answer.count:
            await asyncio.sleep(AGAIN_S)  # this member has not got it back yet
    state.passed(upto_index)
    return state
