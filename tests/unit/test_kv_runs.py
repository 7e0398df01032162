"""Runs of puts: applied as columns they leave the same store, the same answers and the same saves as one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from node.protocol.kv import (
    GET,
    KEY_BYTES_MAX,
    NOTHING,
    VALUE_BYTES_MAX,
    If,
    KvCommand,
    KvError,
    Op,
    ask_range,
    ask_watch,
    decode_results,
    done_all,
    done_at,
    encode_command,
    encode_put,
)
from node.protocol.packed_bodies import PackedBodies
from node.state_machine import kv_events, kv_saving
from node.state_machine.caller import Caller
from node.state_machine.interface import Run, StateMachine, Write
from node.state_machine.kind import Type, body_of, kind_of
from node.state_machine.kv import KeyValue
from node.state_machine.kv_runs import puts_in
from node.store.memory_store import MemoryStore

KIND = kind_of("kv")
EVENTS_KEPT = 300  # so many at least: they go together, after a batch or within it


class Counting(KeyValue):
    """How many of its runs it took."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def apply_run(self, run: Run) -> PackedBodies | None:
        found = super().apply_run(run)
        self.taken += found is not None
        return found


class OneByOne(KeyValue):
    """Takes no runs."""

    def apply_run(self, run: Run) -> PackedBodies | None:
        return None


def state_of(machine: KeyValue, kept_from: int) -> list[object]:
    """`kept_from`: where the events begin that are compared; what is forgotten depends on how they came."""
    saved: list[bytes] = []
    machine.save(saved.append)
    events = list(machine._events)
    assert machine._events.size_bytes == sum(len(key) + len(value or b"") for key, value, _, _ in events)
    return [
        b"".join(saved), [one for one in events if one[2] >= kept_from], machine.query(ask_range(b"", b"", 1000)),
        machine.query(ask_watch(b"k", kept_from)), machine.query(ask_watch(b"k", max(0, machine._at - 100))),
        machine.wake_at_ms(),
    ]  # fmt: skip


def batch_of(rng: random.Random, now_ms: int) -> list[bytes]:
    """Mostly puts of one length; now and then one of them is something else, or all differ."""
    keys = [b"k%03d" % number for number in range(90)]
    value_bytes = rng.choice([0, 1, 30, 30])
    times = sorted(rng.randrange(now_ms, now_ms + 5) for _ in range(rng.randrange(20, 80)))
    wanted = [KvCommand(Op.PUT, rng.choice(keys), rng.randbytes(value_bytes)) for _ in times]
    at = rng.randrange(len(wanted))
    odd = rng.choice(["", "", "", "", "", "", "delete", "ttl", "condition", "tick", "broken", "long"])
    key = wanted[at].key
    if odd == "delete":
        wanted[at] = KvCommand(Op.DELETE, key, rng.randbytes(value_bytes))
    elif odd == "ttl":
        wanted[at] = wanted[at]._replace(ttl_ms=rng.randrange(1, 40))
    elif odd == "condition":
        wanted[at] = wanted[at]._replace(condition=If.INDEX_IS, expected_index=3)
    elif odd == "long":
        wanted[at] = wanted[at]._replace(key=key + b"x", value=wanted[at].value[1:])
    contents = [encode_command(one) for one in wanted]
    if odd == "broken":
        contents[at] = b"\xff" * len(contents[at])
    types = [Type.TICK if odd == "tick" and number == at else Type.COMMAND for number in range(len(contents))]
    return [body_of(kind, time_ms, one) for kind, time_ms, one in zip(types, times, contents, strict=True)]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_leaves_what_its_commands_leave_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"runs {seed}")
    monkeypatch.setattr(kv_saving, "STEP_ITEMS", 7)
    monkeypatch.setattr(kv_events, "EVENTS_MAX", EVENTS_KEPT)
    monkeypatch.setattr(kv_events, "CHUNK_EVENTS", 20)
    log = MemoryStore(kind=KIND.name)
    quick, slow = Counting(), OneByOne()
    callers, now_ms = (Caller(quick, KIND), Caller(slow, KIND)), 1000
    saves: list[tuple[Iterator[bytes], Iterator[bytes]]] = []
    for _ in range(40):
        now_ms += rng.choice([0, 3, 20])
        first = log.end_index + 1
        slabs = log.append_as_leader(batch_of(rng, now_ms), 1)
        records = b"".join(bytes(slab.data) for slab in slabs)
        reports = [caller.apply(first, log.end_index, records) for caller in callers]
        assert [one.upto_index for one in reports] == [log.end_index] * 2
        assert list(reports[0].results) == list(reports[1].results)
        assert callers[0].time_ms == callers[1].time_ms and callers[0].meta() == callers[1].meta()
        kept_from = max(quick._events.from_index, slow._events.from_index)
        assert state_of(quick, kept_from) == state_of(slow, kept_from)
        if not saves and rng.random() < 0.2:
            saves.append((quick.save_in_steps(), slow.save_in_steps()))
        for one, other in saves:
            pieces = next(one, None), next(other, None)
            assert pieces[0] == pieces[1]
            if pieces[0] is None:
                saves.clear()
    assert quick.taken >= 5


