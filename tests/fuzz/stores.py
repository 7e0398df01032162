"""Targets: whole store directories with random bytes over their files. Opening, reading, verifying.

Whatever lies there: a log that says only what was written, or a refusal that names a file. Never another exception,
never a wrong byte, never term 0, never silently shorter than what was durable.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from node.protocol.codes import VoterState
from node.protocol.entry import Entry, decode_slab
from node.store.errors import StoreCorrupt, StoreError, StoreFull, StoreIOError, StoreRefused
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.log_store import HardState, TruncationRecord
from node.store.reader import StoreReader
from tests.fuzz.held_files import HeldFiles
from tests.fuzz.target import KIB, Target
from tests.unit.store_fixtures import entries_of, fill, kill, sync

ROOT = Path("/fuzz/store")
DATA_BYTES, INDEX_BYTES = 4096, 1024
TERM = 5
PATCH = struct.Struct(">BHB")  # file, offset, length; length 0: the file is gone, 255: it ends there
GONE, ENDS = 0, 255
PATCHES_MAX = 12
OPEN = {
    "group": "g", "node_id": "n0", "data_file_size": DATA_BYTES, "index_file_size": INDEX_BYTES, "init": True,
    "boot_id": "boot-1",
}  # fmt: skip


@dataclass(frozen=True)
class Story:
    """A directory, and what is true of it."""

    files: dict[Path, bytes]
    entries: dict[int, Entry]
    durable_index: int
    begin_index: int

    @property
    def paths(self) -> list[Path]:
        return sorted(self.files)


def _story(*, clean: bool, cut: bool) -> Story:
    held = HeldFiles({})
    store = FileStore.open(ROOT, platform=held, **OPEN)
    store.save_hard_state(HardState(TERM, "n1", VoterState.VOTER, -1, {"n1": "store-1"}))
    fill(store, 3, 12)
    sync(store)
    if cut:
        record = TruncationRecord("n0", "n1", TERM, 30, store.end_index, "conflict", -1)
        store.truncate(30, record)
        store.append_as_leader([b"after the cut", b"", b"and more" * 30], 4)
        sync(store)
    durable = store.durable_index
    if clean:
        store.close()
    else:
        store.append_as_leader([b"a" * 100, b"b" * 1300, b"tail-" * 20], 4)
    entries = {one.index: one for one in entries_of(store)} if not clean else {}
    if not clean:
        kill(store)
    files = {path: bytes(data) for path, data in held.files.items() if path.name != "lock"}
    if clean:
        again = FileStore.open(ROOT, platform=HeldFiles(files), **OPEN)
        entries = {one.index: one for one in entries_of(again)}
        again.close()
    return Story(files, entries, durable, 0)


@cache
def stories() -> tuple[Story, ...]:
    return _story(clean=False, cut=True), _story(clean=True, cut=False), _story(clean=False, cut=False)


def scribbled(data: bytes) -> tuple[Story, HeldFiles, set[Path]]:
    """The directory that an input stands for, and which of its files are not what they were."""
    story = stories()[data[0] % len(stories()) if data else 0]
    held = HeldFiles(story.files)
    at, done = 1, 0
    while at + PATCH.size <= len(data) and done < PATCHES_MAX:
        number, offset, length = PATCH.unpack_from(data, at)
        at, done = at + PATCH.size, done + 1
        path = story.paths[number % len(story.paths)]
        content = held.files.get(path)
        if content is None:
            continue
        offset %= len(content) + 1
        if length == GONE:
            held.unlink(path)
        elif length == ENDS:
            del content[offset:]
        else:
            piece = data[at : at + length][: len(content) - offset]
            content[offset : offset + len(piece)] = piece
            at += length
    changed = {path for path in story.paths if bytes(held.files.get(path, b"\0gone")) != story.files[path]}
    return story, held, changed


def named(error: StoreError) -> None:
    """A refusal says what it is about: a file of this store, an entry, or the directory."""
    text = str(error)
    words = (str(ROOT), "entry", "entries", "data", "index", "checkpoint", "hardstate", "file")
    assert any(word in text for word in words), f"{type(error).__name__} says only {text!r}"


def open_store(data: bytes) -> None:
    story, held, changed = scribbled(data)
    names = {path.relative_to(ROOT).parts[0] for path in changed}
    try:
        store = FileStore.open(ROOT, platform=held, **OPEN)
    except (StoreRefused, StoreCorrupt, StoreIOError) as error:
        named(error)
        return
    try:
        _serves_what_was_written(store, story)
        hard = store.hard_state
        if not names & {"quorumscope.json"}:
            assert hard.term >= TERM, f"term {hard.term} after {TERM}"
            if "hardstate" in names or "currterm" in names:
                assert hard.voted_for is None or hard.vote_floor >= hard.term or hard.voted_for == "n1"
        if not names & {"quorumscope.json", CHECKPOINT}:
            assert store.begin_index == story.begin_index, f"silently begins at {store.begin_index}"
            shorter = store.end_index < story.durable_index
            assert not shorter or hard.voter_state is VoterState.REJOINING, f"silently ends at {store.end_index}"
        store.append_as_leader([b"life goes on"], max(store.end_term, hard.term) + 1)
        sync(store)
    except (StoreFull, StoreIOError, StoreCorrupt) as error:
        named(error)
    finally:
        store.close()


def _serves_what_was_written(store: FileStore, story: Story) -> None:
    for index in range(max(0, store.begin_index), store.end_index + 1):
        try:
            found = store.get(index)
            slab = store.read_slab(index, 200)
        except StoreCorrupt as error:
            named(error)
            continue
        truth = story.entries.get(index)
        assert truth is not None, f"entry {index} was never written"
        assert found is not None
        assert (found.term, found.body) == (truth.term, truth.body), f"entry {index} is not what was written"
        for entry in decode_slab(slab):
            assert entry.body == story.entries[entry.index].body, f"entry {entry.index} is not what was written"


def read_store(data: bytes) -> None:
    """The read-only half: what the control plane, the audit and `store verify|inspect` do with the same bytes."""
    story, held, changed = scribbled(data)
    try:
        reader = StoreReader(ROOT, platform=held)
        json.dumps(reader.inspect())
        report = reader.verify()
        json.dumps(report.as_json())
        for index in range(reader.begin_index, min(reader.end_index, 60) + 1):
            _entry(reader, index)
        reader.digests(reader.begin_index, reader.end_index, 8)
        for segment in reader.segments():
            reader.read_segment(segment.kind, segment.name, 0, 1 << 31)
        for record in reader.truncations():
            list(reader.truncation_entries(record.seq))
    except (StoreRefused, StoreCorrupt, StoreIOError) as error:
        named(error)
        return
    if ROOT / "quorumscope.json" not in changed and ROOT / CHECKPOINT not in changed:
        hurt = _hurt(story, held)
        assert not hurt or report.problems, f"verify calls the log sound although entry {hurt[0]} was changed"


def _entry(reader: StoreReader, index: int) -> None:
    try:
        reader.entry(index)
    except StoreCorrupt as error:
        named(error)


def _hurt(story: Story, held: HeldFiles) -> list[int]:
    """The durable entries whose bytes are not what was written."""
    found = []
    for index in range(story.durable_index + 1):
        entry = story.entries[index]
        path = ROOT / "data" / f"{entry.pos // DATA_BYTES * DATA_BYTES:020d}"
        offset = entry.pos % DATA_BYTES
        now = bytes(held.files.get(path, b"")[offset : offset + entry.size])
        if now != story.files[path][offset : offset + entry.size]:
            found.append(index)
    return found


def patched(*patches: tuple[str, int, bytes | int]) -> bytes:
    """An input from (name, offset, bytes or GONE or ENDS)."""
    raw = b"\0"
    paths = [str(path.relative_to(ROOT)) for path in stories()[0].paths]
    for name, offset, content in patches:
        number = next(place for place, path in enumerate(paths) if path.startswith(name))
        if isinstance(content, int):
            raw += PATCH.pack(number, offset, content)
        else:
            raw += PATCH.pack(number, offset, len(content)) + content
    return raw


@cache
def seeds() -> Sequence[bytes]:
    names = [str(path.relative_to(ROOT)) for path in stories()[0].paths]
    found = [b"\0", b"\1", b"\2"]
    for name in names:
        found += [patched((name, 0, GONE)), patched((name, 30, ENDS), (name, 9, b"\xff"))]
    found.append(patched((CHECKPOINT, 0, bytes(200)), (CHECKPOINT, 4096, bytes(200)), ("index", 0, bytes(96))))
    found.append(patched(("hardstate", 0, GONE), ("currterm", 0, GONE)))
    return found


TARGETS: tuple[Target, ...] = (
    Target("store_open", open_store, seeds, bytes_fixed=12 * 1024 * KIB, bytes_per_byte=64, heavy=True),
    Target("store_read", read_store, seeds, bytes_fixed=12 * 1024 * KIB, bytes_per_byte=64, heavy=True),
)
