"""LedgerClient: appends to, reads from and steers a group, from one event loop.

It finds the leader, follows redirects, and merges the appends of one turn of the loop into one frame. Invariant: it
sends an append again only after an outcome that says "definitely not appended" (SAFETY C2); in every other case it says
`OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from node.background import Background
from node.client_appends import AppendResult, Appends
from node.client_errors import Denied, LedgerError, Unreachable
from node.client_leader import DENIED, find_leader
from node.client_link import GroupIdentity, MemberLink, RemotingError
from node.client_retry import Retry
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import BytesLike, Entry, EntryError, Magic, unpack_record
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

T = TypeVar("T")
READ_BYTES: Final = 1024 * 1024


class LedgerClient:
    """Use from one event loop. `deadline_s` bounds each call; `in_flight_max` the entries that wait for their answer.

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
        members = parse_peers(peers) if isinstance(peers, str) else dict(peers)
        if not members:
            raise ValueError("a client needs at least one member's address")
        self.peers: Mapping[str, str] = members
        self._identity = GroupIdentity(group, group_id)
        self._links = {one: MemberLink(one, address, self._identity, tls) for one, address in members.items()}
        self._deadline_s, self._token = deadline_s, token
        self.follow_redirects = follow_redirects
        self._appends = Appends(self, deadline_s, in_flight_max)
        self._leader_id: str | None = None
        self._looking_elsewhere = False
        self._tasks = Background()

    @property
    def group_id(self) -> str | None:
        """The group's id, given or learned; None: nobody told it yet."""
        return self._identity.group_id

    # --- appends ------------------------------------------------------------------------------------------------
    def submit(self, body: bytes) -> asyncio.Future[AppendResult]:
        """Starts an append and returns its future: for producers that do not wait for one entry before the next.

        No coroutine and no task is made of it, which is half of what a single append costs its client. Entries are in
        the log in the order of the calls, errors arrive through the future, and cancelling it recalls nothing that was
        sent. Beyond `in_flight_max` entries wait here for their turn: a producer that has no end must look at how many
        of its futures are open.
        """
        return self._appends.submit(body)

    async def append(self, body: bytes, *, expected_index: int | None = None) -> AppendResult:
        """Appends one entry; returns once the group promised to keep it."""
        if expected_index is not None:
            return await self._appends.submit_run([body], expected_index)
        return await self._appends.submit(body)

    async def append_many(self, bodies: Sequence[bytes], *, expected_index: int | None = None) -> AppendResult:
        """Appends a contiguous run; a prefix of it may outlive a failure (SAFETY C4)."""
        return await self._appends.submit_run(bodies, -1 if expected_index is None else expected_index)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """A task that ends with this client."""
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
        while self._leader_id is None:
            await self._probe()
            if self._leader_id is None:
                retry.reason = retry.reason or "no member knows a leader"
                await retry.pause()
        link = self._links[self._leader_id]
        link.on_silence = self._leader_silent
        return link

    async def _probe(self) -> None:
        self._leader_id = await find_leader(self._links.values())

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
            await self._probe()
            if self._leader_id is None:
                retry.reason = "no member knows a leader"
                await retry.pause()
        return self._leader_id

    # --- reads --------------------------------------------------------------------------------------------------
    async def read(
        self, from_index: int, limit: int, *, include_all: bool = False, mode: ReadMode = ReadMode.LINEARIZABLE
    ) -> list[Entry]:
        """Up to `limit` committed entries from `from_index` on, fewer only at the log's end; NORMAL ones unless all."""
        found: list[Entry] = []
        at = from_index
        while len(found) < limit:
            entries = await self._read_once(at, mode)
            if not entries:
                break
            at = entries[-1].index + 1
            found += [entry for entry in entries if include_all or entry.magic == Magic.NORMAL]
        return found[:limit]

    async def _read_once(self, from_index: int, mode: ReadMode) -> list[Entry]:
        retry = Retry(self._deadline_s)
        request = encode_read(ReadRequest(from_index, READ_BYTES, mode))
        while True:
            link = await self.leader_link(retry)
            try:
                answer = decode_read_answer(await link.request(RequestCode.FAST_READ, [request], retry.left_s()))
                code = response_code(answer.code)
                if code is ResponseCode.SUCCESS:
                    return _entries_of(answer.records, answer.count, from_index)
                if code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                    raise LedgerError(f"index {from_index} is not kept any more: {link.member_id} begins later")
                retry.reason = f"{link.member_id} answers {code.name}"
            except (OSError, TimeoutError, LookupError, BodyError, EntryError) as error:
                retry.reason = str(error) or "no answer in time"
            self.forget(link)
            await retry.pause()

    # --- looking and steering -----------------------------------------------------------------------------------
    async def introspect(self, node_id: str, what: str, since: str | None = None) -> dict[str, Any]:
        """What the control plane's GET of that name would say of this member's engine."""
        fields = {"what": what, "since": since, "token": self._token}
        return await self._ask(self._links[node_id], RequestCode.INTROSPECT, fields, self._deadline_s)

    async def state(self, node_id: str) -> dict[str, Any]:
        """`introspect(node_id, "state")`."""
        return await self.introspect(node_id, "state")

    async def scrub(self, node_id: str) -> int:
        """Asks a member to read its whole log once; the number of that pass, as `state` tells of it."""
        answer = await self._ask(
            self._links[node_id], RequestCode.STEER, {"what": "scrub", "token": self._token}, self._deadline_s
        )
        if answer.get("code") != ResponseCode.SUCCESS:
            raise LedgerError(f"{node_id} answers {answer.get('code')}: {answer.get('detail')}")
        return int(answer["passNumber"])

    async def _ask(
        self, link: MemberLink, code: RequestCode, fields: dict[str, Any], within_s: float
    ) -> dict[str, Any]:
        try:
            answer = await link.ask(code, fields, within_s)
        except (OSError, TimeoutError) as error:
            raise Unreachable(f"{link.member_id} at {link.address}: {error or 'no answer in time'}") from error
        except (RemotingError, BodyError) as error:
            raise LedgerError(str(error)) from error
        if "code" in answer.values and answer.code() in DENIED:
            text = answer.optional_text("detail") or answer.code().name
            raise Denied(f"{link.member_id}: {text}")
        if code is RequestCode.INTROSPECT and "code" in answer.values:
            raise LedgerError(f"{link.member_id}: {answer.optional_text('detail') or answer.code().name}")
        return dict(answer.values)

    async def transfer(
        self, to: str | None = None, *, if_term: int | None = None, deadline_ms: int | None = None
    ) -> dict[str, Any]:
        """Moves leadership, to the best member for None. Returns `{code, leaderId, term, transfereeId, detail}`."""
        fields = {"transfereeId": to, "ifTerm": if_term, "deadlineMs": deadline_ms, "token": self._token}
        link = await self.leader_link(Retry(self._deadline_s))
        within_s = max(self._deadline_s, (deadline_ms or 0) / 1000 + 2.0)
        answer = await self._ask(link, RequestCode.LEADERSHIP_TRANSFER, fields, within_s)
        self._leader_id = None
        return answer

    async def close(self) -> None:
        """Ends every connection; what still waits ends as unknown."""
        self._appends.close()
        await self._tasks.stop()
        for link in self._links.values():
            link.close()
        await asyncio.sleep(0)


def _entries_of(records: BytesLike, count: int, from_index: int) -> list[Entry]:
    entries: list[Entry] = []
    offset = 0
    for _ in range(count):
        entry = unpack_record(records, offset)
        offset += entry.size
        if entry.index >= from_index:
            entries.append(entry)
    return entries
