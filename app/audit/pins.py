"""Pins of one audit: what it is to read stays on the nodes while it reads (their retention removes nothing of it).

Each node is asked for a pin as soon as the fence stands, and again long before that ends; a job that is killed leaves
pins that end by themselves. A node that gives none (an older one, a token that may only read, a Java node's sidecar)
is audited all the same: what it removes meanwhile is `unaudited`, and the job's stderr says why there was no pin.

Invariant: no step of an audit fails because of a pin.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from app.audit.fence import Fence
from app.audit.replicas import ControlError, ControlPlane, ReplicaSpec
from app.audit.segments import ReadFailed
from node.printable import escaped

PIN_S: Final = 900
RENEW_S: Final = 300.0
TIMEOUT_S: Final = 2.0


class AuditPins:
    """One per audit; used by one thread at a time."""

    def __init__(self, specs: Sequence[ReplicaSpec], from_index: int | None, *, ha: bool = False) -> None:
        """`ha`: brokers in classic mode, whose places are offsets."""
        self._path, self._name = ("/ha/pins", "from_offset") if ha else ("/pins", "from_index")
        self.owner = f"audit-{uuid.uuid4().hex[:8]}"
        self._specs = {one.public: one for one in specs}
        self._from_index = from_index or 0
        self._held: dict[str, int] = {}  # by source: the first entry that is needed there

    def take(self, fence: Fence) -> None:
        """On every replica of the fence that a control plane serves."""
        self.hold(
            {
                one.source: max(one.begin_index, min(self._from_index, one.end_index))
                for one in fence.readable
                if one.kind == "http" and not one.java and not one.empty
            }
        )

    def hold(self, places: Mapping[str, int]) -> None:
        """By source: the first place that is needed there."""
        self._held.update(places)
        self.renew()

    def renew(self) -> None:
        """All of them, at once; who refuses is not asked again."""
        body = {source: {self._name: index, "for_s": PIN_S} for source, index in self._held.items()}
        self._everywhere("PUT", body)

    def release(self) -> None:
        """The audit has read what it needs."""
        self._everywhere("DELETE", dict.fromkeys(self._held))
        self._held.clear()

    def _everywhere(self, method: str, body: Mapping[str, Mapping[str, int] | None]) -> None:
        def ask(source: str) -> None:
            plane = ControlPlane(self._specs[source], TIMEOUT_S)
            try:
                plane.change(method, f"{self._path}/{self.owner}", body[source])
            except (ControlError, ReadFailed) as error:
                self._held.pop(source, None)
                print(escaped(f"audit: no pin on {source}: {error}"), file=sys.stderr)
            finally:
                plane.close()

        if body:
            with ThreadPoolExecutor(max_workers=len(body)) as pool:
                list(pool.map(ask, list(body)))
