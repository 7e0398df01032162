"""The directory of a broker group's member: of its kind from birth, and kept from Java until it is handed over."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import ConfigError, load
from node.message_store.broker_kind import BrokerKind
from node.message_store.message_store import StoreKind, kind_of
from node.message_store.read_files import OWNER_FILE
from node.message_store.record import decode_record, encode_record
from node.protocol.entry import HEAD_BYTES, EntryError
from node.protocol.group_kind import Channel
from node.protocol.slab_encode import encode_slab
from node.store.backup.trial import try_restore
from node.store.errors import StoreRefused
from node.store.files.identity import IDENTITY, Base
from node.store.files.java_files import COMMIT_LOG, JAVA_CHECKPOINT, OWNER
from node.store.log_store import EntryMeta
from tests.unit.backup_kit import GROUP_ID, back_up, commit_all, new_group
from tests.unit.message_kit import record as message_record
from tests.unit.store_fixtures import entries_of, kill, open_store, record, sync
from tests.unit.store_layout import DATA_BYTES

PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"


KIND = BrokerKind(lambda: 1_800_000_000_000)


def broker_message(body: bytes = b"body") -> bytes:
    return encode_record(message_record(body))


def owned(data: Path) -> list[bool]:
    """Whether Java would find a file of the wrong length wherever it looks."""
    files = [data / COMMIT_LOG / OWNER, data / "dledger-n0" / "data" / OWNER]
    return [one.is_file() and one.stat().st_size == 1 for one in files]


def test_java_is_kept_out_from_birth_on_also_after_a_stop_and_a_crash(tmp_path: Path) -> None:
    directory = tmp_path / "dledger-n0"
    store = open_store(directory, kind="broker")
    assert owned(tmp_path) == [True, True]
    kill(store)
    assert owned(tmp_path) == [True, True]
    again = open_store(directory, kind="broker")
    again.close()
    assert owned(tmp_path) == [True, True] and not (directory / JAVA_CHECKPOINT).exists()
    assert not (tmp_path / "abort").exists(), "only Java reads it, and destroys what it does not understand"


def test_what_lacks_an_owner_file_gets_it_at_the_next_open(tmp_path: Path) -> None:
    directory = tmp_path / "dledger-n0"
    open_store(directory, kind="broker").close()
    (tmp_path / COMMIT_LOG / OWNER).unlink()
    (tmp_path / COMMIT_LOG).rmdir()
    (directory / "data" / OWNER).write_bytes(b"")
    open_store(directory).close()  # a tool's, which takes the kind that is there
    assert owned(tmp_path) == [True, True]


def test_our_readers_pass_the_owner_files_over(tmp_path: Path) -> None:
    assert OWNER == OWNER_FILE
    store = open_store(tmp_path / "dledger-n0", kind="broker")
    store.close()
    assert kind_of(tmp_path) is StoreKind.LEDGER
    (tmp_path / "consumequeue").mkdir()
    assert kind_of(tmp_path) is StoreKind.LEDGER


def test_other_groups_have_no_commit_log_beside_them(tmp_path: Path) -> None:
    open_store(tmp_path / "dledger-n0").close()
    open_store(tmp_path / "dledger-n1", node_id="n1", kind="stamped").close()
    assert not (tmp_path / COMMIT_LOG).exists()


@pytest.mark.parametrize(
    ("born", "wanted", "words"),
    [
        ("plain", "broker", "as a log alone.*without --broker"),
        ("stamped", "broker", "with a state machine.*its --state-machine"),
        ("broker", "plain", "as a broker's.*--broker HOST:PORT"),
    ],
)
def test_a_log_of_another_kind_is_refused_with_what_to_do(tmp_path: Path, born: str, wanted: str, words: str) -> None:
    directory = tmp_path / "dledger-n0"
    open_store(directory, kind=born).close()
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    with pytest.raises(StoreRefused, match=words):
        open_store(directory, kind=wanted)
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    assert (tmp_path / COMMIT_LOG).exists() is (born == "broker")


def test_a_group_is_not_born_beside_a_brokers_messages(tmp_path: Path) -> None:
    (tmp_path / COMMIT_LOG).mkdir()
    (tmp_path / COMMIT_LOG / f"{0:020d}").write_bytes(b"messages")
    with pytest.raises(StoreRefused, match="store adopt"):
        open_store(tmp_path / "dledger-n0", kind="broker")
    assert not (tmp_path / "dledger-n0" / IDENTITY).exists() and not (tmp_path / COMMIT_LOG / OWNER).exists()


# --- the configuration ------------------------------------------------------------------------------------------------
def broker_settings(**changes: object) -> dict[str, object]:
    return {"node.id": "n0", "peers": PEERS, "broker.address": "127.0.0.1:10911", **changes}


def test_a_broker_is_asked_for_by_its_address() -> None:
    assert load(broker_settings(), None, {}).check_node().broker.has_broker
    assert not load({"node.id": "n0", "peers": PEERS}, None, {}).check_node().broker.has_broker


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"node.state_machine": "kv"}, "exclude each other"),
        ({"store.mapped_file_size_for_entry_index_bytes": 1024 * 1024}, "167772160.*leave it out"),
        ({"peers": "a0-127.0.0.1:1;n1-127.0.0.1:2", "node.id": "n1"}, '"a0".*n0, n1'),
        ({"peers": "n01-127.0.0.1:1", "node.id": "n01"}, '"n01"'),
        ({"broker.address": "nowhere"}, "address"),
    ],
)
def test_what_no_broker_group_can_be_like_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(broker_settings(**changes), None, {}).check_node()


# --- places -----------------------------------------------------------------------------------------------------------
def test_a_broker_groups_log_begins_with_a_data_file(tmp_path: Path) -> None:
    meta = EntryMeta(99, 3, 0x1234)
    for pos in (5 * DATA_BYTES + 1000, 5 * DATA_BYTES - 512):
        with pytest.raises(StoreRefused, match="begins with a data file"):
            open_store(tmp_path / "dledger-n0", kind="broker", born_at=Base(meta, pos))
    store = open_store(tmp_path / "dledger-n1", node_id="n1", kind="broker", born_at=Base(meta, 5 * DATA_BYTES))
    with pytest.raises(EntryError, match="begins with a data file"):
        store.begin_behind(Base(EntryMeta(120, 4, 0x77), 7 * DATA_BYTES + 48), record(store, 100))
    store.begin_behind(Base(EntryMeta(120, 4, 0x77), 7 * DATA_BYTES), record(store, 100))
    store.append_as_leader([broker_message()], 4, patch_at=KIND.position_at)
    (entry,) = entries_of(store)
    assert (entry.index, entry.pos, decode_record(entry.body).physical_offset) == (121, 7 * DATA_BYTES, entry.pos + 48)
    store.close()


def test_what_is_trimmed_leaves_a_log_that_begins_with_a_data_file(tmp_path: Path) -> None:
    store = open_store(tmp_path / "dledger-n0", kind="broker")
    for _ in range(40):
        store.append_as_leader([broker_message()] * 5, 1, patch_at=KIND.position_at)
    sync(store)
    store.note_progress(199, 199)
    before = {entry.index: entry for entry in entries_of(store)}
    store.remove_prefix(100)
    assert 0 < store.begin_index <= 101 and store.base_on_record.pos % DATA_BYTES == 0
    after = entries_of(store)
    assert {entry.index: entry for entry in after} == {i: e for i, e in before.items() if i >= store.begin_index}
    assert all(decode_record(entry.body).physical_offset == entry.pos + HEAD_BYTES for entry in after)
    store.close()


def test_a_follower_takes_no_record_to_another_place(tmp_path: Path) -> None:
    leader = open_store(tmp_path / "a" / "dledger-n0", kind="broker")
    follower = open_store(tmp_path / "b" / "dledger-n1", node_id="n1", kind="broker")
    slabs = leader.append_as_leader([broker_message(b"x" * size) for size in range(60)], 1, patch_at=KIND.position_at)
    assert len(slabs) > 2, "over several files"
    follower.append_slab(slabs[0])
    elsewhere = encode_slab(
        [b"other bytes here"], slabs[1].first_index, 1, slabs[0].end_pos + 8, slabs[1].prev_chain or 0
    )
    with pytest.raises(EntryError, match="hold their places"):
        follower.append_slab(elsewhere)
    for slab in slabs[1:]:
        follower.append_slab(slab)
    assert entries_of(follower) == entries_of(leader)
    plain = open_store(tmp_path / "c")
    plain.append_slab(slabs[0])
    plain.append_slab(elsewhere)
    for store in (leader, follower, plain):
        store.close()


# --- back-ups ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("base", "origin_pos"), [(None, 0), (None, 3 * DATA_BYTES), (Base(EntryMeta(99, 1, 0x1234), 5 * DATA_BYTES), 0)],
    ids=["whole", "behind an old commit log", "trimmed"],
)  # fmt: skip
def test_a_back_up_brings_every_record_back_to_its_place(tmp_path: Path, base: Base | None, origin_pos: int) -> None:
    store = open_store(
        tmp_path / "a" / "dledger-n0", kind="broker", group_id=GROUP_ID, born_at=base, origin_pos=origin_pos
    )
    for _ in range(10):
        store.append_as_leader([broker_message()] * 5, 1, patch_at=KIND.position_at)
    commit_all(store)
    made = back_up(tmp_path / "a", tmp_path / "b")
    tried = try_restore(tmp_path / "b", made, tmp_path / "b")
    assert tried is not None and tried.entries == 50
    assert not (tmp_path / "b" / COMMIT_LOG).exists(), "where a restore is tried nobody looks for messages"
    restored = new_group(tmp_path / "b", made, tmp_path / "new")
    for one in restored:
        data = tmp_path / "new" / one.node_id
        again = open_store(data / f"dledger-{one.node_id}", node_id=one.node_id, kind="broker", group="again")
        *kept, members = entries_of(again)
        assert again.files.begin_pos == store.files.begin_pos
        assert kept == entries_of(store) and members.channel == Channel.CONFIG_CHANGE  # those of the new group
        assert (data / COMMIT_LOG / OWNER).is_file()
        again.close()
    store.close()
