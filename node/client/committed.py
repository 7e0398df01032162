"""A client's half of the stream of committed positions: a member's pushes as an asynchronous iterator.

Each position is taken before the next one is pushed, so whoever iterates slowly gets fewer and newer ones. The lease is
counted from what this client did last (it subscribed, or took), plus what the member says it waited: never later than
the member means it, whatever the way between them took.

Invariants: positions of one member and connection never go back; a stream that falls silent is given up; without a
member's name it follows the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from node.client.arguments import number_of
from node.client.errors import DENIED, LedgerError, Unreachable, Unsupported, read_denied
from node.client.link import Lost, MemberLink, NotSupported, RemotingError, body_of
from node.client.members import link_to
from node.client.retry import Retry
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.committed_frames import (
    INTERVAL_MS_MIN,
    KEEP_ALIVE_MS_MAX,
    KEEP_ALIVE_MS_MIN,
    PushedPosition,
    StreamKind,
    StreamRequest,
    decode_position,
    encode_stream_request,
)
from node.transport.remoting import Frame
from node.transport.slab_frames import BodyError

SILENT_KEEP_ALIVES: Final = 3  # so many without a push, and the stream is given up ...
SILENT_S_MIN: Final = 1.0  # ... but no sooner
TAKEN: Final = encode_stream_request(StreamRequest(StreamKind.TAKEN))
CANCEL: Final = encode_stream_request(StreamRequest(StreamKind.CANCEL))


@dataclass(slots=True, frozen=True)
class CommittedPosition:
    """What one member knew when it said so. `lease_until_s`: until then, by the stream's clock, nobody else can have
    been elected; it is in the past where the member does not lead, or lease reads are off."""

    member_id: str
    committed_index: int
    end_index: int
    term: int
    leader_id: str | None
    leads: bool
    lease_until_s: float


class Leaders(Protocol):
    """What a stream needs of its client."""

    async def leader_link(self, retry: Retry) -> MemberLink: ...
    def link_of(self, member_id: str) -> MemberLink: ...
    def forget(self, link: MemberLink) -> None: ...


class CommittedStream:
    """How to subscribe; `positions` does."""

    def __init__(
        self, client: Leaders, member_id: str | None, interval_ms: int, keep_alive_ms: int, deadline_s: float,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._client, self._member_id, self._clock = client, member_id, clock
        number_of("interval_ms", interval_ms, KEEP_ALIVE_MS_MAX, INTERVAL_MS_MIN)
        number_of("keep_alive_ms", keep_alive_ms, KEEP_ALIVE_MS_MAX, max(KEEP_ALIVE_MS_MIN, interval_ms))
        self._deadline_s = deadline_s
        self._silent_s = max(SILENT_KEEP_ALIVES * keep_alive_ms / 1000, SILENT_S_MIN)
        self._request = encode_stream_request(StreamRequest(StreamKind.SUBSCRIBE, interval_ms, keep_alive_ms))

    async def positions(self) -> AsyncGenerator[CommittedPosition, None]:
        """For ever, from one leader to the next. Raises Unreachable, Unsupported, Denied, LedgerError."""
        retry = Retry(self._deadline_s)
        while True:
            link = await link_to(self._client, self._member_id, retry)
            subscription: Subscription | None = None
            try:
                async with asyncio.timeout(retry.left_s()):
                    await link.connect()
                subscription = Subscription(link, self._request, self._silent_s, self._clock)
                while True:
                    position = await subscription.next()
                    if self._member_id is None and not position.leads:
                        retry.reason = f"{link.member_id} does not lead"
                        break
                    yield position
                    retry = Retry(self._deadline_s)  # behind that: who takes positions slowly has as much patience
            except NotSupported as error:
                raise Unsupported(str(error)) from error
            except RemotingError as error:
                if error.code != RemotingCode.SYSTEM_BUSY:
                    raise LedgerError(str(error)) from error
                retry.reason = str(error)
            except (Lost, TimeoutError, BodyError) as error:
                retry.reason = str(error) or f"{link.member_id} fell silent"
            finally:
                if subscription is not None:
                    subscription.end()
            if self._member_id is None:
                self._client.forget(link)
            await retry.pause()


class Subscription:
    """One stream over the connection that is open. Raises Lost where there is none."""

    def __init__(self, link: MemberLink, request: bytes, silent_s: float, clock: Callable[[], float]) -> None:
        self._link, self._silent_s, self._clock = link, silent_s, clock
        self._mail = Mailbox()
        self._asked_at = clock()  # before it leaves: never later than the member hears of it
        self._opaque = link.open_stream(RequestCode.COMMITTED_STREAM, [request], self._mail.put)

    async def next(self) -> CommittedPosition:
        """The next push, which is taken with this. Raises as `MemberLink.request`, Denied, and BodyError."""
        try:
            async with asyncio.timeout(self._silent_s):
                came = await self._mail.get()
        except TimeoutError:
            self._link.doubt()
            raise
        pushed = decode_position(body_of(self._link, came))
        if pushed.code in DENIED:
            raise read_denied(self._link.member_id, pushed.code)
        if pushed.code is not ResponseCode.SUCCESS:
            raise Lost(f"{self._link.member_id} ended the stream: {pushed.code.name}", sent=True)
        position = position_of(self._link.member_id, pushed, self._asked_at)
        self._asked_at = self._clock()
        self._link.send_on_stream(RequestCode.COMMITTED_STREAM, self._opaque, [TAKEN])
        return position

    def end(self) -> None:
        """Nobody wants it any more."""
        self._link.end_stream(RequestCode.COMMITTED_STREAM, self._opaque, [CANCEL])


def position_of(member_id: str, pushed: PushedPosition, asked_at: float) -> CommittedPosition:
    """What was pushed, its lease counted from when the client said what it answers."""
    lease_until_s = asked_at + (pushed.waited_ns + pushed.lease_ns) / 1e9 if pushed.lease_ns else float("-inf")
    return CommittedPosition(
        member_id, pushed.committed_index, pushed.end_index, pushed.term, pushed.leader_id, pushed.leads, lease_until_s
    )


class Mailbox:
    """What came and was not taken yet: one push, or the end."""

    def __init__(self) -> None:
        self._came: list[Frame | Exception] = []
        self._there = asyncio.Event()

    def put(self, outcome: Frame | Exception) -> None:
        self._came.append(outcome)
        self._there.set()

    async def get(self) -> Frame | Exception:
        await self._there.wait()
        outcome = self._came.pop(0)
        if not self._came:
            self._there.clear()
        return outcome


__all__ = ["CommittedPosition", "CommittedStream", "Unreachable"]
