"""Appending to a log on disk: one pwrite of data and one of index per slab (SAFETY S5, S8).

Nothing per entry happens in Python besides encoding. Invariants: an append is all or nothing; what a full disk took of
it is zeroed again; records go where the layout puts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from node.protocol.entry import INDEX_UNIT_BYTES, EntryError, Slab, pack_blank
from node.protocol.group_kind import BROKER_NAME
from node.protocol.packed_bodies import encode_bodies
from node.protocol.position_patch import patched
from node.protocol.slab_check import check_slab
from node.store.errors import StoreFull, StoreIOError
from node.store.files.layout import plan_bodies
from node.store.log_files import LogFiles
from node.store.recovery.unsealed import is_unsealed, strip_seals
from node.store.slab_pieces import settle, straightened, wrong_positions


class LogWriter:
    """Appends to one log; the loop's half."""

    def __init__(self, files: LogFiles) -> None:
        self._files = files

    def append_as_leader(
        self, bodies: Sequence[bytes], term: int, magic: int, channel: int, patch_at: int
    ) -> list[Slab]:
        """See LogStore."""
        files = self._files
        end = files.end
        if not bodies or term < end.term:
            raise EntryError(f"{len(bodies)} bodies of term {term} after term {end.term}")
        runs = plan_bodies(bodies, end.end_pos, files.data_file_size)
        slabs: list[Slab] = []
        index, chain = end.index + 1, end.chain
        for run in runs:
            part = bodies if len(runs) == 1 else bodies[run.first : run.stop]
            if patch_at >= 0:
                part = patched(part, run.pos, patch_at)
            slab = encode_bodies(part, index, term, run.pos, chain or 0, magic, channel)
            if chain is None:
                slab = strip_seals(slab)
            slabs.append(slab)
            index, chain = index + slab.count, slab.last_chain
        self._write(slabs)
        return slabs

    def append_slab(self, slab: Slab) -> None:
        """See LogStore."""
        files = self._files
        end = files.end
        if slab.first_index != end.index + 1:
            raise EntryError(f"slab {slab.first_index}..{slab.last_index} does not continue {end.index}")
        if slab.first_term < end.term:
            raise EntryError(f"slab {slab.first_index}: term {slab.first_term} after term {end.term}")
        chain, plain = check_slab(slab, end.chain)
        if not plain and is_unsealed(slab):
            if files.sealed_from < slab.first_index and end.index >= files.begin_index:
                raise EntryError(f"slab {slab.first_index} is unsealed, seals began at {files.sealed_from}")
            files.note_unsealed(slab.last_index)
        elif chain is None:  # no anchor here: the sender's seals are one
            chain = slab.last_chain
        if slab.prev_chain != end.chain or slab.last_chain != chain:
            slab = replace(slab, prev_chain=end.chain, last_chain=chain)
        pieces = settle(slab, end.end_pos, files.data_file_size)
        if files.kind == BROKER_NAME and pieces[0] is not slab:
            for piece in pieces:  # their heads say where their records were made for
                if wrong_positions(piece, 0):
                    text = f"entries {piece.first_index} to {piece.last_index} would lie at {piece.pos} here"
                    raise EntryError(f"{text}, and not where they do there: their records hold their places")
        if files.sealed_from and pieces[0] is not slab:
            files.note_layouts_differ()  # elsewhere on the leader's disk
        if not (plain and pieces[0] is slab):  # S6
            pieces = [straightened(piece, files.straight_from) for piece in pieces]
        self._write(pieces)

    def _write(self, slabs: list[Slab]) -> None:
        """All or nothing: what was written before the disk was full is zeroed again (SAFETY S8).

        Only that: where what is overwritten needs space of its own, zeros over what is zeros already find none either.
        """
        files = self._files
        if files.half_cut is not None:
            raise StoreFull("no space left for the zeros over what was cut, and nothing is appended before them")
        if files.left_behind is not None:
            self._clear_first(files.left_behind)
        end_pos = written_pos = files.end.end_pos
        last_index = files.end.index
        try:
            for slab in slabs:
                if slab.pos != end_pos:
                    files.data.grow(slab.pos)
                    files.data.write(end_pos, pack_blank(slab.pos - end_pos))
                    written_pos = slab.pos
                end_pos = slab.pos + len(slab.data)
                files.data.write(slab.pos, slab.data)
                written_pos = end_pos
                files.index.write(slab.first_index * INDEX_UNIT_BYTES, slab.index_records)
                last_index = slab.last_index
        except StoreFull as error:
            if error.leaves_bytes or files.index.crosses(slab.first_index * INDEX_UNIT_BYTES, len(slab.index_records)):
                written_pos, last_index = end_pos, slab.last_index
            files.take_back(written_pos, last_index)
            if error.leaves_bytes:  # they are gone by now
                raise StoreFull(str(error)) from error
            raise
        except StoreIOError:
            files.failed = True
            raise
        files.extend(slabs)

    def _clear_first(self, left_behind: tuple[int, int]) -> None:
        """What a refused append could not take back. Raises StoreFull while there is no space for that."""
        try:
            self._files.take_back(*left_behind)
        except StoreFull as error:  # nothing of the append that comes now
            raise StoreFull(str(error)) from error
