"""What the answers of one round of votes come to, as DLedger parses them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from node.protocol.codes import VoteResult


class ParseResult(StrEnum):
    """What a round's answers come to (DLedger's names)."""

    PASSED = "PASSED"
    REVOTE_IMMEDIATELY = "REVOTE_IMMEDIATELY"
    WAIT_TO_REVOTE = "WAIT_TO_REVOTE"
    WAIT_TO_VOTE_NEXT = "WAIT_TO_VOTE_NEXT"


BIGGER_LEDGER = frozenset({VoteResult.REJECT_EXPIRED_LEDGER_TERM, VoteResult.REJECT_SMALL_LEDGER_END_INDEX})


def parse_votes(results: Iterable[VoteResult], needed: int) -> ParseResult:
    """From the answers so far, the own one included, to what to do; `needed` accepts win."""
    given = [result for result in results if result is not VoteResult.UNKNOWN]
    accepted = given.count(VoteResult.ACCEPT)
    not_ready = given.count(VoteResult.REJECT_TERM_NOT_READY)
    bigger = sum(1 for result in given if result in BIGGER_LEDGER)
    if accepted >= needed:
        return ParseResult.PASSED
    if not_ready and accepted + not_ready >= needed:
        return ParseResult.REVOTE_IMMEDIATELY
    if VoteResult.REJECT_ALREADY_HAS_LEADER in given or len(given) - bigger < needed:
        return ParseResult.WAIT_TO_REVOTE
    if accepted + bigger >= needed:
        return ParseResult.WAIT_TO_REVOTE
    return ParseResult.WAIT_TO_VOTE_NEXT
