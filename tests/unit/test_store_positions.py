"""The position in a record's head, which no checksum covers, against where the record lies (SAFETY S5, S6)."""

from __future__ import annotations

import shutil
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from node.consensus.effects import MendLog
from node.protocol.entry import INDEX_UNIT, INDEX_UNIT_BYTES, Slab
from node.protocol.messages import FetchRequest
from node.store.errors import StoreCorrupt
from node.store.faults.results import Fault, Mended
from node.store.file_store import FileStore
from node.store.files.checkpoint import CHECKPOINT
from node.store.files.straight import LAYOUT, NOWHERE, read_straight_from
from node.store.reader import StoreReader
from node.store.slab_pieces import straightened, wrong_positions
from tests.unit.core_kit import Solo, store_of
from tests.unit.store_fixtures import fill, open_store, sync
from tests.unit.store_layout import INDEX_BYTES, flip

POS_IN_HEAD = 24
WRONG = (5, 17)  # entries whose position rots


def unit_of(directory: Path, index: int) -> tuple[int, int]:
    """Position and size of an entry, by its index record."""
    path = directory / "index" / f"{index * INDEX_UNIT_BYTES // INDEX_BYTES * INDEX_BYTES:020d}"
    _, pos, size, _, _ = struct.unpack_from(">iqiqq", path.read_bytes(), index * INDEX_UNIT_BYTES % INDEX_BYTES)
    return pos, size


def rot_position(directory: Path, index: int, data_bytes: int = 4096) -> None:
    pos, _ = unit_of(directory, index)
    flip(directory / "data" / f"{pos // data_bytes * data_bytes:020d}", pos % data_bytes + POS_IN_HEAD + 1)


def data_of(directory: Path) -> dict[str, bytes]:
    paths = [path for kind in ("data", "index") for path in sorted((directory / kind).glob("[0-9]*"))]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


def wronged(slab: Slab, *numbers: int) -> Slab:
    """The slab with other positions in the heads of these records."""
    data = bytearray(slab.data)
    for number in numbers:
        pos = struct.unpack_from(">iqiqq", slab.index_records, number * INDEX_UNIT_BYTES)[1]
        struct.pack_into(">q", data, pos - slab.pos + POS_IN_HEAD, pos + 2**46)
    return replace(slab, data=bytes(data))


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    """A sound store of 60 entries, cleanly closed, and what its files say."""
    store = open_store(tmp_path / "store")
    fill(store, 3, 20)
    sync(store)
    store.close()
    return tmp_path / "store", data_of(tmp_path / "store")


@pytest.mark.parametrize("bodies", [[b"x" * 40] * 12, [b"x" * n for n in range(12)], [b"x", b"yy"]])
def test_a_slab_is_held_against_its_index_records(tmp_path: Path, bodies: list[bytes]) -> None:
    store = open_store(tmp_path / "store")
    slab = store.append_as_leader(bodies, 1)[0]
    assert wrong_positions(slab, 0) == [] and straightened(slab, 0) is slab
    bad = wronged(slab, 0, len(bodies) - 1)
    assert wrong_positions(bad, 0) == [0, len(bodies) - 1]
    assert straightened(bad, 0) == slab
    store.close()


def test_a_start_writes_wrong_positions_anew_and_memory_never_holds_them(made: tuple[Path, dict[str, bytes]]) -> None:
    directory, before = made
    for index in WRONG:
        rot_position(directory, index)
    store = open_store(directory)
    assert store.faults == () and any("5, 17" in alarm for alarm in store.alarms)
    assert data_of(directory) == before
    for index in range(60):
        recent = store.recent_slab(index, 4096)
        assert recent is None or wrong_positions(recent, 0) == []
    store.close()
    assert open_store(directory).alarms == ()


def test_what_rots_later_is_never_sent_and_is_mended_by_this_disk_alone(made: tuple[Path, dict[str, bytes]]) -> None:
    directory, before = made
    store = open_store(directory)
    for index in WRONG:
        rot_position(directory, index)
    entry = store.get(WRONG[0])
    assert entry is not None and entry.pos == unit_of(directory, WRONG[0])[0]
    with pytest.raises(StoreCorrupt) as met:
        store.read_slab(WRONG[0], 4096)
    assert {fault.kind for fault in met.value.faults} == {"position_mismatch"}
    store.note_faults(met.value.faults)
    store.note_faults(store.scrub(0, 1 << 20).faults)
    assert [fault.first_index for fault in store.faults] == list(WRONG)
    for index in WRONG:
        assert store.mend_alone(index).healed
    assert store.faults == () and data_of(directory) == before
    store.close()


