"""Events of a member that lies: however long they are, the console keeps a bounded part of each, and says so.

It keeps 20,000 of a group and draws hundreds on a page: at 16 MiB each, which is what it reads of an answer, they would
fill its disk, and one page its memory. What they hold comes from a seed that is printed.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.db.models import EventRow
from app.db.repositories import EVENT_CHARS_MAX, Events
from node.views.events import DETAIL_BYTES_MAX, EventView
from tests.attack.remoting_kit import drawn
from tests.unit.console_kit import run, running


def long_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(["text", "list", "object", "pictures"] if depth < 2 else ["text"])
    size = rng.choice([10, 1_000, 300_000])
    if kind == "list":
        return [rng.choice([0, "x", None, 1.5])] * size
    if kind == "object":
        return {f"key {number}": long_value(rng, depth + 1) for number in range(rng.randrange(1, 4))}
    return rng.choice("x<\u200b\x1b\U0001f600") * size


def an_event(rng: random.Random, number: int) -> dict[str, Any]:
    detail = {name: long_value(rng) for name in rng.sample(["text", "reason", "state", "was", "at_ns", "more"], 3)}
    found = {"id": f"boot-{number}", "at": "2026-11-28T12:00:00Z", "kind": "role", "severity": "info", "detail": detail}
    if rng.random() < 0.2:
        found["detail"] = long_value(rng, 2)  # a sentence
    if rng.random() < 0.3:
        found["text"] = "x" * rng.choice([5, EVENT_CHARS_MAX, 20_000])
    return found


def test_of_a_long_event_a_bounded_part_is_kept_and_drawn(tmp_path: Path) -> None:
    rng = drawn("events")

    async def work() -> None:
        async with running(tmp_path) as kit:
            sessions = kit.app.state.sessions
            said = [an_event(rng, number) for number in range(60)]
            await Events(sessions).add("demo", "n0", [EventView.model_validate(one) for one in said])
            async with sessions() as db:
                rows = {
                    row.source_id: row for row in await db.scalars(select(EventRow).where(EventRow.node_id == "n0"))
                }
            assert len(rows) == len(said)
            for one in said:
                row = rows[one["id"]]
                assert 0 < len(row.text) <= EVENT_CHARS_MAX
                kept = len(json.dumps(row.detail, ensure_ascii=False).encode())
                assert kept <= DETAIL_BYTES_MAX
                whole = one["detail"] if isinstance(one["detail"], dict) else {"text": one["detail"]}
                assert row.detail == whole or "bytes of detail are left out" in row.detail["text"]

    run(work())
