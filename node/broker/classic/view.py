"""What a broker of a pair says of it: both ends' places, each connection, whom puts wait for (`GET /api/v1/ha`).

Invariants: nothing is changed by asking; lists are bounded; what is not known is null.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from typing import Any, Final

from node.broker.classic.pair import Pair
from node.broker.introspection import Asked
from node.ha.client import State
from node.ha.connection import HAConnection, Phase
from node.ha.sockets import now_ms
from node.message_store.local_store import LocalMessageStore

SAMPLE_MS: Final = 100
SAMPLES_MAX: Final = 36_000  # an hour
WAITING_MAX: Final = 100
RATE_MS: Final = 1000
Json = dict[str, Any]


class LogTimes:
    """When the log ended where: so that a place can be said in time."""

    def __init__(self) -> None:
        self._ends: deque[int] = deque(maxlen=SAMPLES_MAX)
        self._times: deque[int] = deque(maxlen=SAMPLES_MAX)

    def note(self, end: int, now: int) -> None:
        if self._ends and end < self._ends[-1]:  # it was cut
            self._ends.clear()
            self._times.clear()
        if not self._ends or end != self._ends[-1]:
            self._ends.append(end)
            self._times.append(now)

    def lag_ms(self, place: int, end: int, now: int) -> int | None:
        """For how long there has been something behind `place`; None: for longer than is known."""
        if place >= end:
            return 0
        at = bisect.bisect_right(self._ends, place)
        if at >= len(self._times):
            return 0  # within the last sample
        return now - self._times[at] if at else None


class Rates:
    """Bytes a second, by name."""

    def __init__(self) -> None:
        self._marks: dict[str, tuple[int, int]] = {}
        self._rates: dict[str, int] = {}

    def note(self, name: str, total_bytes: int, now: int) -> None:
        before = self._marks.get(name)
        if before is None or total_bytes < before[0]:
            self._marks[name] = total_bytes, now
        elif now - before[1] >= RATE_MS:
            self._rates[name] = (total_bytes - before[0]) * 1000 // (now - before[1])
            self._marks[name] = total_bytes, now

    def of(self, name: str) -> int:
        return self._rates.get(name, 0)

    def keep(self, names: set[str]) -> None:
        for known in (self._marks, self._rates):
            for name in [one for one in known if one not in names]:
                del known[name]


class PairView:
    """See the module's docstring."""

    def __init__(self, pair: Pair, store: LocalMessageStore) -> None:
        self._pair, self._store = pair, store
        self._times, self._rates = LogTimes(), Rates()

    async def run(self) -> None:
        """For ever: samples."""
        while True:
            now, service = now_ms(), self._pair.service
            self._times.note(self._store.log.max_offset, now)
            for one in service.connections:
                self._rates.note(one.address, max(0, one.slave_ack_offset), now)
            self._rates.note("master", self._pair.client.taken_bytes, now)
            self._rates.keep({one.address for one in service.connections} | {"master"})
            await asyncio.sleep(SAMPLE_MS / 1000)

    async def answer(self, _asked: Asked) -> Json:
        pair, log, now = self._pair, self._store.log, now_ms()
        service = pair.service
        ha, node = pair.service.settings, self._store.settings
        waiting = service.transfers.waiting
        return {
            "broker_id": pair.broker_id, "role": pair.role.value, "configured_role": pair.configured.value,
            "role_on_record": None if pair.record is None else {
                "role": pair.record.role.value, "why": pair.record.why
            },
            "is_master": pair.is_master, "fenced_by_epoch": service.fenced_by or None,
            "pair": pair.lineage.pair or None, "epoch": pair.lineage.epoch,
            "epochs": [{"epoch": number, "start": start} for number, start in pair.lineage.epochs[-20:]],
            "begin_offset": log.min_offset, "flushed_offset": log.flushed_offset, "end_offset": log.max_offset,
            "dispatched_offset": self._store.end_position, "file_bytes": log.file_bytes, "files": len(log.starts),
            "flush": node.flush.value, "in_sync_replicas": ha.in_sync_replicas, "cuts_back": ha.cuts_back,
            "slave_fall_behind_max_bytes": ha.slave_fall_behind_max_bytes, "heartbeat_ms": ha.heartbeat_ms,
            "broken_by": log.broken_by or None, "log_version": f"{pair.run}-{log.cuts}",
            "connections": [self._connection(one, now) for one in service.connections],
            "following": None if pair.role.is_master else self._following(now),
            "waiting": [
                {
                    "offset": one.next_offset, "waits_for": self._lacking(one.next_offset),
                    "slaves_needed": one.slaves_needed,
                    "age_ms": max(0, ha.slave_timeout_ms - (one.deadline_ms - now)),
                }
                for one in list(waiting)[:WAITING_MAX]
            ],
            "waiting_count": len(waiting),
            "so_far": {
                "flush_slave_timeout": service.transfers.timed_out, "slave_not_available": service.not_available,
                "slaves_refused": service.refusals,
            },
            "problems": self._problems(),
        }  # fmt: skip

    def _connection(self, one: HAConnection, now: int) -> Json:
        end = self._store.log.max_offset
        acked = one.slave_ack_offset if one.slave_ack_offset >= 0 else None
        return {
            "peer_id": one.slave or None, "address": one.address, "state": one.phase.value,
            "kind": "ours" if one.is_ours else "rocketmq" if one.slave else "unknown",
            "stand": None if one.stand is None else one.stand.value,
            "sent_offset": one.writing.next_transfer_from if one.writing.next_transfer_from >= 0 else None,
            "acked_offset": acked, "lag_bytes": None if acked is None else max(0, end - acked),
            "lag_ms": None if acked is None else self._times.lag_ms(acked, end, now),
            "rate_bytes_per_s": self._rates.of(one.address),
            "last_heard_ms": now - one.reading.last_read_ms, "connected_ms": now - one.connected_ms,
            "reason": one.reason or None,
        }  # fmt: skip

    def _asked_at(self) -> str:
        """The address that the reason is about: where it was refused, else the one that is tried now; empty: none."""
        client = self._pair.client
        return client.refused_at if client.trouble else self._pair.following

    def _following(self, now: int) -> Json:
        client, end = self._pair.client, self._store.log.max_offset
        known = client.master_offset if client.master_offset >= 0 else None
        return {
            "address": self._asked_at() or None,
            "state": client.state.value,
            "kind": "ours" if client.is_ours else "rocketmq" if client.state is State.TRANSFER else "unknown",
            "stand": None if client.stand is None else client.stand.value,
            "reported_offset": client.current_reported_offset if client.current_reported_offset >= 0 else None,
            "master_offset": known, "lag_bytes": None if known is None else max(0, known - end),
            "rate_bytes_per_s": self._rates.of("master"),
            "last_heard_ms": None if client.is_closed else now - client.last_read_ms,
            "reason": client.trouble or (client.closed_by if client.is_closed else "") or None,
        }  # fmt: skip

    def _lacking(self, offset: int) -> list[str]:
        """The slaves that do not have it yet."""
        return sorted(name for name, ack in self._pair.service.acks().items() if ack < offset)

    def _problems(self) -> list[Json]:
        pair, service = self._pair, self._pair.service
        found = [
            {"code": "slave_not_served", "about": name, "text": why} for name, why in sorted(service.troubles.items())
        ]
        if service.fenced_by:
            text = f"a later master is there, of epoch {service.fenced_by}: this one takes no more messages"
            found.append({"code": "fenced", "about": "", "text": text})
        if pair.role.is_master and not service.is_slave_ok(self._store.log.max_offset):
            served = [one for one in service.connections if one.phase is Phase.TRANSFER]
            what = "is too far behind" if served else "is connected"
            code = "too_few_slaves" if pair.role.value == "SYNC_MASTER" else "no_slave"
            found.append({"code": code, "about": "", "text": f"{'no slave' if not served else 'a slave'} {what}"})
        if not pair.role.is_master and pair.client.state is not State.TRANSFER:
            why = pair.client.trouble or pair.client.closed_by or "no master answers"
            found.append({"code": "no_master", "about": self._asked_at(), "text": why})
        if pair.role.is_master and pair.twin:
            text = f"{pair.twin} is master of epoch {pair.lineage.epoch}, too: stop the one that has less"
            found.append({"code": "two_masters", "about": pair.twin, "text": text})
        if full := self._store.full:
            found.append({"code": "disk_full", "about": "", "text": full})
        if self._store.log.broken_by:
            found.append({"code": "log_broken", "about": "", "text": self._store.log.broken_by})
        return found
