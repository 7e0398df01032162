"""The follower's side of a base install: it begins its log where its leader's begins (SAFETY M6, R8).

Theory. A leader whose log begins behind what a follower lacks cannot give it those entries. What is below the leader's
base was committed, so a log that begins there lacks nothing that could still be decided about; what the follower held
before is archived, and it says from where on it holds the log. An entry at the base that is another one than the
leader's, or none, shows that nothing the follower holds from there on was committed.

Invariants: nothing is replaced below what is committed here, nor where the log holds that very entry, so a request
that comes late or twice changes nothing; a damaged log may hold what its member acknowledged, so the vote goes first,
durably (E8); from the order on nothing of the old log counts, and nothing of the new one before it is durable.
"""

from __future__ import annotations

from dataclasses import dataclass

from node.consensus.cuts import order_beginning
from node.consensus.member_state import MemberState
from node.protocol.codes import ResponseCode
from node.protocol.messages import InstallRequest, SnapshotPart
from node.store.errors import StoreCorrupt
from node.store.files.identity import Base
from node.store.log_store import EntryMeta

Beginning = InstallRequest | SnapshotPart  # both say behind what the log is to begin


def base_in(request: Beginning) -> Base:
    """The base that a request carries."""
    meta = EntryMeta(request.base_index, request.base_term, request.base_chain)
    return Base(meta, request.base_pos, request.group_id, request.members)


@dataclass(slots=True, frozen=True)
class Refused:
    """A request that changes nothing: what to answer, and why (for people)."""

    code: ResponseCode
    text: str


HELD = Refused(ResponseCode.SUCCESS, "the log holds that entry")
NOT_AT_A_FILE = "a base that is not before a data file's first entry"
ORDERED = Refused(ResponseCode.PUSH_REQUEST_IS_FULL, "it is under way")


class BaseInstall:
    """One per replica."""

    def __init__(self, member: MemberState) -> None:
        self._member = member

    def act(self, request: InstallRequest, now: int) -> Refused:
        """What to answer; where the log is to begin anew, the order for it. Raises ColdEntry: asked again later."""
        if self._member.applying is not None:
            return Refused(ResponseCode.UNSUPPORTED, "a base alone brings no state for the state machine")
        refused = self.refusal(request, now)
        if refused is not None:
            return refused
        self.begin(request, now)
        return ORDERED

    def refusal(self, request: Beginning, now: int) -> Refused | None:
        """Why the log stays as it is; None: it may begin behind that entry. Raises ColdEntry."""
        member, index = self._member, request.base_index
        group_id = member.hard.group_id
        if None not in (group_id, request.group_id) and group_id != request.group_id:
            return Refused(ResponseCode.UNKNOWN_GROUP, f"a base of group {request.group_id}, this is {group_id}")
        held = self._held(index)
        if held is not None and held.term == request.base_term:
            if held.chain == request.base_chain:
                member.note_verified(index)
                return HELD
            if not member.damaged_at(index):
                return Refused(ResponseCode.INCONSISTENT_STATE, "another chain")
        if index < member.committed_index or (index == member.committed_index and held is not None):
            return self._below_committed(request, now)  # what is committed here is another entry, or more
        if request.base_chain is None:
            return Refused(ResponseCode.UNEXPECTED_ARGUMENT, "a base without its chain")
        if member.config.kind.keeps_places and request.base_pos % member.store.data_file_size:
            return Refused(ResponseCode.UNEXPECTED_ARGUMENT, NOT_AT_A_FILE)
        return None

    def begin(self, request: Beginning, now: int) -> None:
        """Nothing is against it: the order that the log begins behind that entry."""
        member, first_index = self._member, request.base_index + 1
        if member.store.faults:
            member.on_rejoin(f"its damaged log is replaced by one that begins at {first_index}", now)
        what = "snapshot ends before" if isinstance(request, SnapshotPart) else "log begins at"
        reason = f"{request.leader_id}'s {what} {first_index}, and this log could not follow it"
        order_beginning(member, base_in(request), request.leader_id, reason, now)

    def _held(self, index: int) -> EntryMeta | None:
        """What this log says of that entry; None: it does not hold it, or cannot read it."""
        member = self._member
        if member.damaged_at(index):
            return None
        try:
            return member.meta(index)
        except StoreCorrupt as error:
            member.note_damage(error)
            return None

    def _below_committed(self, request: Beginning, now: int) -> Refused:
        member = self._member
        text = (
            f"{request.leader_id} (term {request.term}) was refused: its log begins behind entry {request.base_index}"
            f" of term {request.base_term}, and here entries up to {member.committed_index} are committed (M6)"
        )
        member.alarm("order_refused", text, now, peer_id=request.leader_id)
        return Refused(ResponseCode.INCONSISTENT_INDEX, text)
