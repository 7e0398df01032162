"""The key-value store as a state machine: a dict's answers, the same state after a snapshot, time that is the log's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from node.protocol.kv import (
    ABSENT,
    NEVER,
    EventType,
    If,
    KvCommand,
    KvError,
    KvResult,
    Op,
    Status,
    ask_get,
    ask_range,
    ask_watch,
    decode_command,
    decode_got,
    decode_items,
    decode_result,
    decode_results,
    decode_watched,
    encode_command,
    encode_result,
)
from node.protocol.packed_bodies import PackedBodies
from node.state_machine import BadQuestion, Command, kv_saving
from node.state_machine.kv import KeyValue
from node.state_machine.sorted_keys import CHUNK_MAX, SortedKeys

Held = dict[bytes, tuple[bytes, int, int]]  # key -> value, index, until when


def apply(store: KeyValue, *commands: Command) -> list[KvResult | None]:
    return [decode_result(one) if one else None for one in store.apply(commands)]


def command(index: int, time_ms: int, wanted: KvCommand | None) -> Command:
    return Command(index, time_ms, None if wanted is None else encode_command(wanted))


def content(store: KeyValue) -> Held:
    answer = store.query(ask_range(b"", b"", 1000))
    assert answer is not None
    items, more = decode_items(answer)
    assert not more and [one.key for one in items] == sorted(one.key for one in items)
    return {one.key: (one.value, one.index, one.expires_ms) for one in items}


def copy_of(store: KeyValue, rng: random.Random) -> KeyValue:
    """What its snapshot makes, cut anywhere."""
    pieces: list[bytes] = []
    store.save(pieces.append)
    data, cut = b"".join(pieces), []
    while data:
        size = rng.randrange(1, 40)
        cut.append(data[:size])
        data = data[size:]
    copy = KeyValue()
    copy.load(cut)
    return copy


def expected_of(held: Held, index: int, now_ms: int, one: KvCommand) -> KvResult:
    """What a plain dict says."""
    key, here = one.key, held.get(one.key)
    if one.condition is If.VALUE_IS:
        fits = here is not None and here[0] == one.expected_value
    else:
        fits = one.condition is If.ALWAYS or (ABSENT if here is None else here[1]) == one.expected_index
    if not fits:
        if here is None:
            return KvResult(Status.CONDITION_FAILED, False, ABSENT)
        return KvResult(Status.CONDITION_FAILED, True, here[1], here[0])
    if one.op is Op.DELETE:
        return KvResult(Status.NOT_FOUND if held.pop(key, None) is None else Status.DONE, False, ABSENT)
    held[key] = one.value, index, now_ms + one.ttl_ms if one.ttl_ms else NEVER
    return KvResult(Status.DONE, True, index)


@pytest.mark.parametrize("seed", range(4))
def test_it_answers_what_a_dict_does_and_a_snapshot_changes_nothing(seed: int) -> None:
    rng = random.Random(f"kv {seed}")
    store, held, now_ms = KeyValue(), Held(), 1000
    for index in range(800):
        now_ms += rng.choice([0, 0, 1, 5])
        key = rng.choice([b"a", b"ab", b"b", b"c" * 30])
        here = held.get(key)
        wanted = KvCommand(
            rng.choice([Op.PUT, Op.PUT, Op.DELETE]), key, b"%d" % index, rng.choice([0, 0, 3, 40]),
            rng.choice(list(If)), rng.choice([b"x", b"" if here is None else here[0]]),
            rng.choice([ABSENT, ABSENT if here is None else here[1]]),
        )  # fmt: skip
        for gone in [one for one, (_, _, until) in held.items() if until != NEVER and until <= now_ms]:
            del held[gone]
        if rng.random() < 0.1:
            assert apply(store, command(index, now_ms, None)) == [None]
        else:
            assert apply(store, command(index, now_ms, wanted)) == [expected_of(held, index, now_ms, wanted)]
        assert content(store) == held
        assert store.wake_at_ms() == min((until for _, _, until in held.values() if until != NEVER), default=None)
        if rng.random() < 0.05:
            store = copy_of(store, rng)
            assert content(store) == held


def test_a_get_says_who_wrote_it_and_until_when_it_stays() -> None:
    store = KeyValue()
    apply(store, command(3, 100, KvCommand(Op.PUT, b"k", b"v", 50)))
    answer = store.query(ask_get(b"k"))
    assert answer is not None
    item = decode_got(b"k", answer)
    assert item is not None and (item.value, item.index, item.expires_ms) == (b"v", 3, 150)
    apply(store, command(4, 150, None))
    gone = store.query(ask_get(b"k"))
    assert gone is not None and decode_got(b"k", gone) is None


def watched(
    store: KeyValue, from_index: int, prefix: bytes = b"", limit: int = 1000
) -> Sequence[tuple[EventType, int]]:
    answer = store.query(ask_watch(prefix, from_index, limit))
    return [] if answer is None else [(one.type, one.index) for one in decode_watched(answer).events]


def test_events_are_those_of_whole_entries_and_none_is_left_out() -> None:
    store = KeyValue()
    apply(store, *(command(index, 10, KvCommand(Op.PUT, b"k%d" % index, b"", 5)) for index in range(3)))
    apply(store, command(3, 15, KvCommand(Op.PUT, b"z", b"")))  # three keys expire, one is put
    assert watched(store, 3) == [(EventType.EXPIRE, 3)] * 3 + [(EventType.PUT, 3)]
    answer = store.query(ask_watch(b"", 2, 2))
    assert answer is not None
    first = decode_watched(answer)
    assert ([one.index for one in first.events], first.next_index) == ([2, 3, 3, 3, 3], 4)
    assert watched(store, 0, b"k1") == [(EventType.PUT, 1), (EventType.EXPIRE, 3)]
    assert store.query(ask_watch(b"", 4)) is None and store.query(ask_watch(b"none", 0)) is None


def test_after_a_snapshot_a_watch_from_before_it_says_that_it_cannot() -> None:
    store = KeyValue()
    apply(store, command(5, 1, KvCommand(Op.PUT, b"a", b"")), command(7, 1, KvCommand(Op.DELETE, b"a")))
    copy = copy_of(store, random.Random(1))
    answer = copy.query(ask_watch(b"", 7))
    assert answer is not None and decode_watched(answer).is_gone and decode_watched(answer).next_index == 8
    apply(copy, command(8, 1, KvCommand(Op.PUT, b"b", b"")))
    assert watched(copy, 8) == [(EventType.PUT, 8)]


def test_what_is_no_command_or_question_changes_nothing() -> None:
    store, rng = KeyValue(), random.Random("odd bytes")
    apply(store, command(0, 1, KvCommand(Op.PUT, b"a", b"1")))
    before, sound = content(store), encode_command(KvCommand(Op.PUT, b"key", b"value", 5, If.VALUE_IS, b"old"))
    odd = [b"", b"\x09", sound[:10], sound[:22], *(rng.randbytes(rng.randrange(40)) for _ in range(300))]
    for index, body in enumerate(odd, start=1):
        try:
            decode_command(body)
        except KvError:
            [result] = store.apply([Command(index, 1, body)])
            assert decode_result(result).status is Status.BAD_COMMAND
        if body[:1] not in (b"\x01", b"\x02", b"\x03"):
            with pytest.raises(BadQuestion):
                store.query(body)
    assert content(store) == before


@pytest.mark.parametrize("data", [b"", b"quorumscope kv 1\n", b"something else entirely, and long enough for it"])
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        KeyValue().load([data])


def test_keys_stay_in_order_over_many_chunks() -> None:
    rng = random.Random("keys")
    keys, model = SortedKeys(), set[bytes]()
    for _ in range(6 * CHUNK_MAX):
        key = b"%05d" % rng.randrange(4 * CHUNK_MAX)
        if key not in model:
            keys.add(key)
            model.add(key)
        elif rng.random() < 0.5:
            keys.remove(key)
            model.remove(key)
    assert list(keys) == sorted(model) and len(keys) == len(model)
    assert list(keys.from_key(b"02000")) == sorted(key for key in model if key >= b"02000")
    for key in sorted(model):
        keys.remove(key)
    assert list(keys) == [] and list(SortedKeys(sorted(model))) == sorted(model)


@pytest.mark.parametrize("seed", range(6))
def test_a_save_in_steps_is_of_the_state_at_its_beginning(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is put, removed, put again or expires between its pieces."""
    rng = random.Random(f"steps {seed}")
    monkeypatch.setattr(kv_saving, "STEP_ITEMS", rng.choice([1, 3, 10]))
    store, now_ms, index = KeyValue(), 1000, 0
    keys = [b"%03d" % number for number in range(60)]

    def go_on(commands: int) -> None:
        nonlocal index, now_ms
        for _ in range(commands):
            index, now_ms = index + 1, now_ms + rng.choice([0, 1])
            op = rng.choice([Op.PUT, Op.PUT, Op.DELETE])
            apply(store, command(index, now_ms, KvCommand(op, rng.choice(keys), b"%d" % index, rng.choice([0, 0, 9]))))

    go_on(150)
    for _ in range(3):
        at_once: list[bytes] = []
        store.save(at_once.append)
        in_steps = []
        for piece in store.save_in_steps():
            in_steps.append(piece)
            go_on(rng.randrange(6))
        assert b"".join(in_steps) == b"".join(at_once)
        assert store._saving is None
    abandoned = store.save_in_steps()
    next(abandoned), next(abandoned)
    assert store._saving is not None
    abandoned.close()  # type: ignore[attr-defined]
    assert store._saving is None


