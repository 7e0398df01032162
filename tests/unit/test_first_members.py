"""A start with another id, other voters, or a directory that cannot be written: refused at once, with the way out."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from node.config import Settings, load
from node.engine.first_members import refuse_another_id, settle_founders
from node.protocol.codes import VoterState
from node.server import EXIT_CRASHED, EXIT_REFUSED, open_store, run
from node.store.errors import StoreRefused
from node.store.files.platform import OS, OsPlatform

THREE = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"
FIVE = f"{THREE};n3-127.0.0.1:4;n4-127.0.0.1:5"


def settings_of(place: Path, member: str = "n0", peers: str = THREE, **more: object) -> Settings:
    sizes = {
        "store.mapped_file_size_for_entry_data_bytes": 65536,
        "store.mapped_file_size_for_entry_index_bytes": 32 * 1024,
    }
    given = {"node.id": member, "node.data": str(place), "peers": peers, "node.init": True, **sizes}
    return load({**given, **{name.replace("__", "."): value for name, value in more.items()}}, None, {})


def test_another_id_makes_no_second_store_beside_the_first(tmp_path: Path) -> None:
    """The member came up empty, and its entries lay in a directory that nobody looked at any more."""
    store = open_store(settings_of(tmp_path))
    other = settings_of(tmp_path, "n1")
    refuse_another_id(other, OS)  # n0 runs: members may share a directory
    store.close()
    with pytest.raises(StoreRefused, match='set \\[node\\] id back to "n0"'):
        refuse_another_id(other, OS)
    refuse_another_id(settings_of(tmp_path), OS)
    refuse_another_id(settings_of(tmp_path, "n1", node__group="another"), OS)
    refuse_another_id(settings_of(tmp_path / "nowhere", "n1"), OS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dledger-n0"]
    assert run(other) == EXIT_REFUSED
    assert "set [node] id back" in (tmp_path / "engine-refused.json").read_text()
    assert not (tmp_path / "dledger-n1").exists()
    open_store(settings_of(tmp_path / "both", "n0")).close()
    open_store(settings_of(tmp_path / "both", "n1")).close()  # as an earlier release made it
    refuse_another_id(settings_of(tmp_path / "both", "n1"), OS)


def test_a_voter_is_held_to_the_peers_that_its_group_was_born_with(tmp_path: Path) -> None:
    """Two members that counted five voters, beside three who counted three, could elect a leader each."""
    store = open_store(settings_of(tmp_path))
    settle_founders(settings_of(tmp_path), store)
    assert store.hard_state.founders == ("n0", "n1", "n2")
    settle_founders(settings_of(tmp_path, peers=FIVE), store)  # it never voted: a slip may be put right
    assert store.hard_state.founders == ("n0", "n1", "n2", "n3", "n4")
    settle_founders(settings_of(tmp_path), store)
    store.save_hard_state(replace(store.hard_state, voter_state=VoterState.VOTER, term=1))
    settle_founders(settings_of(tmp_path, peers=THREE.replace(":3", ":33")), store)  # elsewhere, and the same member
    with pytest.raises(StoreRefused, match="members add"):
        settle_founders(settings_of(tmp_path, peers=FIVE), store)
    store.close()
    assert run(settings_of(tmp_path, peers=FIVE)) == EXIT_REFUSED
    store = open_store(settings_of(tmp_path))
    assert store.hard_state.founders == ("n0", "n1", "n2")
    store.save_hard_state(replace(store.hard_state, configurations=((3, "whoever is in there"),)))
    settle_founders(settings_of(tmp_path, peers=FIVE), store)  # the log says who belongs to the group
    store.close()


def test_a_voter_of_an_older_release_is_taken_at_its_word(tmp_path: Path) -> None:
    store = open_store(settings_of(tmp_path))
    store.save_hard_state(replace(store.hard_state, voter_state=VoterState.VOTER, term=1))
    settle_founders(settings_of(tmp_path), store)
    assert store.hard_state.founders == ("n0", "n1", "n2")
    store.close()


class Denied(OsPlatform):
    def __init__(self, number: int, name: str) -> None:
        self._number, self._name = number, name

    def open(self, path: Path, flags: int) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY) and path.name == self._name:
            raise OSError(self._number, os.strerror(self._number), str(path))
        return super().open(path, flags)


@pytest.mark.parametrize("name", ["lock", "00000000000000000000", "hardstate.tmp", "quorumscope.checkpoint"])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_directory_that_cannot_be_written_is_refused_with_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, name: str
) -> None:
    """The supervisor started such an engine again for ever, and no line said what would help."""
    store = open_store(settings_of(tmp_path))
    store.append_as_leader([b"an entry"], 1)
    store.save_hard_state(replace(store.hard_state, term=1))
    store.close()
    assert run(settings_of(tmp_path), Denied(number, name)) == EXIT_REFUSED
    said = capfd.readouterr().err
    ways = {"mount", "read-write"} if number == errno.EROFS else {"user"}
    assert os.strerror(number) in said and all(way in said for way in ways), said


def test_what_passes_is_tried_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_store(settings_of(tmp_path)).close()
    assert run(settings_of(tmp_path), Denied(errno.EMFILE, "lock")) == EXIT_CRASHED
    assert os.strerror(errno.EMFILE) in capfd.readouterr().err
