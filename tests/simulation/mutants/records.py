"""Planted bugs of broker groups (`message_store/broker_kind.py` and what calls it); hunted in the driver's world.

Each of them would let something into the log that ends the recovery of a Java broker after a hand-over, or misleads it.
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from node.protocol.entry import HEAD_BYTES, INDEX_UNIT, Slab
from tests.simulation.mutants.planting import Edit, Mutant, ignored, left_out, swapped
from tests.simulation.mutants.real_driver import QUIET

WRITER = "node.store.log_writer:LogWriter.append_as_leader"
LANES = "node.consensus.lanes:Lanes."
OWN = "node.consensus.own_entries:first_of_term"
KIND = "node.message_store.broker_kind:BrokerKind.refusal"
BROKERS: dict[str, Any] = {
    **QUIET, "broker": True, "lanes": 2, "clients": 1, "bursts": 60.0, "body_bytes": 40, "stop": 1.5, "sync_ms": 2.0,
    "clock_offset": True,
}  # fmt: skip


def patched_late(slab: Slab, patch_at: int) -> Slab:
    """The places are written over bytes whose checksums were taken already."""
    if patch_at < 0:
        return slab
    data = bytearray(slab.data)
    for _magic, pos, *_ in INDEX_UNIT.iter_unpack(slab.index_records):
        struct.pack_into(">q", data, pos - slab.pos + HEAD_BYTES + patch_at, pos + HEAD_BYTES)
    return replace(slab, data=bytes(data))


def _records(
    name: str, about: str, *edits: Edit, cause: tuple[Edit, ...] = (), lasts: int = 1, **helpers: Any
) -> Mutant:
    return Mutant(name, "broker groups", about, edits, BROKERS, helpers, "driver", cause, lasts)


RECORDS = (
    _records(
        "crc_before_patch",
        "a record's place is written into it after the checksum of its entry was taken",
        left_out(WRITER, "part = patched(part, run.pos, patch_at)"),
        Edit(WRITER, "slabs.append(slab)", "slabs.append(patched_late(slab, patch_at))"),
        patched_late=patched_late,
    ),
    _records(
        "record_without_its_place",
        "no place is written into records",
        ignored(WRITER, "patch_at >= 0"),
    ),
    _records(
        "channel_taken_from_a_client",
        "an append over a lane may say that it is the first of a term, or about the group",
        ignored(LANES + "_wrong_with", "ticket.channel in ENGINES_OWN"),
        cause=(Edit(KIND, "channel in ENGINES_OWN or channel", "channel"),),  # two walls, of which one is enough
    ),
    _records(
        "noop_of_magic_2",
        "a leader's first entry is what it is in a plain log",
        swapped(OWN, "kind.is_plain", "True"),
    ),
    _records(
        "plain_append_let_in",
        "an append enters that came over no lane, and was not judged",
        ignored("node.consensus.proposal_checks:ProposalChecks.refusal", "self._only_lanes and proposal.lane is None"),
    ),
    _records(
        "record_not_judged",
        "whatever comes over a lane is a record",
        Edit(LANES + "_wrong_with", "return self._kind.refusal(bodies, ticket.channel, ticket.patch_at, last_time_ms)",
             "return MUTANT.instead(self._kind.refusal(bodies, ticket.channel, ticket.patch_at, last_time_ms), None)"),
    ),
    _records(
        "time_goes_back_in_a_lane",
        "a lane's records are held against the time at which it was opened, not against those before them",
        left_out(LANES + "take", "lane.last_time_ms = self._kind.time_ms(proposal.bodies[-1])"),
        lasts=2,
    ),
    _records(
        "time_goes_back_with_a_term",
        "a leader's first entry carries its own clock, not the time of the record before",
        swapped(OWN, "last_time.milliseconds()", "-1"),
    ),
)  # fmt: skip
