"""Parts that the benches share: samples, percentiles, free ports, removing data files, and progress messages."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.demo.ports import Ports
from node.client import LedgerClient
from node.protocol.codes import ResponseCode

_FIRST_PORT: Final = 24_000  # above the demo's
_PORTS: Final = Ports()


@dataclass(slots=True, frozen=True)
class Sample:
    """One round of one case. `cpu_us_per_entry`: of all processes together; None where it cannot be measured."""

    entries_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us_per_entry: float | None = None


def percentile(sorted_values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie (nearest rank); NaN of none."""
    if not sorted_values:
        return float("nan")
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def free_ports(count: int) -> list[int]:
    """`count` loopback ports that are ours until this process ends, also while what listens there is down.

    Below the range from which the kernel takes ports for outgoing connections.
    """
    return _PORTS.claim(_FIRST_PORT, count)


async def remove_files(
    client: LedgerClient, member_id: str, through_index: int, within_s: float
) -> AsyncIterator[tuple[int, int]]:
    """Has a member remove its data files up to there, a piece each time; files and bytes of each piece.

    Ends once none is left. Raises RuntimeError where it is refused.
    """
    order = {"what": "trim", "throughIndex": through_index, "force": False, "dryRun": False}
    while True:
        answer = await client.order(member_id, order, within_s)
        if answer.get("code") != ResponseCode.SUCCESS:
            raise RuntimeError(f"{member_id} was not trimmed: {answer.get('detail') or answer}")
        if not answer.get("removedFiles"):
            return
        yield int(answer["removedFiles"]), int(answer["removedBytes"])


def say(text: str) -> None:
    """Progress, for people."""
    print(text, file=sys.stderr, flush=True)