@pytest.mark.parametrize("later_ms", [-1, 0, 1])
def test_a_key_whose_time_ends_with_a_run_goes_with_it(later_ms: int) -> None:
    """At that very moment as well: members cut their batches at different places, and have to hold the same keys."""
    log, quick, slow = MemoryStore(kind=KIND.name), Counting(), OneByOne()
    callers, until_ms = (Caller(quick, KIND), Caller(slow, KIND)), 1000 + 40

    def apply(bodies: list[bytes]) -> None:
        first = log.end_index + 1
        records = b"".join(bytes(slab.data) for slab in log.append_as_leader(bodies, 1))
        assert list(callers[0].apply(first, log.end_index, records).results) == list(
            callers[1].apply(first, log.end_index, records).results
        )
        kept_from = max(quick._events.from_index, slow._events.from_index)
        assert state_of(quick, kept_from) == state_of(slow, kept_from)

    apply([body_of(Type.COMMAND, 1000, encode_command(KvCommand(Op.PUT, b"gone", b"v", 40)))])
    at_ms, taken = until_ms + later_ms, quick.taken
    apply([body_of(Type.COMMAND, at_ms, encode_put(b"k%02d" % number, b"v")) for number in range(40)])
    assert (quick.query(GET + b"gone") == NOTHING) == (later_ms >= 0)
    assert (quick.taken > taken) == (later_ms < 0), "a run of puts is one as long as nothing expires in it"


def run_of(contents: list[bytes]) -> Run:
    return Run(5, len(contents), 9, b"".join(contents), 0, len(contents[0]), len(contents[0]))


def test_what_is_no_run_of_puts_is_left_to_the_loop() -> None:
    put = encode_command(KvCommand(Op.PUT, b"key", b"value"))
    found = puts_in(run_of([put] * 30))
    assert found is not None and found.keys == [b"key"] * 30 and found.size_bytes == 8 * 30
    assert found.items[0] == (b"key", b"value", 5, -1) and found.items[29][2] == 34
    others = [
        encode_command(KvCommand(Op.PUT, b"key" + b"value"))[: len(put)],  # no value
        encode_command(KvCommand(Op.PUT, b"k", b"eyvalue")),
        encode_command(KvCommand(Op.PUT, b"key", b"value", 5)),
        encode_command(KvCommand(Op.DELETE, b"key", b"value")),
        encode_command(KvCommand(Op.PUT, b"key", b"va", condition=If.VALUE_IS, expected_value=b"lue")),
        encode_command(KvCommand(Op.PUT, b"key", b"value", condition=If.INDEX_IS, expected_index=2)),
    ]
    for other in others:
        assert len(other) == len(put)
        assert puts_in(run_of([put] * 30 + [other])) is None
    longest = encode_command(KvCommand(Op.PUT, b"k" * KEY_BYTES_MAX, b"v"))
    assert puts_in(run_of([longest] * 30)) is not None
    said_longer = longest[:18] + (KEY_BYTES_MAX + 1).to_bytes(2, "big") + longest[20:] + b"v"
    assert puts_in(run_of([said_longer] * 30)) is None
    past_its_end = put[:18] + (9).to_bytes(2, "big") + put[20:]
    assert puts_in(run_of([past_its_end] * 30)) is None


def test_a_put_is_the_same_bytes_either_way() -> None:
    for key, value in ((b"k", b""), (b"key", b"value"), (b"k" * KEY_BYTES_MAX, b"v" * VALUE_BYTES_MAX)):
        assert encode_put(key, value) == encode_command(KvCommand(Op.PUT, key, value))
    for key, value in ((b"", b"x"), (b"k" * (KEY_BYTES_MAX + 1), b""), (b"k", b"v" * (VALUE_BYTES_MAX + 1))):
        with pytest.raises(KvError, match="allowed"):
            encode_put(key, value)


def test_results_of_a_run_are_those_of_its_entries() -> None:
    results = decode_results(done_all(7, 40))
    assert [(one.status, one.found, one.index) for one in results] == [(0, True, at) for at in range(7, 47)]


class Wrong(StateMachine):
    """Answers runs with what it is told to."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def apply_run(self, run: Run) -> PackedBodies | None:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    def apply(self, commands: object) -> Iterator[bytes | None]:  # type: ignore[override]
        raise AssertionError("not asked")

    def save(self, write: Write) -> None: ...
    def load(self, pieces: object) -> None: ...  # type: ignore[override]


def packed(count: int, each_bytes: int) -> PackedBodies:
    return PackedBodies(b"x" * count * each_bytes, 0, np.full(count, each_bytes))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (RuntimeError("a bug"), "RuntimeError: a bug"),
        (packed(29, 3), "30 PackedBodies"),
        (packed(30, 4097), "up to 4096 bytes"),
        ([b""] * 30, "30 PackedBodies"),
    ],
)
def test_a_run_that_goes_wrong_stops_the_state_machine_at_its_first_entry(answer: object, why: str) -> None:
    log, caller = MemoryStore(kind=KIND.name), Caller(Wrong(answer), KIND)
    slabs = log.append_as_leader([body_of(Type.COMMAND, 1, b"x")] * 30, 1)
    report = caller.apply(0, 29, bytes(slabs[0].data))
    assert (report.upto_index, list(report.results)) == (-1, [])
    assert report.error.startswith("entry 0: ") and why in report.error
    assert caller.stopped_by == report.error
    assert caller.apply(0, 29, bytes(slabs[0].data)).error == report.error
    with pytest.raises(ValueError, match="entry 0"):
        caller.meta()


def test_a_state_machine_without_a_quicker_way_gets_commands() -> None:
    log, caller = MemoryStore(kind=KIND.name), Caller(OneByOne(), KIND)
    put = encode_command(KvCommand(Op.PUT, b"key", b"value"))
    slabs = log.append_as_leader([body_of(Type.COMMAND, 1, put)] * 30, 1)
    assert caller.apply(0, 29, bytes(slabs[0].data)).results[29] == done_at(29)
