"""A store's identity: `quorumscope.json`, the lock, and `base` (the entry before the first one held).

Invariants: one process at a time; a directory never changes its group, node, kind or file sizes; a plain log's identity
is written as it always was, any other kind's in a format of its own, which older releases refuse; `base` is durable
before the entries it stands for are removed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from node.protocol.entry import BLANK_BYTES, INDEX_UNIT_BYTES, POSITION_MAX, TERM_MAX, crc32
from node.protocol.group_id import is_group_id
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME, is_kind_name
from node.store.errors import StoreRefused
from node.store.files.lock_file import LockFile
from node.store.files.os_files import pack_sealed_json, read_sealed_json, read_small, replace_file
from node.store.files.platform import OS, Platform
from node.store.log_store import EntryMeta, HardState

IDENTITY = "quorumscope.json"
BASE = "base"
LOCK = "lock"
FORMAT_VERSION = 1
KIND_FORMAT_VERSION = 2  # of a log that is not plain: releases that know no kinds must not open it
UNKNOWN_TERM = -1


@dataclass(slots=True, frozen=True)
class Identity:
    """The content of `quorumscope.json`. `sealed_from`: entries before it were written by a Java node.

    `origin_pos`: where entry 0 lies, or lay; behind RocketMQ's old commit log it is dividedCommitlogOffset, else 0.
    """

    group: str
    node_id: str
    store_id: str
    data_file_size: int
    index_file_size: int
    sealed_from: int = 0
    format_version: int = FORMAT_VERSION
    kind: str = PLAIN_NAME
    origin_pos: int = 0

    @classmethod
    def fresh(
        cls,
        group: str,
        node_id: str,
        data_file_size: int,
        index_file_size: int,
        platform: Platform = OS,
        kind: str = PLAIN_NAME,
    ) -> Identity:
        """A new store has a new `store_id`: peers tell a wiped disk from the one they knew."""
        version = format_of(kind)
        return cls(group, node_id, platform.new_id(), data_file_size, index_file_size, 0, version, kind)


@dataclass(slots=True, frozen=True)
class Base:
    """The entry before `begin_index`, and the position where `begin_index` is.

    `group_id`: the group's, which an entry that was removed may have held (SAFETY C9); None: it had none. `members`:
    where the newest entry about the group's members was, and its body (M1); None: they are those of the birth.
    `is_installed`: it came from a leader, so nothing that this store knew of the entries up to it counts.
    """

    meta: EntryMeta
    pos: int
    group_id: str | None = None
    members: tuple[int, str] | None = None
    is_installed: bool = False


def format_of(kind: str) -> int:
    """The format that a log of this kind is on record in."""
    return FORMAT_VERSION if kind == PLAIN_NAME else KIND_FORMAT_VERSION


def check_sizes(data_file_size: int, index_file_size: int) -> None:
    """Raises StoreRefused on sizes that cannot hold anything."""
    if data_file_size < 512 or index_file_size < INDEX_UNIT_BYTES or index_file_size % INDEX_UNIT_BYTES:
        raise StoreRefused(
            f"file sizes {data_file_size} and {index_file_size}: data needs >= 512 bytes, index a multiple of 32"
        )


def read_identity(directory: Path, platform: Platform = OS) -> Identity | None:
    """None where the directory is not ours (yet). Raises StoreRefused on content from the future or not readable."""
    path = directory / IDENTITY
    try:
        value = json.loads(read_small(path, platform))
        seal = value.pop("crc", None)  # directories of the first version have none
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise StoreRefused(f"{path} cannot be read: {error}") from error
    if seal is not None and seal != _seal(value):
        raise StoreRefused(f"{path} does not match its CRC: `quorumscope store repair {directory}` says what to do")
    try:
        identity = Identity(**value)
        if identity.format_version not in (FORMAT_VERSION, KIND_FORMAT_VERSION):
            known = f"{FORMAT_VERSION} and {KIND_FORMAT_VERSION}"
            raise StoreRefused(f"{path}: format {identity.format_version}, this version knows {known}")
        _check_types(identity)
    except (TypeError, ValueError) as error:
        raise StoreRefused(f"{path} is of another format: {error}") from error
    return identity


def _check_types(identity: Identity) -> None:
    """A damaged file must not become sizes that nothing can be read with. Raises ValueError."""
    for name in ("group", "node_id", "store_id"):
        if not isinstance(getattr(identity, name), str):
            raise ValueError(f"{name} is not a text")
    for name in ("data_file_size", "index_file_size", "sealed_from", "origin_pos"):
        value = getattr(identity, name)
        if type(value) is not int or not 0 <= value <= POSITION_MAX:
            raise ValueError(f"{name} is not a size")
    if not is_kind_name(identity.kind) or identity.format_version != format_of(identity.kind):
        raise ValueError(f"kind {identity.kind!r} in format {identity.format_version}")
    check_sizes(identity.data_file_size, identity.index_file_size)
    if identity.origin_pos and (identity.kind != BROKER_NAME or identity.origin_pos % identity.data_file_size):
        raise ValueError(f"origin_pos {identity.origin_pos} is no broker's, or not where a data file begins")


def _seal(fields: dict[str, object]) -> str:
    """A flipped bit in the store's id would look like another store, one in `sealed_from` would excuse broken seals."""
    return f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"


def write_identity(directory: Path, identity: Identity, platform: Platform = OS) -> None:
    """Durable on return."""
    fields = asdict(identity)
    if identity.kind == PLAIN_NAME:
        del fields["kind"]
    if not identity.origin_pos:  # releases that know none read the others
        del fields["origin_pos"]
    text = json.dumps(fields | {"crc": _seal(fields)}, indent=1, sort_keys=True).encode() + b"\n"
    replace_file(directory / IDENTITY, text, platform=platform)


