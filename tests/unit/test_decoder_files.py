"""Small files with content that nobody wrote: refused by name, never taken for something else."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from node.config import ConfigError, load
from node.control.entry_pages import JSON_DEPTH_MAX, entry_json
from node.protocol.codes import VoterState
from node.protocol.entry import TERM_MAX, Entry, crc32
from node.store.errors import StoreRefused
from node.store.files.checkpoint import Slot, pack_slot, unpack_slot
from node.store.files.hard_state import (
    CURRTERM,
    HARDSTATE,
    adopt_currterm,
    format_currterm,
    hard_state_to_json,
    load_hard_state,
    parse_currterm,
    with_new_life,
)
from node.store.files.identity import BASE, IDENTITY, Identity, read_base, read_identity, write_identity
from node.store.files.os_files import pack_sealed_json
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import HardState

STATE = HardState(7, "n1", VoterState.VOTER, 3, {"n1": "s1"}, ("l1", "l2"), {"n1": "l9"}, "s7", "group-id", 6)
META = {
    "by": "n0", "leader": "n1", "term": 3, "from_index": 5, "to_index": 9, "reason": "conflict", "committed_at": 4,
    "time": "2026-01-01T00:00:00Z",
}  # fmt: skip
IDENTITY_FIELDS = {
    "group": "g", "node_id": "n0", "store_id": "s", "data_file_size": 4096, "index_file_size": 1024, "sealed_from": 0,
}  # fmt: skip


@pytest.mark.parametrize("term", ["\u00b2", "\u0663", "9" * 5000, str(TERM_MAX + 1), "-1", "1_000", " "])
def test_a_currterm_that_is_no_term_says_none(tmp_path: Path, term: str) -> None:
    raw = f"voteLeader=n1\ncurrTerm={term}\n".encode()
    assert parse_currterm(raw) is None
    (tmp_path / CURRTERM).write_bytes(raw)
    with pytest.raises(StoreRefused, match=r"says no term.*store repair DIR"):
        adopt_currterm(tmp_path, has_entries=True)
    (tmp_path / HARDSTATE).write_bytes(pack_sealed_json(hard_state_to_json(STATE)))
    found = load_hard_state(tmp_path, has_entries=True)
    assert found is not None
    assert (found.term, found.voted_for, found.vote_floor) == (7, None, 7)


def test_a_hard_state_of_version_1_is_read_and_the_oldest_lives_are_dropped(tmp_path: Path) -> None:
    known = ("term", "voted_for", "voter_state", "vote_floor", "store_ids")
    old = {name: value for name, value in hard_state_to_json(STATE).items() if name in known}
    (tmp_path / HARDSTATE).write_bytes(pack_sealed_json(old))
    (tmp_path / "currterm").write_bytes(format_currterm(7, "n1"))
    found = load_hard_state(tmp_path, has_entries=True)
    assert found == HardState(7, "n1", VoterState.VOTER, 3, {"n1": "s1"})
    for number in range(70):
        found = with_new_life(found, f"l{number}")
    assert (found.life_ids[0], found.life_ids[-1], len(found.life_ids)) == ("l6", "l69", 64)


@pytest.mark.parametrize(
    "change",
    [
        {"term": -1}, {"term": "7"}, {"term": 1 << 63}, {"term": None}, {"voted_for": 3}, {"voter_state": "KING"},
        {"vote_floor": 1.5}, {"store_ids": []}, {"store_ids": None}, {"life_ids": "l"},
        {"life_ids": [1]}, {"peer_lives": []}, {"store_id": 1}, {"group_id": []}, {"marks_from": "6"},
    ],
)  # fmt: skip
def test_a_hard_state_of_another_format_is_refused_with_what_to_do(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / HARDSTATE).write_bytes(pack_sealed_json(hard_state_to_json(STATE) | change))
    with pytest.raises(StoreRefused, match=r"hardstate is of another format.*--set-term"):
        load_hard_state(tmp_path, has_entries=True)


@pytest.mark.parametrize(
    "change",
    [
        {"data_file_size": 0}, {"data_file_size": "4096"}, {"index_file_size": 33}, {"index_file_size": -32},
        {"sealed_from": "x"}, {"sealed_from": 1 << 64}, {"group": 1}, {"store_id": None}, {"data_file_size": True},
    ],
)  # fmt: skip
def test_a_damaged_identity_is_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / IDENTITY).write_text(json.dumps(IDENTITY_FIELDS | change))
    with pytest.raises(StoreRefused, match=r"quorumscope\.json is of another format|file sizes"):
        read_identity(tmp_path)


def test_no_flipped_bit_makes_another_identity(tmp_path: Path) -> None:
    """Another store id would look like a wiped disk to the peers; an earlier version wrote no CRC."""
    identity = Identity(**IDENTITY_FIELDS)
    write_identity(tmp_path, identity)
    sound = (tmp_path / IDENTITY).read_bytes()
    for at in range(len(sound)):
        for bit in range(8):
            (tmp_path / IDENTITY).write_bytes(sound[:at] + bytes([sound[at] ^ (1 << bit)]) + sound[at + 1 :])
            try:
                assert read_identity(tmp_path) == identity
            except StoreRefused as refused:
                assert IDENTITY in str(refused) or "file sizes" in str(refused)
    (tmp_path / IDENTITY).write_text(json.dumps(IDENTITY_FIELDS))
    assert read_identity(tmp_path) == identity


BASE_FIELDS = {"index": 1, "term": 1, "chain": 0, "pos": 0}


@pytest.mark.parametrize("value", [{}, {"index": 1}, BASE_FIELDS | {"index": "1"}, BASE_FIELDS | {"pos": -1}])
def test_a_base_of_another_format_is_refused_by_name(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / BASE).write_bytes(pack_sealed_json(value))
    with pytest.raises(StoreRefused, match="base is of another format"):
        read_base(tmp_path)


def test_a_slot_whose_boot_is_no_text_is_no_slot() -> None:
    raw = pack_slot(Slot(boot_id="boot"))[:-4].replace(b"boot", b"b\xff\xfe\xfd")
    assert unpack_slot(raw + struct.pack(">I", crc32(raw))) is None


@pytest.mark.parametrize(
    "content",
    [b"[]", b"{}", b"7", b"\xff", b"[" * 100_000, json.dumps({**META, "term": "3"}).encode(),
     json.dumps({**META, "by": 1}).encode(), json.dumps({**META, "to_index": 1 << 70}).encode()],
)  # fmt: skip
def test_an_archive_with_a_damaged_meta_keeps_its_bytes_and_its_number(tmp_path: Path, content: bytes) -> None:
    for seq, meta in ((1, content), (2, json.dumps(META).encode())):
        folder = tmp_path / "truncated" / f"{seq:010d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_bytes(meta)
        (folder / "data").write_bytes(b"bytes")
    (tmp_path / "truncated" / "\u00b2").mkdir()
    archive = TruncationArchive(tmp_path)
    assert [one.seq for one in archive.records()] == [2]
    assert (archive.count, archive.data(1)) == (2, b"bytes")


@pytest.mark.parametrize("content", [b"[node]\nid = " + b"9" * 5000, b"a = " + b"[" * 5000, b"\xff"])
def test_a_configuration_nobody_can_parse_is_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "q.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"q\.toml"):
        load({}, path, {})


@pytest.mark.parametrize(
    "body", [b"NaN", b"[1e400]", b'"\\ud800"', b'{"\\udfff": 1}', b"-Infinity", b"[" * 65 + b"]" * 65, b"9" * 5000]
)
def test_a_body_that_no_json_answer_can_carry_is_shown_as_base64(body: bytes) -> None:
    shown = entry_json(Entry(1, 5, 1, 0, body), "json")
    assert (shown["as"], shown["note"]) == ("base64", "the body is not json")


def test_a_body_nested_as_deep_as_allowed_is_shown() -> None:
    body = b"[" * JSON_DEPTH_MAX + b"]" * JSON_DEPTH_MAX
    assert entry_json(Entry(1, 5, 1, 0, body), "json")["as"] == "json"
