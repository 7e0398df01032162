"""Requests to a provider, bounded while their answers are read: in bytes, in time, in their number at once.

Invariants: an answer is whole before anybody sees it, at most ANSWER_BYTES_MAX and TOTAL_S after the request; no
compression is asked for and none is undone; a redirect is an error, so that nothing is sent on to another address.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx2

ANSWER_BYTES_MAX: Final = 512 << 10
TOTAL_S = 10.0
IN_FLIGHT_MAX: Final = 8
STEPS: Final = ("connect", "read", "write", "pool")


class ProviderError(Exception):
    """What the provider answered does not count; the message says why, without anything secret."""


class Bounded(httpx2.AsyncBaseTransport):
    """Around the network; its clients close it as often as they like."""

    def __init__(self, network: httpx2.AsyncBaseTransport) -> None:
        self.network = network
        self.slots = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["accept-encoding"] = "identity"
        request.extensions = {**request.extensions, "timeout": dict.fromkeys(STEPS, TOTAL_S)}
        try:
            async with asyncio.timeout(TOTAL_S), self.slots:
                answer = await self.network.handle_async_request(request)
                try:
                    content = await read(answer)
                finally:
                    await answer.aclose()
        except TimeoutError:
            raise ProviderError(f"{request.url.host} did not answer in time") from None
        if 300 <= answer.status_code < 400:
            raise ProviderError(f"{request.url.host} answered with a redirect, which is not followed")
        kept = {name: text for name, text in answer.headers.items() if name.lower() == "content-type"}
        return httpx2.Response(answer.status_code, headers=kept, content=content, request=request)


async def read(answer: httpx2.Response) -> bytes:
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        raise ProviderError("it answered compressed, which was not asked for")
    body = bytearray()
    assert isinstance(answer.stream, httpx2.AsyncByteStream)
    async for piece in answer.stream:
        body += piece
        if len(body) > ANSWER_BYTES_MAX:
            raise ProviderError(f"it answered more than {ANSWER_BYTES_MAX} bytes")
    return bytes(body)
