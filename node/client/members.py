"""Members that come and go, as a client sees them: whom it meets later, and how it asks for a change (SAFETY M1).

Invariant: whoever is met later has to prove its group's id before anything is sent to it, like everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from node.client.errors import LedgerError, Unreachable
from node.client.link import GroupIdentity, MemberLink
from node.client.retry import Retry

if TYPE_CHECKING:
    from node.client.ledger_client import LedgerClient

CHANGE_WITHIN_S = 30.0  # a quorum's disks; without a quorum the leader steps down, and says so
LEADER_WITHIN_S = 10.0  # many elections: a group that has elected nobody by then is down


def links_to_new(
    given: Mapping[str, str], known: Mapping[str, MemberLink], identity: GroupIdentity,
    make: Callable[[str, str], MemberLink],
) -> dict[str, MemberLink]:  # fmt: skip
    """To members that others have named, and that nobody knew here, or not at that address: one of them may lead."""
    if len(given) == 1:
        return {}  # a client of one member stays with that one
    new = {one: at for one, at in identity.members.items() if one not in known}
    moved = {one: at for one, link in known.items() if (at := _elsewhere(link, given, identity)) is not None}
    return {one: make(one, at) for one, at in (new | moved).items()}


def _elsewhere(link: MemberLink, given: Mapping[str, str], identity: GroupIdentity) -> str | None:
    """Where to look for a member next that did not answer: where the others say that it is (it may have moved), and
    in turn at the address that the client was given (the others' network may be another one). None: as before."""
    said = identity.members.get(link.member_id, "")
    if link.open or link.dialling or link.named_leader is not None or not said:
        return None
    at = said if link.address != said else given.get(link.member_id, said)
    return at if at != link.address else None


class Links(Protocol):
    """What is needed of a client."""

    async def leader_link(self, retry: Retry) -> MemberLink: ...
    def link_of(self, member_id: str) -> MemberLink: ...


async def link_to(client: Links, member_id: str | None, retry: Retry) -> MemberLink:
    """To that member, or to the leader. Whoever looks for the leader hears of members that came later: so does a client
    that does not know that one yet. Raises LedgerError."""
    if member_id is None:
        return await client.leader_link(retry)
    try:
        return client.link_of(member_id)
    except LedgerError:
        with suppress(Unreachable):
            await client.leader_link(retry)
        return client.link_of(member_id)


async def members(client: LedgerClient) -> dict[str, Any]:
    """Who belongs to the group, as its leader's log says. Raises LedgerError."""
    return await _of_leader(client, lambda member_id: client.introspect(member_id, "members"))


async def change_members(client: LedgerClient, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the leader for one change (docs/operations.md); the answer comes when it is committed. Raises LedgerError;
    OutcomeUnknown where the leader got it and no answer came: `members` says whether it was made.

    Gives `{code, index, term, appended, leaderId, detail}`; with `dryRun` what would follow.
    """
    what = {"what": "members", **fields}
    return await _of_leader(client, lambda member_id: client.order(member_id, what, CHANGE_WITHIN_S))


async def _of_leader(client: LedgerClient, ask: Callable[[str], Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    """The answer of whoever leads; one that led when it was asked last, and is not there any more, is looked for anew.
    Raises LedgerError."""
    retry = Retry(LEADER_WITHIN_S)
    while True:
        link = await client.leader_link(retry)
        try:
            return await ask(link.member_id)
        except Unreachable as error:  # no change was sent
            client.forget(link)
            retry.reason = str(error)
        except LedgerError:
            client.forget(link)
            raise
        await retry.pause()
