"""A group of brokers as operators find one: many topics, long names, groups far behind, changes of role that failed.

What is drawn of it lies in `states.PAGES`; each answer is an example of the node's own, stretched to what has to fit.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

import httpx2

from tests.unit.fake_brokers import BrokerGroup, example
from tests.unit.fake_control import FakeNode

Json = dict[str, Any]
TOPIC: Final = "flights-JFK"
LONG_NAME: Final = "airline-operations.crew-scheduling.rest-period-violations.europe-middle-east-africa.v2_" + "x" * 38
CLIENT: Final = "10.20.30.40@batch-worker-7f9c6d-2x8lq-4711#1234567890123"
SINCE: Final = "2026-01-01T09:12:44.120Z"
MESSAGES: Final = "/clusters/demo/messages"
BODY: Final = (
    '{"flight": "AA 1771", "from": "JFK", "to": "LAX", "delay_min": 37, "tail": "N712TW", '
    + '"note": "late'
    + " inbound aircraft" * 30
    + '"}'
)
LEVELS: Final = [
    {"level": at, "delay_ms": delay_ms, "waiting": 98_204_993 // at, "due_at": SINCE, "overdue_ms": overdue_ms}
    for at, delay_ms, overdue_ms in ((1, 1000, 0), (3, 10_000, 41_000), (18, 7_200_000, 0))
]
UNDECIDED: Final = [
    {"producer_group": name, "open": 602_496, "producers": producers}
    for name, producers in (("tickets", 3), (LONG_NAME, 0))
]
PAGES: Final = {
    "messages": MESSAGES, "messages-system": f"{MESSAGES}?system=true",
    "topic": f"{MESSAGES}/topics/{TOPIC}?sent=7F000001",
    "topic-long": f"{MESSAGES}/topics/{LONG_NAME}", "consumers": f"{MESSAGES}/groups/boards",
    "reset": f"{MESSAGES}/groups/boards?topic={TOPIC}&to=earliest", "find": f"{MESSAGES}/find",
    "message": f"{MESSAGES}/find?topic={TOPIC}&key=N712TW",
}  # fmt: skip


def topic(name: str, at: int) -> Json:
    shown: Json = example("get /api/v1/topics")["items"][0]
    return shown | {"topic": name, "messages": 1_204_993 * at, "messages_ever": 98_204_993 * at + 7,
                    "messages_per_s": None if at == 2 else 18_204.5 / (at + 1), "perm": (6, 4, 2)[at % 3],
                    "is_ordered": at == 1, "oldest_at": SINCE if at else None,
                    "size_bytes": 361_498_200 * at, "size_is_estimated": at != 1,
                    "newest_at": None if at == 0 else SINCE}  # fmt: skip


def member(at: int) -> Json:
    return {"client_id": CLIENT[: -1 - at], "address": f"10.20.30.{40 + at}:54{at}21", "heard_at": SINCE}


def consumers(name: str, members: int, behind: int) -> Json:
    shown: Json = example("get /api/v1/consumer-groups")["items"][0]
    return shown | {"group": name, "members": [member(at) for at in range(members)], "lag_messages": behind,
                    "lag_ms": behind * 3, "lag_since": SINCE if behind else None,
                    "topics": [TOPIC, LONG_NAME, f"%RETRY%{name}"]}  # fmt: skip


def one_group() -> Json:
    shown = example("get /api/v1/consumer-groups/{consumer_group}")
    queue = shown["queues"][0]
    shown |= consumers("boards", 3, 77_084)
    shown["queues"] = [
        queue | {"topic": name, "queue_id": at, "committed_offset": offset, "max_offset": 98_204_993,
                 "lag_messages": None if offset is None else 98_204_993 - offset, "lag_ms": offset and at * 40_000}
        for at, (name, offset) in enumerate([(TOPIC, 98_127_909), (LONG_NAME, None), (f"%RETRY%{TOPIC}", 98_204_993)])
    ]  # fmt: skip
    return shown


def found() -> list[Json]:
    """A message of text, one of bytes that are none and whose queue unit points elsewhere, one that has expired."""
    first: Json = example("get /api/v1/messages")["items"][0]
    text = first | {"topic": TOPIC, "keys": ["N712TW", "AA-1771-2026-01-01"], "body": first["body"] | {"text": BODY},
                    "reconsume_times": 3, "transaction": "committed"}  # fmt: skip
    unit = first["where"]["queue_unit"] | {"points_here": False, "points_to_offset": 23_279_368}
    wrong = first | {"topic": LONG_NAME, "where": first["where"] | {"queue_unit": unit, "entry_index": None},
                     "properties": first["properties"] | {"CLUSTER" * 12: "x" * 300},
                     "body": first["body"] | {"text": None, "base64": "/v8A" * 40, "crc_ok": False, "opened": False,
                                              "why": "the inflated body is larger than 4 MiB"}}  # fmt: skip
    return [text, wrong | {"message_id": first["message_id"][:-1] + "6"},
            first | {"where": None, "message_id": first["message_id"][:-1] + "7"}]  # fmt: skip


def change(outcome: str, error: str) -> Json:
    shown: Json = example("get /api/v1/broker")["role_changes"][0]
    steps = [dict(one) for one in shown["steps"]]
    steps[1]["error"] = error
    return shown | {"outcome": outcome, "steps": steps, "at": SINCE}


class Brokers(BrokerGroup):
    """See the module's docstring; the broker of who leads is master, that of a paused member is down."""

    def answer(self, node: FakeNode, request: httpx2.Request, path: list[str]) -> tuple[int, Json]:
        status, said = super().answer(node, request, path)
        if status != 200 or path[0] not in ("broker", "topics", "consumer-groups", "messages"):
            return status, said
        match path:
            case ["broker"]:
                said["name_servers"] = [{"address": "names.ops.example:9876", "registered_at": SINCE},
                                        {"address": "10.20.30.99:9876", "registered_at": None}]  # fmt: skip
                if node is self.leader and said["broker"] == "ok":
                    said["schedule"] = {"waiting": 1_204_993, "delivered": 98_204_993, "levels": LEVELS}
                    said["transactions"] = {"open": 1_204_993, "all_read": False, "oldest_at": SINCE, "unanswered": 77,
                                            "checks_max": 15, "groups": UNDECIDED}  # fmt: skip
                else:
                    said["schedule"] = said["transactions"] = None
                if said["role_changes"]:
                    why = "committed and dispatched up to the lane's end: entry 1,204,993 was not dispatched in time"
                    said["role_changes"] = [change("failed", why), change("done", ""), change("running", "")]
            case ["topics"]:
                names = [*(f"flights-{one}" for one in ("ATL", "JFK", "ORD")), LONG_NAME, "%RETRY%boards"]
                said["items"] = [topic(name, at) for at, name in enumerate(names)]
            case ["topics", name]:
                said |= topic(unquote(name), 1)
            case ["topics", _, "queues"]:
                said["items"] = [one | {"min_offset": 1_000_000, "max_offset": 98_204_993, "messages": 97_204_993}
                                 if one["messages"] else one for one in said["items"]]  # fmt: skip
            case ["consumer-groups"]:
                said["items"] = [consumers("boards", 3, 77_084), consumers("gates", 0, 1_204_993),
                                 consumers(LONG_NAME, 1, 0)]  # fmt: skip
            case ["consumer-groups", _]:
                said |= one_group()
            case ["consumer-groups", _, "reset"]:
                said["items"] = [{"queue_id": 0, "before": 98_127_909, "after": 1_000_000},
                                 {"queue_id": 1, "before": None, "after": 0},
                                 {"queue_id": 2, "before": 5, "after": 9}]  # fmt: skip
            case ["messages"] if request.method == "GET":
                said |= {"items": found(), "next": "7"}
        return status, said