def check_identity(directory: Path, found: Identity, wanted: Identity) -> None:
    """Raises StoreRefused unless group, node, kind and sizes are the ones that were configured."""
    for name in ("group", "node_id", "kind", "data_file_size", "index_file_size"):
        has, wants = getattr(found, name), getattr(wanted, name)
        if has != wants:
            text = f"{directory} has {name} {has!r}, this node is configured with {wants!r}"
            if name == "kind":
                text += f": {_birth(has)}, and what a group's log is for never changes; {_flag(has)}"
            raise StoreRefused(text)


def _birth(kind: str) -> str:
    if kind == PLAIN_NAME:
        return "its group was born as a log alone"
    return "its group was born as a broker's" if kind == BROKER_NAME else "its group was born with a state machine"


def _flag(kind: str) -> str:
    """How a member of such a group is started."""
    if kind == PLAIN_NAME:
        return "start it without --broker and --state-machine, or give this member another --data"
    wanted = "--broker HOST:PORT, or [broker] address" if kind == BROKER_NAME else "its --state-machine"
    return f"start it with {wanted}, or give this member another --data"


def read_base(directory: Path, platform: Platform = OS) -> Base | None:
    """None: nothing was ever removed. Raises StoreRefused."""
    value = read_sealed_json(directory / BASE, platform)
    return None if value is None else base_of(value, directory / BASE)


def base_of(value: dict[str, Any], path: Path) -> Base:
    """The base that the file at `path` says. Raises StoreRefused."""
    try:
        index, term, pos, chain = (value[name] for name in ("index", "term", "pos", "chain"))
    except KeyError as error:
        raise StoreRefused(f"{path} is of another format: no {error}") from error
    numbers = [index, term, pos] if chain is None else [index, term, pos, chain]
    if any(type(one) is not int or not -1 <= one <= POSITION_MAX for one in numbers) or pos < 0:
        raise StoreRefused(f"{path} is of another format: {value}")
    group_id = value.get("group_id")
    if group_id is not None and not is_group_id(group_id):
        raise StoreRefused(f"{path} is of another format: group {group_id!r}")
    members = value.get("members")
    if members is not None and not (
        isinstance(members, list) and len(members) == 2 and type(members[0]) is int and isinstance(members[1], str)
    ):
        raise StoreRefused(f"{path} is of another format: members {members!r}")
    named = None if members is None else (members[0], members[1])
    return Base(EntryMeta(index, term, chain), pos, group_id, named, value.get("installed") is True)


def fields_of(base: Base) -> dict[str, Any]:
    """The reverse of `base_of`."""
    meta = base.meta
    value: dict[str, Any] = {"index": meta.index, "term": meta.term, "chain": meta.chain, "pos": base.pos}
    if base.group_id is not None:
        value["group_id"] = base.group_id
    if base.members is not None:
        value["members"] = list(base.members)
    if base.is_installed:
        value["installed"] = True
    return value


def write_base(directory: Path, base: Base, platform: Platform = OS) -> None:
    """Durable on return, before any file that it stands for is removed."""
    replace_file(directory / BASE, pack_sealed_json(fields_of(base)), platform=platform)


def check_base(directory: Path, base: Base, file_size: int, kind: str) -> None:
    """Raises StoreRefused where no log of that kind can begin behind that entry."""
    meta = base.meta
    if meta.chain is None or meta.index < 0 or not 0 <= meta.term <= TERM_MAX or base.pos < 0:
        raise StoreRefused(f"a log cannot begin behind {base}: index, term, chain and position have to be known")
    left = -base.pos % file_size
    if left and kind == BROKER_NAME:
        raise StoreRefused(
            f"the log in {directory} cannot begin at position {base.pos}: a broker group's begins with a data file, of"
            f" {file_size} bytes, so that every record is read from the front of its file"
        )
    if 0 < left < BLANK_BYTES:
        raise StoreRefused(
            f"the log in {directory} cannot begin at position {base.pos}, {left} bytes before its file's end: every log"
            f" leaves {BLANK_BYTES} there for the filler, so the position or the size of the files is another one"
        )


def with_members(hard: HardState, base: Base | None) -> HardState:
    """The hard state with what the base keeps of the group: its id, and who belonged to it there (C9, M1)."""
    if base is None:
        return hard
    if hard.group_id is None and base.group_id is not None:
        hard = replace(hard, group_id=base.group_id)  # hardstate was made anew by an operator
    if base.is_installed:  # what an earlier log said of entries up to there is void
        behind = tuple(record for record in hard.configurations if record[0] > base.meta.index)
        return replace(hard, configurations=(*(() if base.members is None else (base.members,)), *behind))
    if base.members is not None and all(index > base.meta.index for index, _ in hard.configurations):
        return replace(hard, configurations=(base.members, *hard.configurations))  # all behind it may be cut yet
    return hard


class DirectoryLock:
    """Held as long as the store is open; the kernel releases it when the process ends, however it ends."""

    def __init__(self, directory: Path, platform: Platform = OS) -> None:
        """Raises StoreRefused where another process holds it, StoreError where the file cannot be had."""
        path = directory / LOCK

        def take(fd: int) -> None:
            try:
                platform.lock(fd)
            except OSError as error:
                raise StoreRefused(f"{directory} is open in another process (it holds {path})") from error

        self._file = LockFile(path, platform, take)

    def is_in_place(self) -> bool:
        """Whether the path still leads to the directory that was opened."""
        return self._file.is_in_place()

    def release(self) -> None:
        """Idempotent."""
        self._file.release()
