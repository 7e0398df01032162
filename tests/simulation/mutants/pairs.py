"""Planted bugs of classic HA (`node/ha`, the commit log's writing half); hunted in the world of master and slaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from node.message_store.local_recovery import Recovered
from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped

SERVICE: Final = "node.ha.service:HAService."
WAITS: Final = "node.ha.group_transfer:GroupTransferService."
CONNECTION: Final = "node.ha.connection:HAConnection."
CLIENT: Final = "node.ha.client:HAClient."
HANDSHAKE: Final = "node.ha.handshake:"
COMMON: Final = "node.ha.common_end:CommonEnd."
LINEAGE: Final = "node.ha.lineage:Lineage."
LOG: Final = "node.message_store.local_log:LocalCommitLog."
RECOVERY: Final = "node.message_store.local_recovery:"
STOPPED: Final[dict[str, Any]] = {"pauses": 0.6, "count": 3, "in_sync": 2, "faults": 0.08}
NO_DIFFERENCE: Final = swapped(HANDSHAKE + "judge", "_first_difference(log, slave)", "None")


def _pair(name: str, about: str, *edits: Edit, helpers: dict[str, Any] | None = None, **profile: Any) -> Mutant:
    return Mutant(f"pair_{name}", "pair", about, edits, profile, helpers or {}, "pair")


def starts_below(found: Recovered, end: int) -> Recovered:
    return replace(found, starts=[start for start in found.starts if start < end], cut_bytes=1)


WAITING = (
    _pair(
        "one_slave_fewer",
        "a put waits for one slave less than it needs",
        swapped(
            WAITS + "acknowledged",
            "first.slaves_needed > len(ordered) or ordered[first.slaves_needed - 1] < first.next_offset",
            "first.slaves_needed > 1 and (first.slaves_needed - 1 > len(ordered)"
            " or ordered[first.slaves_needed - 2] < first.next_offset)",
        ),
    ),
    _pair(
        "counts_connections",
        "acknowledgements count per connection, also of one that ended (RocketMQ's oddity 17)",
        swapped(
            SERVICE + "acks",
            "one.phase is Phase.TRANSFER",
            "bool(one.slave) and one.phase in (Phase.TRANSFER, Phase.CLOSED)",
        ),
        Edit(SERVICE + "acks", "found[one.slave] =", 'found[f"{one.slave} {one.connected_ms} {id(one)}"] ='),
    ),
    _pair(
        "counts_what_was_sent",
        "what left for a slave counts as acknowledged",
        Edit(
            CONNECTION + "_report",
            "self.slave_ack_offset, self.acked_ms = offset, now_ms",
            "self.slave_ack_offset = MUTANT.instead(offset, self.writing.next_transfer_from)",
        ),
        Edit(CONNECTION + "_report", "offset < self.slave_ack_offset", "False"),
    ),
    _pair(
        "counts_the_greeting",
        "what a slave says that it has counts, before it is as durable as its mode promises",
        swapped(CONNECTION + "_serve", "-1 if self.is_ours else request", "request"),
        Edit(CONNECTION + "_report", "offset < self.slave_ack_offset", "False"),
    ),
    _pair(
        "late_is_ok",
        "a put that waited for too long is answered as if its slaves had it",
        Edit(
            WAITS + "expire",
            "PutStatus.FLUSH_SLAVE_TIMEOUT",
            "MUTANT.instead(PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.PUT_OK)",
        ),
    ),
    _pair(
        "reports_before_the_disk",
        "a slave that flushes before it reports does not",
        Edit(
            CLIENT + "next_bytes",
            "durable = self._store.durable_offset",
            "durable = MUTANT.instead(self._store.durable_offset, self._store.log.max_offset)",
        ),
    ),
)

LONGEST = "max(heard, key=lambda one: one.end, default=None)"
FENCES = (
    _pair(
        "follows_an_old_master",
        "a slave that heard of a promotion is served by the master before it",
        ignored(CLIENT + "_check_age", "said is not None and own.pair == said.pair and said.epoch < own.newest"),
        Edit(HANDSHAKE + "judge", "theirs.newest > own.epoch", "False"),
        Edit(SERVICE + "_is_later", "theirs.newest > own.epoch", "False"),
        **STOPPED,
    ),
    _pair(
        "hears_and_goes_on",
        "a slave that hears of a promotion reports to the old master on over the connection that it has",
        ignored(CLIENT + "hear", "self._said is not None and self._said.epoch < epoch"),
        **STOPPED,
    ),
    _pair(
        "fence_answers",
        "an old master that hears of a later one answers what waited as if its slaves had it",
        swapped(WAITS + "end", "PutStatus.FLUSH_SLAVE_TIMEOUT", "PutStatus.PUT_OK"),
        **STOPPED,
    ),
    _pair(
        "promotion_is_a_restart",
        "a promotion begins the epoch that the old master would begin, too",
        swapped(LINEAGE + "promoted_above", "(max(self.epoch, above) // PROMOTION + 1) * PROMOTION", "self.epoch + 1"),
    ),
    _pair(
        "promotes_an_older_branch",
        "the longest log is promoted, whatever it lacks of what was answered before the newest promotion",
        swapped("node.ha.promotion:best", "era_of(one.lineage) == era", "True"),
        Edit("node.ha.promotion:best", "key=_newest_held", "key=lambda one: one.end"),
        Edit("node.ha.promotion:best", "found.end < max(began(found.lineage), 1)", "False"),
        **STOPPED,
    ),
    _pair(
        "promotes_the_longest_log",
        "of the slaves of the newest promotion the longest log is promoted, also one whose end nobody was answered",
        swapped("node.ha.promotion:best", "max(heard, key=_newest_held, default=None)", LONGEST),
        **STOPPED,
    ),
)

HANDSHAKES = (
    _pair("fork_unseen", "the last records are not compared", NO_DIFFERENCE),
    _pair(
        "everything_is_behind",
        "a slave's log is taken for its master's, whatever it holds",
        NO_DIFFERENCE,
        Edit(HANDSHAKE + "judge", "not _shares_a_record(log, slave)", "False"),
        Edit(HANDSHAKE + "judge", "flaw = log.border_flaw(slave.end)", 'flaw = ""'),
    ),
    _pair(
        "last_file_only",
        "an empty slave gets the master's last file only (RocketMQ's oddity 8)",
        Edit(
            HANDSHAKE + "judge",
            'on", log.min_offset)',
            'on", MUTANT.instead(log.min_offset, log.max_offset - log.max_offset % log.file_bytes))',
        ),
    ),
    _pair(
        "cuts_too_little",
        "a slave that is ahead cuts to where its master ends, not to where both agree",
        Edit(
            COMMON + "__init__",
            "self._plan()",
            "MUTANT.left_out(); self.is_done = True; self.end = None if log.border_flaw(end) else end",
        ),
    ),
)

DISK = (
    _pair(
        "cuts_nothing_on_disk",
        "what is cut stays in the files (RocketMQ's oddity 4)",
        Edit(
            LOG + "cut",
            "cut_behind(self.root, self.file_bytes, found, self._disk, self._files, keeps=False)",
            "MUTANT.instead(None, starts_below(found, end))",
        ),
        helpers={"starts_below": starts_below},
    ),
    _pair(
        "cuts_without_a_copy",
        "what is cut is not kept aside",
        Edit(
            LOG + "cut",
            "keep_aside(self.root, self.file_bytes, found, self._disk, self._files)",
            "MUTANT.instead(True, None)",
        ),
    ),
    _pair(
        "recovery_leaves_bytes",
        "a start leaves what lies behind the end that it found",
        Edit(
            RECOVERY + "recover",
            "cut_behind(root, file_bytes, found, disk, files, keeps=is_sound_behind)",
            "MUTANT.instead(None, found)",
        ),
    ),
    _pair(
        "flushed_is_the_end",
        "what was written while a flush ran counts as flushed",
        swapped(LOG + "flushed", "max(self.flushed_offset, min(found.upto, self.max_offset))", "self.max_offset"),
    ),
    _pair(
        "one_file_is_flushed",
        "a flush syncs the last file only",
        swapped(LOG + "begin_flush", "sorted(self._dirty)", "sorted(self._dirty)[-1:]"),
    ),
    _pair(
        "nothing_is_flushed",
        "a flush syncs nothing",
        Edit(LOG + "begin_flush", "sync_same(disk, path, key)", "MUTANT.left_out(disk, path)"),
    ),
    _pair(
        "names_are_not_synced",
        "the name of a file that was made ahead is not on disk when what lies in it is said to be",
        left_out("node.message_store.local_next:NextFile.sync_name", "disk.sync_folder(self._folder)"),
    ),
    _pair(
        "marks_before_it_flushes",
        "the mark says flushed before it is",
        Edit(
            LOG + "save",
            "write_log_mark(self.root, self.mark_of(self.flush()), self._disk)",
            "write_log_mark(self.root, self.mark_of(self.begin_flush()), self._disk); MUTANT.left_out(); self.flush()",
        ),
    ),
)

PAIRS = (*WAITING, *FENCES, *HANDSHAKES, *DISK)
