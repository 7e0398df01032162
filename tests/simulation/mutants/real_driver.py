"""Planted bugs of the real driver: `node/engine`, `node/transport`; hunted where they run (tests/simulation/driver)."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped

ENGINE = "node.engine.engine:Engine."
DUTIES = "node.engine.duties:Duties."
DISK = "node.engine.disk:Disk."
REQUESTS = "node.engine.client_requests:ClientRequests."
READS = "node.engine.client_reads:ClientReads."
CONNECTION = "node.transport.connection:Connection."
QUIET = {
    "partition": 0.0, "asymmetric": 0.0, "isolate_leader": 0.0, "reset": 0.0, "slow_link": 0.0, "pause": 0.0,
    "stop": 0.0, "crash": 0.0, "crash_at_io": 0.0, "power_loss": 0.0, "fsync_error": 0.0, "enospc": 0.0,
    "transfers": 0.0, "stall": 0.0, "client_loss": 0.0, "unaware": 0.0, "narrow_link": 0.0,
}  # fmt: skip
ORDINARY = {"expected_index": 0.4}  # all that the swarm draws
UNREST = {"isolate_leader": 1.5, "partition_ms": 500.0, "crash": 1.0, "bursts": 40.0, "piece_bytes": 1448}
READING = {**UNREST, "reads": 30.0}
CONFLICTS = {
    "isolate_leader": 2.5, "partition_ms": 500.0, "bursts": 60.0, "deadline_s": 0.4, "sync_ms": 10.0,
    "piece_bytes": 65536, "flush_sync": True,
}  # fmt: skip
# The core clamps what is reported while a cut is under way; without that, the epoch alone must tell (R8).
UNCLAMPED = Edit(
    "node.consensus.member_state:MemberState.note_durable", "if self.truncating_from is not None:", "if False:"
)


def _driver(
    name: str, rule: str, about: str, edit: Edit, profile: dict[str, Any], cause: tuple[Edit, ...] = (), lasts: int = 1
) -> Mutant:
    return Mutant(name, rule, about, (edit,), profile, {}, "driver", cause, lasts)


DRIVER_DUTIES = (
    _driver(
        "driver_sends_before_saving",
        "E2",
        "messages leave before the term and the vote that they speak of are durable",
        Edit(DUTIES + "carry_out", "closed = self.held.closed", "closed = MUTANT.ignored(self.held.closed)"),
        UNREST,
    ),
    _driver(
        "driver_reports_now_as_synced",
        "R2",
        "what is in the log when a sync ends is reported as synced",
        Edit(
            DISK + "_synced",
            "self._flushed(log_epoch, end_index)",
            "self._flushed(log_epoch, MUTANT.instead(end_index, self._store.end_index))",
        ),
        ORDINARY,
    ),
    _driver(
        "driver_syncs_under_newer_epoch",
        "R8",
        "a sync is reported under the log epoch of its end, not of its begin",
        Edit(
            DISK + "_synced", "self._flushed(log_epoch,", "self._flushed(MUTANT.instead(log_epoch, self._log_epoch()),"
        ),
        {**CONFLICTS, "sync_ms": 60.0, "partition_ms": 400.0, "ack_within_ms": 600},
        (UNCLAMPED,),
        lasts=2,
    ),
    _driver(
        "driver_forgets_order_after_unknown",
        "C4",
        "an unknown outcome does not break the order of its connection",
        swapped(
            "node.engine.proposals:Proposals.add",
            "outcome.appended is not Appended.YES",
            "outcome.appended is Appended.NOT_APPENDED",
        ),
        {
            **QUIET,
            "ordered": 6,
            "ack_within_ms": 150,
            "slow_disk": 0.3,
            "sync_ms": 10.0,
            "flush_sync": True,
            "clients": 1,
            "bursts": 4.0,
            "timed_bursts": 0.0,
            "reads": 2.0,
            "looks": 2.0,
        },
    ),
    _driver(
        "driver_takes_failed_sync",
        "S1",
        "a failed fsync is taken for a good one",
        ignored(DISK + "_synced", "outcome.error is not None"),
        {"fsync_error": 2.0, "power_loss": 1.0},
    ),
    _driver(
        "driver_forgets_the_next_sync",
        "S1",
        "what came while a sync ran waits for a sync that nobody begins",
        Edit(DISK + "_synced", "if again:", "if MUTANT.ignored(again):"),
        {**QUIET, "bursts": 10.0, "reads": 4.0},
    ),
    _driver(
        "driver_reports_a_cut_before_it_is_done",
        "S4",
        "the core hears of a cut when it is ordered, and appends what the cut then takes",
        Edit(
            DISK + "truncate",
            "self._writer.run(work, partial(self._cut, order))",
            "self._writer.run(work, partial(self._cut, order))\n"
            "    MUTANT.left_out()\n"
            "    self._truncated(order, True)",
        ),
        CONFLICTS,
        lasts=2,
    ),
)

REQUESTS_AND_LINKS = (
    _driver(
        "requests_reads_to_the_end",
        "C1",
        "a read shows entries that are not committed",
        Edit(
            READS + "_read_records",
            "committed = self._log.replica.committed_index",
            "committed = MUTANT.instead(self._log.replica.committed_index, self._log.replica.store.end_index)",
        ),
        UNREST,
    ),
    _driver(
        "requests_reads_unasked",
        "C1",
        "a linearizable read is served without asking the quorum",
        swapped(READS + "handle", "request.mode is ReadMode.UNSAFE", "self._log.replica.leader_id is not None"),
        READING,
    ),
    _driver(
        "requests_cuts_one_too_late",
        "C1",
        "a slab is cut one entry behind the committed one",
        Edit(
            "node.engine.log_reads:cut_at",
            "last_index - slab.first_index + 1)",
            "MUTANT.instead(last_index - slab.first_index + 1, last_index - slab.first_index + 2))",
        ),
        ORDINARY,
    ),
    _driver(
        "requests_answers_the_last_index",
        "C2",
        "an answer names the last entry as the first",
        Edit(
            REQUESTS + "append_answer",
            "indexes = (outcome.first_index,",
            "indexes = (MUTANT.instead(outcome.first_index, outcome.last_index),",
        ),
        QUIET,
    ),
    _driver(
        "requests_ignores_the_expected_index",
        "C3",
        "the index that an append must get is not passed on",
        Edit(
            REQUESTS + "_fast_append",
            "Proposal(request.bodies, done, expected)",
            "Proposal(request.bodies, done, MUTANT.instead(expected, None))",
        ),
        ORDINARY,
    ),
    _driver(
        "requests_ignores_order",
        "C4",
        "nobody is told that a connection wants its order kept",
        Edit(REQUESTS + "_fast_append", "request.ordered)", "MUTANT.instead(request.ordered, False))"),
        READING,
    ),
    _driver(
        "requests_calls_unknown_refused",
        "C2",
        "an unknown outcome is answered as not appended",
        Edit(
            REQUESTS + "append_answer",
            "appended = APPENDED_BYTE[outcome.appended]",
            "appended = APPENDED_BYTE[outcome.appended]\n"
            "    if appended is AppendedByte.UNKNOWN:\n"
            "        appended = MUTANT.instead(appended, AppendedByte.NOT_APPENDED)",
        ),
        UNREST,
    ),
    _driver(
        "requests_holds_its_answers",
        "C2",
        "answers that are held for the end of a turn stay held",
        left_out(REQUESTS + "release", "connection.release()"),
        QUIET,
    ),
    _driver(
        "links_send_an_old_frame",
        "R4",
        "a push that begins where the one before began leaves as that one's frame",
        Edit(
            "node.transport.slab_frames:PushEncoder.frame",
            "if push is not self._push:",
            "if self._push is None or MUTANT.instead(\n"
            "        push is not self._push, push.first_index != self._push.first_index):",
        ),
        UNREST,
    ),
    _driver(
        "connection_takes_one_frame_a_read",
        "C2",
        "of the frames that one read brings only the first is taken in",
        Edit(
            CONNECTION + "buffer_updated",
            "frames = decoder.filled(nbytes)",
            "frames = decoder.filled(nbytes)\n    frames = MUTANT.instead(frames, frames[:1])",
        ),
        QUIET,
    ),
)
REAL_DRIVER = (*DRIVER_DUTIES, *REQUESTS_AND_LINKS)
