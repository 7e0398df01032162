"""A trim that takes several turns: what it says at its end is of all of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from node.control.operations import Operations
from node.control.trim import Trim, go_on
from node.protocol.codes import ResponseCode

KEEPER = {"owner": "n2", "from_index": 900, "why": "is not known to hold more"}


def test_who_kept_entries_is_named_also_where_the_last_turn_had_nothing_left_to_ask() -> None:
    turns = [
        {"removedFiles": 10, "removedBytes": 1000, "beginIndex": 400, "keptBy": [KEEPER], "detail": ""},
        {"removedFiles": 2, "removedBytes": 200, "beginIndex": 480, "keptBy": [], "detail": ""},
        {"removedFiles": 0, "removedBytes": 0, "beginIndex": 480, "keptBy": [], "detail": ""},
    ]

    async def answer(*_: object) -> dict[str, Any]:
        return {"code": int(ResponseCode.SUCCESS), **turns.pop(0)}

    async def work() -> None:
        parts: Any = SimpleNamespace(
            link=SimpleNamespace(json=answer), snapshots=SimpleNamespace(outdate=lambda: None), operations=Operations()
        )
        operation: dict[str, Any] = {}
        ended = await go_on(parts, Trim(through_index=1000), operation)
        assert ended["state"] == "done" and not turns
        assert ended["outcome"] == {
            "removed_files": 12, "removed_bytes": 1200, "begin_index": 480, "kept_by": [KEEPER], "forced": False,
        }  # fmt: skip
        assert operation["progress"] == "12 files, the log begins at 480"

    asyncio.run(work())
