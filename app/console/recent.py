"""What was over within the last hour, for each group: read from the stored events, so that a restart forgets nothing.

A group's incidents are events of the console itself; what members cut meanwhile are events of theirs, which come in
when they are back. Invariant: only what is shown is kept, at most `SHOWN_MAX` of one hour.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from app.health.group_view import Incident
from app.health.incidents import KEPT_S, KIND, with_cuts
from app.times import parse_time, utc_now

if TYPE_CHECKING:
    from app.console.console import Console

Json = dict[str, Any]
log = logging.getLogger(__name__)
LOOK_UP_EVERY_S: Final = 1.0
SHOWN_MAX: Final = 20
READ_MAX: Final = 500
CUT: Final = "truncation"


async def look_up_forever(console: Console) -> None:
    while True:
        for cluster_id in list(console.watches):
            try:
                console.recent[cluster_id] = await recent(console, cluster_id)
            except Exception:  # a database that is locked: asked again, and until then the last ones stay
                log.exception("what is over in %s could not be read", cluster_id)
        await asyncio.sleep(LOOK_UP_EVERY_S)


async def recent(console: Console, cluster_id: str) -> tuple[Incident, ...]:
    """Newest first."""
    since = utc_now() - timedelta(seconds=KEPT_S)
    # What a clock that was ahead wrote would be shown for as long as it was.
    until = since + timedelta(seconds=2 * KEPT_S)
    over = await console.events_kept.list(cluster_id, limit=SHOWN_MAX, since=since, until=until, kinds=(KIND,))
    incidents = [one for item in over if (one := incident_of(item)) is not None]
    if not incidents:
        return ()
    began = min(parse_time(one.since) for one in incidents)
    cut = await console.events_kept.list(cluster_id, limit=READ_MAX, since=began, kinds=(CUT,))
    cuts = [found for item in cut if (found := cut_of(item)) is not None]
    shown: list[Incident] = []
    for one in incidents:  # the newest first: a cut belongs to the last incident before it
        shown.append(with_cuts(one, cuts))
        cuts = [cut for cut in cuts if cut[0] < one.since]
    return tuple(shown)


def incident_of(item: Json) -> Incident | None:
    """None for one that another version wrote otherwise."""
    try:
        return Incident.model_validate(item["detail"])
    except ValidationError:
        return None


def cut_of(item: Json) -> tuple[str, str, int, int] | None:
    detail = item["detail"] or {}
    low, high = detail.get("from_index"), detail.get("to_index")
    if not isinstance(low, int) or not isinstance(high, int) or high < low:
        return None
    return item["at"], item["node_id"] or "a member", low, high
