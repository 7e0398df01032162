"""The kind of a group: on record at birth, said in HELLO, and kept by every entry of its log."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from node.consensus.group_naming import naming_body
from node.consensus.own_entries import config_changes_in
from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode
from node.protocol.entry import HEAD_BYTES, Entry, Magic
from node.protocol.group_kind import PLAIN, Channel, capabilities, is_kind_name, kind_in
from node.protocol.messages import Hello
from node.store.errors import StoreRefused
from node.store.file_store import FileStore
from node.store.files.identity import IDENTITY, KIND_FORMAT_VERSION, read_identity
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from tests.unit.core_kit import GROUP_ID, NOW, Solo, config_of
from tests.unit.group_kind_kit import FIRST_MS, STAMPED, body_of, place_in
from tests.unit.store_fixtures import open_store


def stamped_store(bodies: list[bytes] | None = None, *, group_id: str | None = GROUP_ID) -> MemoryStore:
    store = MemoryStore(kind="stamped", store_id="s0")
    store.hard_state = HardState(term=1 if bodies else 0, voter_state=store.hard_state.voter_state, group_id=group_id)
    if bodies:
        store.append_as_leader(bodies, 1, Magic.NORMAL, 0, STAMPED.position_at)
        ticket = store.prepare_sync()
        assert ticket is not None
        store.finish_sync(ticket)
    return store


def entry_at(store: MemoryStore | FileStore, index: int) -> Entry:
    entry = store.get(index)
    assert entry is not None
    return entry


# --- on record --------------------------------------------------------------------------------------------------------
def test_a_plain_log_is_on_record_as_it_always_was(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    fields = json.loads((tmp_path / IDENTITY).read_text())
    assert fields["format_version"] == 1 and "kind" not in fields


def test_another_kind_is_on_record_in_a_format_that_older_releases_refuse(tmp_path: Path) -> None:
    store = open_store(tmp_path, kind="stamped")
    assert store.kind == "stamped"
    store.close()
    found = read_identity(tmp_path)
    assert found is not None and (found.kind, found.format_version) == ("stamped", KIND_FORMAT_VERSION)
    again = open_store(tmp_path)  # by a tool, which takes it as it is
    assert again.kind == "stamped"
    again.close()


@pytest.mark.parametrize(("born", "wanted"), [("plain", "stamped"), ("stamped", "plain"), ("stamped", "other")])
def test_a_log_never_changes_its_kind(tmp_path: Path, born: str, wanted: str) -> None:
    open_store(tmp_path, kind=born).close()
    before = (tmp_path / IDENTITY).read_bytes()
    with pytest.raises(StoreRefused, match=f"kind '{born}'.*configured with '{wanted}'"):
        open_store(tmp_path, kind=wanted)
    assert (tmp_path / IDENTITY).read_bytes() == before


def test_a_directory_that_a_java_node_wrote_is_a_plain_log(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.append_as_leader([b"x"], 1)
    store.close()
    (tmp_path / IDENTITY).unlink()
    with pytest.raises(StoreRefused, match="holds a plain log"):
        open_store(tmp_path, kind="stamped")


@pytest.mark.parametrize("changes", [{"kind": "Bad name"}, {"kind": 7}, {"kind": "plain"}, {"format_version": 1}])
def test_a_kind_that_cannot_be_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    open_store(tmp_path, kind="stamped").close()
    fields = json.loads((tmp_path / IDENTITY).read_text())
    del fields["crc"]
    (tmp_path / IDENTITY).write_text(json.dumps(fields | changes))
    with pytest.raises(StoreRefused, match="another format"):
        read_identity(tmp_path)


def test_names_and_capabilities() -> None:
    assert is_kind_name("rocketmq-5") and not is_kind_name("") and not is_kind_name("x" * 33) and not is_kind_name(None)
    assert capabilities("plain") == () and kind_in(()) == "plain"
    assert kind_in(("other", *capabilities("stamped"))) == "stamped"


def test_a_member_is_of_the_kind_that_its_store_is() -> None:
    with pytest.raises(ValueError, match="holds a plain log"):
        Replica(config_of(kind=STAMPED), MemoryStore(), random.Random(1), NOW)


# --- in HELLO ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("ours", "caps", "code"),
    [
        ("plain", (), ResponseCode.SUCCESS),
        ("plain", ("kind:stamped",), ResponseCode.UNEXPECTED_ARGUMENT),
        ("stamped", ("kind:stamped",), ResponseCode.SUCCESS),
        ("stamped", (), ResponseCode.UNEXPECTED_ARGUMENT),  # an older release, too
    ],
)
def test_a_member_of_another_kind_is_refused(ours: str, caps: tuple[str, ...], code: ResponseCode) -> None:
    kind = STAMPED if ours == "stamped" else PLAIN
    solo = Solo(MemoryStore(kind=ours), connect=False, kind=kind)
    ((_to, answer),) = solo.receive("n1", solo.hello_of("n1", answer=False, caps=caps))
    assert isinstance(answer, Hello) and answer.code is code and kind_in(answer.caps) == ours
    if code is not ResponseCode.SUCCESS:
        assert answer.detail is not None and "kind differs" in answer.detail


# --- in the log -------------------------------------------------------------------------------------------------------
class StampedSolo(Solo):
    """Its peers are of its kind."""

    def hello_of(self, peer: str, *, seq: int = 1, **changes: object) -> Hello:
        return super().hello_of(peer, seq=seq, **{"caps": ("kind:stamped",), **changes})


def test_a_leaders_first_entry_is_a_body_of_the_kind() -> None:
    solo = StampedSolo(stamped_store(), kind=STAMPED)
    solo.lead()
    entry = entry_at(solo.store, 0)
    assert (entry.magic, entry.channel) == (Magic.NORMAL, Channel.FIRST_OF_TERM)
    assert entry.body == body_of(b"", FIRST_MS, entry.pos + HEAD_BYTES)


@pytest.mark.parametrize("in_memory", [True, False])
def test_it_carries_the_time_of_the_entry_before(in_memory: bool) -> None:
    store = stamped_store([body_of(b"a", 5_000), body_of(b"b", 7_000)])
    store.recent_from = 0 if in_memory else 2
    solo = StampedSolo(store, kind=STAMPED)
    solo.lead()
    entry = entry_at(solo.store, 2)
    assert (entry.channel, STAMPED.time_ms(entry.body)) == (Channel.FIRST_OF_TERM, 7_000)
    assert place_in(entry) == entry.pos + HEAD_BYTES


def test_a_configuration_change_is_told_by_its_channel_alone() -> None:
    solo = StampedSolo(stamped_store(), kind=STAMPED)
    solo.lead()
    assert solo.replica.leadership is not None
    body = naming_body(GROUP_ID)
    assert solo.replica.leadership.append_config_change(body, solo.now)
    entry = entry_at(solo.store, 1)
    assert (entry.magic, entry.channel) == (Magic.NORMAL, Channel.CONFIG_CHANGE)
    assert STAMPED.content_of(entry.body) == body and place_in(entry) == entry.pos + HEAD_BYTES
    slab = solo.store.recent_slab(0, 1 << 20)
    assert slab is not None and [one.index for one in config_changes_in(STAMPED, slab)] == [1]
    lookalike = solo.store.append_as_leader([entry.body], solo.replica.term)[0]  # the same body in a message
    assert config_changes_in(STAMPED, lookalike) == []


def test_a_group_of_another_kind_gets_its_id_by_an_entry_of_that_kind() -> None:
    solo = StampedSolo(stamped_store(group_id=None), kind=STAMPED)
    sent = solo.lead()
    pushes = {to: message for to, message in sent if to in ("n1", "n2") and hasattr(message, "dispatch_epoch")}
    for peer in ("n1", "n2"):
        for _to, message in solo.ack(peer, pushes[peer], -1):
            if getattr(message, "slab", None) is not None:
                solo.ack(peer, message, 0)
    solo.sync()
    for peer in ("n1", "n2"):
        solo.receive(peer, solo.hello_of(peer, version_max=2))
    for _ in range(4):
        solo.tick(100)
    assert entry_at(solo.store, 1).channel == Channel.CONFIG_CHANGE
    push = next(m for to, m in reversed(solo.sent) if to == "n1" and getattr(m, "slab", None) is not None)
    solo.sync()
    solo.ack("n1", push, 1)
    assert solo.replica.committed_index == 1 and solo.replica.member.hard.group_id is not None


def test_plain_appends_are_refused_in_a_group_of_another_kind() -> None:
    solo = StampedSolo(stamped_store(), kind=STAMPED)
    solo.lead()
    end = solo.store.end_index
    for body in (b"anything", body_of(b"even a valid one", 9_000)):
        outcome = solo.replica.propose([body], solo.now).outcome
        assert outcome is not None and outcome.code is ResponseCode.UNEXPECTED_ARGUMENT
        assert "over a lane only" in outcome.detail
    assert solo.store.end_index == end
