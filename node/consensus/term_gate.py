"""The limit on terms in messages: one far above our own is dropped, unless the group confirms it (SAFETY E10).

Theory. Whoever adopts a term keeps it for ever, so that a single message with an absurd one would use up the terms of a
group. A group raises its term by elections, one by one: a member that meets a term more than 2^20 above its own has
been away through a million elections, and then a majority of the voters says in HELLO that they stored nearly as much.

Invariants: what is not admitted changes nothing here, whatever kind of message it came in; only proven peers are asked;
one alarm per peer, none for strangers, gone with that peer's next message of a term that can be.
"""

from __future__ import annotations

from node.consensus.member_state import MemberState
from node.consensus.progress import Peers
from node.protocol.entry import TERM_LEAP_MAX
from node.protocol.messages import FetchResponse, Hello, Message, PushRequest, PushResponse

ALARM = "term_leap"


class TermGate:
    """One per replica; every message passes it first."""

    def __init__(self, member: MemberState, peers: Peers) -> None:
        self._member, self._peers = member, peers
        self._standing: set[str] = set()  # peers about which the alarm stands

    def admits(self, sender: str, message: Message, now: int) -> bool:
        """Whether this message may be looked at; False: nothing of it counts."""
        if type(message) is PushResponse:  # each append has some of these two
            term = message.term
        elif type(message) is PushRequest:
            term, slab = message.term, message.slab
            if slab is not None and slab.last_term > term:
                term = slab.last_term
        elif type(message) is Hello:
            return True  # it is judged by what else it says; `greeted` hears of it where it was taken in
        else:
            term = _term_in(message)
        admitted = term <= self._member.term + TERM_LEAP_MAX or self._said(term)
        if self._standing or not admitted:
            self._note(sender, term, admitted, now)
        return admitted

    def greeted(self, sender: str, hello: Hello, now: int) -> None:
        """After a HELLO was judged. One that was refused may be anybody's: it says nothing of that peer."""
        peer = self._peers.of.get(sender)
        if peer is not None and peer.hello is hello:
            self._note(sender, hello.term, hello.term <= self._member.term + TERM_LEAP_MAX, now)

    def forget(self, peer_id: str) -> None:
        """That peer is gone."""
        self._standing.discard(peer_id)

    def _note(self, sender: str, term: int, sound: bool, now: int) -> None:
        if sound:
            if self._standing and sender in self._standing:
                self._standing.discard(sender)
                self._member.clear_alarm(ALARM, now, peer_id=sender)
        elif sender in self._peers.of:
            self._standing.add(sender)
            text = (
                f"{sender} speaks of term {term}, ours is {self._member.term}: no group gets there by elections;"
                f" nothing was taken over. If that member really stored it: stop it, `quorumscope store repair DIR`"
            )
            self._member.alarm(ALARM, text, now, peer_id=sender)

    def _said(self, term: int) -> bool:
        """Whether a majority of the voters has proved to have stored nearly that term."""
        hellos = (peer.hello for peer in self._peers.voters if peer.hello is not None)
        knows = [one.node_id for one in hellos if one.proven and one.term >= term - TERM_LEAP_MAX]
        return self._member.configuration.is_majority(knows)


def _term_in(message: Message) -> int:
    """The highest term that it names; of a push: see `admits`."""
    term: int = getattr(message, "term", -1)
    if isinstance(message, FetchResponse) and message.slab is not None:
        return max(term, message.slab.last_term)
    return term
