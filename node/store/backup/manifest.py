"""A back-up's manifest: of which group it is, what range of its log it holds, and in which files.

A back-up is a directory: `manifest`, `entries/` with pieces of the log (raw records, back to back, without fillers),
`snapshot/` where a state machine's was taken along, and a copy of the console's database. A piece is never changed once
the manifest names it; the next run adds pieces, and the manifest is replaced last.

Invariants: the manifest is replaced whole or not at all, and carries its CRC; what it names is durable before; files
that it does not name belong to a run that did not end, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from node.protocol.group_kind import has_state_machine
from node.store.backup.manifest_check import check_manifest
from node.store.errors import StoreError, StoreRefused
from node.store.files.identity import Base
from node.store.files.lock_file import LockFile
from node.store.files.os_files import pack_sealed_json, read_sealed_json, replace_file
from node.store.files.platform import FILE, OS, Platform
from node.store.log_store import EntryMeta

MANIFEST: Final = "manifest"
ENTRIES: Final = "entries"
LOCK: Final = "lock"
CONSOLE: Final = "console-"  # what the copy of the console's database begins with
TRIAL: Final = "trial-"  # a trial restore that runs, or was ended
SNAPSHOT: Final = "snapshot-"  # and the folder of a state machine's snapshot
FORMAT: Final = 1
MANIFEST_BYTES_MAX: Final = 512 * 1024 * 1024  # some 2,000,000 pieces


class BackupDamaged(StoreError):
    """A back-up does not hold what its manifest says; the message names file and entry."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the back-up beside the entries; `name` is relative to the back-up's directory."""

    name: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the log in a file of its own; `last_chain` is the chain after its last entry."""

    name: str
    first_index: int
    last_index: int
    size_bytes: int
    sha256: str
    last_term: int
    last_chain: int


@dataclass(frozen=True, slots=True)
class SnapshotFiles:
    """A state machine's snapshot that was taken along: where it ends, and its files."""

    index: int
    files: tuple[File, ...]


