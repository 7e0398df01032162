"""LedgerClient: appends to, reads from and steers a group, from one event loop.

It finds the leader, follows redirects, and merges the appends of one turn of the loop into one frame. Invariant: it
sends an append again only after an outcome that says "definitely not appended" (SAFETY C2); in every other case it says
`OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from node.client_errors import Denied, LedgerError, NotAppended, OutcomeUnknown, Unreachable
from node.client_leader import DENIED, find_leader
from node.client_link import Lost, MemberLink, RemotingError
from node.client_retry import Retry
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import Entry, EntryError, Magic, unpack_record
from node.protocol.peers import parse_peers
from node.transport.slab_frames import (
    AppendAnswer,
    AppendedByte,
    AppendRequest,
    BodyError,
    ReadMode,
    ReadRequest,
    decode_append_answer,
    decode_read_answer,
    encode_append,
    encode_read,
    response_code,
)

__all__ = ["AppendResult", "LedgerClient", "ReadMode"]

T = TypeVar("T")
# A frame leaves as soon as it is this full: the leader works on it while the rest of the turn still gathers.
MERGE_ENTRIES_MAX: Final = 1024
MERGE_BYTES_MAX: Final = 1024 * 1024
READ_BYTES: Final = 1024 * 1024
# Worth another try by itself: the group is between leaders, or full for a moment.
RETRIED: Final = frozenset(
    {
        ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_TRANSFERRING,
        ResponseCode.LEADER_PENDING_FULL,
    }
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class AppendResult:
    """Where the entries are: inclusive indexes, and the term they were written in."""

    first_index: int
    last_index: int
    term: int


class LedgerClient:
    """Use from one event loop. `deadline_s` bounds each call; `in_flight_max` the entries that wait for their answer.

    `follow_redirects=False` reports "not the leader" instead of going there.
    """

    def __init__(
        self,
        peers: str | Mapping[str, str],
        *,
        group: str = "default",
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
        self._links = {member_id: MemberLink(member_id, address, group, tls) for member_id, address in members.items()}
        self._deadline_s, self._token = deadline_s, token
        self._in_flight_max, self._in_flight = in_flight_max, 0
        self._room: deque[asyncio.Future[None]] = deque()
        self._follow = follow_redirects
        self._leader_id: str | None = None
        self._looking_elsewhere = False
        self._tick: list[tuple[bytes, asyncio.Future[AppendResult]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    # --- appends ------------------------------------------------------------------------------------------------
    async def append(self, body: bytes, *, expected_index: int | None = None) -> AppendResult:
        """Appends one entry; returns when the group promised to keep it."""
        if expected_index is not None:
            return await self.append_many([body], expected_index=expected_index)
        if self._in_flight >= self._in_flight_max:
            await self._wait_for_room()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[AppendResult] = loop.create_future()
        self._tick.append((bytes(body), answer))
        self._in_flight += 1
        if len(self._tick) == 1:
            loop.call_soon(self._flush)
        elif len(self._tick) >= MERGE_ENTRIES_MAX:
            self._flush()
        return await answer

    async def append_many(self, bodies: Sequence[bytes], *, expected_index: int | None = None) -> AppendResult:
        """Appends a contiguous run; a prefix of it may outlive a failure (SAFETY C4)."""
        if self._in_flight >= self._in_flight_max:
            await self._wait_for_room()
        self._in_flight += len(bodies)
        try:
            return await self._deliver(bodies, -1 if expected_index is None else expected_index)
        finally:
            self._finished(len(bodies))

    async def _wait_for_room(self) -> None:
        while self._in_flight >= self._in_flight_max:
            room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._room.append(room)
            await room

    def _finished(self, entries: int) -> None:
        self._in_flight -= entries
        for _ in range(min(entries, len(self._room))):
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)

    def _flush(self) -> None:
        """Everything that came in this turn, in as few frames as the limits allow."""
        waiting, self._tick = self._tick, []
        group: list[tuple[bytes, asyncio.Future[AppendResult]]] = []
        size_bytes = 0
        for one in waiting:
            if group and (len(group) >= MERGE_ENTRIES_MAX or size_bytes + len(one[0]) > MERGE_BYTES_MAX):
                self._spawn(self._deliver_merged(group))
                group, size_bytes = [], 0
            group.append(one)
            size_bytes += len(one[0])
        if group:
            self._spawn(self._deliver_merged(group))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _deliver_merged(self, group: list[tuple[bytes, asyncio.Future[AppendResult]]]) -> None:
        try:
            result = await self._deliver([body for body, _ in group], -1)
        except NotAppended as error:
            if error.code is ResponseCode.UNEXPECTED_ARGUMENT and len(group) > 1:
                for one in group:  # one body is at fault: the others must not suffer for it
                    self._spawn(self._deliver_merged([one]))
                return
            self._all_failed(group, error)
        except asyncio.CancelledError:
            self._all_failed(group, OutcomeUnknown("the client was closed before an answer came"))
        except Exception as error:
            self._all_failed(group, error)
        else:
            self._finished(len(group))
            index, term = result.first_index, result.term
            for _, answer in group:
                if not answer.done():
                    answer.set_result(AppendResult(index, index, term))
                index += 1

    def _all_failed(self, group: list[tuple[bytes, asyncio.Future[AppendResult]]], error: Exception) -> None:
        self._finished(len(group))
        for _, answer in group:
            if not answer.done():
                answer.set_exception(error)

    async def _deliver(self, bodies: Sequence[bytes], expected_index: int) -> AppendResult:
        """One append frame until it has an outcome."""
        pieces = encode_append(AppendRequest(bodies, expected_index))
        retry = Retry(self._deadline_s)
        while True:
            link = await self._leader_link(retry)
            try:
                body = await link.request(RequestCode.FAST_APPEND, pieces, retry.left_s())
                answer = decode_append_answer(body)
            except Lost as error:
                self._forget(link)
                if error.sent:
                    raise OutcomeUnknown(f"the answer of {link.member_id} got lost: {error}") from error
                retry.reason = str(error)
            except TimeoutError as error:
                raise OutcomeUnknown(f"{link.member_id} did not answer within {self._deadline_s:g} s") from error
            except (RemotingError, BodyError) as error:
                raise OutcomeUnknown(str(error)) from error
            else:
                if answer.appended is AppendedByte.YES:
                    return AppendResult(answer.first_index, answer.last_index, answer.term)
                self._judge(link, answer, retry)
            await retry.pause()

    def _judge(self, link: MemberLink, answer: AppendAnswer, retry: Retry) -> None:
        """Raises unless another try makes sense."""
        code = response_code(answer.code)
        text = f"{link.member_id} answers {code.value} {code.name}" + (f": {answer.detail}" if answer.detail else "")
        if answer.appended is AppendedByte.UNKNOWN:
            raise OutcomeUnknown(
                text, code=code, first_index=answer.first_index, last_index=answer.last_index, term=answer.term
            )
        if code in DENIED:
            raise Denied(text)
        elsewhere = code is ResponseCode.NOT_LEADER and not self._follow
        if code not in RETRIED or elsewhere:
            leader = (answer.leader_id or None, answer.leader_address or None)
            raise NotAppended(text, code=code, leader_id=leader[0], leader_address=leader[1])
        retry.reason = text
        retry.not_appended = NotAppended(text, code=code, leader_id=answer.leader_id or None)
        if code is ResponseCode.NOT_LEADER:
            known = answer.leader_id in self._links and answer.leader_id != link.member_id
            retry.at_once = known and self._leader_id == link.member_id
            self._leader_id = answer.leader_id if known else None

    # --- the leader ---------------------------------------------------------------------------------------------
    def _forget(self, link: MemberLink) -> None:
        if self._leader_id == link.member_id:
            self._leader_id = None

    async def _leader_link(self, retry: Retry) -> MemberLink:
        """The member to ask. Raises Unreachable at the deadline."""
        if not self._follow:
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
            self._spawn(self._look_elsewhere(link))

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
            link = await self._leader_link(retry)
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
            self._forget(link)
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
        link = await self._leader_link(Retry(self._deadline_s))
        within_s = max(self._deadline_s, (deadline_ms or 0) / 1000 + 2.0)
        answer = await self._ask(link, RequestCode.LEADERSHIP_TRANSFER, fields, within_s)
        self._leader_id = None
        return answer

    async def close(self) -> None:
        """Ends every connection; what still waits ends as unknown."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links.values():
            link.close()
        await asyncio.sleep(0)


def _entries_of(records: bytes, count: int, from_index: int) -> list[Entry]:
    entries: list[Entry] = []
    offset = 0
    for _ in range(count):
        entry = unpack_record(records, offset)
        offset += entry.size
        if entry.index >= from_index:
            entries.append(entry)
    return entries
