"""`store recover-members`: the group goes on with its survivors, and those that were lost never make a second one."""

from __future__ import annotations

import errno
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.protocol.codes import ResponseCode, VoterState
from node.protocol.entry import Magic
from node.protocol.group_members import GroupMembers, members_in
from node.protocol.messages import Hello
from node.store.errors import StoreError, StoreFull, StoreRefused
from node.store.file_store import FileStore
from node.store.files.identity import Base, read_base, write_base
from node.store.files.platform import OS
from node.store.log_store import EntryMeta, HardState
from node.store.reader import StoreReader
from node.store.repair.command import main, perform
from node.store.repair.recover_members import Wanted, new_group_id, recover_members
from node.store.repair.report import Report
from node.transport.bodies import decode_response, encode_message
from tests.unit.core_kit import Leader, Solo, alone, store_of
from tests.unit.store_fixtures import fill
from tests.unit.store_layout import DATA_BYTES, INDEX_BYTES
from tests.unit.store_repair_fixtures import damage, everything
from tests.unit.test_backup_crash_points import Crashed as Killed
from tests.unit.test_backup_cut_short import Refusing

OLD_ID, TOKEN = "0" * 32, "after-the-fire"
NEW_ID = new_group_id(TOKEN, "g", ["n0"])
FIVE = ("n0", "n1", "n2", "n3", "n4")
STORES = {one: f"store of {one}" for one in FIVE}


def opened(directory: Path, node_id: str) -> FileStore:
    return FileStore.open(
        directory, group="g", node_id=node_id, data_file_size=DATA_BYTES, index_file_size=INDEX_BYTES, init=True,
    )  # fmt: skip


def survivor(tmp_path: Path, node_id: str, per_term: int, *, term: int = 5, committed: int = 19, **hard: Any) -> Path:
    """A stopped voter of a group of five: entries of terms 1 to 3."""
    directory = tmp_path / node_id / f"dledger-{node_id}"
    store = opened(directory, node_id)
    fill(store, 3, per_term)
    others = {one: store_id for one, store_id in STORES.items() if one != node_id}
    state = HardState(term, "n1", VoterState.VOTER, 1, others, group_id=OLD_ID)
    store.save_hard_state(replace(state, **hard))
    store.note_progress(committed, committed)
    store.close()
    return directory


def state_of(directory: Path, node_id: str) -> tuple[HardState, int, GroupMembers | None]:
    """Its hard state, its log's end, and what its last entry says of the members."""
    store = opened(directory, node_id)
    try:
        last = store.get(store.end_index)
        assert last is not None
        named = members_in(last.body) if last.magic == Magic.CONFIG_CHANGE else None
        return store.hard_state, store.end_index, named
    finally:
        store.close()


def recover(
    directory: Path, *kept: str, token: str = TOKEN, log_of: str | None = None, dry_run: bool = False
) -> Report:
    wanted = Wanted(kept, (), token, log_of)
    return perform(lambda at, platform: recover_members(at, wanted, platform), directory, dry_run=dry_run)


def test_a_lone_survivor_goes_on_alone_and_says_before_what_may_be_lost(tmp_path: Path) -> None:
    directory = survivor(tmp_path, "n0", 20, committed=49)
    before = everything(directory)
    said = recover(directory, "n0", dry_run=True)
    assert everything(directory) == before, "a dry run changes nothing"
    lost = "\n".join(said.may_be_lost)
    assert "Nothing up to entry 49" in lost and "Entries 50..59: uncertain here" in lost
    assert "Every entry above 59 that only n1, n2, n3, n4 had" in lost
    assert any("--keep n0=5:3:59" in line for line in said.next)
    done = recover(directory, "n0")
    assert done.archived and done.may_be_lost == said.may_be_lost
    hard, end, named = state_of(directory, "n0")
    assert named is not None and (end, list(named.voters), named.ended) == (60, ["n0"], (OLD_ID,))
    assert dict(named.removed) == {one: STORES[one] for one in FIVE[1:]}
    assert (hard.term, hard.vote_floor, hard.voted_for, hard.group_id) == (6, 6, None, NEW_ID)
    archived = [path.read_bytes() for path in (directory / "truncated").rglob("data")]
    assert any(OLD_ID.encode() in one for one in archived)


