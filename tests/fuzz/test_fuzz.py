"""Every target, with its seeds, random bytes and mutated encodings; the same inputs in every run.

`python -m tests.fuzz` goes on from here, guided by coverage.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutate
from tests.fuzz.target import run_counted, run_one
from tests.fuzz.targets import TARGETS

RANDOM_EXAMPLES = 60
MUTATED_SEEDS = 6  # each a run of MUTATIONS inputs
MUTATIONS = 50


@pytest.mark.parametrize("name", TARGETS)
def test_valid_encodings_decode(name: str) -> None:
    target = TARGETS[name]
    decoded = [run_counted(target, seed) for seed in target.seeds()]
    assert any(decoded)


@pytest.mark.parametrize("name", TARGETS)
def test_random_bytes(name: str) -> None:
    target = TARGETS[name]

    @settings(max_examples=10 if target.heavy else RANDOM_EXAMPLES, derandomize=True, database=None, deadline=None)
    @given(st.binary(max_size=400))
    def check(data: bytes) -> None:
        run_counted(target, data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_encodings(name: str) -> None:
    target = TARGETS[name]
    seeds = list(target.seeds())

    @settings(
        max_examples=MUTATED_SEEDS, derandomize=True, database=None, deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    @given(st.integers(0, 1 << 32))
    def check(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(10 if target.heavy else MUTATIONS):
            run_one(target, mutate(seeds, rng, target.repair))
        run_counted(target, mutate(seeds, rng, target.repair))

    check()