def test_a_wrong_index_record_is_mended_without_a_peer_and_a_rotten_body_is_not(
    made: tuple[Path, dict[str, bytes]],
) -> None:
    directory, before = made
    store = open_store(directory)
    flip(directory / "index" / f"{0:020d}", 9 * INDEX_UNIT_BYTES + 11)
    pos, size = unit_of(directory, 20)
    flip(directory / "data" / f"{pos // 4096 * 4096:020d}", pos % 4096 + size - 1)
    store.note_faults(store.scrub(0, 1 << 20).faults)
    store.note_faults(store.scrub(10, 1 << 20).faults)
    assert [fault.first_index for fault in store.faults] == [9, 20]
    assert store.mend_alone(9).healed
    rotten = data_of(directory)
    assert store.mend_alone(20) == Mended(19, (), store.faults, store.mend_alone(20).detail)
    assert data_of(directory) == rotten != before and not (directory / "mending").exists()
    store.close()


def test_a_mend_drops_what_memory_holds_of_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    fill(store, 1, 30)
    sync(store)
    assert store.recent_slab(4, 4096) is not None
    rot_position(tmp_path / "store", 4)
    store.note_faults(store.scrub(0, 1 << 20).faults)
    assert store.mend_alone(4).healed
    assert store.recent_slab(4, 4096) is None and store.recent_slab(5, 4096) is not None
    assert store.read_slab(4, 100).first_index == 4
    store.append_as_leader([b"more"], 2)
    assert store.recent_slab(30, 100) is not None and store.recent_slab(3, 4096) is None
    store.close()


def two_of_a_kind(directory: Path) -> tuple[FileStore, FileStore]:
    """A store of 30 entries, and another one that is to have the same."""
    one = open_store(directory / "one")
    fill(one, 1, 30)
    sync(one)
    shutil.copytree(directory / "one", directory / "other")
    (directory / "other" / "lock").unlink(missing_ok=True)
    return one, open_store(directory / "other")


def test_what_a_peer_sends_is_put_right_before_it_is_written(tmp_path: Path) -> None:
    one = open_store(tmp_path / "one")
    other = open_store(tmp_path / "other", node_id="n1")
    for count in (1, 3, 20):
        for slab in one.append_as_leader([b"b" * 20] * count, 1):
            other.append_slab(wronged(slab, *range(slab.count)))
    for store in (one, other):
        sync(store)
    assert data_of(tmp_path / "one") == data_of(tmp_path / "other")
    assert other.recent_slab(0, 100) == one.recent_slab(0, 100)
    one.close()
    other.close()


def test_a_peers_wrong_position_does_not_come_in_with_a_repair(tmp_path: Path) -> None:
    one, other = two_of_a_kind(tmp_path)
    pos, size = unit_of(tmp_path / "other", 8)
    flip(tmp_path / "other" / "data" / f"{pos // 4096 * 4096:020d}", pos % 4096 + size - 1)
    other.note_faults(other.scrub(0, 1 << 20).faults)
    given = one.read_slab(8, 1)
    assert other.mend(wronged(given, 0)).healed
    assert data_of(tmp_path / "one") == data_of(tmp_path / "other")
    one.close()
    other.close()


# --- with a Java heritage -----------------------------------------------------------------------------------------


def java_store(directory: Path, *moved: int) -> Path:
    """60 entries as a Java node leaves them, these with heads that say another position than where they lie."""
    store = open_store(directory)
    fill(store, 3, 20)
    sync(store)
    store.close()
    for index in range(60):
        pos, _ = unit_of(directory, index)
        path = directory / "data" / f"{pos // 4096 * 4096:020d}"
        data = bytearray(path.read_bytes())
        data[pos % 4096 + 36 : pos % 4096 + 44] = bytes(8)  # no seals
        path.write_bytes(data)
    for index in moved:
        rot_position(directory, index)
    for name in ("quorumscope.json", "hardstate", CHECKPOINT):
        (directory / name).unlink()
    return directory


def test_the_border_is_recorded_where_a_java_directory_is_taken_over(tmp_path: Path) -> None:
    for name, moved, border in (("straight", (), 0), ("moved", (4, 30), 31)):
        store = open_store(java_store(tmp_path / name, *moved))
        assert (store.sealed_from, store.files.straight_from) == (60, border)
        before = data_of(tmp_path / name)
        store.append_as_leader([b"ours"] * 10, 4)
        sync(store)
        store.close()
        kept = data_of(tmp_path / name)
        assert kept != before
        for index in (border, 45, 65):  # below, at and behind the seals; all above the border
            rot_position(tmp_path / name, index)
        found = [(one.kind, one.index) for one in StoreReader(tmp_path / name).verify().problems]
        assert {(kind, at) for kind, at in found if at in (border, 45, 65)} == {
            ("position_mismatch", at) for at in (border, 45, 65)
        }
        again = open_store(tmp_path / name)
        again.note_faults(again.scrub(0, 1 << 20).faults)
        for fault in again.faults:
            again.mend_alone(fault.first_index)
        assert again.files.straight_from == border and not again.faults
        again.close()
        assert data_of(tmp_path / name) == kept, "what was moved stays, what rotted is put right"