def test_it_leads_alone_and_all_of_its_log_is_committed(tmp_path: Path) -> None:
    directory = survivor(tmp_path, "n0", 20, committed=49)
    recover(directory, "n0")
    store = opened(directory, "n0")
    birth = {one: f"127.0.0.1:{20911 + number}" for number, one in enumerate(FIVE)}
    replica = alone(store, birth)
    assert replica.term > 6 and replica.committed_index >= 61
    assert list(replica.configuration.voters) == ["n0"] and store.hard_state.group_id == NEW_ID
    assert not store.hard_state.store_ids, "what is on record of the others protects nothing any more"
    store.close()


def test_of_several_survivors_the_newest_log_goes_on_and_the_others_follow(tmp_path: Path) -> None:
    newer, older = survivor(tmp_path, "n0", 20, term=5), survivor(tmp_path, "n3", 18, term=7)
    kept = ("n0=5:3:59", "n3=7:3:53")
    said = recover(older, *kept)
    assert "The newest is that of n0" in "\n".join(said.notes)
    recover(newer, *kept)
    hard, end, named = state_of(newer, "n0")
    assert named is not None and sorted(named.voters) == ["n0", "n3"] and (end, hard.term) == (60, 8)
    hard, end, named = state_of(older, "n3")
    new_id = new_group_id(TOKEN, "g", ["n0", "n3"])
    assert (named, end, hard.term, hard.vote_floor, hard.group_id) == (None, 53, 8, 8, new_id)


def test_a_shorter_log_goes_on_only_where_that_is_asked_for(tmp_path: Path) -> None:
    newer, older = survivor(tmp_path, "n0", 20, committed=50), survivor(tmp_path, "n3", 18)
    kept = ("n0=5:3:59", "n3=5:3:53")
    recover(older, *kept)
    assert state_of(older, "n3")[2] is None
    again = ("n0=5:3:59", "n3=6:3:53")
    said = recover(older, *again, token="once-more", log_of="n3")
    assert "The newest is that of n0" in "\n".join(said.notes) and state_of(older, "n3")[2] is not None
    said = recover(newer, *again, token="once-more", log_of="n3")
    assert "What this log has more than that of n3 (entry 53 of term 3), up to entry 59" in "\n".join(said.may_be_lost)


@pytest.mark.parametrize(
    ("kept", "log_of"),
    [(("n3=5:3:59",), None), (("n2=5:3:9", "n3=5:3:59"), None), (("n0=5:3:59", "n3=5:3:59"), "n3")],
)
def test_two_that_both_go_on_append_no_two_entries_of_one_term(
    tmp_path: Path, kept: tuple[str, ...], log_of: str | None
) -> None:
    """Different lines make different groups; or the entries at one place are told apart by their terms (R7)."""
    one, other = survivor(tmp_path, "n0", 20), survivor(tmp_path, "n3", 20)
    recover(one, "n0=5:3:59", "n3=5:3:59")
    recover(other, *kept, log_of=log_of)
    (hard, end, named), (other_hard, other_end, other_named) = state_of(one, "n0"), state_of(other, "n3")
    assert end == other_end and named is not None and other_named is not None
    assert (hard.group_id == other_hard.group_id) == (named.ids == other_named.ids)
    assert hard.group_id != other_hard.group_id or hard.term != other_hard.term


def test_a_log_that_lacks_what_is_committed_never_goes_on(tmp_path: Path) -> None:
    directory = survivor(tmp_path, "n0", 20, committed=54)
    before = everything(directory)
    for said, log_of in (("n3=5:3:53", "n3"), ("n3=5:4:53", None)):
        with pytest.raises(StoreRefused, match="up to 54 are known here to be committed, and the log of n3 ends at 53"):
            recover(directory, "n0", said, log_of=log_of)
    assert everything(directory) == before


