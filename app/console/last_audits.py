"""Which audit counts for each group's sentence: looked up once per group, and again whenever one ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from app.audit.runner import AuditRunner
from app.console.console import Console
from app.db.audits import as_json
from app.health.audited import open_audit
from app.health.facts import join, spelled_range

Json = dict[str, Any]
log = logging.getLogger(__name__)
LOOKED_AT: Final = 50
LOOK_UP_EVERY_S: Final = 1.0


async def look_up_forever(console: Console, runner: AuditRunner) -> None:
    """Groups that are new to this process."""
    while True:
        for cluster_id in [one for one in console.watches if one not in console.audits]:
            try:
                await look_up(console, runner, cluster_id)
            except Exception:  # a database that is locked: asked again, and until then the sentence says nothing
                log.exception("the last audit of %s could not be looked up", cluster_id)
        await asyncio.sleep(LOOK_UP_EVERY_S)


async def look_up(console: Console, runner: AuditRunner, cluster_id: str) -> None:
    """The newest that is done, or an older one whose finding is still open, and what that found first."""
    counts = open_audit([as_json(row) for row in await runner.kept.newest(cluster_id, LOOKED_AT)])
    if counts is not None and counts["verdict"] == "divergent":
        found, _ = await runner.kept.findings(counts["id"], 1, severity="critical")
        counts |= first_of(found[0]) if found else {}
    console.audits[cluster_id] = counts


def first_of(finding: Json) -> Json:
    """The first finding in words, and the member where it is one's alone."""
    where = spelled_range(finding["from_index"], finding["to_index"])
    replicas = [str(one) for one in finding["replicas"]]
    return {"first": f"{where} on {join(replicas)}", "node_id": replicas[0] if len(replicas) == 1 else None}
