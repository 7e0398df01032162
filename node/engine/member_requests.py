"""Changes of the members that an operator asks for, and what is known before: the pre-flight.

A change is answered when it is committed, or at once where it is refused; a dry run is answered with what would follow.
Invariants: nothing is changed by a dry run; the leader alone changes anything, and says who leads where it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from node.consensus.member_changes import ChangeOutcome, Kind, MemberChange
from node.consensus.replica import Replica
from node.protocol.codes import ResponseCode
from node.protocol.quorum import majority_of
from node.transport.bodies import BodyError, Fields

Answer = Callable[[ResponseCode, Mapping[str, Any]], None]
KINDS: Final = ", ".join(Kind)


class Driver(Protocol):
    """What it needs of the engine."""

    replica: Replica

    def change_members(self, change: MemberChange, done: Callable[[ChangeOutcome], None]) -> None: ...


def change_members(driver: Driver, fields: Fields, answer: Answer) -> None:
    """One request. Raises BodyError."""
    change, replica = change_in(fields), driver.replica
    term = fields.optional_number("ifTerm")
    if term is not None and term != replica.term:
        text = f"the term is {replica.term}, not {term}"
        answer(ResponseCode.INCONSISTENT_TERM, {"detail": text, "leaderId": replica.leader_id})
        return
    if fields.flag("dryRun"):
        answer(ResponseCode.SUCCESS, preflight(replica, change))
        return

    def done(outcome: ChangeOutcome) -> None:
        answer(outcome.code, {
            "index": outcome.entry_index, "term": outcome.term,
            "appended": outcome.appended.value, "leaderId": outcome.leader_id, "detail": outcome.detail,
        })  # fmt: skip

    driver.change_members(change, done)


def change_in(fields: Fields) -> MemberChange:
    """What is asked for. Raises BodyError."""
    try:
        kind = Kind(fields.text("kind"))
    except ValueError:
        raise BodyError(f"there is no change {fields.text('kind')!r} of members: {KINDS}") from None
    promote = fields.values.get("promote", True)
    if not isinstance(promote, bool):
        raise BodyError("promote is true or false")
    return MemberChange(kind, fields.text("memberId"), fields.text("address", ""), promote, fields.text("replaces", ""))


def preflight(replica: Replica, change: MemberChange) -> dict[str, Any]:
    """What would follow, as this leader sees it now; `refused` says why it would not be made, else it is null."""
    now_refused = replica.refused_change(change)
    configuration, member = replica.configuration, replica.member
    before = set(configuration.voters)
    after = set(before)
    if change.kind is Kind.REMOVE or change.replaces:
        after.discard(change.replaces or change.member_id)
    if change.kind is Kind.PROMOTE or (change.kind is Kind.ADD and change.promote):
        after.add(change.member_id)
    up = {one.peer_id for one in replica.peers.voters if one.connected and one.counts} | {member.self_id}
    would = up | {change.member_id} if change.kind in (Kind.ADD, Kind.PROMOTE) else up
    reported: dict[str, Any] = {
        "leaderId": replica.leader_id, "term": replica.term,
        "refused": None if now_refused is None else {"code": int(now_refused[0]), "detail": now_refused[1]},
        "before": quorum(before, up & before), "after": quorum(after, would & after),
    }  # fmt: skip
    return reported | behind(replica, change)


def quorum(voters: set[str], answering: set[str]) -> dict[str, Any]:
    """How many have to answer, who does, and how many of these may still fail; below 0: so many are missing."""
    needed = majority_of(len(voters))
    return {
        "voters": sorted(voters), "needed": needed, "answering": sorted(answering), "survives": len(answering) - needed,
    }  # fmt: skip


def behind(replica: Replica, change: MemberChange) -> dict[str, Any]:
    """What that member lacks, and how long it takes it at most; null: nobody knows."""
    store, config = replica.store, replica.config
    size = getattr(store, "size_bytes", None)
    whole = store.end_index - store.begin_index + 1
    lag_entries = 0 if change.kind in (Kind.REMOVE, Kind.ADDRESS) else whole
    peer = replica.peers.of.get(change.member_id)
    if peer is not None and peer.match_index >= 0:
        lag_entries = store.end_index - peer.match_index
    lag_bytes = size * min(lag_entries, whole) // max(1, whole) if isinstance(size, int) else None
    rate = config.catch_up_bytes_per_s
    seconds = None if lag_bytes is None or not rate else round(lag_bytes / rate, 1)
    return {
        "lagEntries": lag_entries, "lagBytes": lag_bytes, "catchUpSAtMost": seconds,
        "bytesPerS": rate or None, "needsDiskBytes": size if isinstance(size, int) else None,
    }  # fmt: skip
