"""A state machine's own saves take a tenth of the time at most; one that was asked for begins at once; one that fails
says why."""

from __future__ import annotations

import select
import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.protocol.kv import encode_put
from node.snapshots import directory as snapshots
from node.state_machine import frames
from node.state_machine.frames import BatchFrame, FrameReader, Kind, SavedFrame
from node.state_machine.kind import Type, body_of, kind_of
from node.state_machine.kv import KeyValue
from node.state_machine.process import (
    AGAIN_NS_MAX,
    AGAIN_NS_MIN,
    PASSED_NS,
    SAVES_APART_NS,
    SAVES_SHARE,
    Options,
    Process,
)
from node.state_machine.saving import SteppedSave, Target
from node.store.errors import StoreFull
from node.store.memory_store import MemoryStore

KIND = kind_of("kv")


def test_the_next_save_waits_nine_times_as_long_as_the_last_one_took(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = Process(theirs, KeyValue(), KIND, Options("kv", tmp_path, 1, 3))
        log = MemoryStore(kind=KIND.name)

        def apply_one() -> None:
            slabs = log.append_as_leader([body_of(Type.COMMAND, 1, encode_put(b"key", b"value"))], 1)
            index = log.end_index
            process._batch(frames.read_batch(frame_of(BatchFrame(0, index, index, True, slabs[0].data))))
            process._save_if_due()

        def finish() -> None:
            while process._saving is not None:
                readable = select.select([process._saving], [], [], 0.01)[0]
                process._save_goes_on(process._saving, readable)

        apply_one()
        began_ns = process._save_began_ns
        assert process._saving is not None and began_ns > 0
        finish()
        assert snapshots.newest_index(tmp_path) == process._saved_index == 0
        assert process._rest_until_ns - began_ns == max(SAVES_SHARE * process.last_save_ns, SAVES_APART_NS) > 0
        process._save_began_ns = began_ns - SAVES_APART_NS  # it took that long
        over: Any = SimpleNamespace(ended=lambda: "")
        process._saving = over
        process._save_ended()
        assert process._rest_until_ns - process._save_began_ns == SAVES_SHARE * process.last_save_ns > SAVES_APART_NS

        process._rest_until_ns = 1 << 62  # as after one that took very long
        apply_one()
        assert process._saving is None
        process._wish_to_save()
        process._save_if_due()
        assert process._saving is not None
        finish()
        assert snapshots.newest_index(tmp_path) == 1

        process._rest_until_ns = 0  # that time has come
        apply_one()
        assert process._saving is not None
        finish()
        assert snapshots.newest_index(tmp_path) == 2


def test_a_few_long_commands_are_saved_as_many_short_ones_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 commands of a megabyte fill a disk before the first save, without which nothing of the log may go."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = Process(theirs, KeyValue(), KIND, Options("kv", tmp_path, 1_000_000, 3))
        log = MemoryStore(kind=KIND.name)
        bodies = [body_of(Type.COMMAND, 1, encode_put(b"key", b"v" * 1000))] * 4
        begun = []
        for _ in range(6):
            data = log.append_as_leader(bodies, 1)[0].data
            last = log.end_index
            monkeypatch.setattr("node.state_machine.process.SAVE_BYTES", 2 * len(data))
            process._batch(frames.read_batch(frame_of(BatchFrame(0, last - 3, last, True, data))))
            process._save_if_due()
            begun.append(process._saving is not None)
            while process._saving is not None:
                process._save_goes_on(process._saving, select.select([process._saving], [], [], 0.01)[0])
            process._rest_until_ns = 0
            process._save_if_due()
            assert process._saving is None, "nothing was applied since"
        assert begun == [False, True] * 3
        assert snapshots.newest_index(tmp_path) == 23


@pytest.mark.parametrize("fails_at", ["the first piece", "the end"])
def test_a_save_that_fails_on_the_disk_says_so_and_names_no_snapshot(
    fails_at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asked for it must not take it for saved, and the next one does not begin at once."""

    def full(*_: object) -> None:
        raise StoreFull("No space left on device")

    monkeypatch.setattr(snapshots.SnapshotWriter, "write" if fails_at == "the first piece" else "commit", full)
    save = SteppedSave(iter([b"a", b"b"]), Target(snapshots.SnapshotMeta(4, 1), tmp_path, 3))
    for _ in range(3):
        save._next_ns = 0
        save.step(time.monotonic_ns())
    assert select.select([save], [], [], 30.0)[0] == [save]
    assert "No space left on device" in save.ended()
    assert snapshots.newest_index(tmp_path) == -1


def test_a_save_that_failed_is_tried_again_by_and_by_although_little_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk is empty again an hour later, and no entry behind the newest snapshot may go until one is saved. What
    failed is never named as saved: entries would go that nothing else holds."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = Process(theirs, KeyValue(), KIND, Options("kv", tmp_path, 10, 3))
        log = MemoryStore(kind=KIND.name)
        commit = snapshots.SnapshotWriter.commit

        def apply(count: int) -> None:
            bodies = [body_of(Type.COMMAND, 1, encode_put(b"key", b"value"))] * count
            data = log.append_as_leader(bodies, 1)[0].data
            last = log.end_index
            process._batch(frames.read_batch(frame_of(BatchFrame(0, last - count + 1, last, True, data))))

        def save_if_due() -> bool:
            process._save_if_due()
            begun = process._saving is not None
            while process._saving is not None:
                process._save_goes_on(process._saving, select.select([process._saving], [], [], 0.01)[0])
            return begun

        def said() -> list[SavedFrame]:
            sent, process._out = b"".join(process._out), []
            return [frames.read_saved(body) for kind, body in FrameReader().frames(sent) if kind is Kind.SAVED]

        def full(*_: object) -> None:
            raise StoreFull("No space left on device")

        monkeypatch.setattr(snapshots.SnapshotWriter, "commit", full)
        apply(10)
        waits = []
        for _ in range(9):
            process._rest_until_ns = 0
            assert save_if_due()
            waits.append(process._again_ns)
            assert [(one.index, "No space" in one.error, one.is_tried_again) for one in said()] == [(-1, True, True)]
            assert not save_if_due(), "it rests"
        assert waits[:3] == [AGAIN_NS_MIN, 2 * AGAIN_NS_MIN, 4 * AGAIN_NS_MIN] and waits[-1] == AGAIN_NS_MAX

        process._reload()
        process._caller.stopped_by = "a command that cannot be applied"
        process._wish_to_save()
        process._save_if_due()
        process._caller.stopped_by = ""
        process._lives(0)
        sent = b"".join(process._out)
        [stands] = [frames.read_stands(body) for kind, body in FrameReader().frames(sent) if kind is Kind.STANDS]
        assert (stands.index, stands.saved_index, [(one.index, one.is_tried_again) for one in said()]) == (
            9,
            -1,
            [(-1, False)],
        )

        monkeypatch.setattr(snapshots.SnapshotWriter, "commit", commit)
        process._rest_until_ns = 0
        assert save_if_due(), "nothing was applied since"
        assert said() == [SavedFrame(9)] and snapshots.newest_index(tmp_path) == 9
        process._rest_until_ns = 0
        apply(9)
        assert not save_if_due(), "all is as ever"
        apply(1)
        assert save_if_due()


def test_members_save_behind_the_same_entries_however_these_came_to_them(tmp_path: Path) -> None:
    """Only such states can be compared. What is left of a batch behind a save is handed over again."""
    log = MemoryStore(kind=KIND.name)
    bodies = [body_of(Type.COMMAND, 1, encode_put(b"%d" % number, b"v" * (number % 7))) for number in range(100)]
    data = [bytes(log.append_as_leader([one], 1)[0].data) for one in bodies]
    states = []
    for name, batch in (("n0", 1), ("n1", 17), ("n2", 21)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            directory = tmp_path / name
            directory.mkdir()
            process = Process(theirs, KeyValue(), KIND, Options("kv", directory, 20, 9))
            while (first := process._caller.at + 1) < len(data):
                last = min(first + batch, len(data)) - 1
                records = b"".join(data[first : last + 1])
                process._batch(frames.read_batch(frame_of(BatchFrame(0, first, last, True, records))))
                process._save_if_due()
                while process._saving is not None:
                    process._save_goes_on(process._saving, select.select([process._saving], [], [], 0.01)[0])
                process._rest_until_ns = 0
            states.append([(one.meta.index, one.meta.data_crc) for one in snapshots.snapshots_in(directory)])
    assert [index for index, _ in states[0]] == [99, 79, 59, 39, 19]
    assert states[0] == states[1] == states[2]


def test_what_a_burst_left_behind_its_last_save_is_saved_although_nothing_more_comes(tmp_path: Path) -> None:
    """Behind all that passed while it rested there was no save until the next such entry, and a start applied it all
    again."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = Process(theirs, KeyValue(), KIND, Options("kv", tmp_path, 10, 3))
        log = MemoryStore(kind=KIND.name)
        for count in (10, 25):
            data = log.append_as_leader([body_of(Type.COMMAND, 1, encode_put(b"key", b"v"))] * count, 1)[0].data
            first = process._caller.at + 1
            process._batch(frames.read_batch(frame_of(BatchFrame(0, first, log.end_index, True, data))))
            process._save_if_due()
            while process._saving is not None:
                process._save_goes_on(process._saving, select.select([process._saving], [], [], 0.01)[0])
            process._rest_until_ns = 1 << 62
        assert process._saved_index == 9 and process._caller.at == 34, "it rested"
        process._rest_until_ns = time.monotonic_ns()
        process._save_if_due()
        assert process._saving is None, "entry 39 may come soon, behind which all members save"
        process._rest_until_ns = time.monotonic_ns() - PASSED_NS
        process._save_if_due()
        assert process._saving is not None and process._save_index == 34
        process._saving.abandon()


def frame_of(one: BatchFrame) -> memoryview:
    return memoryview(b"".join(frames.batch(one)))[5:]  # behind its length and kind


def test_a_save_of_nothing_is_refused(tmp_path: Path) -> None:
    """It counted as sound: the log could be removed up to there, and `load` failed over it later."""
    for at, pieces in enumerate(([], [b"", b""], [b"", b"x"])):
        target = Target(snapshots.SnapshotMeta(at, 1, None, None), tmp_path, 3)
        saving = SteppedSave(iter(pieces), target)
        while (due_s := saving.due_in_s(time.monotonic_ns())) is not None:
            time.sleep(due_s)
            saving.step(time.monotonic_ns())
        select.select([saving], [], [], 30)
        ended = saving.ended()
        assert ended == "" if b"x" in pieces else "at least one byte" in ended
        assert snapshots.named_in(tmp_path) == ([at] if b"x" in pieces else [])