def test_a_state_that_is_loaded_ends_no_save_of_the_one_before() -> None:
    store, other = KeyValue(), KeyValue()
    apply(store, *(command(index, 1, KvCommand(Op.PUT, b"%04d" % index, b"a")) for index in range(1500)))
    apply(other, command(5000, 1, KvCommand(Op.PUT, b"other", b"b")))
    at_once: list[bytes] = []
    newer: list[bytes] = []
    store.save(at_once.append)
    other.save(newer.append)
    pieces = store.save_in_steps()
    taken = [next(pieces), next(pieces)]
    store.load(newer)
    apply(store, command(5001, 1, KvCommand(Op.DELETE, b"0900")), command(5002, 1, KvCommand(Op.PUT, b"0901", b"c")))
    assert b"".join([*taken, *pieces]) == b"".join(at_once)
    assert set(content(store)) == {b"other", b"0901"}


def test_results_of_many_puts_are_read_as_each_of_them_is() -> None:
    every = (
        [KvResult(Status.DONE, True, at) for at in range(40)],
        [KvResult(Status(at % 3), at % 2 == 0, at) for at in range(40)],
        [KvResult(Status.CONDITION_FAILED, True, at, b"x" * at) for at in range(40)],
    )
    for wanted in every:
        results = [encode_result(one) for one in wanted]
        lengths = np.array([len(one) for one in results], np.int64)
        packed = PackedBodies(b"..." + b"".join(results), 3, lengths)
        assert decode_results(packed) == decode_results(results) == wanted
    broken = PackedBodies(b"\x09" * 10 * 30, 0, np.full(30, 10))
    with pytest.raises(KvError, match="no result"):
        decode_results(broken)
