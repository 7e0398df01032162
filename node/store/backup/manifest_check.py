"""What a manifest may say: a back-up may come from anywhere, and its CRC is no proof of who wrote it.

Invariants: every field has its type and its bounds before anybody works with it; a name is one that a back-up itself
gives, so that nothing outside of its directory is ever meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from node.protocol.entry import POSITION_MAX, TERM_MAX
from node.protocol.group_id import is_group_id
from node.protocol.group_kind import is_kind_name
from node.protocol.group_members import members_in
from node.protocol.peers import MEMBER_ID
from node.snapshots.directory import DATA, META, SEALED
from node.store.files.identity import check_sizes

if TYPE_CHECKING:
    from node.store.backup.manifest import File, LogBackup, Manifest, Piece

PIECE_BYTES_MAX: Final = 64 * 1024 * 1024
MEMBERS_MAX: Final = 64
TEXT_MAX: Final = 8192
GROUP: Final = re.compile(r"[A-Za-z0-9_.-]{1,255}")
FLUSH_MODES: Final = ("", "sync", "async")
PIECE_NAME: Final = re.compile(r"[0-9]{20}")
CONSOLE_NAME: Final = re.compile(r"console-[0-9]{1,20}\.sqlite")
SNAPSHOT_FILES: Final = (DATA, META, SEALED)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_CRC_MAX: Final = 0xFFFF_FFFF


def check_manifest(manifest: Manifest) -> None:
    """Raises ValueError, StoreRefused."""
    for text in (manifest.made_at, manifest.source):
        if not isinstance(text, str) or len(text) > TEXT_MAX:
            raise ValueError(f"text {text!r:.200}")
    _whole(manifest.runs, 1, POSITION_MAX, "runs")
    if manifest.console_db is not None:
        _file(manifest.console_db)
        if not CONSOLE_NAME.fullmatch(manifest.console_db.name):
            raise ValueError(f"{manifest.console_db.name!r} is no file of a back-up")
    if manifest.log is not None:
        _log(manifest.log)


def _log(log: LogBackup) -> None:
    if log.group_id is not None and not is_group_id(log.group_id):
        raise ValueError(f"group id {log.group_id!r}")
    if not isinstance(log.kind, str) or not is_kind_name(log.kind):
        raise ValueError(f"kind {log.kind!r}")
    if not isinstance(log.group, str) or not GROUP.fullmatch(log.group) or log.flush not in FLUSH_MODES:
        raise ValueError(f"group {log.group!r} with flush {log.flush!r}")
    for size in (log.data_file_size, log.index_file_size):
        _whole(size, 0, POSITION_MAX, "file size")
    check_sizes(log.data_file_size, log.index_file_size)
    _whole(log.sealed_from, 0, POSITION_MAX, "sealed_from")
    _peers(log.peers)
    if log.base is not None:
        _whole(log.base.meta.index, 0, POSITION_MAX, "base")
        _whole(log.base.meta.term, 0, TERM_MAX, "base's term")
        _whole(log.base.meta.chain, 0, _CRC_MAX, "base's chain")
        _whole(log.base.pos, 0, POSITION_MAX, "base's position")
        _members(log.base.members, log.base.meta.index)
    index, term = log.begin_index, log.before.term
    for piece in log.pieces:
        _piece(piece, index, term)
        index, term = piece.last_index + 1, piece.last_term
    _members(log.members, index - 1)
    if log.snapshot is not None:
        _whole(log.snapshot.index, 0, POSITION_MAX, "snapshot")
        folder = f"snapshot-{log.snapshot.index}/snapshot_{log.snapshot.index}"
        for one in log.snapshot.files:
            _file(one)
            if one.name not in [f"{folder}/{name}" for name in SNAPSHOT_FILES]:
                raise ValueError(f"{one.name!r} is no file of a back-up")


def _piece(piece: Piece, first_index: int, term: int) -> None:
    _whole(piece.last_index, 0, POSITION_MAX, "entry")
    _whole(piece.last_term, 0, TERM_MAX, "term")
    _whole(piece.last_chain, 0, _CRC_MAX, "chain")
    _whole(piece.size_bytes, 1, PIECE_BYTES_MAX, "size")
    _sha256(piece.sha256)
    if not isinstance(piece.name, str) or not PIECE_NAME.fullmatch(piece.name):
        raise ValueError(f"{piece.name!r} is no file of a back-up")
    if piece.first_index != first_index or piece.last_index < first_index or piece.last_term < term:
        raise ValueError(f"piece {piece.name} does not follow entry {first_index - 1}")


def _file(file: File) -> None:
    _text(file.name, "name")
    _whole(file.size_bytes, 0, POSITION_MAX, "size")
    _sha256(file.sha256)


def _peers(peers: Any) -> None:
    if not isinstance(peers, Mapping) or len(peers) > MEMBERS_MAX:
        raise ValueError(f"members {peers!r:.200}")
    for member, address in peers.items():
        if not MEMBER_ID.fullmatch(member):
            raise ValueError(f"member {member!r:.200}")
        _text(address, "address")


def _members(members: tuple[int, str] | None, end_index: int) -> None:
    """An entry about the group's members, by its index and its body."""
    if members is None:
        return
    _whole(members[0], 0, end_index, "entry about the members")
    if members_in(members[1].encode()) is None:
        raise ValueError(f"members {members[1]!r:.200}")


def _whole(value: Any, least: int, most: int, what: str) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{what} {value!r:.200}")


def _text(value: Any, what: str) -> None:
    if not isinstance(value, str) or len(value) > TEXT_MAX or not value.isprintable():
        raise ValueError(f"{what} {value!r:.200}")


def _sha256(value: Any) -> None:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"SHA-256 {value!r:.200}")
