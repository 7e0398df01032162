"""What a follower answers to its leader's order: a code and, for a mismatch, where to look next."""

from __future__ import annotations

from dataclasses import dataclass

from node.protocol.codes import ResponseCode


@dataclass(slots=True, frozen=True)
class Verdict:
    """`x_term`, `x_index`: as in PushResponse."""

    code: ResponseCode
    x_term: int = -1
    x_index: int = -1


OK = Verdict(ResponseCode.SUCCESS)
OK_ONCE_DURABLE = Verdict(ResponseCode.SUCCESS)  # another object than OK: answered once a sync is done
