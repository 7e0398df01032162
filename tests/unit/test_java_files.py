"""A file `checkpoint` is Java's text or an older release's slots; a Java node finds ours only after a clean stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.protocol.codes import VoterState
from node.protocol.entry import Magic
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.java_files import JAVA_CHECKPOINT, OWNER, checkpoint_slot, java_committed_index
from node.store.reader import StoreReader
from tests.unit.store_fixtures import entries_of, fill, kill, open_store, sync
from tests.unit.store_layout import build, currterm

VECTOR = "rocketmq/dledger-commitlog/single/dledger-n0"


def java_directory(directory: Path, count: int, checkpoint: bytes | None) -> Path:
    directory.mkdir()
    currterm(directory, 3, "n1")
    build([(Magic.NORMAL, 3, b"java-%03d" % number) for number in range(count)], seal=False).save(directory)
    if checkpoint is not None:
        (directory / JAVA_CHECKPOINT).write_bytes(checkpoint)
    return directory


def test_java_s_own_file_is_read(vectors: Path) -> None:
    assert java_committed_index(vectors / VECTOR) == 366
    assert checkpoint_slot(vectors / VECTOR) is None, "text is no slot of ours"


@pytest.mark.parametrize(
    ("content", "index"),
    [
        (b"#Sun Nov 22 05:00:00 UTC 2026\nendIndex=9\ncommittedIndex=7\n", 7),
        (b"committedIndex = 7 \r\nendIndex=9\r\n", 7),
        (b"committedIndex=-1\nendIndex=-1\n", -1),
        (b"committedIndex=99999999999999999999\n", -1),
        (b"committedIndex=\n", -1),
        (b"committedIndex=7\0", -1),
        (b"committedIndex=\xff7", -1),
        (b"", -1),
        (b"committedIndex=7\n" + b"#" * 5000, -1),
    ],
)
def test_only_a_whole_number_in_a_short_text_is_a_hint(tmp_path: Path, content: bytes, index: int) -> None:
    (tmp_path / JAVA_CHECKPOINT).write_bytes(content)
    assert java_committed_index(tmp_path) == index


def test_what_java_says_is_committed_is_known_at_adoption_and_its_files_go(tmp_path: Path) -> None:
    directory = java_directory(tmp_path / "java", 20, b"committedIndex=14\nendIndex=19\n")
    (directory / "checkpoint.bak").write_bytes(b"committedIndex=13\nendIndex=19\n")
    store = open_store(directory)
    assert (store.end_index, store.recovered_commit_index) == (19, 14)
    assert store.hard_state.voter_state is VoterState.VOTER
    assert not (directory / JAVA_CHECKPOINT).exists() and not (directory / "checkpoint.bak").exists()
    kill(store)
    again = open_store(directory)
    assert again.recovered_commit_index == 14, "it is in our own checkpoint now"
    again.close()


def test_a_java_log_that_ends_below_its_commit_index_does_not_vote(tmp_path: Path) -> None:
    directory = java_directory(tmp_path / "java", 20, b"committedIndex=25\nendIndex=25\n")
    store = open_store(directory)
    assert (store.end_index, store.recovered_commit_index) == (19, 19)
    assert store.hard_state.voter_state is VoterState.REJOINING
    assert any("DLedger's own checkpoint says committed 25" in text for text in store.alarms)
    store.close()


def test_a_clean_stop_leaves_java_its_checkpoint_and_nothing_else_does(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    sync(store)
    store.note_progress(12, 12)
    assert (tmp_path / "data" / OWNER).stat().st_size == 1, "a Java node would find a file of the wrong length"
    assert not (tmp_path / JAVA_CHECKPOINT).exists()
    kill(store)
    assert (tmp_path / "data" / OWNER).exists() and not (tmp_path / JAVA_CHECKPOINT).exists()
    again = open_store(tmp_path)
    again.note_progress(12, 12)
    again.close()
    assert (tmp_path / JAVA_CHECKPOINT).read_bytes() == b"committedIndex=12\nendIndex=19\n"
    assert not (tmp_path / "data" / OWNER).exists()
    once_more = open_store(tmp_path)
    assert not (tmp_path / JAVA_CHECKPOINT).exists(), "nobody keeps it true while the store is open"
    once_more.leaves_to_java = False
    once_more.close()
    assert (tmp_path / "data" / OWNER).exists() and not (tmp_path / JAVA_CHECKPOINT).exists()


def test_an_older_release_s_checkpoint_is_carried_over_and_counts_more_than_ours(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    store.note_progress(5, 5)
    store.close()
    older = (tmp_path / CHECKPOINT).read_bytes()
    store = open_store(tmp_path)
    fill(store, 1, 10)
    store.note_progress(25, 25)
    store.close()
    ours = (tmp_path / CHECKPOINT).read_bytes()
    # The older release went on with what we had left: ours says what was true before.
    (tmp_path / CHECKPOINT).write_bytes(older)
    (tmp_path / JAVA_CHECKPOINT).write_bytes(ours)
    reader = StoreReader(tmp_path)
    assert (reader.durable_index, reader.committed_index) == (29, 25)
    again = open_store(tmp_path)
    assert (again.recovered_commit_index, len(entries_of(again)), again.alarms) == (25, 30, ())
    assert not (tmp_path / JAVA_CHECKPOINT).exists()
    again.close()


def test_a_broken_one_of_an_older_release_does_not_make_ours_true_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    store.close()
    (tmp_path / JAVA_CHECKPOINT).write_bytes(bytes(8192))  # it was killed before it wrote a slot
    assert checkpoint_slot(tmp_path) is None
    again = open_store(tmp_path)
    assert any("the checkpoint is missing or broken" in text for text in again.alarms)
    again.close()


def test_an_empty_one_says_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2, 10)
    store.note_progress(5, 5)
    store.close()
    (tmp_path / JAVA_CHECKPOINT).write_bytes(b"")
    again = open_store(tmp_path)
    assert (again.recovered_commit_index, again.alarms) == (5, ())
    again.close()