@pytest.mark.parametrize(
    ("kept", "token", "why"),
    [
        (("n1=5:3:59",), TOKEN, "this is n0's store"),
        (("n0", "n9=5:3:1"), TOKEN, "n9 is no member"),
        (("n0=5:3:58",), TOKEN, "this member is n0=5:3:59, not n0=5:3:58"),
        (("n0", "n1"), TOKEN, r"what does the log of n1 hold\?.*--keep n0=5:3:59"),
        (("n0", "n1=5:3:9"), "", "one --group-token"),
        (("n0", "n0"), TOKEN, "twice"),
        (("n0", "n1=x"), TOKEN, "TERM:END_TERM:END"),
        (("n0", "n1=-5:3:9"), TOKEN, "no member has such"),
        (("n0", "n 1"), TOKEN, "no member id"),
        (("n0", "n1=5:3:9", "n2=5:3:9"), TOKEN, "n0, n1, n2: that is a majority of the voters"),
        (("n0",), "short", "no group token"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    tmp_path: Path, kept: tuple[str, ...], token: str, why: str
) -> None:
    directory = survivor(tmp_path, "n0", 20)
    before = everything(directory)
    with pytest.raises(StoreRefused, match=why):
        recover(directory, *kept, token=token)
    assert everything(directory) == before


def test_only_a_whole_voter_goes_on_for_the_others(tmp_path: Path) -> None:
    rejoining = survivor(tmp_path, "n0", 20, voter_state=VoterState.REJOINING)
    with pytest.raises(StoreRefused, match=r"this member is REJOINING.*--accept-loss"):
        recover(rejoining, "n0")
    damaged = survivor(tmp_path, "n1", 20)
    damage(damaged, 7)
    with pytest.raises(StoreRefused, match="Entry 7: damaged"):
        recover(damaged, "n1")


def test_the_same_again_says_that_it_is_done(tmp_path: Path) -> None:
    alone = survivor(tmp_path, "n4", 20)
    recover(alone, "n4")
    newer, older = survivor(tmp_path, "n0", 20), survivor(tmp_path, "n3", 18)
    kept = ("n0=5:3:59", "n3=5:3:53")
    for directory in (newer, older):
        recover(directory, *kept)
    for directory, line in ((alone, ("n4",)), (newer, kept), (older, ("n0=5:3:59", "n3=6:3:53"))):
        before = everything(directory)
        with pytest.raises(StoreRefused, match=r"is done.*start this member"):
            recover(directory, *line)
        assert everything(directory) == before


@pytest.mark.parametrize("token", [TOKEN, "another-token"])
@pytest.mark.parametrize("ends", [StoreFull("no room"), RuntimeError("the power went")])
def test_one_that_ended_in_the_middle_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: Exception, token: str
) -> None:
    """And the id that it ends is the one that the lost members have, not that of the first try."""
    directory = survivor(tmp_path, "n0", 20)
    write_base(directory, Base(EntryMeta(-1, -1, 0), 0, OLD_ID))
    wanted = Wanted(("n0",), (), TOKEN)

    def fails(*_: object) -> None:
        raise ends

    with monkeypatch.context() as broken:
        broken.setattr(FileStore, "append_as_leader", fails)
        with pytest.raises(type(ends)):
            recover_members(directory, wanted, OS)
    hard, end, named = state_of(directory, "n0")
    assert named is None and end == 59
    if isinstance(ends, StoreFull):
        base = read_base(directory)
        assert hard.group_id == OLD_ID and base is not None and base.group_id == OLD_ID
    said = recover(directory, "n0", token=token)
    assert any(f"They still have the id {OLD_ID}" in line for line in said.notes)
    hard, end, named = state_of(directory, "n0")
    assert named is not None and (end, list(named.voters), named.ended) == (60, ["n0"], (OLD_ID,))
    base = read_base(directory)
    assert base is not None and base.group_id == hard.group_id == new_group_id(token, "g", ["n0"])


@pytest.mark.parametrize("token", [TOKEN, "another-token"])
@pytest.mark.parametrize("kept", [("n0",), ("n0=5:3:59", "n3=5:3:60")])
def test_one_that_ended_in_the_middle_and_was_started_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: tuple[str, ...], token: str
) -> None:
    """The start forgot the entry that never came, and with it which id the lost members have."""
    directory = survivor(tmp_path, "n0", 20)
    with monkeypatch.context() as broken:
        broken.setattr(FileStore, "append_as_leader", fails)
        with suppress(RuntimeError):  # where another log goes on, nothing is appended here
            recover_members(directory, Wanted(kept, (), TOKEN), OS)
    store = opened(directory, "n0")
    replica = alone(store, {one: f"127.0.0.1:{20911 + number}" for number, one in enumerate(FIVE)})
    assert store.hard_state.configurations == () and replica.configuration.index == -1
    store.close()
    said = recover(directory, "n0", token=token)
    assert any(f"They still have the id {OLD_ID}" in line for line in said.notes)
    hard, _end, named = state_of(directory, "n0")
    assert named is not None and (list(named.voters), named.ended) == (["n0"], (OLD_ID,))
    assert hard.group_id == new_group_id(token, "g", ["n0"])


