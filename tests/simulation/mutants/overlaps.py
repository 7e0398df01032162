"""Planted bugs that need two things at once to show: what waits while something else ends, begins or stands still.

Most were written by somebody who had not seen the net, and survived it at first (docs/proof.md); each is caught by a
rule that says nothing about the bug. Hunted in the driver's world (tests/simulation/driver).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulation.mutants.control import DOWN
from tests.simulation.mutants.planting import Edit, Mutant
from tests.simulation.mutants.real_driver import CONFLICTS, DISK, ENGINE, ORDINARY, QUIET, READING, UNREST

APPENDS = "node.client.appends:Appends."
CLIENT = "node.client.ledger_client:LedgerClient."
# A leader that is cut off and stands still until another one leads, with questions in its sockets.
UNAWARE = {
    **QUIET, "unaware": 3.0, "looks": 40.0, "reads": 20.0, "clients": 3, "bursts": 15.0, "burst_max": 1,
    "sync_ms": 0.5, "delay_ms": 0.1, "body_bytes": 40, "in_flight_max": 1000,
}  # fmt: skip
# Many terms and few entries: files that end with a NOOP, and little in memory.
MANY_TERMS = {
    **QUIET, "transfers": 6.0, "crash": 1.0, "clients": 1, "bursts": 3.0, "timed_bursts": 1.0, "burst_max": 1,
    "ordered": 0, "looks": 3.0, "reads": 60.0, "body_bytes": 2000, "data_file_size": 8192, "ring_bytes": 512,
    "sync_ms": 0.5, "delay_ms": 0.1,
}  # fmt: skip
# Leaders that are cut off with much in their logs that nobody else has, over several files.
CUTS_OF_FILES = {
    **QUIET, "isolate_leader": 2.0, "partition_ms": 350.0, "members": 3, "clients": 2, "in_flight_max": 1000,
    "bursts": 25.0, "reads": 2.0, "ordered": 0, "sync_ms": 0.5, "delay_ms": 0.1, "client_busy_ms": 2.0,
    "body_bytes": 2000, "data_file_size": 8192, "deadline_s": 4.0, "ack_within_ms": 600, "piece_bytes": 65536,
}  # fmt: skip


def _one_waits(engine: Any, done: Callable[[Any], None]) -> bool:
    """Whether a read of this engine is under way: then `done` hears of the same outcome."""
    waiting: list[Callable[[Any], None]] = engine.__dict__.setdefault("reads_joined", [])
    waiting.append(done)
    return len(waiting) > 1


def _to_all(engine: Any) -> Callable[[Any], None]:
    def confirmed(outcome: Any) -> None:
        waiting, engine.reads_joined = engine.reads_joined, []
        engine._done.extend((done, outcome) for done in waiting)

    return confirmed


def _overlap(
    name: str, rule: str, about: str, *edits: Edit, profile: dict[str, Any], lasts: int = 1,
    **helpers: Callable[..., Any],
) -> Mutant:  # fmt: skip
    return Mutant(name, rule, about, edits, profile, helpers, "driver", lasts=lasts)


OF_THE_DRIVER = (
    _overlap(
        "driver_forgets_a_sync_during_a_slot",
        "R2, S9",
        "a sync that is asked for while a checkpoint slot is written is forgotten until the next entry comes",
        Edit(DISK + "_synced", "if again:", "if not slot_owed:\n        MUTANT.ignored(again)\n    elif again:"),
        profile={**QUIET, "bursts": 10.0, "reads": 4.0},
    ),
    _overlap(
        "driver_mends_broken_order",
        "C4",
        "the success of an ordered append that was under way lifts what an earlier failure had broken",
        Edit(
            "node.engine.proposals:Proposals.add",
            "origin.order_broken = True",
            "origin.order_broken = True\n"
            "        elif ordered:\n"
            "            origin.order_broken = MUTANT.instead(origin.order_broken, False)",
        ),
        profile={"ordered": 4, "sync_ms": 10.0},
    ),
    _overlap(
        "driver_joins_reads",
        "C1",
        "a read joins a confirmation that began before it arrived",
        Edit(
            ENGINE + "read_index",
            "self.guarded(lambda: self.replica.read_index(self._later(done), self.now_ns(), way))",
            "if one_waits(self, done):\n"
            "        MUTANT.left_out()\n"
            "        return\n"
            "    self.guarded(lambda: self.replica.read_index(to_all(self), self.now_ns(), way))",
        ),
        profile={**UNAWARE, "delay_ms": 3.0, "reads": 60.0, "bursts": 30.0},
        one_waits=_one_waits,
        to_all=_to_all,
        lasts=2,
    ),
    _overlap(
        "driver_cuts_in_a_reading_thread",
        "S4",
        "a cut runs in a thread of the readers, beside a sync",
        Edit(
            DISK + "truncate",
            "self._writer.run(work, partial(self._cut, order))",
            "MUTANT.left_out()\n"
            "    self._report(self._readers.submit(work),\n"
            "                 lambda cut: self._cut(order, Ended(None, cut.exception())))",
        ),
        profile=CONFLICTS,
    ),
    _overlap(
        "driver_judges_leases_by_its_last_tick",
        "C1, E6",
        "whether a lease holds is judged by the time of the last tick, however long ago that was",
        Edit(
            ENGINE + "read_index",
            "self.now_ns(), way)",
            "MUTANT.instead(self.now_ns(), self._metronome._ticked_at or self.now_ns()), way)",
        ),
        profile={**UNAWARE, "lease_reads": True},
    ),
    _overlap(
        "driver_looks_up_on_the_loop",
        "S9",
        "the head of an entry that is not in memory is read on the loop",
        Edit(
            DISK + "look",
            "work = self._readers.submit(self._store.read_meta, order.index)",
            "MUTANT.left_out()\n"
            "        work = Future()\n"
            "        try:\n"
            "            work.set_result(self._store.read_meta(order.index))\n"
            "        except (KeyError, StoreCorrupt) as error:\n"
            "            work.set_exception(error)",
        ),
        profile=CONFLICTS,
    ),
    _overlap(
        "driver_saves_votes_on_the_loop",
        "S9",
        "term and vote are made durable on the loop",
        Edit(
            DISK + "save",
            "self._writer.run(partial(self._store.save_hard_state, state), finished)",
            "MUTANT.left_out()\n    self._store.save_hard_state(state)\n    finished(Ended(None, None))",
        ),
        profile=QUIET,
    ),
)

OF_THE_CLIENT = (
    _overlap(
        "client_ends_at_a_gap",
        "INTERFACES read",
        "an answer that holds only NOOPs counts as the log's end",
        Edit(
            CLIENT + "read",
            "if not entries:",
            "gap = not include_all and all(entry.magic != Magic.NORMAL for entry in entries)\n"
            "        if MUTANT.instead(not entries, not entries or gap):",
        ),
        profile=MANY_TERMS,
        lasts=2,
    ),
    _overlap(
        "client_lets_new_calls_pass",
        "C4",
        "a call takes freed room before those that wait for it",
        Edit(
            APPENDS + "submit_run",
            "elif self._waiting or self._is_full():",
            "elif MUTANT.ignored(self._waiting and not self._is_full()) or self._is_full():",
        ),
        profile={**QUIET, "in_flight_max": 3, "bursts": 200.0, "burst_max": 4, "client_busy_ms": 2.0},
    ),
    _overlap(
        "client_takes_index_zero_for_none",
        "C3",
        "expected_index=0 (the log must be empty) counts as no condition at all",
        Edit(
            CLIENT + "append",
            "if expected_index is None:",
            "if MUTANT.instead(expected_index is None, not expected_index):",
        ),
        Edit(
            CLIENT + "append_many", "-1 if expected_index is None else index_of(expected_index)", "expected_index or -1"
        ),
        profile=ORDINARY,
    ),
    _overlap(
        "client_tries_again_unconfirmed",
        "C1",
        "a read that was not confirmed is tried again without a quorum",
        Edit(
            CLIENT + "_read_once",
            "RequestCode.FAST_READ, [request], ",
            "RequestCode.FAST_READ, [MUTANT.instead(request, encode_read(ReadRequest(from_index, READ_BYTES, "
            "ReadMode.UNSAFE))) if retry.reason else request], ",
        ),
        profile=READING,
    ),
    _overlap(
        "client_returns_half_a_read",
        "INTERFACES read",
        "without an answer for the rest, a part is returned as if the log ended there",
        Edit(
            CLIENT + "read",
            "entries, _ = await self._read_once(at, mode)",
            "try:\n"
            "            entries, _ = await self._read_once(at, mode)\n"
            "        except LedgerError:\n"
            "            if not found:\n"
            "                raise\n"
            "            MUTANT.left_out()\n"
            "            break",
        ),
        profile={
            **UNREST,
            "deadline_s": 0.4,
            "whole_reads": 0.5,
            "reads": 60.0,
            "data_file_size": 8192,
            "ring_bytes": 512,
            "partition_ms": 1500.0,
            "isolate_leader": 1.0,
            "pause": 1.0,
            "pause_ms": 900.0,
        },
        lasts=2,
    ),
    _overlap(
        "client_calls_a_timeout_refused",
        "C2",
        "refused once, then sent again without an answer in time: told as not appended",
        Edit(
            APPENDS + "_deliver",
            "except TimeoutError as error:",
            "except TimeoutError as error:\n"
            "            if retry.not_appended is not None:\n"
            "                MUTANT.left_out()\n"
            "                raise retry.not_appended from error",
        ),
        profile={
            **QUIET,
            "deadline_s": 0.4,
            "ack_within_ms": 600,
            "transfers": 6.0,
            "crash": 1.0,
            "sync_ms": 20.0,
            "slow_disk": 0.15,
            "flush_sync": True,
            "bursts": 40.0,
        },
        lasts=2,
    ),
)

OF_THE_CONTROL_PLANE = (
    _overlap(
        "control_outdates_too_early",
        "INTERFACES state",
        "the cache is outdated before the append and not after it: whoever looked meanwhile hides one's own write",
        Edit(
            "node.control.entries:append",
            "sent = encode_append",
            "parts.snapshots.outdate()\n    sent = encode_append",
        ),
        Edit(
            "node.control.entries:append",
            "    parts.snapshots.outdate()\n    if answer",
            "    MUTANT.left_out()\n    if answer",
        ),
        profile=UNREST,
    ),
    _overlap(
        "control_calls_lost_unsent",
        "C2",
        "a connection to the engine that ends under an append is told as not appended",
        Edit(
            "node.control.engine_link:EngineLink.on_closed",
            'EngineSilent("the engine closed the connection")',
            'MUTANT.instead(EngineSilent("the engine closed the connection"), EngineAway("the connection is gone"))',
        ),
        profile=DOWN,
    ),
    _overlap(
        "control_pages_end_at_bytes",
        "INTERFACES entries",
        "an answer that was cut by its bytes says that nothing follows",
        Edit(
            "node.control.entries:linearizable",
            "if items and following",
            "if MUTANT.instead(bool(items), len(items) == limit) and following",
        ),
        profile=UNREST,
    ),
    Mutant(
        "control_reads_below_a_cut",
        "INTERFACES entries",
        "the reader of the files looks again only for what lies beyond what it has seen: a cut goes unnoticed",
        (
            Edit(
                "node.control.log_files:LogFiles.in_thread",
                "self.reader.refresh(upto_index)",
                "if upto_index is None or upto_index > self.reader.end_index:\n"
                "            self.reader.refresh(upto_index)\n"
                "        else:\n"
                "            MUTANT.left_out()",
            ),
        ),
        {**CUTS_OF_FILES, "looks": 50.0},
        world="driver",
        # A look-up that fails looks again by itself; without that, the one before it must have.
        cause=(Edit("node.store.reader:StoreReader.entry", "self.refresh()\n", "pass\n"),),
    ),
)
OVERLAPS = (*OF_THE_DRIVER, *OF_THE_CLIENT, *OF_THE_CONTROL_PLANE)