def test_a_heritage_whose_layouts_agree_puts_right_what_comes_in(tmp_path: Path) -> None:
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other", node_id="n1")
    other.files.sealed_from = 10
    slab = one.append_as_leader([b"b" * 20] * 9, 1)[0]
    other.append_slab(wronged(slab, 3))
    assert other.recent_slab(0, 1 << 20) == slab
    one.close()
    other.close()


def test_a_heritage_whose_layouts_differ_keeps_the_bytes_of_its_heads(tmp_path: Path) -> None:
    """Where the leader's record lies elsewhere the index record alone says where ours does (S5), from then on."""
    one, other = open_store(tmp_path / "one"), open_store(tmp_path / "other", node_id="n1")
    other.files.sealed_from = 5
    first, second = (one.append_as_leader([b"b" * 20] * 4, 1)[0] for _ in range(2))
    other.append_slab(first)
    assert other.files.straight_from == 0
    elsewhere = replace(second, pos=second.pos + 512, index_records=_moved(second.index_records, 512))
    other.append_slab(elsewhere)
    assert other.files.straight_from == NOWHERE
    held = other.recent_slab(4, 1 << 20)
    assert held is not None and held.data == second.data and held.index_records == second.index_records
    sync(other)
    assert read_straight_from(tmp_path / "other", 5) == NOWHERE, "durable before the entries count as durable"
    other.append_slab(wronged(one.append_as_leader([b"b" * 20] * 4, 1)[0], 1))
    held = other.recent_slab(8, 1 << 20)
    assert held is not None and wrong_positions(held, 0) == [1], "kept as it came"
    one.close()
    other.close()


def _moved(units: bytes, by: int) -> bytes:
    return b"".join(INDEX_UNIT.pack(magic, pos + by, *rest) for magic, pos, *rest in INDEX_UNIT.iter_unpack(units))


def test_an_older_releases_heritage_has_its_border_at_its_end(tmp_path: Path) -> None:
    open_store(java_store(tmp_path / "s", 4)).close()
    (tmp_path / "s" / LAYOUT).unlink()
    rot_position(tmp_path / "s", 50)
    before = data_of(tmp_path / "s")
    store = open_store(tmp_path / "s")
    assert store.files.straight_from == 60 and store.alarms == () and data_of(tmp_path / "s") == before
    store.close()
    raw = bytearray((tmp_path / "s" / LAYOUT).read_bytes())
    raw[3] ^= 1
    (tmp_path / "s" / LAYOUT).write_bytes(raw)
    store = open_store(tmp_path / "s")
    assert store.files.straight_from == 60, "a file that is not to be believed is written anew"
    store.close()


def test_a_store_without_a_heritage_has_no_border_on_disk(made: tuple[Path, dict[str, bytes]]) -> None:
    assert not (made[0] / LAYOUT).exists()


def test_verify_names_every_wrong_position_of_a_store_without_a_heritage(made: tuple[Path, dict[str, bytes]]) -> None:
    directory, _ = made
    for index in (5, 6, 7):  # shifted alike, as a heritage would be
        rot_position(directory, index)
    found = [(one.kind, one.index, one.end) for one in StoreReader(directory).verify().problems]
    assert found == [("position_mismatch", 5, 7)]


# --- the core -----------------------------------------------------------------------------------------------------


def test_this_disk_is_tried_before_any_peer_is_asked() -> None:
    store = store_of([1, 1, 1, 1])
    store.mends_alone = True
    solo = Solo(store)
    store.rot(2)
    solo.replica.disk.log_damaged([Fault(2, 2, "position_mismatch", "")], solo.now)
    solo.take()
    assert solo.effects.mend == MendLog(0, None, 2)
    solo.tick(100)
    assert solo.effects.mend is None
    assert not [one for _, one in solo.sent if isinstance(one, FetchRequest)]
    solo.replica.disk.mended(0, Mended(1, (), store.faults, "its body does not match its CRC"), "", solo.now)
    asked = [one for _, one in solo.take() if isinstance(one, FetchRequest)]
    assert [(one.first_index, one.last_index) for one in asked] == [(2, 2)]