@dataclass(frozen=True, slots=True)
class LogBackup:
    """What a back-up holds of a group's log. `base`: the entry before the first one, None where that is entry 0.

    `members`: the newest entry about the group's members up to the end, its index and body; None: they are those of
    the birth, `peers` (id to address, as the member knew them that was read). `group_id` None: the group had none.
    """

    group: str
    group_id: str | None
    kind: str
    data_file_size: int
    index_file_size: int
    sealed_from: int
    base: Base | None
    pieces: tuple[Piece, ...]
    peers: Mapping[str, str]
    flush: str
    members: tuple[int, str] | None = None
    snapshot: SnapshotFiles | None = None

    @property
    def before(self) -> EntryMeta:
        """The entry before the first one that is held."""
        return EntryMeta(-1, -1, 0) if self.base is None else self.base.meta

    @property
    def begin_index(self) -> int:
        return self.before.index + 1

    @property
    def end_index(self) -> int:
        return self.pieces[-1].last_index if self.pieces else self.before.index

    @property
    def end_term(self) -> int:
        return self.pieces[-1].last_term if self.pieces else self.before.term

    @property
    def end_chain(self) -> int:
        return self.pieces[-1].last_chain if self.pieces else self.before.chain or 0

    @property
    def entries_bytes(self) -> int:
        return sum(piece.size_bytes for piece in self.pieces)

    @property
    def lacks_state(self) -> str | None:
        """What a state machine would miss to be built from this; None: nothing."""
        if not has_state_machine(self.kind) or self.base is None:
            return None
        if self.snapshot is not None and self.before.index <= self.snapshot.index <= self.end_index:
            return None
        return (
            f"the log of this {self.kind} group begins at entry {self.begin_index}, and no snapshot of its state up to"
            f" entry {self.before.index} or later is in the back-up: the state cannot be built again from it"
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """See the module's docstring. `runs`: how often the directory was brought up to date."""

    made_at: str
    runs: int = 1
    source: str = ""
    log: LogBackup | None = None
    console_db: File | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_names(self) -> set[str]:
        """All that the back-up consists of besides the manifest, relative to its directory."""
        log = self.log
        names = set() if log is None else {f"{ENTRIES}/{piece.name}" for piece in log.pieces}
        if log is not None and log.snapshot is not None:
            names |= {one.name for one in log.snapshot.files}
        return names | ({self.console_db.name} if self.console_db is not None else set())


def write_manifest(directory: Path, manifest: Manifest, platform: Platform = OS) -> None:
    """Durable on return; from then on the back-up is what it says."""
    replace_file(directory / MANIFEST, pack_sealed_json(_to_json(manifest)), platform=platform)


def read_manifest(directory: Path, platform: Platform = OS) -> Manifest | None:
    """None: no run has ended there. Raises StoreRefused on a damaged or unknown one, StoreIOError."""
    path = directory / MANIFEST
    kind = platform.file_kind(path)
    if kind not in (FILE, "") or (kind and platform.path_size(path) > MANIFEST_BYTES_MAX):
        raise StoreRefused(f"{path} is no manifest of a back-up, but a {kind}, or larger than any")
    value = read_sealed_json(path, platform)
    if value is None:
        return None
    if value.get("format") != FORMAT:
        raise StoreRefused(f"{directory / MANIFEST}: format {value.get('format')!r}, this version knows {FORMAT}")
    try:
        manifest = _from_json(value)
        check_manifest(manifest)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StoreRefused(f"{directory / MANIFEST} is of another format: {error!r}") from error
    return manifest


def hold(directory: Path, platform: Platform = OS) -> LockFile:
    """The back-up's lock: whoever writes there, one at a time. Raises StoreRefused where another one does."""

    def take(fd: int) -> None:
        try:
            platform.lock(fd)
        except OSError as error:
            raise StoreRefused(
                f"another back-up is writing to {directory}: wait until it has ended, or name another directory"
            ) from error

    return LockFile(directory / LOCK, platform, take)


def check_files(directory: Path, manifest: Manifest, platform: Platform = OS) -> None:
    """Every file is there and as long as it was; what is in them is not read. Raises BackupDamaged."""
    log = manifest.log
    wanted = {} if log is None else {f"{ENTRIES}/{piece.name}": piece.size_bytes for piece in log.pieces}
    if log is not None and log.snapshot is not None:
        wanted |= {one.name: one.size_bytes for one in log.snapshot.files}
    if manifest.console_db is not None:
        wanted[manifest.console_db.name] = manifest.console_db.size_bytes
    for name, size_bytes in wanted.items():
        kind = platform.file_kind(directory / name)
        if kind not in (FILE, ""):  # a FIFO would be read for ever
            raise BackupDamaged(f"{directory / name} is a {kind}, no file of a back-up")
        try:
            has = platform.path_size(directory / name)
        except OSError as error:
            raise BackupDamaged(f"{directory / name} is missing: the back-up is damaged") from error
        if has != size_bytes:
            raise BackupDamaged(f"{directory / name} has {has} bytes, it had {size_bytes}: the back-up is damaged")


# --- JSON -------------------------------------------------------------------------------------------------------------
def _to_json(manifest: Manifest) -> dict[str, Any]:
    value = asdict(manifest) | {"format": FORMAT, "console_db": _optional(manifest.console_db)}
    log = manifest.log
    if log is None:
        return value
    base = log.base
    value["log"] = {
        "group": log.group, "group_id": log.group_id, "kind": log.kind, "data_file_size": log.data_file_size,
        "index_file_size": log.index_file_size, "sealed_from": log.sealed_from, "peers": dict(log.peers),
        "flush": log.flush, "members": None if log.members is None else list(log.members),
        "base": None if base is None else {
            "index": base.meta.index, "term": base.meta.term, "chain": base.meta.chain, "pos": base.pos,
            "members": None if base.members is None else list(base.members),
        },
        "pieces": [asdict(piece) for piece in log.pieces], "snapshot": _optional(log.snapshot),
    }  # fmt: skip
    return value


def _optional(value: File | SnapshotFiles | None) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _from_json(value: dict[str, Any]) -> Manifest:
    log, database = value["log"], value["console_db"]
    return Manifest(
        value["made_at"], value["runs"], value["source"], None if log is None else _log_from_json(log),
        None if database is None else File(**database), dict(value.get("extra", {})),
    )  # fmt: skip


def _log_from_json(value: dict[str, Any]) -> LogBackup:
    base, snapshot = value["base"], value["snapshot"]
    pieces = tuple(Piece(**one) for one in value["pieces"])
    found = {name: value[name] for name in ("group", "group_id", "kind", "sealed_from", "peers", "flush")}
    taken = None
    if snapshot is not None:
        taken = SnapshotFiles(int(snapshot["index"]), tuple(File(**one) for one in snapshot["files"]))
    before = None
    if base is not None:
        meta = EntryMeta(base["index"], base["term"], base["chain"])
        before = Base(meta, base["pos"], found["group_id"], _members(base["members"]))
    return LogBackup(
        **found, data_file_size=value["data_file_size"], index_file_size=value["index_file_size"], base=before,
        pieces=pieces, members=_members(value["members"]), snapshot=taken,
    )  # fmt: skip


def _members(value: Any) -> tuple[int, str] | None:
    if value is None:
        return None
    index, body = value
    if type(index) is not int or not isinstance(body, str):
        raise ValueError(f"members {value!r}")
    return index, body
