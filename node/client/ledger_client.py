"""LedgerClient: appends to a group, reads from it and asks it for operator actions, from one event loop.

It finds the leader, follows redirects, and merges the appends of one turn of the loop into one frame. Invariant: it
sends an append again only after an outcome that says "definitely not appended" (SAFETY C2); in every other case it says
`OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from node.background import Background
from node.client.append_group import AppendResult
from node.client.appends import Appends
from node.client.arguments import bodies_of_run, checked_addresses, index_of
from node.client.committed import CommittedPosition, CommittedStream
from node.client.errors import DENIED, Denied, LedgerError, Trimmed, Unreachable, Unsupported, WrongLoop, read_denied
from node.client.lane import Lane, open_lane
from node.client.leader import find_leader, no_leader_among
from node.client.link import GroupIdentity, MemberLink, NotSupported, RemotingError
from node.client.members import links_to_new
from node.client.plain_dledger import INDEX_MAX, find_end, get_one, transfer_fields
from node.client.questions import OwnLinks, answer_to, ask
from node.client.retry import Retry
from node.loop_home import LoopHome
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.entry import Entry, EntryError, Magic, unpack_records
from node.protocol.group_kind import Channel
from node.protocol.peers import parse_peers
from node.transport.slab_frames import (
    BodyError,
    ReadMode,
    ReadRequest,
    decode_read_answer,
    encode_read,
    response_code,
)

__all__ = ["AppendResult", "LedgerClient", "ReadMode"]

READ_BYTES: Final = 1024 * 1024
MESSAGE: Final = (Magic.NORMAL, Channel.MESSAGE)  # what an entry of a client's says in its head
PLAIN_TRANSFER_S: Final = 10.0  # the original's own clients wait so long


class LedgerClient:
    """Use from one event loop. `in_flight_max` bounds the entries that wait for their answer (as 16 MiB do, whatever
    their number). `deadline_s` bounds each call: an append from when there is room for it, and each request of a read
    that takes several.

    `follow_redirects=False` reports "not the leader" instead of going there. `group_id` tells the group from another
    one of the same name; without it the first member that tells its group's id decides. Another group's members are
    refused with AnotherGroup before anything is sent to them.
    """

    def __init__(
        self,
        peers: str | Mapping[str, str],
        *,
        group: str = "default",
        group_id: str | None = None,
        deadline_s: float = 10.0,
        token: str | None = None,
        in_flight_max: int = 65_536,
        follow_redirects: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        members = parse_peers(peers) if isinstance(peers, str) else checked_addresses(peers)
        if not members:
            raise ValueError("a client needs at least one member's address")
        self.peers: Mapping[str, str] = members
        self._identity = GroupIdentity(group, group_id)
        self._home = LoopHome(WrongLoop)
        self._new_link = partial(MemberLink, group=self._identity, tls=tls, token=token, home=self._home)
        self._links = {one: self._new_link(one, address) for one, address in members.items()}
        self._deadline_s, self._token = deadline_s, token
        self.follow_redirects = follow_redirects
        self._own_links = OwnLinks()
        self._appends = Appends(self, deadline_s, in_flight_max, self._home)
        self._leader_id: str | None = None
        self._looking_elsewhere = False
        self._tasks = Background()
        # Whether anything that was read came from a plain DLedger, whose GET looks at no commit index: it may be gone.
        self.unverified = False

    @property
    def group_id(self) -> str | None:
        """The group's id, given or learned; None: no member has sent it yet."""
        return self._identity.group_id

    # --- appends ------------------------------------------------------------------------------------------------
    def submit(self, body: bytes) -> asyncio.Future[AppendResult]:
        """Starts an append and returns its future: for producers that do not wait for one entry before the next.

        No coroutine and no task is made of it, which is half of what a single append costs its client. Entries leave in
        the order of the calls, and are in the log in it, except where one was refused (no leader, no room) and tried
        again: it may lie behind later ones. Whoever needs an order in that case waits, or names `expected_index`.
        Errors arrive through the future, and cancelling it recalls nothing that was sent. Beyond `in_flight_max`
        entries, or 16 MiB, they wait here for their turn: a producer that has no end must look at how many of its
        futures are open.
        """
        return self._appends.submit(body)

    async def append(self, body: bytes, *, expected_index: int | None = None) -> AppendResult:
        """Appends one entry; returns once the group promised to keep it."""
        if expected_index is None:
            return await self._appends.submit(body)
        return await self.append_many([body], expected_index=expected_index)

    async def append_many(self, bodies: Sequence[bytes], *, expected_index: int | None = None) -> AppendResult:
        """Appends a contiguous run; a prefix of it may outlive a failure (SAFETY C4)."""
        expected = -1 if expected_index is None else index_of(expected_index)
        return await self._appends.submit_run(bodies_of_run(bodies), expected)

    async def open_lane(self) -> Lane:
        """Voids every earlier lane of the group, and gives one over which nothing is lost sight of (`client/lane.py`).

        Raises NotAppended, Unreachable, Denied.
        """
        return await open_lane(self, self._deadline_s)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.run("a ledger client's work", work)

    # --- the leader ---------------------------------------------------------------------------------------------
    def forget(self, link: MemberLink) -> None:
        """That member does not lead, as far as is known."""
        if self._leader_id == link.member_id:
            self._leader_id = None

    def redirected(self, link: MemberLink, leader_id: str) -> bool:
        """`link`'s member does not lead and named who does; whether to go there at once."""
        known = leader_id in self._links and leader_id != link.member_id
        at_once = known and self._leader_id == link.member_id
        self._leader_id = leader_id if known else None
        return at_once

    def leader_at_hand(self) -> MemberLink | None:
        """The member to ask, if it is known and its connection is open."""
        if not self.follow_redirects:
            link = next(iter(self._links.values()))
        elif self._leader_id is not None:
            link = self._links[self._leader_id]
            link.on_silence = self._leader_silent
        else:
            return None
        return link if link.open else None

    async def leader_link(self, retry: Retry) -> MemberLink:
        """The member to ask. Raises Unreachable at the deadline."""
        if not self.follow_redirects:
            return next(iter(self._links.values()))
        if self._leader_id is not None and self._links[self._leader_id].foreign:
            self._leader_id = None
        while self._leader_id is None:
            await self._probe(retry)
            if self._leader_id is None:
                retry.reason = retry.reason or no_leader_among(self._links.values())
                await retry.pause()
        link = self._links[self._leader_id]
        link.on_silence = self._leader_silent
        return link

    async def _probe(self, retry: Retry) -> None:
        """As long as there is time. Whoever else asks may have found the leader meanwhile."""
        self._leader_id = await retry.within(find_leader(self._links.values())) or self._leader_id
        self._links |= links_to_new(self.peers, self._links, self._identity, self._new_link)

    def _leader_silent(self, link: MemberLink) -> None:
        """Requests wait at a member that says nothing: is there another leader by now?"""
        if not self._looking_elsewhere:
            self._looking_elsewhere = True
            self.spawn(self._look_elsewhere(link))

    async def _look_elsewhere(self, silent: MemberLink) -> None:
        """What waits at a silent member, while another leads, ends as unknown at once and not at its deadline."""
        try:
            others = [link for link in self._links.values() if link is not silent]
            leader_id = await find_leader(others)
            if leader_id is not None:
                self._leader_id = leader_id
                silent.give_up(f"it fell silent, and {leader_id} leads now")
        except LedgerError:
            return  # the requests themselves will meet it
        finally:
            self._looking_elsewhere = False

    async def leader(self) -> str:
        """The leader's id, as the members say now. Raises Unreachable."""
        retry = Retry(self._deadline_s)
        self._leader_id = None
        while self._leader_id is None:
            await self._probe(retry)
            if self._leader_id is None:
                retry.reason = no_leader_among(self._links.values())
                await retry.pause()
        return self._leader_id

    # --- reads --------------------------------------------------------------------------------------------------
    async def read(
        self, from_index: int, limit: int, *, include_all: bool = False, mode: ReadMode = ReadMode.LINEARIZABLE,
        enough_bytes: int = INDEX_MAX,
    ) -> list[Entry]:  # fmt: skip
        """Up to `limit` committed entries from `from_index` on; NORMAL ones unless all. Fewer only at the log's end, or
        where `enough_bytes` of the log were read: all of it is in memory when this returns."""
        found: list[Entry] = []
        at, limit, read_bytes = index_of(from_index), index_of(limit), 0
        while len(found) < limit and read_bytes < enough_bytes:
            entries, _ = await self._read_once(at, mode)
            if not entries:
                break
            at, read_bytes = entries[-1].index + 1, read_bytes + sum(entry.size for entry in entries)
            found += [entry for entry in entries if include_all or (entry.magic, entry.channel) == MESSAGE]
        return found[:limit]

    async def committed_index(self) -> int:
        """The last committed index, -1 for an empty log, as a linearizable read tells it: it takes no token.

        Raises Unsupported where a plain DLedger leads.
        """
        _, committed_index = await self._read_once(INDEX_MAX, ReadMode.LINEARIZABLE)
        if committed_index is None:
            raise Unsupported("a plain DLedger reports no committed index")
        return committed_index

    async def _read_once(self, from_index: int, mode: ReadMode) -> tuple[list[Entry], int | None]:
        """Entries from there on, and the committed index (None: a plain DLedger tells none)."""
        retry = Retry(self._deadline_s)
        request = encode_read(ReadRequest(from_index, READ_BYTES, mode))
        while True:
            link = await self.leader_link(retry)
            try:
                if link.plain:
                    (code, entry), begin_index = await get_one(link, from_index, retry.left_s()), -1
                    self.unverified = True
                    if code in (ResponseCode.SUCCESS, ResponseCode.INDEX_OUT_OF_RANGE):
                        return [] if entry is None else [entry], None
                else:
                    answer = decode_read_answer(await link.request(RequestCode.FAST_READ, [request], retry.left_s()))
                    code, begin_index = response_code(answer.code), answer.first_index
                    if code is ResponseCode.SUCCESS:
                        entries = unpack_records(answer.records, answer.count)
                        return [one for one in entries if one.index >= from_index], answer.committed_index
                if code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                    raise Trimmed(from_index, begin_index, link.member_id)
                retry.reason = f"{link.member_id} answers {code.value} {code.name}"
                if code in DENIED:
                    raise Denied(retry.reason) if link.plain else read_denied(link.member_id, code)
                if code is ResponseCode.UNEXPECTED_ARGUMENT or (link.plain and code is not ResponseCode.NOT_LEADER):
                    raise LedgerError(retry.reason)
            except NotSupported as error:
                if link.plain:
                    raise Unsupported(str(error)) from error
                link.plain, retry.at_once, retry.reason = True, True, str(error)
                await retry.pause()
                continue
            except RemotingError as error:
                if error.code != RemotingCode.SYSTEM_BUSY:  # it fails over this request, and would again
                    raise LedgerError(str(error)) from error
                retry.reason = str(error)
            except (OSError, TimeoutError, LookupError, BodyError, EntryError) as error:
                retry.reason = str(error) or "no answer in time"
            self.forget(link)
            await retry.pause()

    async def plain_end_index(self) -> int:
        """The last index of a plain DLedger's leader, committed or not, -1 for an empty log; found by asking for
        entries, for nothing there tells it."""

        async def get(index: int) -> ResponseCode:
            link = await self.leader_link(retry)
            try:
                return (await get_one(link, index, retry.left_s()))[0]
            except (OSError, TimeoutError, LookupError, BodyError) as error:
                raise LedgerError(str(error) or "no answer in time") from error

        retry, self.unverified = Retry(self._deadline_s), True
        return await find_end(get)

    def committed(
        self, member_id: str | None = None, *, interval_ms: int = 5, keep_alive_ms: int = 1000,
        clock: Callable[[], float] | None = None,
    ) -> AsyncGenerator[CommittedPosition, None]:  # fmt: skip
        """What is committed, again and again, whenever it moves: at the leader, from one to the next, or at one member.

        At most one position each `interval_ms`, and one at least each `keep_alive_ms`; who takes them slowly misses
        those in between. `clock` counts leases, in seconds (the loop's; a machine that may be suspended needs
        CLOCK_BOOTTIME). Raises Unreachable where no leader is found within the deadline, Unsupported where a member
        does not know of this: then ask for the state every now and then.
        """
        clock = clock or asyncio.get_running_loop().time
        return CommittedStream(self, member_id, interval_ms, keep_alive_ms, self._deadline_s, clock).positions()

    def link_of(self, member_id: str) -> MemberLink:
        """Raises LedgerError for one that this client does not know."""
        if (link := self._links.get(member_id)) is None:
            raise LedgerError(f"{member_id} is not one of {', '.join(self._links)}")
        return link

    def _own_link(self, member_id: str) -> MemberLink:
        return self._own_links.beside(self.link_of(member_id))

    # --- views and operator actions -----------------------------------------------------------------------------------
    async def introspect(self, node_id: str, what: str, since: str | None = None) -> dict[str, Any]:
        """What the control plane's GET of that name would say of this member's engine."""
        fields = {"what": what, "since": since, "token": self._token}
        return await ask(self._own_link(node_id), RequestCode.INTROSPECT, fields, self._deadline_s)

    async def state(self, node_id: str) -> dict[str, Any]:
        """`introspect(node_id, "state")`."""
        return await self.introspect(node_id, "state")

    async def metadata(self, node_id: str) -> dict[str, Any]:
        """Who leads, as this member says: the one thing that a plain DLedger tells, too."""
        return await ask(self._own_link(node_id), RequestCode.METADATA, {}, self._deadline_s)

    async def order(self, node_id: str, fields: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        """An operator's action at one member. Raises LedgerError; OutcomeUnknown where it may have been done."""
        said = {**fields, "token": self._token}
        changes = not fields.get("dryRun")
        return await ask(self._own_link(node_id), RequestCode.OPERATOR_ACTION, said, within_s, changes=changes)

    async def scrub(self, node_id: str) -> int:
        """Has a member read its whole log once; the number of that pass, as in `state`. Raises LedgerError."""
        answer = await self.order(node_id, {"what": "scrub"}, self._deadline_s)
        if answer.get("code") == ResponseCode.SUCCESS and type(answer.get("passNumber")) is int:
            return int(answer["passNumber"])
        raise LedgerError(f"{node_id} answers {answer.get('code')}: {answer.get('detail')}")

    async def transfer(
        self, to: str | None = None, *, if_term: int | None = None, deadline_ms: int | None = None,
        accept_data_loss: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Moves leadership, to the best member for None. Returns `{code, leaderId, term, transfereeId, detail}`.

        Raises OutcomeUnknown where it may have moved, and Refused where a plain DLedger leads, unless member and term
        are named and the loss of data is accepted that a first leadership can mean there.
        """
        fields = {"transfereeId": to, "ifTerm": if_term, "deadlineMs": deadline_ms, "token": self._token}
        retry = Retry(self._deadline_s)
        while True:
            link = await self.leader_link(retry)
            try:
                if await self._is_plain(link, retry.left_s()):
                    break
                within_s = retry.left_s() if deadline_ms is None else max(retry.left_s(), deadline_ms / 1000 + 2.0)
                answer = await ask(link, RequestCode.LEADERSHIP_TRANSFER, fields, within_s, changes=True)
                self._leader_id = None
                return answer
            except Unreachable as error:  # one that led when it was asked last: no transfer was sent
                self.forget(link)
                retry.reason = str(error)
            await retry.pause()
        return await self._transfer_plain(link, transfer_fields(link.member_id, to, if_term, accept_data_loss))

    async def _is_plain(self, link: MemberLink, within_s: float) -> bool:
        """Whether a plain DLedger is at the other end; a transfer, of the same code there, must not find it out."""
        try:
            await ask(link, RequestCode.INTROSPECT, {"what": "state", "token": self._token}, within_s)
        except Denied:
            pass  # it knows the request
        except Unsupported:
            return True
        return False

    async def _transfer_plain(self, link: MemberLink, fields: dict[str, Any]) -> dict[str, Any]:
        """Over the very connection whose other end is known to be one: ours would take these fields for a member's."""
        within_s = max(self._deadline_s, PLAIN_TRANSFER_S)
        answer = await answer_to(link, RequestCode.LEADERSHIP_TRANSFER, fields, within_s, changes=True, redial=False)
        self._leader_id, code = None, answer.code()
        reported = {"code": int(code), "transfereeId": fields["transfereeId"], "detail": f"{link.member_id} answers "
                f"{code.value} {code.name}", "term": None}  # fmt: skip
        if code is not ResponseCode.SUCCESS:  # then the term is the request's own
            return {**reported, "leaderId": answer.optional_text("leaderId")}
        leader_id = None
        with suppress(Unreachable):  # it has moved, whoever tells of it
            leader_id = await self.leader()
        return {**reported, "leaderId": leader_id, "term": answer.optional_number("term")}

    async def close(self) -> None:
        """Ends every connection; what still waits ends as unknown. Again: nothing. Raises WrongLoop: none was ended."""
        self._home.check()
        self._appends.close()
        await self._tasks.stop()
        self._own_links.close()
        for link in self._links.values():
            link.close()
        await asyncio.sleep(0)