def fails(*_: object) -> None:
    raise RuntimeError("the power went")


def test_a_survivor_that_followed_a_lost_one_knows_the_id_that_was_replaced(tmp_path: Path) -> None:
    """The one whose log was to go on is lost before anybody heard of its entry."""
    directory = survivor(tmp_path, "n3", 18)
    recover(directory, "n0=5:3:59", "n3=5:3:53")
    said = recover(directory, "n3", token="another-token")
    assert any(f"They still have the id {OLD_ID}" in line for line in said.notes)
    named = state_of(directory, "n3")[2]
    assert named is not None and (list(named.voters), named.ended) == (["n3"], (OLD_ID,))


@pytest.mark.parametrize("old_id", [OLD_ID, None])
@pytest.mark.parametrize("how", [errno.ENOSPC, errno.EIO, 0])
def test_one_that_ends_at_any_step_can_be_given_again(tmp_path: Path, how: int, old_id: str | None) -> None:
    """The disk refuses a step, or the process is killed at it; then it is given again, or says that it was done."""
    before = survivor(tmp_path / "before", "n0", 20, group_id=old_id)
    write_base(before, Base(EntryMeta(-1, -1, 0), 0, old_id))
    ended = () if old_id is None else (old_id,)
    directory = tmp_path / "n0" / before.name
    done, at = False, -2
    while not done:
        at += 3
        shutil.rmtree(directory.parent, ignore_errors=True)
        shutil.copytree(before, directory)
        platform = Refusing(at, how)
        with suppress(Killed, StoreError, OSError):
            recover_members(directory, Wanted(("n0",), (), TOKEN), platform)
            done = platform.left > 0
        platform.end()
        with suppress(StoreRefused):  # the entry is there already
            recover(directory, "n0")
        hard, end, named = state_of(directory, "n0")
        assert named is not None and (list(named.voters), named.ended, end) == (["n0"], ended, 60), at
        assert hard.group_id == NEW_ID and hard.vote_floor == hard.term, at
        assert StoreReader(directory).verify().problems == [], at
    assert at > 15


def test_the_log_says_who_belonged_to_it_and_not_what_never_came(tmp_path: Path) -> None:
    """A configuration that the hard state names and the log does not hold never was (M1)."""
    directory = survivor(tmp_path, "n0", 20)
    store = opened(directory, "n0")
    held = GroupMembers({"n0": "", "n1": "", "n5": "127.0.0.1:7"}).body("a").decode()
    store.append_as_leader([held.encode()], 3, Magic.CONFIG_CHANGE)
    never = GroupMembers({"n0": ""}).body("b").decode()
    store.save_hard_state(replace(store.hard_state, configurations=((60, held), (61, never))))
    store.close()
    said = recover(directory, "n0", dry_run=True)
    assert any("n0, n1, n5" in line and "entry 60" in line for line in said.notes)
    with pytest.raises(StoreRefused, match=r"n2 is no member: n0, n1, n5 are, by entry 60"):
        recover(directory, "n0", "n2=5:3:9")


def test_of_the_birth_it_knows_whom_it_met_and_whom_the_configuration_names(tmp_path: Path) -> None:
    directory = survivor(tmp_path, "n0", 20, store_ids={"n1": "s1"})
    kept = ("n0=5:3:59", "n1=5:3:50")
    with pytest.raises(StoreRefused, match=r"n0, n1: that is a majority.*--peers names them all"):
        recover(directory, *kept)
    wanted = Wanted(kept, FIVE, TOKEN)
    perform(lambda at, platform: recover_members(at, wanted, platform), directory, dry_run=False)
    named = state_of(directory, "n0")[2]
    assert named is not None and sorted(named.voters) == ["n0", "n1"]


