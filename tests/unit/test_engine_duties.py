"""What an engine orders of its disk, and what it tells its core and its state machine of the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.config import load
from node.consensus.effects import ApplyLog, BeginBehind, Effects, TruncateLog
from node.engine.disk import Disk
from node.engine.engine import Engine
from node.engine.feeder import Feeder
from node.engine.process import Process
from node.protocol.codes import FlushMode, RequestCode, ResponseCode
from node.protocol.messages import PushKind, PushRequest, PushResponse
from node.store.errors import StoreCorrupt, StoreFull, StoreIOError
from node.store.faults.results import Fault
from node.store.files.identity import Base
from node.store.log_store import ORIGIN, TruncationRecord
from node.store.memory_store import MemoryStore
from node.store.pins import PinnedError
from node.transport.remoting import FLAG_ONE_WAY, FLAG_RESPONSE, Frame
from node.transport.slab_frames import encode_push_answer
from tests.ports import free_ports
from tests.unit.engine_kit import until

RECORD = TruncationRecord("n0", "n1", 1, 1, 1, "TRUNCATE", 0)


class Upper:
    """A state machine that is told of snapshots, and given batches."""

    def __init__(self) -> None:
        self.reloads, self.batches = 0, []  # type: tuple[int, list[Any]]

    def start(self, _reports: object) -> None:
        pass

    def apply(self, batch: Any) -> None:
        self.batches.append(batch)

    def reload(self) -> None:
        self.reloads += 1

    def stop(self) -> None:
        pass


def with_engine(tmp_path: Path, work: Callable[[Engine, Upper], None]) -> None:
    """One that was made and does not run: what it is told is looked at one by one."""

    async def both() -> None:
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3)))
        settings = load({"node.id": "n0", "peers": peers, "node.data": str(tmp_path)}, None, {})
        upper, store = Upper(), MemoryStore(store_id="n0")
        store.append_as_leader([b"a", b"b"], 1)
        engine = Engine(settings, store, applier=upper)  # type: ignore[arg-type]
        try:
            work(engine, upper)
        finally:
            engine.process.close()

    asyncio.run(both())


class Told:
    """A core's disk reports: by name, as often as each came."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_named: self.reports.append(name)


@pytest.mark.parametrize(("cut", "reported"), [(True, "truncated"), (False, "truncate_failed")])
def test_a_cut_that_found_no_space_is_not_told_as_one(tmp_path: Path, cut: bool, reported: str) -> None:
    def work(engine: Engine, _upper: Upper) -> None:
        engine.replica.disk = told = Told()  # type: ignore[assignment]
        engine.duties._truncated(TruncateLog(1, 0, RECORD), cut)
        assert told.reports == [reported]

    with_engine(tmp_path, work)


@pytest.mark.parametrize(("error", "reloads"), [(None, 1), ("no space", 0)])
def test_a_log_that_begins_anew_has_the_state_machine_look_for_its_snapshot(
    tmp_path: Path, error: str | None, reloads: int
) -> None:
    """What the log began with lies in the snapshot alone: nobody feeds it."""

    def work(engine: Engine, upper: Upper) -> None:
        engine.replica.disk = told = Told()  # type: ignore[assignment]
        engine.duties._begun(BeginBehind(1, Base(ORIGIN, 0, None, None), RECORD), error)
        assert (told.reports, upper.reloads) == (["begun_behind"], reloads)

    with_engine(tmp_path, work)


def test_a_fork_has_the_whole_log_read(tmp_path: Path) -> None:
    def work(engine: Engine, _upper: Upper) -> None:
        asked: list[str] = []
        engine.duties.scrubber.ask = lambda why: asked.append(why) or 1  # type: ignore[method-assign,func-returns-value]
        effects = Effects()
        for wanted in (False, True):
            effects.scrub_wanted = wanted
            engine.duties._order_unusual(effects)
        assert asked == ["fork"]

    with_engine(tmp_path, work)


def test_an_earlier_life_of_the_state_machine_is_fed_nothing() -> None:
    """It was read for a state that is gone: the one that stands now has other entries before it."""
    upper, read = Upper(), []  # type: tuple[Upper, list[Callable[..., None]]]
    reads = SimpleNamespace(committed=lambda _first, _bytes, _last, done: read.append(done))
    replica = SimpleNamespace(applying=SimpleNamespace(life=1))
    feeder = Feeder(replica, reads, upper, lambda: 0, lambda step: step())  # type: ignore[arg-type]
    feeder.carry_out(ApplyLog(1, 5, 6, 100, False))
    feeder.carry_out(ApplyLog(2, 7, 7, 100, False))
    replica.applying.life = 2
    for done in read:
        done(ResponseCode.SUCCESS, 1, b"record")
    assert [(one.life, one.first_index) for one in upper.batches] == [(2, 7)]


# --- the disk ---------------------------------------------------------------------------------------------------------
class Failing(MemoryStore):
    """Raises what it is told to."""

    error: BaseException | None = None
    saves = 0

    def remove_prefix(self, through_index: int, *, forced: bool = False) -> None:
        if self.error is not None:
            raise self.error

    def read_slab(self, first_index: int, max_bytes: int) -> Any:
        assert self.error is not None
        raise self.error

    def save_faults(self) -> None:
        self.saves += 1

    def has_space(self) -> bool:
        if self.error is not None:
            raise self.error
        return True


