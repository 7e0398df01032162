"""Bugs to plant into classic HA, each with the seed of a world that catches it.

A planted bug replaces one function for the length of a world. `python -m tests.simulation.ha.planted` looks for seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from node.ha import connection, group_transfer, handshake, lineage, service
from node.ha.common_end import CommonEnd
from node.ha.handshake import Stand, Verdict
from node.message_store import local_log, local_recovery
from node.message_store.local_log import Flush, LocalCommitLog
from node.message_store.local_recovery import Recovered
from tests.simulation.ha import node as sim_node
from tests.simulation.ha.world import Broken, World

SEEDS_TRIED = 120


def _one_slave_fewer(self: group_transfer.GroupTransferService, acks: Any) -> None:
    ordered = sorted(acks, reverse=True)
    while self._waiting and len(ordered) >= self._waiting[0].slaves_needed - 1:
        first = self._waiting[0]
        if first.slaves_needed > 1 and ordered[first.slaves_needed - 2] < first.next_offset:
            return
        self._waiting.popleft().done(group_transfer.PutStatus.PUT_OK)


def _counts_connections(self: service.HAService) -> dict[str, int]:
    return {
        f"{at}": max(one.slave_ack_offset, 0)
        for at, one in enumerate(self.connections)
        if one.phase in (connection.Phase.TRANSFER, connection.Phase.CLOSED) and one.slave
    }


def _acknowledges_what_was_sent(self: connection.HAConnection, offset: int, now_ms: int) -> None:
    self.slave_ack_offset, self.acked_ms = self.writing.next_transfer_from, now_ms
    self._master.acknowledged(self)


def _reports_what_is_not_on_disk(self: sim_node.SlaveStore) -> int:
    return self.log.max_offset


def _takes_everything_for_behind(log: Any, _lineage: Any, slave: handshake.Hello) -> Verdict:
    if slave.end == slave.begin:
        return Verdict(Stand.EMPTY, "", log.min_offset)
    if slave.end > log.max_offset:
        return Verdict(Stand.AHEAD, "")
    return Verdict(Stand.BEHIND, "", slave.end)


def _cuts_at_the_end_of_what_both_have(self: CommonEnd, log: Any, begin: int, end: int) -> None:
    self.is_done, self.ranges, self.end = True, [], end if not log.border_flaw(end) else None


def _cuts_nothing_on_disk(self: LocalCommitLog, end: int) -> int:
    self._last = (self.last_records(1, end) or [local_log.LastRecord()])[0]
    self.max_offset, self.flushed_offset = end, min(end, self.flushed_offset)
    self._starts = [one for one in self._starts if one < end]
    return 1


def _leaves_bytes_behind_the_end(
    _root: Any, _size: int, found: Recovered, _disk: Any, _files: Any = None, *, keeps: bool = True
) -> Recovered:
    return found


def _flushes_what_comes_meanwhile(self: LocalCommitLog, _upto: int) -> None:
    self.flushed_offset = self.max_offset


def _flushes_the_last_file_only(self: LocalCommitLog) -> Flush:
    upto, dirty = self.max_offset, sorted(self._dirty)[-1:]
    self._dirty = {start for start in self._dirty if start + self.file_bytes > upto}
    paths = [self._folder / local_recovery.file_name(start) for start in dirty]
    return Flush(upto, self._last, self.last_time_ms, lambda disk: [disk.sync(path) for path in paths] and None)


def _syncs_nothing(self: LocalCommitLog) -> Flush:
    return Flush(self.max_offset, self._last, self.last_time_ms, lambda _disk: None)


def _marks_before_it_flushes(self: LocalCommitLog) -> None:
    found = self.begin_flush()
    local_log.write_log_mark(self.root, self.mark_of(found), self._disk)
    self._dirty |= {one for one in self._starts if one + self.file_bytes >= self.flushed_offset}


def _sends_the_last_file_only(log: Any, own: Any, slave: handshake.Hello) -> Verdict:
    found = REAL_JUDGE(log, own, slave)
    if found.stand is Stand.EMPTY:
        return Verdict(Stand.EMPTY, "", log.max_offset - log.max_offset % log.file_bytes)
    return found


def _promotes_into_the_next_epoch(
    self: lineage.Lineage, pair: str, start: int, *, is_promoted: bool = False, above: int = 0
) -> lineage.Lineage:
    return lineage.Lineage(self.pair or pair, (*self.below(start).epochs, (self.epoch + 1, start)))


REAL_JUDGE = handshake.judge

PLANTED: dict[str, tuple[Any, str, Callable[..., Any] | property, int]] = {
    "one slave fewer": (group_transfer.GroupTransferService, "acknowledged", _one_slave_fewer, 0),
    "connections count": (service.HAService, "acks", _counts_connections, 0),
    "sent is acknowledged": (connection.HAConnection, "_report", _acknowledges_what_was_sent, 0),
    "reports before the disk": (sim_node.SlaveStore, "durable_offset", property(_reports_what_is_not_on_disk), 1),
    "everything is behind": (service, "judge", _takes_everything_for_behind, 0),
    "cuts too little": (CommonEnd, "__init__", _cuts_at_the_end_of_what_both_have, 0),
    "cuts nothing on disk": (LocalCommitLog, "cut", _cuts_nothing_on_disk, 0),
    "recovery leaves bytes": (local_recovery, "cut_behind", _leaves_bytes_behind_the_end, 1),
    "flushed is the end": (LocalCommitLog, "flushed", _flushes_what_comes_meanwhile, 92),
    "one file is flushed": (LocalCommitLog, "begin_flush", _flushes_the_last_file_only, 1),
    "nothing is flushed": (LocalCommitLog, "begin_flush", _syncs_nothing, 1),
    "marked before it is flushed": (LocalCommitLog, "save", _marks_before_it_flushes, 3),
    "the last file only": (service, "judge", _sends_the_last_file_only, 3),
    "promotion is a restart": (lineage.Lineage, "begun", _promotes_into_the_next_epoch, 1),
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    target, attribute, replacement, _seed = PLANTED[name]
    with patch.object(target, attribute, replacement):
        yield


def is_caught(name: str, seed: int) -> bool:
    """Whether that world notices it."""
    with planted(name):
        try:
            World(seed).run()
        except Broken:
            return True
    return False


if __name__ == "__main__":
    for name in sys.argv[1:] or PLANTED:
        print(name, next((seed for seed in range(SEEDS_TRIED) if is_caught(name, seed)), None), flush=True)
