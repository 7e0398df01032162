"""Engines of a group with a state machine, in the test's own loop; the state machine is called as its process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from node.config import Settings, load
from node.engine.applier import Batch, Reports
from node.engine.engine import Engine
from node.protocol.codes import ResponseCode
from node.state_machine.caller import Answer, Caller, Question
from node.state_machine.interface import StateMachine
from node.state_machine.kind import kind_of
from node.store.memory_store import MemoryStore
from tests.ports import free_ports

Later = Callable[[Sequence[tuple[ResponseCode, int, bytes]]], None]


class Inside:
    """A `Machine` without a process: the caller and the state machine live on the engine's loop."""

    def __init__(self, machine: StateMachine, choice: str) -> None:
        self.caller = Caller(machine, kind_of(choice))
        self.reports: Reports | None = None
        self.life = 0
        self.held = False  # it takes batches and does nothing
        self.restarts = 0

    @property
    def time_ms(self) -> int:
        return self.caller.time_ms

    @property
    def wake_at_ms(self) -> int | None:
        return self.caller.wake_at_ms()

    def start(self, reports: Reports) -> None:
        self.reports = reports
        asyncio.get_running_loop().call_soon(self.stand)

    def stand(self) -> None:
        assert self.reports is not None
        term = self.caller.term if self.caller.at >= 0 else None
        self.life = self.reports.stands(self.caller.at, term, self.caller.chain)

    def apply(self, batch: Batch) -> None:
        if not self.held:
            asyncio.get_running_loop().call_soon(self.take, batch)

    def reload(self) -> None:
        asyncio.get_running_loop().call_soon(self.stand)

    def take(self, batch: Batch) -> None:
        if batch.life != self.life:
            return  # ordered before it stood where it stands now
        report = self.caller.apply(batch.first_index, batch.last_index, batch.records)
        assert self.reports is not None
        self.reports.applied(batch.life, report.upto_index, report.results, report.error)
        self.caller.answer_waiting(0)

    def ask(self, contents: Sequence[bytes], min_index: int, wait_ms: int, deliver: Later) -> None:
        loop = asyncio.get_running_loop()
        answers: dict[int, Answer] = {}

        def later(place: int, answer: Answer) -> None:
            answers[place] = answer
            if len(answers) == len(contents):
                loop.call_soon(deliver, [answers[at] for at in range(len(contents))])

        deadline = int(loop.time() * 1000) + wait_ms
        for place, content in enumerate(contents):
            self.caller.ask(Question(content, min_index, deadline, partial(later, place)))
        loop.call_later(wait_ms / 1000, self.caller.answer_waiting, deadline)

    def save(self, done: Callable[[int, str], None]) -> None:
        asyncio.get_running_loop().call_soon(done, self.caller.at, "")

    def damaged(self, indexes: Sequence[int], done: Callable[[bool], None]) -> None:
        asyncio.get_running_loop().call_soon(done, True)

    def restart(self) -> None:
        self.restarts += 1

    def stop(self) -> None:
        self.reports = None


def settings_of(tmp_path: Path, peers: Mapping[str, str], member_id: str, choice: str) -> Settings:
    text = ";".join(f"{one}-{address}" for one, address in peers.items())
    values = {"node.id": member_id, "peers": text, "node.data": str(tmp_path / member_id), "node.state_machine": choice}
    return load(values, None, {})


def group(tmp_path: Path, count: int, choice: str, make: Callable[[], StateMachine]) -> list[tuple[Engine, Inside]]:
    """Engines on memory stores, to be run."""
    ports = free_ports(count)
    peers = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
    made: list[tuple[Engine, Inside]] = []
    for member_id in peers:
        machine = Inside(make(), choice)
        kind = kind_of(choice)
        store = MemoryStore(kind=kind.name)
        settings = settings_of(tmp_path, peers, member_id, choice)
        made.append((Engine(settings, store, machine=machine, kind=kind), machine))
    return made
