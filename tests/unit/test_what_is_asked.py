"""Arguments arrive, indexes are those of the call's own, and what is shown is newer than what was changed: general
checks of client and control plane, each for a bug that was planted and that no test had noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from node.client import LedgerClient, OutcomeUnknown
from node.client.kv import KvClient
from node.client.machine import CommandResult
from node.control import leadership, trim
from node.control.engine_link import EngineSilent
from node.message_client import MessageConsumer
from node.message_client.routes import Queue
from node.message_client.taking import Taking
from node.protocol.kv import If, KvCommand, KvResult, Op, Status
from node.rocketmq.codes import Answer, Request
from node.rocketmq.command import Command
from node.views.transfer import Transfer
from tests.unit.test_control_answers import Plane
from tests.unit.test_control_answers import with_plane as with_silent_plane
from tests.unit.test_control_operations import Link, parts_of
from tests.unit.test_control_refusals import held

Json = dict[str, Any]


# --- the control plane ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("given", "wanted"), [(None, 500), (100, 100), (60_000, 60_000)])
def test_a_transfer_has_the_time_that_was_given(given: int | None, wanted: int) -> None:
    link = Link({"code": 200, "leaderId": "n1", "term": 8})
    asyncio.run(leadership.carry_out(parts_of(link), Transfer(to="n1", deadline_ms=given)))
    assert (link.asked[0]["deadlineMs"], link.asked[0]["transfereeId"]) == (wanted, "n1")


@pytest.mark.parametrize("force", [False, True])
def test_a_dry_run_asks_for_what_would_be_done(force: bool) -> None:
    """By force other files go: who looks first has to see those."""
    plan = {"code": 200, "files": 0, "bytes": 0, "beginIndex": 0, "keptBy": []}
    round_ = {"code": 200, "removedFiles": 0, "removedBytes": 0, "beginIndex": 0, "keptBy": [], "detail": ""}
    link, body = Link(plan, round_), trim.Trim(through_index=7, force=force)
    asyncio.run(trim.would(parts_of(link), body))
    asyncio.run(trim.go_on(parts_of(link), body, {}))
    assert [one.pop("dryRun") for one in link.asked] == [True, False]
    assert link.asked[0] == link.asked[1] == {"what": "trim", "throughIndex": 7, "force": force}


@pytest.mark.parametrize("released", [False, True])
def test_who_has_pinned_or_released_sees_it_at_once(released: bool) -> None:
    async def state(*_: object) -> Any:
        return SimpleNamespace(engine="ok")

    outdated: list[bool] = []
    parts = parts_of(Link({"code": 200}), get_late=state)
    parts.snapshots.outdate = lambda: outdated.append(True)
    changes = trim.release(parts, "o") if released else trim.pin(parts, "o", trim.NewPin(from_index=4, for_s=9))
    asyncio.run(changes)  # type: ignore[arg-type]
    assert outdated == [True]


def test_entries_of_an_engine_that_fell_silent_are_those_of_its_files(tmp_path: Path) -> None:
    """What it said last is older: entries that were acknowledged since would be missing."""
    held(tmp_path, 3)

    async def work(plane: Plane, client: httpx2.AsyncClient) -> None:
        log = {"begin_index": 0, "end_index": 0, "committed_index": 0, "durable_index": 0}
        plane.state = {"role": "LEADER", "leader_id": "n0", "log": log}
        assert (await client.get("/api/v1/entries")).json()["committed_index"] == 0
        plane.state = EngineSilent("no answer")
        plane.parts.snapshots.outdate()
        shown = (await client.get("/api/v1/entries")).json()
        assert (shown["engine"], shown["committed_index"], len(shown["items"])) == ("stale", 2, 3)

    with_silent_plane(tmp_path, work)


# --- the key-value client ---------------------------------------------------------------------------------------------
def test_writes_whose_answer_cannot_be_read_name_their_own_entries() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1"})
        store = KvClient(client)

        async def carried_out(_bodies: list[bytes]) -> CommandResult:
            return CommandResult(7, 2, [b"\xff"] * 3)

        store._machine.run = carried_out  # type: ignore[method-assign, assignment]
        writes = [store.put(b"%d" % number, b"v") for number in range(3)]
        ended = await asyncio.gather(*writes, return_exceptions=True)
        assert [(one.first_index, one.last_index) for one in ended if isinstance(one, OutcomeUnknown)] == [
            (7, 7), (8, 8), (9, 9)
        ]  # fmt: skip
        await client.close()

    asyncio.run(story())


def test_a_watch_from_now_on_asks_behind_what_is_applied() -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1"})
        store, asked = KvClient(client), list[bytes]()

        async def ask(question: bytes, **_: Any) -> Any:
            asked.append(question)
            if len(asked) == 1:
                return SimpleNamespace(applied_index=41, content=b"")
            raise EOFError

        store._machine.ask = ask  # type: ignore[method-assign, assignment]
        with pytest.raises(EOFError):
            await anext(store.watch(b"k"))
        with pytest.raises(EOFError):
            await anext(store.watch(b"k", from_index=42))
        assert asked[1] == asked[2], "the entry that was applied last has happened already"
        await client.close()

    asyncio.run(story())


@pytest.mark.parametrize("old", [b"red", None])
@pytest.mark.parametrize("new", [b"blue", None])
@pytest.mark.parametrize("ttl_ms", [0, 9])
def test_a_conditional_write_keeps_all_that_it_was_given(old: bytes | None, new: bytes | None, ttl_ms: int) -> None:
    async def story() -> None:
        client = LedgerClient({"n0": "127.0.0.1:1"})
        store, commands = KvClient(client), list[KvCommand]()

        async def write(command: KvCommand) -> KvResult:
            commands.append(command)
            return KvResult(Status.DONE, True, 1)

        store.write = write  # type: ignore[method-assign]
        await store.compare_and_set(b"k", old, new, ttl_ms=ttl_ms)
        (command,) = commands
        assert (command.op, command.key, command.value) == (Op.PUT if new else Op.DELETE, b"k", new or b"")
        assert command.ttl_ms == ttl_ms
        assert command.condition is (If.VALUE_IS if old else If.INDEX_IS)
        assert command.expected_value == (old or b"")
        await client.close()

    asyncio.run(story())


# --- the message client -----------------------------------------------------------------------------------------------
class OneBroker:
    """What a broker answers to each request, by its code."""

    def __init__(self, answers: dict[int, Command]) -> None:
        self.answers, self.asked = answers, list[int]()

    async def ask(self, code: int, *_: Any) -> Command:
        self.asked.append(code)
        return self.answers[code]


@pytest.mark.parametrize("code", [Answer.SUCCESS, Answer.SYSTEM_ERROR, Answer.SERVICE_NOT_AVAILABLE])
def test_an_offset_that_a_broker_did_not_take_is_committed_again(code: Answer) -> None:
    async def story() -> None:
        consumer = MessageConsumer(["127.0.0.1:1"], "G", "T")
        broker = OneBroker({Request.UPDATE_CONSUMER_OFFSET: Command(int(code), 1)})
        consumer._routes = SimpleNamespace(link=lambda _address: broker, forget=lambda _topic: None)  # type: ignore[assignment]
        taking = Taking(Queue("b", "a:1", 0, "T"), 10, 10)
        taking.skip_to(12)
        for _ in range(2):
            await consumer._commit([taking])
        assert len(broker.asked) == (1 if code is Answer.SUCCESS else 2)
        assert taking.committed == (12 if code is Answer.SUCCESS else 10)

    asyncio.run(story())


def test_a_queue_that_was_set_back_within_what_is_at_work_is_begun_anew() -> None:
    """Its messages are others: what is still at work must commit nothing there."""

    async def story() -> None:
        consumer = MessageConsumer(["127.0.0.1:1"], "G", "T")
        queue = Queue("b", "a:1", 0, "T")
        before = consumer._takings[queue.key] = Taking(queue, 10)
        before.next_offset = before.handed_to = 15  # five are at work
        following = iter([12])

        async def pull_once(_taking: Taking) -> int:
            try:
                return next(following)
            except StopIteration:
                await asyncio.Event().wait()
                raise AssertionError from None

        consumer._pull_once = pull_once  # type: ignore[method-assign]
        pulling = asyncio.ensure_future(consumer._pull(queue.key))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        now = consumer._takings[queue.key]
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)
        assert now is not before and (now.done_to, now.next_offset) == (12, 12)

    asyncio.run(story())
