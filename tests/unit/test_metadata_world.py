"""Metadata and snapshots in many small worlds, and planted bugs that those must find."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.broker.metadata import Metadata
from node.message_store.metadata_state import Applied, MetadataState, OwnEntry
from node.protocol.broker_state import BrokerState
from node.protocol.snapshot_parts import FoundSnapshot
from tests.unit.metadata_world import World, Wrong

SEEDS = 150


def first_wrong(folder: Path, seeds: int = SEEDS) -> str:
    """What the first world finds that finds anything; empty: all is well."""
    (folder / "quorumscope").mkdir(exist_ok=True)

    async def story() -> str:
        for seed in range(seeds):
            try:
                World(seed, folder).run()
            except Wrong as error:
                return f"seed {seed}: {error}"
        return ""

    return asyncio.run(story())


def test_all_members_agree_and_every_change_ends_as_the_log_says(tmp_path: Path) -> None:
    assert first_wrong(tmp_path) == ""


# --- planted bugs -----------------------------------------------------------------------------------------------------
def nothing(*_given: Any, **_more: Any) -> None:
    """Instead of what should happen."""


def never_matched(self: Metadata, applied: Applied) -> None:
    asked, self._asked = self._asked, deque()
    APPLIED(self, applied)
    self._asked = asked


def newest_first(self: Metadata) -> None:
    self._asked.reverse()
    LANE_OPEN(self)
    self._asked.reverse()


def kept_for_later(self: Metadata) -> None:
    self._reset()


def as_if_sent(self: Metadata, one: Any) -> bool:
    SEND(self, one)
    one.was_sent = True
    return True


def without_what_changed(self: MetadataState, one: OwnEntry, found: FoundSnapshot, state: BrokerState) -> Applied:
    self._changed_at = {}
    return REPLACE(self, one, found, state)


def with_all_that_changed(self: MetadataState, one: OwnEntry, found: FoundSnapshot, state: BrokerState) -> Applied:
    return REPLACE(self, one, FoundSnapshot(found.snapshot_id, -2, found.first_index, found.last_index), state)


def of_any_age(self: MetadataState, one: OwnEntry) -> Applied:
    self.since = -2
    return PART(self, one)


def with_its_queues(self: MetadataState, one: OwnEntry) -> None:
    places = self.places
    CHANGE(self, one)
    self.places = places


def without_offsets(self: MetadataState, next_offsets: Any = None) -> BrokerState:
    return AS_STATE(self)


def as_of_the_next(self: MetadataState, next_offsets: Any = None) -> BrokerState:
    return replace(AS_STATE(self, next_offsets), as_of_index=self.index + 2)


def without_places(self: MetadataState, next_offsets: Any = None) -> BrokerState:
    self.places = {}
    return AS_STATE(self, next_offsets)


def all_is_known(self: MetadataState, base: BrokerState | None = None, *, is_whole: bool = False) -> None:
    INIT(self, base, is_whole=True)


APPLIED, LANE_OPEN, SEND = Metadata._applied, Metadata._lane_open, Metadata._send
REPLACE, PART, CHANGE = MetadataState._replace, MetadataState._part, MetadataState._change
AS_STATE, INIT = MetadataState.as_state, MetadataState.__init__
BUGS: dict[str, tuple[type, str, Any]] = {
    "a change that the log has is asked for again": (Metadata, "_applied", never_matched),
    "what a lane lost is not sent again": (Metadata, "_lane_open", nothing),
    "what is sent again is sent in another order": (Metadata, "_lane_open", newest_first),
    "a master that left keeps what it asked for": (Metadata, "_left", kept_for_later),
    "what a full lane refused counts as sent": (Metadata, "_send", as_if_sent),
    "a snapshot takes back what came behind it": (MetadataState, "_replace", without_what_changed),
    "what came before a snapshot counts more than it": (MetadataState, "_replace", with_all_that_changed),
    "a snapshot from before the log's beginning is taken": (MetadataState, "_part", of_any_age),
    "a topic's queues outlive its deletion": (MetadataState, "_change", with_its_queues),
    "a topic that was deleted since a snapshot goes on": (MetadataState, "_take_over", nothing),
    "next offsets are not in snapshots": (MetadataState, "as_state", without_offsets),
    "a snapshot says a later entry than it is of": (MetadataState, "as_state", as_of_the_next),
    "next offsets that only a snapshot knew are lost with the next one": (MetadataState, "as_state", without_places),
    "who begins in the middle takes no snapshot": (MetadataState, "__init__", all_is_known),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where, attribute, bug = BUGS[name]
    monkeypatch.setattr(where, attribute, bug)
    assert first_wrong(tmp_path) != ""
