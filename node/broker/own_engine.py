"""The broker's connection to its own engine, over the engine's client port: lanes, committed positions, entries.

The engine may be of an older release for a while: the files were replaced, and only the broker has begun anew since.
What such an engine does not know is done by what it knows.

Invariant: nothing is asked of any other member; what is read is committed, as the own engine knows it, for the broker
follows it and never runs ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from node.client import (
    CommittedPosition,
    Denied,
    Lane,
    LedgerClient,
    LedgerError,
    ReadMode,
    Trimmed,
    Unreachable,
    Unsupported,
)
from node.client.errors import DENIED
from node.client.lane import open_lane
from node.client.link import NotSupported, RemotingError
from node.client.plain_dledger import INDEX_MAX
from node.config import Settings, read_token, split_address
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.peers import dialled
from node.transport.awaited_frames import AwaitedRead, encode_awaited_read
from node.transport.slab_frames import (
    BodyError,
    ReadAnswer,
    ReadRequest,
    decode_read_answer,
    encode_read,
    response_code,
)
from node.transport.tls import client_context

PIECE_BYTES: Final = 1024 * 1024
ANSWER_WITHIN_S: Final = 5.0
OPEN_WITHIN_S: Final = 1.0
POSITIONS_MS: Final = 10  # the engine says so often at most what is committed ...
AWAIT_MS: Final = 1_000
KEEP_ALIVE_MS: Final = 100  # ... and so often at least, or a lease would run out between


class EntryDamaged(LedgerError):
    """A committed entry cannot be read here, until the engine has healed it."""


class OwnEngine:
    """Raises ConfigError, OSError, ValueError where token or certificates cannot be read."""

    def __init__(self, settings: Settings) -> None:
        node = settings.node
        tls = None
        if node.tls_cert_file is not None and node.tls_key_file is not None and node.tls_ca_file is not None:
            tls = client_context(node.tls_cert_file, node.tls_key_file, node.tls_ca_file)
        host, port = split_address(settings.self_address)
        host = dialled(host)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.member_id = node.id
        self._lets_reads_wait = True  # until this connection's engine says that it does not know them
        self._client = LedgerClient(
            {node.id: address}, group=node.group, tls=tls, deadline_s=ANSWER_WITHIN_S, follow_redirects=False,
            token=read_token(node.token_file) if node.token_file is not None else None,
        )  # fmt: skip

    def positions(self) -> AsyncGenerator[CommittedPosition, None]:
        """Raises Unreachable, LedgerError: then subscribe again."""
        self._lets_reads_wait = True  # it may be another engine by now
        return self._client.committed(self.member_id, interval_ms=POSITIONS_MS, keep_alive_ms=KEEP_ALIVE_MS)

    async def open_lane(self) -> Lane:
        """Where the own engine leads. Raises NotAppended, Unreachable, Denied."""
        return await open_lane(self._client, OPEN_WITHIN_S)

    async def hand_over(self) -> str:
        """Has the own engine hand leadership to another member; what came of it. Raises LedgerError."""
        answer = await self._client.transfer()
        to = answer.get("transfereeId")
        return f"leadership goes to {to}" if answer.get("code") == ResponseCode.SUCCESS else f"{answer.get('detail')}"

    async def entries_from(self, index: int) -> ReadAnswer:
        """Committed entries from there on, whole, none where there are none yet.

        Raises Trimmed, EntryDamaged, Denied, Unreachable.
        """
        return await self._read(ReadRequest(index, PIECE_BYTES, ReadMode.UNSAFE))

    async def entries_awaited(self, index: int) -> ReadAnswer:
        """The same, as soon as there are any; none where there are none for AWAIT_MS, or none now where the engine is
        of an older release. Raises as `entries_from` does.
        """
        if self._lets_reads_wait:
            awaited = encode_awaited_read(AwaitedRead(index, PIECE_BYTES, AWAIT_MS))
            try:
                return await self._asked(RequestCode.AWAITED_READ, awaited, index)
            except Unsupported:
                self._lets_reads_wait = False
        return await self.entries_from(index)

    async def _read(self, request: ReadRequest) -> ReadAnswer:
        return await self._asked(RequestCode.FAST_READ, encode_read(request), request.from_index)

    async def _asked(self, request: RequestCode, body: bytes, from_index: int) -> ReadAnswer:
        link = self._client.link_of(self.member_id)
        try:
            answer = decode_read_answer(await link.request(request, [body], ANSWER_WITHIN_S))
        except NotSupported as error:
            raise Unsupported(f"{self.member_id}: {error}") from error
        except (OSError, TimeoutError, RemotingError, BodyError) as error:
            raise Unreachable(f"{self.member_id}: {error or 'no answer in time'}") from error
        code = response_code(answer.code)
        if code is ResponseCode.SUCCESS:
            return answer
        text = f"{self.member_id} answers {code.value} {code.name} for entry {from_index}"
        if code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            raise Trimmed(from_index, answer.first_index, self.member_id)
        if code is ResponseCode.DISK_ERROR:
            raise EntryDamaged(text)
        if code in DENIED:
            raise Denied(text)
        raise Unreachable(text)

    async def linearizable_index(self) -> int:
        """What the group had committed at some moment after now, at least. Raises Denied, Unreachable."""
        return (await self._read(ReadRequest(INDEX_MAX, 1, ReadMode.LINEARIZABLE))).committed_index

    async def close(self) -> None:
        await self._client.close()
        await asyncio.sleep(0)
