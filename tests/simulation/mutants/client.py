"""Planted bugs of the client: `node/client/`, hunted where it runs (tests/simulation/driver)."""

from __future__ import annotations

from typing import Any

from tests.simulation.mutants.planting import Edit, Mutant, ignored, swapped
from tests.simulation.mutants.real_driver import ORDINARY, QUIET, READING, UNREST

APPENDS = "node.client.appends:Appends."
GROUP = "node.client.append_group:Group."
LINK = "node.client.link:MemberLink."
CLIENT = "node.client.ledger_client:LedgerClient."
CUT = {**UNREST, "reset": 3.0, "deadline_s": 4.0}


def _client(name: str, rule: str, about: str, *edits: Edit, profile: dict[str, Any]) -> Mutant:
    return Mutant(name, rule, about, edits, profile, {}, "driver")


CLIENT_SIDE = (
    _client(
        "client_sends_unknown_again",
        "C2",
        "an append whose answer got lost is sent again",
        ignored(APPENDS + "_deliver", "error.sent"),
        profile=CUT,
    ),
    _client(
        "client_calls_lost_unsent",
        "C2",
        "what a broken connection took with it counts as not sent",
        Edit(LINK + "_fail", "sent=True", "sent=MUTANT.instead(True, False)"),
        profile=CUT,
    ),
    _client(
        "client_shifts_indexes",
        "C2",
        "of two runs in one frame only the first counts with its length",
        Edit(
            GROUP + "firsts",
            "for number, count in self.runs:",
            "for number, count in MUTANT.instead(self.runs, self.runs[:1]):",
        ),
        profile={**QUIET, "burst_max": 12},
    ),
    _client(
        "client_calls_unknown_refused",
        "C2",
        "an unknown outcome is reported as not appended",
        ignored(APPENDS + "_judge", "answer.appended is AppendedByte.UNKNOWN"),
        profile=UNREST,
    ),
    _client(
        "client_calls_unknown_done",
        "C2",
        "whatever is not refused is reported as appended",
        swapped(
            APPENDS + "_answered",
            "answer.appended is AppendedByte.YES",
            "answer.appended is not AppendedByte.NOT_APPENDED",
        ),
        profile=UNREST,
    ),
    _client(
        "client_forgets_the_expected_index",
        "C3",
        "the index that an append must get is not sent",
        Edit(GROUP + "pieces", "self.expected_index)", "MUTANT.instead(self.expected_index, -1))"),
        profile=ORDINARY,
    ),
    _client(
        "client_takes_any_answer",
        "C2",
        "an answer settles the oldest request, not the one that it names",
        Edit(
            LINK + "_on_frame",
            "self._pending.pop(frame.opaque, None)",
            "self._pending.pop(MUTANT.instead(frame.opaque, next(iter(self._pending), frame.opaque)), None)",
        ),
        profile=UNREST,
    ),
    _client(
        "client_reads_unsafely",
        "C1",
        "a read is served by whoever is asked, without a quorum",
        Edit(CLIENT + "_read_once", "READ_BYTES, mode)", "READ_BYTES, MUTANT.instead(mode, ReadMode.UNSAFE))"),
        profile=READING,
    ),
    _client(
        "client_reads_on_one_too_far",
        "C1",
        "a read that goes on leaves one entry out",
        Edit(
            CLIENT + "read",
            "at, read_bytes = entries[-1].index + 1",
            "at, read_bytes = MUTANT.instead(entries[-1].index + 1, entries[-1].index + 2)",
        ),
        profile=ORDINARY,
    ),
    _client(
        "client_takes_apart_wrongly",
        "C4",
        "calls that travelled together are sent with each other's bodies",
        Edit(
            GROUP + "apart",
            "self.bodies[at[number] : at[number + 1]]",
            "self.bodies[MUTANT.instead(at[number], max(0, at[number] - 1)) : at[number + 1]]",
        ),
        profile={**QUIET, "burst_max": 12},
    ),
    _client(
        "client_close_promises",
        "C2",
        "what still waits when the client is closed is reported as not appended",
        Edit(
            APPENDS + "close",
            'self._failed(group, OutcomeUnknown("the client was closed before an answer came"))',
            'self._failed(group, MUTANT.instead(OutcomeUnknown(""), NotAppended("the client is closed")))',
        ),
        profile=UNREST,
    ),
)
