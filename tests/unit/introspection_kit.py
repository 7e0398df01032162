"""A replica's status with every kind of value in it, and what the engine made of it when this was written down.

`goldens/introspection.json` holds the answers of the control plane, byte for byte, as they were before there were typed
views; `python -m tests.unit.introspection_kit` prints what they are now.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from node.config import Settings, load
from node.consensus.configuration import Configuration
from node.consensus.status import (
    AlarmStatus,
    ApplierStatus,
    ClosureGroupStatus,
    ClosuresStatus,
    ClosureStatus,
    DispatcherStatus,
    FaultStatus,
    LinkStatus,
    LogStatus,
    PeerStatus,
    RepairStatus,
    ReplicaStatus,
    TransferStatus,
    TransitionStatus,
    WatermarkStatus,
)
from node.engine import clock
from node.engine.events import EventRing
from node.engine.introspect import Introspection
from node.engine.scrubber import Pass
from node.protocol.codes import DispatcherState, FlushMode, Role, VoterState
from node.store.memory_store import MemoryStore
from node.views.state import CertificateView, ConnectionsView, NeedView, PinView, RetentionView, ScrubView

GOLDEN = Path(__file__).with_name("goldens") / "introspection.json"
S = 1_000_000_000
NOW_NS, NOW_S = 5_000 * S, 1_790_000_000.125
WHATS = ("state", "watermarks", "dispatchers", "closures", "events")


class Clock:
    """The engine's two clocks, stopped."""

    def __enter__(self) -> None:
        self._kept = clock.now_ns, clock.time
        stopped: Any = type("time", (), {"time": staticmethod(lambda: NOW_S)})
        clock.now_ns, clock.time = (lambda: NOW_NS), stopped  # type: ignore[misc, assignment]

    def __exit__(self, *_: object) -> None:
        clock.now_ns, clock.time = self._kept  # type: ignore[misc]


def status(role: Role) -> ReplicaStatus:
    leads = role is Role.LEADER
    marks = (
        WatermarkStatus("n0", True, 1000, 1001, 998, 998, 0, 0, 0, 0),
        WatermarkStatus("n1", True, 990, 1001, 980, 980, 10, 3040, 12, 3, 985),
        WatermarkStatus("n2", False, -1, 17, None, -1, None, None, None, None),
    )
    steps = tuple(
        TransitionStatus(NOW_NS - n * S, DispatcherState.COMPARE, DispatcherState.APPEND, f"matched {n}")
        for n in range(3, 0, -1)
    )
    dispatchers = (
        DispatcherStatus(
            "n1", DispatcherState.APPEND, NOW_NS - S, 4, 2, 6080, 1001, 990, 1, 10**7, 2 * 10**7, None, steps
        ),
        DispatcherStatus("n2", DispatcherState.COMPARE, NOW_NS, 5, 0, 0, 17, -1, 0, 10**7, 10**7, "no “answer”", ()),
    )  # fmt: skip
    closures = ClosuresStatus(
        2, 10_000, 3, 912, 41,
        (ClosureGroupStatus(("n1", "n2"), 1, 2, 999, 1000, 41, 912, 1959),),
        (ClosureStatus(999, 1000, 7, 608, 41, ("n1", "n2")), ClosureStatus(1000, 1000, 7, 304, 3, ("n1",))),
        NOW_NS - S, 912_345,
    )  # fmt: skip
    return ReplicaStatus(
        as_of_ns=NOW_NS, group="orders", group_id="1d" * 16 if leads else None, self_id="n0", role=role,
        role_since_at_ns=NOW_NS - 61 * S, term=7, leader_id="n0" if leads else "n1", voted_for="n0",
        voter_state=VoterState.VOTER, vote_floor=3, flush=FlushMode.SYNC, lease_reads=True, store_id="5e" * 16,
        sealed_from=17, disk_full=False,
        log=LogStatus(
            0, 1000, 7, 998, 995, 990 if leads else None, 1000, 0x1A2B3C4D if leads else None, 3, None if leads else 990
        ),
        peers=(
            PeerStatus("n0", "127.0.0.1:20911", "http://127.0.0.1:8431", True, VoterState.VOTER, "5e" * 16, "5e" * 16),
            PeerStatus(
                "n1", "127.0.0.1:20912", "http://127.0.0.1:8432", True, VoterState.REJOINING, "5f" * 16, None,
                link=LinkStatus(NOW_NS - S, None, NOW_NS - 5_000_000, 812_345.0),
            ),
            PeerStatus(
                "n2", "127.0.0.1:20913", None, False, None, None, "60" * 16, link=LinkStatus(None, None, None, None)
            ),
        ),
        alarms=(
            AlarmStatus("disk_full", "critical", None, "the disk is full – 0 bytes left", NOW_NS - 2 * S),
            AlarmStatus("hello_refused", "warning", "n2", "another group", NOW_NS - 3 * S),
        ),
        transfer=TransferStatus("n1", "catching_up", NOW_NS - S, NOW_NS + S) if leads else None,
        quorum_index=995 if leads else None, quorum_needed=2, watermarks=marks if leads else (),
        dispatchers=dispatchers if leads else (),
        closures=closures if leads else ClosuresStatus(0, 10_000, 0, 0, None, (), ()),
        reads_pending=1, leader_ready=leads, quorum_contact_ms=4 if leads else None,
        faults=(FaultStatus(17, 18, "rot", "body CRC"),), repair=RepairStatus(True, 17, 18, 18, "n1", 1, 2, 0),
        applier=ApplierStatus(990, 2, 991, 995, 1, 3, "no room") if leads else None,
        configuration=Configuration({one: f"127.0.0.1:2091{n}" for n, one in enumerate(("n0", "n1", "n2"), 1)}),
    )  # fmt: skip