def test_the_line_for_every_survivor_names_all_that_it_needs(tmp_path: Path) -> None:
    directory = survivor(tmp_path, "n0", 20)
    kept = ("n0=5:3:59", "n3=7:3:53")
    line = f"--keep {kept[0]} --keep {kept[1]} --group-token TOKEN --yes"
    assert recover(directory, *kept, dry_run=True).next[0].endswith(f"recover-members DIR {line}")
    wanted = Wanted(kept, FIVE, TOKEN)
    said = perform(lambda at, platform: recover_members(at, wanted, platform), directory, dry_run=True)
    assert said.next[0].startswith("The same on every survivor, PEERS as here: ")
    assert said.next[0].endswith(line.replace(" --group", " --peers PEERS --group"))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = survivor(tmp_path, "n0", 20)
    assert main([str(directory), "--keep", "n0", "--json", "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    assert main([str(directory), "--keep", "n0"]) == 0, "without a token an id is drawn"
    hard, _end, named = state_of(directory, "n0")
    assert named is not None and hard.group_id not in (None, OLD_ID)
    with pytest.raises(SystemExit):
        main([str(directory), "--log-of", "n0"])


# --- those that were lost -------------------------------------------------------------------------------------------
RECOVERED = GroupMembers({"n0": ""}, ended=(OLD_ID,), removed={"n1": "s1"})


def survivor_asked_by(node_id: str, named: GroupMembers) -> tuple[Solo, Hello]:
    """n0, whose log ends with that configuration, and its answer to a HELLO with the group's old id: it ended."""
    body = named.body("x").decode()
    store = store_of((1,), group_id=NEW_ID)
    store.append_as_leader([body.encode()], 2, Magic.CONFIG_CHANGE)
    store.save_hard_state(replace(store.hard_state, configurations=((1, body),)))
    solo = Solo(store, connect=False)
    sent = solo.receive(node_id, solo.hello_of(node_id, answer=False, group_id=OLD_ID))
    (answer,) = [message for _to, message in sent if isinstance(message, Hello)]
    assert (answer.code, answer.ended) == (ResponseCode.UNKNOWN_GROUP, True)
    return solo, answer


def test_the_survivors_refuse_the_old_id_and_say_that_the_group_went_on() -> None:
    solo, answer = survivor_asked_by("n1", RECOVERED)
    assert "went on without n1" in str(answer.detail)
    ((_to, other),) = solo.receive("n1", solo.hello_of("n1", answer=False, group_id="1" * 32))
    assert isinstance(other, Hello) and (other.code, other.ended) == (ResponseCode.UNKNOWN_GROUP, False)
    on_wire = encode_message(answer, "g", "n0", "n1")
    assert b'"ended":true' in on_wire.replace(b" ", b"") and b"ended" not in encode_message(other, "g", "n0", "n1")
    read = decode_response(52000, on_wire, answer.seq)
    assert isinstance(read, Hello) and read.ended


def test_a_survivor_that_was_not_given_the_command_is_not_to_be_emptied() -> None:
    _, answer = survivor_asked_by("n2", replace(RECOVERED, voters={"n0": "", "n2": ""}))
    said = str(answer.detail)
    assert "n2 is one of its members: keep its directory" in said and "recover-members` that n0 was given" in said
    assert "empty" not in said


def refusal_to(solo: Solo, **changes: Any) -> Hello:
    fields = {"code": ResponseCode.UNKNOWN_GROUP, "detail": "it went on", "group_id": NEW_ID, "ended": True}
    return solo.hello_of("n1", **(fields | changes))


def test_who_was_left_behind_gives_up_its_vote_before_it_has_a_leader() -> None:
    solo = Solo(store_of((1,), group_id=OLD_ID), connect=False)
    solo.receive("n1", refusal_to(solo))
    assert solo.replica.member.voter_state is VoterState.REJOINING
    assert "it went on" in solo.replica.member.alarms["hello_refused", "n1"].text


@pytest.mark.parametrize(
    ("changes", "config"),
    [
        ({"ended": False}, {}),
        ({"group_id": OLD_ID}, {}),
        ({"group_id": None}, {}),
        ({"proven": False}, {"proof_wanted": True}),
    ],
)
def test_it_keeps_its_vote_where_that_is_not_said_or_not_proven(changes: Any, config: Any) -> None:
    solo = Solo(store_of((1,), group_id=OLD_ID), connect=False, **config)
    solo.receive("n1", refusal_to(solo, **changes))
    assert solo.replica.member.voter_state is VoterState.VOTER


def test_a_group_that_works_is_not_taken_apart_by_one_that_was_forced_to_leave_it() -> None:
    """Somebody recovered a member that was merely cut off: neither the leader nor who follows one heeds it."""
    leader = Leader(store=store_of(group_id=OLD_ID)).solo
    leader.receive("n1", refusal_to(leader))
    assert leader.replica.member.voter_state is VoterState.VOTER
    follower = Solo(store_of((1,), group_id=OLD_ID))
    follower.follow()
    follower.receive("n1", refusal_to(follower))
    assert follower.replica.member.voter_state is VoterState.VOTER
