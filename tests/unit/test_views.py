"""Typed views: what the engine tells is, byte for byte, what it was; what others send is read or refused by field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.config_models import TimingTable
from node.consensus.status import WatermarkStatus
from node.engine.replication_view import unknown_of
from node.views.base import AnswerView, View
from node.views.kinds import VIEWS
from node.views.reading import Unreadable, read
from node.views.state import AlarmView, StateView, TimingView
from tests.unit.introspection_kit import GOLDEN, answers

WRITTEN_DOWN: dict[str, str] = json.loads(GOLDEN.read_text())


def kind_of(name: str) -> type[AnswerView]:
    return VIEWS[name.split()[1] if name != "events gone" else "events"]


def test_every_answer_is_byte_for_byte_what_it_was() -> None:
    assert answers() == WRITTEN_DOWN


def test_what_a_leader_does_not_know_of_a_member_is_listed_with_the_reason() -> None:
    """Null means unknown (INTERFACES); a `faulty_from_index` that is null is known: nothing is damaged there."""
    said = json.loads(answers()["LEADER watermarks"])
    null = {f"peers.{one['id']}.{name}" for one in said["peers"] for name, value in one.items() if value is None}
    null = {one for one in null if not one.endswith(".faulty_from_index")}
    reasons = {one["field"]: one["reason"] for one in said["unknown"]}
    assert null and null == reasons.keys() and all(reasons.values())
    assert reasons["peers.n2.lag_entries"] == "n2 has not answered yet"


def test_every_null_of_a_peer_and_its_link_is_listed_with_its_reason() -> None:
    """Null is unknown, and then listed (INTERFACES): these were null, and nobody said why."""
    for role in ("LEADER", "FOLLOWER"):
        state = StateView.model_validate_json(answers()[f"{role} state"])
        listed = {one.field for one in state.unknown or () if one.reason}
        nulls = {
            f"peers.{one.id}.{name}"
            for one in state.peers or ()
            for name in ("control_url", "voter_state", "store_id")
            if getattr(one, name) is None
        } | {
            f"links.{one.peer_id}.{name}"
            for one in state.links or ()
            for name in ("last_heard_ms", "rtt_ms")
            if getattr(one, name) is None
        }
        assert nulls and nulls == {one for one in listed if one.startswith(("peers.", "links."))}


@pytest.mark.parametrize(
    ("known", "field", "reason"),
    [
        ({"last_ack_ms": 3}, "lag_entries", "nothing is vouched for of n1 at the moment"),
        ({"last_ack_ms": 3, "lag_entries": 9, "lag_ms": 4}, "lag_bytes", "what n1 lacks is not all in memory"),
        ({"last_ack_ms": 3, "lag_entries": 9, "lag_bytes": 4}, "lag_ms", "what n1 lacks is older than what is timed"),
        ({"last_ack_ms": 3, "lag_entries": 0, "lag_bytes": 0, "lag_ms": 0}, "durable_index", "n1 has not said it"),
    ],
)
def test_why_a_mark_is_unknown(known: dict[str, int], field: str, reason: str) -> None:
    marks = dict.fromkeys(("durable_index", "lag_entries", "lag_bytes", "lag_ms", "last_ack_ms")) | known
    found = {
        one.field: one.reason for one in unknown_of(WatermarkStatus("n1", True, 9, 10, watermark_index=9, **marks))
    }
    assert found[f"peers.n1.{field}"] == reason


@pytest.mark.parametrize("name", WRITTEN_DOWN)
def test_what_is_read_and_written_again_is_the_same(name: str) -> None:
    assert read(kind_of(name), json.loads(WRITTEN_DOWN[name])).to_bytes().decode() == WRITTEN_DOWN[name]


def test_a_field_of_the_status_reaches_the_answer() -> None:
    """Each view declares all that is configured: a new time is not forgotten."""
    assert list(TimingView.model_fields) == list(TimingTable.model_fields)


# What the engine does not fill: the control plane does, or other servers' answers have it.
FILLED_ELSEWHERE = {
    "StateView.is_java", "StateView.started_with", "StateView.broker", "ClosureView.times_out_in_ms", "EventView.text"
}  # fmt: skip


def test_a_field_that_is_declared_is_filled() -> None:
    declared: set[str] = set()
    filled: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, View):
            declared.update(f"{type(value).__name__}.{name}" for name in type(value).model_fields)
            filled.update(f"{type(value).__name__}.{name}" for name in value.model_fields_set)
            for name in type(value).model_fields:
                look(getattr(value, name))
        elif isinstance(value, list | tuple):
            for one in value:
                look(one)

    for name, text in answers().items():
        look(read(kind_of(name), json.loads(text)))
    assert len(declared) > 150
    missing = {one for one in declared - filled if not one.endswith(".engine_reason")}
    assert missing == FILLED_ELSEWHERE, "fill it in node/engine/introspect.py"


def test_what_an_older_member_does_not_report_is_unknown_and_stays_so() -> None:
    state = read(StateView, {"engine": "ok", "self_id": "n0", "log": {"end_index": 7}, "peers": None})
    assert (state.term, state.peers, state.alarms, state.marks.committed_index) == (None, None, None, None)
    assert state.to_json() == {"engine": "ok", "self_id": "n0", "log": {"end_index": 7}, "peers": None}


def test_what_a_newer_member_tells_beyond_it_is_left_out() -> None:
    sent = {"engine": "ok", "self_id": "n0", "moon": 1, "log": {"end_index": 7, "sealed_until": 3}}
    assert read(StateView, sent).to_json() == {"engine": "ok", "self_id": "n0", "log": {"end_index": 7}}


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        ("diverged", "diverged", None),
        ({"kind": "disk_full", "message": "no space"}, "disk_full", "no space"),
        ({"name": "rot", "detail": {"index": 7, "file": "a"}}, "rot", "index 7, file a"),
        ({"code": "c", "text": "t", "since": "2026"}, "c", "t"),
    ],
)
def test_alarms_of_other_servers_are_read_too(sent: Any, code: str, text: str | None) -> None:
    (alarm,) = read(StateView, {"engine": "ok", "self_id": "n0", "alarms": [sent]}).alarms or ()
    assert isinstance(alarm, AlarmView) and (alarm.code, alarm.text) == (code, text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(10**40) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["id", "at", "x"]), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(sorted(WRITTEN_DOWN)), value=VALUES, data=st.data())
def test_whatever_is_sent_is_read_or_refused_by_field(name: str, value: Any, data: st.DataObject) -> None:
    """One place of a real answer holds something else; then the answer is nothing but that."""
    sent = json.loads(WRITTEN_DOWN[name])
    place: Any = sent
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            place[key] = value
            break
        place = place[key]
    for whole in (sent, value):
        try:
            view: View = read(kind_of(name), whole)
        except Unreadable as error:
            assert str(error) and "pydantic" not in str(error)
        else:
            json.loads(view.to_bytes())


@pytest.mark.parametrize("detail", [{"role": ["\ud800"]}, {"\ud800": 1}, {"a": {"b": {"\udfff": None}}}])
def test_half_a_character_is_refused_however_deep_it_stands(detail: Any) -> None:
    with pytest.raises(Unreadable, match=r"items\[0\]\.detail.* is no text that can be written"):
        read(VIEWS["events"], {"items": [{"detail": detail}]})


def test_nothing_is_too_deep_to_be_refused() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(Unreadable):
        read(VIEWS["events"], {"items": [{"detail": {"x": deep}}]})
