"""Worlds of brokers with fixed seeds: real brokers, engines and disks under faults; clients check every answer."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.broker.campaign import run_seed
from tests.simulation.broker.checks import BROKER_INVARIANTS
from tests.simulation.broker.swarm import BrokerSwarm
from tests.simulation.broker.world import BrokerWorld
from tests.simulation.disk_faults import SimulatedCrash
from tests.simulation.mutants import MUTANTS
from tests.simulation.prove import hunt, known_seeds

STEPS = 3_000


@pytest.mark.parametrize("seed", range(6))
def test_brokers_keep_their_promises_under_faults(seed: int) -> None:
    result = run_seed(seed, STEPS)
    assert result.violation is None, f"seed {seed}: {result.violation}"


@pytest.mark.parametrize("seed", [73, 74])
def test_brokers_that_end_in_a_call_of_their_disk_start_again(seed: int) -> None:
    """One ended while it zeroed the rest of a queue, one as the master with an offset that was not yet in the log."""
    profile = MUTANTS["broker_keeps_empty_files"].profile
    result = run_seed(seed, 2 * STEPS, profile)
    assert result.violation is None, f"seed {seed}: {result.violation}"


def test_a_broker_that_is_killed_while_its_derived_files_are_removed_starts_again() -> None:
    result = run_seed(217222428, 2 * STEPS)
    assert result.violation is None, f"{result.violation}"
    assert result.coverage["broker_wiped"]


def test_a_crash_that_ends_no_process_is_said_with_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no Exception: a worker of a pool would end of it, and the campaign would wait for its answer for ever."""

    def crashed(_world: BrokerWorld, _steps: int) -> None:
        raise SimulatedCrash("n0: before unlink of a file")

    monkeypatch.setattr(BrokerWorld, "run", crashed)
    violation = run_seed(5, 10).violation
    assert violation is not None and violation.invariant == "no_exception" and "SimulatedCrash" in violation.detail


def test_a_world_is_the_same_again_and_everything_happens_in_some() -> None:
    """Else they would prove nothing."""
    everything = {"delayed": 0.2, "halves": 0.3, "broker_crash": 0.7, "sends": 60.0, "transfers": 0.5}
    counts: Counter[str] = Counter()
    for seed in (3, 7, 8):
        result = run_seed(seed, 2 * STEPS, everything)
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts.update(result.coverage)
    assert run_seed(seed, 2 * STEPS, everything).trace_sha256 == result.trace_sha256
    for what in ("SEND_MESSAGE_V2 0", "SEND_BATCH_MESSAGE 0", "END_TRANSACTION 0", "END_TRANSACTION 1", "checks",
                 "PULL_MESSAGE 0", "PULL_MESSAGE 19", "QUERY_MESSAGE 0", "VIEW_MESSAGE_BY_ID 0", "GET_MAX_OFFSET 0",
                 "QUERY_CONSUMER_OFFSET 0", "UPDATE_CONSUMER_OFFSET 0", "broker_crash", "transferred"):  # fmt: skip
        assert counts[what], f"{what} never happened: {sorted(counts)}"


@pytest.mark.long
def test_a_queue_goes_on_after_all_its_messages_have_expired() -> None:
    """Also at a master that wrote its queues anew from a log which holds none of them."""
    mutant = MUTANTS["broker_forgets_expired_queues"]
    result = run_seed(0, mutant.lasts * 2 * STEPS, mutant.profile)
    assert result.violation is None, f"{result.violation}"
    for what in ("a queue expired", "used again after expiry", "broker_wiped", "offset moved"):
        assert result.coverage[what], f"{what} never happened: {sorted(result.coverage)}"


@pytest.mark.long
def test_a_queue_that_begins_at_0_again_is_noticed() -> None:
    name = "broker_forgets_expired_queues"
    catch = hunt(name, seeds=6, first=known_seeds().get(name))
    assert (catch.invariant, catch.differed > 0) == ("queue_offsets_dense", True)


def test_every_fault_of_a_broker_is_in_some_worlds_and_none_in_all() -> None:
    swarms = [BrokerSwarm.from_seed(seed) for seed in range(200)]
    for name in ("broker_crash", "broker_crash_at_io", "broker_stop", "broker_pause", "broker_cut", "broker_narrow",
                 "client_cut", "wall_back", "power_loss", "delayed", "halves", "lease_reads", "silences"):  # fmt: skip
        assert 20 < sum(bool(getattr(one, name)) for one in swarms) < 190, name


def test_a_planted_bug_is_noticed() -> None:
    """One here; all of them by `tests.simulation.prove`."""
    name = "broker_delivers_early"
    catch = hunt(name, seeds=3, first=known_seeds().get(name), steps=1_000)
    assert catch.invariant == "not_before_its_time"
    assert catch.invariant in BROKER_INVARIANTS
