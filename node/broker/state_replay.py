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
from node.message_store.metadata_state import MetadataState
from node.message_store.recent_entries import pieces_of
from node.transport.slab_frames import ReadAnswer

AGAIN_S: Final = 0.05


class Source(Protocol):
    """Where committed entries are read."""

    async def entries_from(self, index: int) -> ReadAnswer: ...


async def replayed(root: Path, source: Source, upto_index: int) -> MetadataState:
    """Raises LedgerError, MessageFormatError, MessageStoreError."""
    adopted = read_adopted(root)
    state = MetadataState(adopted.state, is_whole=False) if adopted is not None else MetadataState()
    index = state.index + 1
    while index <= upto_index:
        try:
            answer = await source.entries_from(index)
        except Trimmed as trimmed:
            if trimmed.begin_index <= index:
                raise
            index = trimmed.begin_index
            state = MetadataState(is_whole=False)
            continue
        for piece in pieces_of(answer.records, answer.first_index) if answer.count else ():
            for one in own_entries(piece):
                if one.index <= upto_index:
                    state.take(one)
            index = piece.last_index + 1
        if not answer.count:
            await asyncio.sleep(AGAIN_S)  # this member has not got it back yet
    state.passed(upto_index)
    return state