def settings() -> Settings:
    peers = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"
    node = {"node.id": "n0", "node.group": "orders", "node.data": "/nowhere/data", "peers": peers}
    return load(node, environ={})


def introspection() -> Introspection:
    events = EventRing("boot")
    events.add("role", "info", {"role": "LEADER", "term": 7, "before": None})
    events.add("alarm", "critical", {"code": "disk_full", "text": "0 bytes – left", "share": 0.25, "of": ["a", "b"]})
    reported = Introspection(settings(), MemoryStore(), events, "boot")
    reported.tick_gap_max_ns = lambda: 12_345_678
    reported.certificates = lambda: (
        CertificateView(what="member_port", ends_at="2027-03-01T00:00:00.000Z"),
        CertificateView(what="client", name="app", ends_at="2026-10-01T00:00:00.000Z"),
    )
    reported.late_ns = lambda _since, _now: 7_654_321
    running = Pass(2, "request", 4096, 0, 10, 1000, "2026-01-01T00:00:00.000Z", 77, 1)
    attach(reported, running, dataclasses.replace(running, number=1, ended_at="2026-01-01T00:00:01.000Z"))
    return reported


def attach(reported: Introspection, running: Pass, last: Pass) -> None:
    """What other parts of the engine add to a state."""
    reported.connections = lambda: ConnectionsView(
        members=2, clients=3, unproven=1, limit=1024, accepted=70, accept_errors=0, ended={"a place": 5}, refused={}
    )
    reported.retention = lambda: RetentionView(
        enabled=True,
        removing=False,
        removed_files=2,
        removed_bytes=8192,
        last_removed_at="2026-01-01T04:00:00.000Z",
        last_removed="2 data files – entries 0 to 9",
        pins=(PinView(owner="audit-7", from_index=10, expires_in_s=60),),
        kept_by=(NeedView(owner="voter n2", from_index=10, why="is not connected"),),
    )
    reported.scrub = lambda: ScrubView(bytes_per_s=4096, pause_s=60, running=running.view(), last=last.view())


def answers() -> dict[str, str]:
    """Every answer of a leader and of a follower; and of an engine that keeps no events before `since`."""
    with Clock():
        found = {}
        reported = introspection()
        for role in (Role.LEADER, Role.FOLLOWER):
            for what in WHATS:
                found[f"{role.value} {what}"] = (
                    reported.view(what, None, lambda role=role: status(role)).to_bytes().decode()
                )
        found["events gone"] = reported.view("events", "gone-5", lambda: status(Role.LEADER)).to_bytes().decode()
        return found


if __name__ == "__main__":
    print(json.dumps(answers(), indent=1, ensure_ascii=False))
