"""What a real engine does, told to the world's observers: the same hooks as in `tests/simulation/observer`.

The engine is not changed: what it calls on its core and its store is looked at on its way. What its members say to each
other is read off the wire (`wire.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from node.consensus.effects import Effects, Event
from node.engine.engine import Engine
from node.protocol.messages import Message
from node.store.file_store import FileStore
from node.store.log_store import HardState, SyncTicket, TruncationRecord

if TYPE_CHECKING:
    from tests.simulation.driver.machine import Machine


def watch(machine: Machine, engine: Engine, store: FileStore) -> None:
    """Puts a look-out around each call that the observers want to hear of."""
    tell = machine.world.tell
    made: Any = engine.replica
    take_effects, receive, note = made.take_effects, engine.receive, engine.note
    save, finish_sync, truncate = store.save_hard_state, store.finish_sync, store.truncate

    def report_effects() -> Effects:
        effects: Effects = take_effects()
        tell.effects(machine, effects)
        return effects

    def report_message(sender: str, message: Message) -> None:
        tell.delivered(sender, machine.id, message)
        receive(sender, message)

    def report_event(kind: str, severity: str, detail: dict[str, Any]) -> None:
        note(kind, severity, detail)
        tell.event(machine, Event(kind, detail, severity))

    def report_hard_state(state: HardState) -> None:
        save(state)
        machine.note_voter_state(state)
        tell.persisted(machine, state)

    def report_sync(ticket: SyncTicket) -> int:
        end_index = finish_sync(ticket)
        tell.synced(machine, end_index)
        return end_index

    def report_cut(cut_index: int, record: TruncationRecord) -> None:
        truncate(cut_index, record)
        tell.cut(machine, record)

    made.take_effects = report_effects
    for name, call in (
        ("save_hard_state", report_hard_state), ("finish_sync", report_sync), ("truncate", report_cut),
    ):  # fmt: skip
        setattr(store, name, call)
    engine.receive = report_message
    engine.note = report_event
