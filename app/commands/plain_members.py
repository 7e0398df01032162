"""Members of the Java original in `status`: of a plain DLedger only METADATA is known, who its leader is.

Invariant: what such a member does not tell is unknown, neither down nor fine: its log, its term, whom it hears, and so
whether a quorum stands where one of them leads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.commands.standing import QUORUM_FIELDS, problem
from app.health.facts import ATTENTION, CRITICAL
from node.client import Denied, LedgerClient, LedgerError

Json = dict[str, Any]
PLAIN: Final = "plain"
ONLY_METADATA: Final = "plain DLedger: only METADATA is known"


async def ask_metadata(client: LedgerClient, known: Json) -> Json:
    """A member that does not know our requests, as METADATA tells of it. Raises Denied."""
    try:
        told = await client.metadata(known["id"])
    except Denied:
        raise
    except LedgerError as error:
        reason = f"no member: it knows neither our requests nor METADATA ({error})"
        return {**known, "reach": "down", "reason": reason, "state": None}
    leader_id = told.get("leaderId")
    return {**known, "reach": PLAIN, "reason": ONLY_METADATA, "state": None, "metadata": {"leader_id": leader_id}}


def with_plain(summary: Json) -> Json:
    """`standing.summary_of`, corrected for members of the original: they answer, and tell little."""
    plain = {one["id"]: one["metadata"]["leader_id"] for one in summary["members"] if one["reach"] == PLAIN}
    if not plain:
        return summary
    unknown = [
        *(one for one in summary["unknown"] if one["field"] not in ("in_step", *QUORUM_FIELDS)),
        *({"field": f"{one}.state", "reason": f"{one}: {ONLY_METADATA}", "since": None} for one in plain),
    ]
    problems = [one for one in summary["problems"] if one["member"] not in plain]
    quorum = {**summary["quorum"], "answering": summary["quorum"]["answering"] + len(plain)}
    found: Json = {**summary, "problems": problems, "unknown": unknown, "quorum": quorum}
    if summary["leader_id"] is not None:
        return found  # one of ours, and it says whom it hears
    return {**found, **_led_by(plain, problems, quorum, unknown)}


def _led_by(plain: Mapping[str, str | None], problems: list[Json], quorum: Json, unknown: list[Json]) -> Json:
    """Who leads is who says so itself, as everywhere."""
    leaders = sorted(one for one, said in plain.items() if one == said)
    if len(leaders) != 1:
        others = sorted({said for said in plain.values() if said} - set(leaders))
        text = "no member leads" + (f" that answers; {' and '.join(others)} is followed" if others else "")
        if leaders:
            text = f"{' and '.join(leaders)} each say that they lead, and a plain DLedger tells no term"
        step = "start members until a majority of them hear each other"
        told = [
            problem("no_leader", CRITICAL, None, text, step),
            *(one for one in problems if one["code"] != "no_leader"),
        ]
        return {
            "problems": told,
            "quorum": {
                **quorum,
                **({"standing": None, "stands": None} if leaders else {"standing": 0, "stands": False}),
            },
        }
    reason = f"{leaders[0]} leads: a plain DLedger tells neither its term nor whom it hears"
    told = [
        {**one, "severity": ATTENTION if one["severity"] == CRITICAL else one["severity"]}
        if one["code"] == "member_unreachable" else one
        for one in problems if one["code"] != "no_leader"
    ]  # fmt: skip
    fields = [{"field": name, "reason": reason, "since": None} for name in ("term", *QUORUM_FIELDS)]
    return {
        "leader_id": leaders[0], "term": None, "problems": told, "unknown": [*unknown, *fields],
        "quorum": {**quorum, "standing": None, "stands": None},
    }  # fmt: skip
