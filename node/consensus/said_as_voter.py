"""Messages of a voter: those that must not leave once the member has given up its vote (SAFETY E8).

They may be waiting for a record when that happens, in the very turn in which a store turns out to be a restored copy.
"""

from __future__ import annotations

from node.protocol.codes import VoteResult, VoterState
from node.protocol.messages import HeartBeatResponse, Hello, Message, VoteResponse


def said_as_voter(message: Message) -> bool:
    """Whether this is a vote, or calls its sender a voter."""
    if isinstance(message, VoteResponse):
        return message.result is VoteResult.ACCEPT
    return isinstance(message, Hello | HeartBeatResponse) and message.voter_state is VoterState.VOTER