def with_disk(
    work: Callable[[Disk, Failing, list[str]], Awaitable[None]], damaged: Callable[..., None] = print
) -> None:
    async def both() -> None:
        store, process, failed = Failing(), Process(), []  # type: tuple[Failing, Process, list[str]]
        callbacks: dict[str, Any] = dict.fromkeys(("flushed", "truncated", "begun", "mended"), print)
        disk = Disk(
            store,
            FlushMode.SYNC,
            log_epoch=lambda: 0,
            process=process,
            fail=failed.append,
            damaged=damaged,
            **callbacks,
        )
        try:
            await work(disk, store, failed)
        finally:
            disk.close()
            process.close()

    asyncio.run(both())


@pytest.mark.parametrize(
    ("error", "told", "ends"),
    [
        (None, [""], False),
        (PinnedError(4, "audit", 3), ["entries up to 3 stay: audit needs those from 4 on"], False),
        (StoreFull("no space"), ["no space"], False),
        (StoreCorrupt("entry 3 is damaged", []), ["entry 3 is damaged"], False),
        (StoreIOError("unlink: input/output error"), [], True),
    ],
)
def test_a_file_that_did_not_go_is_not_said_to_be_gone(
    error: BaseException | None, told: list[str], ends: bool
) -> None:
    async def work(disk: Disk, store: Failing, failed: list[str]) -> None:
        store.error, said = error, []  # type: tuple[BaseException | None, list[str]]
        disk.remove_prefix(3, False, said.append)
        await until(lambda: bool(said or failed))
        assert (said, bool(failed)) == (told, ends)

    with_disk(work)


@pytest.mark.parametrize(
    ("error", "told", "ends"),
    [(None, [True], False), (OSError("statvfs: I/O error"), [False], False), (StoreIOError("fsync failed"), [], True)],
)
def test_a_failed_sync_of_a_cut_that_waited_for_space_ends_the_engine(
    error: BaseException | None, told: list[bool], ends: bool
) -> None:
    """The try for space writes the zeros that a cut found none for; only that the disk does not answer is no end."""

    async def work(disk: Disk, store: Failing, failed: list[str]) -> None:
        store.error, said = error, []  # type: tuple[BaseException | None, list[bool]]
        disk.ask_space(said.append)
        await until(lambda: bool(said or failed))
        assert (said, bool(failed)) == (told, ends)

    with_disk(work)


def test_damage_that_a_read_meets_is_told_before_the_read_is() -> None:
    told: list[object] = []

    async def work(disk: Disk, store: Failing, _failed: list[str]) -> None:
        store.error = StoreCorrupt("rot", [Fault(5, 5, "crc_invalid")])
        disk.read_slab(5, 100, lambda slab, error: told.append((slab, error)))
        await until(lambda: len(told) == 2)
        assert told == [5, (None, "rot")]

    with_disk(work, damaged=lambda _error, first_index: told.append(first_index))


def test_damage_that_is_known_later_is_kept_as_well() -> None:
    async def work(disk: Disk, store: Failing, _failed: list[str]) -> None:
        for saves in (1, 2):
            disk.save_faults()
            await until(lambda saves=saves: store.saves == saves and not disk._saving_faults)  # type: ignore[misc]

    with_disk(work)


# --- the links --------------------------------------------------------------------------------------------------------
class Connection:
    """One of a member's."""

    def __init__(self, peer_id: str | None = "n1") -> None:
        self.peer_id, self.proven, self.end_reason = peer_id, True, "reset"
        self.waiting_bytes = self.backlog_bytes = 0
        self.did: list[str] = []

    def abort(self) -> None:
        self.did.append("abort")

    def withdraw_long(self) -> None:
        self.did.append("withdraw")

    def send(self, _frame: object) -> None:
        self.did.append("send")


def test_the_end_of_a_connection_that_was_replaced_ends_no_other(tmp_path: Path) -> None:
    def work(engine: Engine, _upper: Upper) -> None:
        link = engine.links._links["n1"]
        old, new, ours = Connection(), Connection(), Connection()
        link.inbound, link.outbound, link.connected_at = new, ours, -100.0  # type: ignore[assignment]
        engine.links.closed(old)  # type: ignore[arg-type]
        assert link.inbound is new and ours.did == []
        engine.links.closed(new)  # type: ignore[arg-type]
        assert link.inbound is None and ours.did == ["abort"]

    with_engine(tmp_path, work)


@pytest.mark.parametrize("greeted", [True, False])
def test_an_acknowledgement_counts_only_of_a_member_that_was_greeted(tmp_path: Path, greeted: bool) -> None:
    """A durable one comes unasked: without its HELLO nobody knows whose log it speaks of (SAFETY C7)."""

    def work(engine: Engine, _upper: Upper) -> None:
        received: list[str] = []
        engine.receive = lambda sender, _message: received.append(sender)  # type: ignore[method-assign]
        answer = PushResponse(-1, ResponseCode.SUCCESS, 1, 1, 5, 5, 5)
        frame = Frame(RequestCode.SLAB_PUSH, -1, encode_push_answer(answer), flag=FLAG_RESPONSE | FLAG_ONE_WAY)
        connection = Connection("n1" if greeted else None)
        engine.links._answered(engine.links._links["n1"], connection, frame)  # type: ignore[arg-type]
        assert received == (["n1"] if greeted else [])

    with_engine(tmp_path, work)


@pytest.mark.parametrize(("kind", "did"), [(PushKind.COMPARE, ["withdraw", "send"]), (PushKind.COMMIT, ["send"])])
def test_entries_that_wait_are_void_behind_a_compare(tmp_path: Path, kind: PushKind, did: Sequence[str]) -> None:
    def work(engine: Engine, _upper: Upper) -> None:
        connection = Connection()
        push = PushRequest(1, kind, "n0", 1, 1, 0, 0, 1)
        engine.links._push(engine.links._links["n1"], connection, push)  # type: ignore[arg-type]
        assert connection.did == list(did)

    with_engine(tmp_path, work)
