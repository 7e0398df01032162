"""The audit's answer: verdict, what it proves, and everything it does not.

Invariants: `divergent` = any critical finding; `unauditable` = none, but something could not be audited or nothing was
compared twice; only the rest is `consistent`. `findings_total` counts those that are not listed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from app.audit.classify import Finding, Unaudited, single_copy_ranges
from app.audit.fence import Fence, coverage
from app.audit.sentences import about_crcs, what_is_equal

DEPTHS: Final = ("chain", "digest", "bytes")
FINDINGS_MAX: Final = 1000
STATES_DIFFER: Final = " Of what was made of the log: "  # in the summary, before what differs
EXIT_CODES: Final = {"consistent": 0, "divergent": 1, "unauditable": 2}

PROVES: Final[dict[str, str]] = {
    "chain": (
        "The stored chain was compared at the highest common index: equal chains mean that the same entries were"
        " written up to there (to one in 2^32). It does not prove what the disks hold now; depth=bytes does."
    ),
    "digest": (
        "Each node read its own disk and gave SHA-256 digests of what its entries say; equal digests mean equal magic,"
        " term and body. It takes the nodes' word for it, and looks at positions, stored CRCs and index files only in"
        " blocks that differ; depth=bytes trusts no node."
    ),
    "bytes": (
        "Every byte of every entry in the range was read from each replica that holds it, and compared;"
        " index files were checked against the records. {crcs} It trusts no node's word."
    ),
}


def proves(depth: str, fence: Fence) -> str:
    """What an audit of this depth proves of these replicas."""
    return PROVES[depth].replace("{crcs}", about_crcs(fence))


def compared_twice(fence: Fence, unaudited: Sequence[Unaudited]) -> bool:
    """Whether at least one index was read from two replicas."""
    for low, high, ids in coverage(fence):
        spoiled = [u for u in unaudited if u.from_index <= low and u.to_index >= high]
        if len(set(ids) - {u.replica for u in spoiled}) >= 2:
            return True
    return False


def unread_replicas(fence: Fence) -> list[Unaudited]:
    """Replicas that could not be read at all."""
    low, high = fence.from_index, max(fence.to_index, fence.from_index - 1)
    return [Unaudited(r.id, low, high, r.problem) for r in fence.replicas if r.problem is not None]


def verdict_of(findings: Sequence[Finding], unaudited: Sequence[Unaudited], twice: bool) -> str:
    if any(f.severity == "critical" for f in findings):
        return "divergent"
    return "unauditable" if unaudited or not twice else "consistent"


def build_result(
    *,
    fence: Fence,
    depth: str,
    findings: Sequence[Finding],
    unaudited: Sequence[Unaudited],
    rows: int,
    seconds: float,
    dropped: int = 0,
    twice: bool | None = None,
    about_states: str = "",
) -> dict[str, Any]:
    """The JSON that `audit --json` prints and the console keeps; field names are relied on by others."""
    everything = [*unread_replicas(fence), *unaudited]
    both = compared_twice(fence, everything) if twice is None else twice
    verdict = verdict_of(findings, everything, both)
    critical = [f for f in findings if f.severity == "critical"]
    listed = findings[:FINDINGS_MAX]
    return {
        "verdict": verdict,
        "depth": depth,
        "proves": proves(depth, fence) + about_states,
        "fence": fence.as_json(),
        "replicas": [r.summary() for r in fence.replicas],
        "first_divergence": min((f.from_index for f in critical), default=None),
        "single_copy_ranges": single_copy_ranges(fence),
        "unaudited": [u.as_json() for u in everything],
        "findings": [f.as_json() for f in listed],
        "findings_truncated": dropped > 0 or len(findings) > len(listed),
        "findings_total": len(findings) + dropped,
        "rows": rows,
        "seconds": round(seconds, 3),
        "summary": summary(verdict, depth, findings, everything, fence, both) + about_differing(findings),
    }


def about_differing(findings: Sequence[Finding]) -> str:
    """The sentence more where states differ; empty where none do."""
    differ = [f for f in findings if f.cls == "state_mismatch"]
    return f"{STATES_DIFFER}{differ[-1].detail}." if differ else ""


def summary(
    verdict: str,
    depth: str,
    findings: Sequence[Finding],
    unaudited: Sequence[Unaudited],
    fence: Fence,
    twice: bool,
) -> str:
    """What the audit found of the logs, in one sentence for people."""
    if verdict == "divergent":
        critical = [f for f in findings if f.severity == "critical"]
        more = f", and {len(critical) - 1:,} more critical findings" if len(critical) > 1 else ""
        first = min(critical, key=lambda f: (f.from_index, f.cls))
        return f"The replicas diverge: {first.detail}{more}."
    if verdict == "unauditable":
        if unaudited:
            return f"Not settled: {unaudited[0].replica} could not be audited: {unaudited[0].reason}."
        return "Not settled: no entry is held by two replicas." if not twice else "Not settled."
    return what_is_equal(fence, depth, findings)
