"""Where a store keeps who belongs to the group: hard state, base, and the log's own entries (SAFETY M1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from node.consensus.api import ReplicaConfig
from node.consensus.configurations import Configurations
from node.protocol.codes import VoterState
from node.protocol.entry import Magic
from node.protocol.group_members import GroupMembers
from node.store.file_store import FileStore
from node.store.files.hard_state import HARDSTATE
from node.store.files.identity import read_base
from node.store.files.platform import OS
from node.store.log_store import HardState
from node.store.repair.actions import discard_from, set_term
from node.store.repair.reset_term import reset_term
from tests.unit.core_kit import PEERS

FILE_BYTES = 4096
FIRST = GroupMembers({"n0": "", "n1": "", "n2": ""}, {"n3": "127.0.0.1:20914"}).body("a").decode()
SECOND = GroupMembers({"n0": "", "n1": "", "n3": "127.0.0.1:20914"}).body("b").decode()


def opened(directory: Path) -> FileStore:
    return FileStore.open(
        directory, group="g", node_id="n0", data_file_size=FILE_BYTES, index_file_size=1024, init=True,
    )  # fmt: skip


def filled(directory: Path) -> tuple[FileStore, tuple[tuple[int, str], ...]]:
    """A log in which the members changed twice, long ago and lately, on record as a member does it."""
    store = opened(directory)
    records: tuple[tuple[int, str], ...] = ()
    for body in (FIRST, SECOND):
        for number in range(40):
            store.append_as_leader([b"%d" % number * 100], 1)
        records = (*records, (store.end_index + 1, body))
        store.append_as_leader([body.encode()], 1, Magic.CONFIG_CHANGE)
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.note_progress(store.end_index, store.end_index)
    store.save_hard_state(replace(store.hard_state, term=1, configurations=records))
    return store, records


def test_the_hard_state_keeps_them(tmp_path: Path) -> None:
    store, records = filled(tmp_path / "s")
    store.close()
    store = opened(tmp_path / "s")
    assert store.hard_state.configurations == records
    store.close()


def test_the_base_keeps_those_whose_entry_is_removed(tmp_path: Path) -> None:
    store, records = filled(tmp_path / "s")
    store.remove_prefix(store.end_index)
    begin = store.begin_index
    assert records[0][0] < begin <= store.end_index
    store.close()
    base = read_base(tmp_path / "s")
    expected = [record for record in records if record[0] < begin][-1]
    assert base is not None and base.members == expected
    (tmp_path / "s" / HARDSTATE).unlink()
    set_term(tmp_path / "s", 1, OS)
    store = opened(tmp_path / "s")
    assert store.hard_state.configurations[-1][1] == SECOND
    store.close()


def test_a_lost_hard_state_is_made_anew_with_what_the_log_says(tmp_path: Path) -> None:
    store, records = filled(tmp_path / "s")
    store.close()
    (tmp_path / "s" / HARDSTATE).unlink()
    set_term(tmp_path / "s", 1, OS)
    store = opened(tmp_path / "s")
    assert store.hard_state.configurations == records
    store.close()


def test_a_cut_of_what_the_log_says_brings_back_the_members_at_the_base(tmp_path: Path) -> None:
    """Where a lost hard state was made anew of the log, and the entry that says who belonged to it before is gone."""
    store, records = filled(tmp_path / "s")
    store.remove_prefix(store.end_index)
    assert records[0][0] < store.begin_index <= records[1][0]
    store.close()
    (tmp_path / "s" / HARDSTATE).unlink()
    set_term(tmp_path / "s", 1, OS)
    store = opened(tmp_path / "s")
    configurations = Configurations(ReplicaConfig("g", "n0", PEERS), store)
    assert configurations.in_effect.voters.keys() == {"n0", "n1", "n3"}
    assert configurations.cut(records[1][0]) and configurations.in_effect.learners.keys() == {"n3"}
    configurations.committed(records[1][0] - 1, store.durable_index)
    assert configurations.records == records[:1]
    store.close()


@pytest.mark.parametrize("repair", ["discard", "reset"])
def test_a_repair_that_cuts_the_newest_change_brings_back_the_one_before(tmp_path: Path, repair: str) -> None:
    """The hard state names the newest committed one alone; members that left long ago must not be voters again."""
    store, records = filled(tmp_path / "s")
    if repair == "reset":
        third = SECOND.replace('"b"', '"c"')
        store.append_as_leader([third.encode()], 5, Magic.CONFIG_CHANGE)
        records = (*records, (store.end_index, third))
    hard = HardState(store.end_term, None, VoterState.VOTER, configurations=records[-1:])
    store.save_hard_state(hard)
    store.close()
    if repair == "reset":
        reset_term(tmp_path / "s", 1, "a-token-of-this-group", OS)
    else:
        discard_from(tmp_path / "s", records[-1][0] - 5, OS)
    store = opened(tmp_path / "s")
    assert store.end_index < records[-1][0]
    in_effect = Configurations(ReplicaConfig("g", "n0", PEERS), store).in_effect
    assert (in_effect.index, in_effect.members.keys() - PEERS.keys()) == (records[-2][0], {"n3"})
    store.close()
