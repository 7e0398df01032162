"""What the invariants do not look at after a step is what it was: a member that was not touched has not changed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import campaign
from tests.simulation.broker import campaign as broker_campaign
from tests.simulation.driver import campaign as driver_campaign
from tests.simulation.observer import Observer

EVERYTHING: dict[str, Any] = {"membership": 2.0, "applier": True, "retune": 2.0}


def state_of(member: Any) -> tuple[Any, ...]:
    """All that an invariant reads of a member after a step."""
    store, replica = member.store, member.replica
    life = member.incarnation, member.disk_id, member.paused, member.is_old_copy, getattr(member, "engine", None)
    if store is None or replica is None:
        return life
    core, leadership = replica.member, replica.leadership
    held = (
        id(store), store.end_index, store.durable_index, store.begin_index, store.files.cuts, store.hard_state,
        store.files.members_at_base, tuple(store.faults),
    )  # fmt: skip
    known = (
        id(replica), replica.term, replica.role, replica.committed_index, id(replica.configuration), replica.leader_id,
        core.voter_state, core.hard, core.durable_hard, core.durable_index, core.truncating_from,
    )  # fmt: skip
    peers = tuple(
        (one, id(peer), peer.counts, peer.connected, peer.hello, peer.watermark_index, peer.faulty_from)
        for one, peer in replica.peers.of.items()
    )
    leading = leadership and (
        id(leadership), leadership.reads._confirmed_seq(), leadership.closures.room(), len(leadership.closures.pending),
        tuple(one.giving.status() for one in leadership.dispatchers.values()),
    )  # fmt: skip
    applied = replica.applied_index, core.applying and core.applying.life
    return (life, held, known, peers, leading, applied, getattr(member, "is_writer_idle", None))


class Untouched(Observer):
    """Compares them all, after every step."""

    def __init__(self) -> None:
        self.before: dict[str, tuple[Any, ...]] = {}
        self.steps = self.looks = self.changes = 0

    def stepped(self, world: Any) -> None:
        self.steps += len(world.members)
        self.looks += len(world.touched)
        for one in world.members.values():
            now, before = state_of(one), self.before.get(one.id)
            self.before[one.id] = now
            self.changes += now != before
            if now != before and one not in world.touched:
                raise AssertionError(f"{one.id} was not touched, and is {now} after {before}")


@pytest.mark.parametrize(
    ("world", "steps", "overrides"),
    [("core", 1500, {}), ("core", 1500, EVERYTHING), ("driver", 4000, {}), ("broker", 3000, {})],
)
def test_who_is_not_touched_is_what_it_was(
    world: str, steps: int, overrides: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Untouched()
    if world == "core":
        checks = campaign.checks
        monkeypatch.setattr(campaign, "checks", lambda: [*checks(), seen])
        result = campaign.run_seed(1, steps, overrides)
    elif world == "driver":
        driver_checks = driver_campaign.driver_checks
        monkeypatch.setattr(driver_campaign, "driver_checks", lambda: [*driver_checks(), seen])
        result = driver_campaign.run_seed(1, steps, overrides)
    else:
        book, checks_there = broker_campaign.broker_checks()
        monkeypatch.setattr(broker_campaign, "broker_checks", lambda: (book, [*checks_there, seen]))
        result = broker_campaign.run_seed(1, steps, overrides)
    assert result.violation is None
    assert seen.changes > 100
    assert seen.looks < seen.steps * 0.6
