"""Audits that the console starts by itself, every so often.

What is due is started in the schedule's name, as anybody would start it. A time that passed while the console was not
there is made up for once; the following ones stay where they were.

Invariants: for one due time one audit at most is started, also where the console ends in between or two consoles share
a database (the due time is the call's idempotency key); while an audit of the group has not ended none is started
beside it; a group of which no member has been seen yet is waited for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from datetime import datetime, timedelta
from typing import Final

from app.api.audits import replicas_of
from app.audit.runner import AuditRunner
from app.console.console import Console
from app.console.errors import ConsoleError
from app.console.format import duration_ms
from app.console.their_clock import ours_is_behind
from app.db.audits import FINAL
from app.db.schedules import ScheduleRow, Schedules
from app.health.group_view import GroupView
from app.times import rfc3339, utc_now

log = logging.getLogger(__name__)
LOOK_EVERY_S: Final = 5.0
HEARD_WITHIN_S: Final = 60.0  # members that have not said by then what time it is are not waited for
PERIODS: Final = {"hour": 3600, "6 hours": 6 * 3600, "day": 86_400, "week": 7 * 86_400}  # what the form offers
NOT_ENDED: Final = "the audit before it had not ended"


async def start_what_is_due(console: Console, runner: AuditRunner, kept: Schedules) -> None:
    """For ever."""
    began_s = time.monotonic()
    while True:
        now, behind = utc_now(), ours_is_behind(console.samples)
        if behind is False or (behind is None and time.monotonic() - began_s >= HEARD_WITHIN_S):
            await bring_back(kept, now)
        for row in await kept.due(now):
            watch = console.watches.get(row.cluster_id)
            if watch is not None and watch.view.members:
                try:
                    await start_one(console, runner, kept, row, watch.view, now)
                except Exception:  # the others are not held up; this one is tried again
                    log.exception("schedule %s of %s could not be carried out", row.id, row.cluster_id)
        await asyncio.sleep(LOOK_EVERY_S)


async def bring_back(kept: Schedules, now: datetime) -> None:
    """Where the clock was ahead and came back, no schedule stands still for as long as it was ahead."""
    for row, next_at in await kept.ahead(now):
        log.warning(
            "schedule %s of %s was planned while the clock was ahead: it is due at %s instead of %s", row.id,
            row.cluster_id, rfc3339(next_at), rfc3339(row.next_at),
        )  # fmt: skip
        await kept.planned(row, next_at)


async def start_one(
    console: Console, runner: AuditRunner, kept: Schedules, row: ScheduleRow, view: GroupView, now: datetime
) -> None:
    next_at = following(row.next_at, row.every_s, now)
    # One due time can come twice, where a clock was ahead; the audit before it is another then.
    key = f"schedule {row.id} at {rfc3339(row.next_at)} after {row.last_audit_id}"
    last = await runner.kept.newest(row.cluster_id, 1)
    if last and last[0].state not in FINAL and last[0].idempotency_key != key:
        await kept.went(row, next_at, None, NOT_ENDED)
        return
    try:
        audit = await runner.launch(
            cluster_id=row.cluster_id, cluster_name=view.cluster.name, replicas=replicas_of(console, view),
            depth="bytes" if view.is_pair else row.depth, from_index=None, to_index=None,
            requested_by=f"schedule {row.id}", ha=view.is_pair, idempotency_key=key,
            fingerprint=hashlib.sha256(key.encode()).hexdigest(),
        )  # fmt: skip
    except (OSError, ConsoleError) as error:
        await kept.went(row, next_at, None, str(error))
        return
    await kept.went(row, next_at, audit["id"], None)


def spelled_period(every_s: int) -> str:
    """As the form calls it, where it does."""
    return next((name for name, seconds in PERIODS.items() if seconds == every_s), duration_ms(every_s * 1000))


def following(due: datetime, every_s: int, now: datetime) -> datetime:
    """The first time behind `now` that is a whole number of periods behind `due`."""
    periods = int((now - due) / timedelta(seconds=every_s)) + 1 if now >= due else 0
    return due + timedelta(seconds=every_s * periods)
