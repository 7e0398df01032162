"""What operators ask over the member port (transfers, scrubs, repairs, trims, pins), each a row of the node's trail.

The row is on disk before the action begins (`action_trail`), and ends with what was answered. An engine without a
trail, as in the simulator, acts at once. Invariant: every request gets exactly one answer, and its row says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from node.consensus.replica import Replica
from node.engine.action_trail import ActionTrail
from node.protocol.codes import ResponseCode
from node.transport.bodies import BodyError, Fields, dump, load
from node.transport.connection import Connection
from node.transport.remoting import Frame

Json = dict[str, Any]
Answer = Callable[[Json], None]
Action = Callable[[Fields, Answer], None]
UNSAID: Final = frozenset(
    {"group", "localId", "remoteId", "token", "what", "code"}
)  # what a row has elsewhere, or never
SAID_MAX: Final = 16
TEXT_CHARS_MAX: Final = 200


class Requests(Protocol):
    """How an answer is written, and who asks."""

    def base(self, request: Mapping[str, Any], code: ResponseCode, **more: Any) -> Json: ...
    def who_asks(self, connection: Connection, fields: Fields) -> str: ...


class RecordedActions:
    """One engine's. `use_trail` before the first request."""

    def __init__(self, requests: Requests, replica: Replica) -> None:
        self._requests, self._replica = requests, replica
        self._trail: ActionTrail | None = None
        self._wake: Callable[[], None] = lambda: None

    def use_trail(self, trail: ActionTrail, wake: Callable[[], None]) -> None:
        """`wake` has the engine carry out what an action asked of the core."""
        self._trail, self._wake = trail, wake

    def handler(self, action: Action, target: str = "") -> Callable[[Connection, Frame], None]:
        """Of a request code; without `target` a request's field `what` names its own."""

        def handle(connection: Connection, frame: Frame) -> None:
            fields = load(frame.body)

            def answer(body: Json) -> None:
                connection.answer(frame, dump(body))

            if self._trail is None:
                action(fields, answer)
            else:
                self._recorded(self._trail, connection, fields, target or fields.text("what"), action, answer)

        return handle

    def _recorded(
        self, trail: ActionTrail, connection: Connection, fields: Fields, target: str, action: Action, answer: Answer
    ) -> None:
        replica = self._replica
        before = {"leader_id": replica.leader_id, "term": replica.term, "role": replica.role.value}

        def begun(row: int | None, problem: str) -> None:
            if row is None:
                answer(self._requests.base(fields.values, ResponseCode.DISK_ERROR) | {"detail": problem})
                return

            def ended(body: Json) -> None:
                answer(body)
                trail.end(row, int(body["code"]), {"before": before, "asked": said(fields.values), "after": said(body)})

            try:
                action(fields, ended)
            except BodyError as error:
                ended(self._requests.base(fields.values, ResponseCode.UNEXPECTED_ARGUMENT) | {"detail": str(error)})
            self._wake()

        who = self._requests.who_asks(connection, fields)
        trail.begin(begun, user_name=who or "-", credential=who, address=connection.peer_host, target=target)


def said(values: Mapping[str, Any]) -> Json:
    """Of a request or an answer what a row keeps: numbers and short texts. `trailRow`: the row of the control plane's
    call that a request belongs to, as the control plane says."""
    kept = {name: value for name, value in values.items() if isinstance(value, (int, str)) and name not in UNSAID}
    shown = list(kept.items())[:SAID_MAX]
    return {name[:TEXT_CHARS_MAX]: value[:TEXT_CHARS_MAX] if isinstance(value, str) else value for name, value in shown}
