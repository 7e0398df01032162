"""The last audit of each group, for its sentence: looked up once per group, and again whenever one ends."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from app.audit.result import STATES_DIFFER
from app.audit.runner import AuditRunner
from app.console.console import Console
from app.db.audits import AuditRow, as_json
from app.db.retention import AUDITS_KEPT_PER_CLUSTER
from app.health.audited import open_audit
from app.health.facts import join, spelled_range
from app.health.group_view import AuditView

log = logging.getLogger(__name__)
LOOKED_AT: Final = AUDITS_KEPT_PER_CLUSTER
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
    kept = await runner.kept.newest(cluster_id, LOOKED_AT)
    counts = open_audit([await with_range(runner, AuditView.model_validate(as_json(row)), row) for row in kept])
    if counts is not None and counts.id is not None and counts.verdict == "divergent":
        found, _ = await runner.kept.findings(counts.id, 1, severity="critical")
        if found:
            row = next(one for one in kept if one.id == counts.id)
            where = spelled_range if (row.result or {}).get("unit") != "offset" else spelled_offsets
            said = where(found[0]["from_index"], found[0]["to_index"])
            counts = with_first(counts, said, found[0]["replicas"])
    elif counts is not None:
        row = next(one for one in kept if one.id == counts.id)
        differ = STATES_DIFFER in str((row.result or {}).get("summary") or "")
        counts = counts.model_copy(update={"states_differ": differ})
    console.audits[cluster_id] = counts


async def with_range(runner: AuditRunner, audit: AuditView, row: AuditRow) -> AuditView:
    """With the range that all its critical findings lie in; a list that was cut short tells none."""
    if audit.id is None or audit.verdict != "divergent" or (row.result or {}).get("findings_truncated"):
        return audit
    low, high = await runner.kept.critical_range(audit.id)
    return audit.model_copy(update={"found_from": low, "found_to": high})


def with_first(audit: AuditView, where: str, replicas: list[str]) -> AuditView:
    """With the first finding in words, and the member where it is one's alone."""
    node_id = replicas[0] if len(replicas) == 1 else None
    return audit.model_copy(update={"first": f"{where} on {join(replicas)}", "node_id": node_id})


def spelled_offsets(first: int, _last: int) -> str:
    """Of a pair's finding: where to look; it may reach to the end of the log."""
    return f"offset {first:,}"
