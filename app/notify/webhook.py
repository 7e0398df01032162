"""A message as a signed HTTP request: one attempt. How often it is tried is the outbox's affair.

`Quorumscope-Signature: v1=HEX` is HMAC-SHA256 with the route's key over the timestamp, a full stop and the body, byte
by byte as sent; `Quorumscope-Timestamp` is the attempt's time in Unix seconds. Invariants: only http and https; no
redirect is followed; no proxy of the environment is used; an attempt ends within ATTEMPT_S, and of the answer no more
than ANSWER_BYTES_MAX is read; no error repeats the URL, whose path may be a secret of the receiver.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import hmac
import json
import ssl
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from app.why_unreached import own_words
from node.measured_tls import client_context

ATTEMPT_S: Final = 10.0
CONNECT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 4096
URL_CHARS_MAX: Final = 1000


class NotDelivered(Exception):
    """The message was not taken, or nobody knows whether it was; the text says why, in one line."""


def checked_url(text: str) -> str:
    """The URL of a receiver; ValueError otherwise."""
    url = text.strip()
    try:
        parts, asked = urlsplit(url), httpx2.URL(url)
        ours, theirs = (parts.hostname, parts.port), (asked.raw_host.decode().lower(), asked.port or parts.port)
    except (ValueError, httpx2.InvalidURL) as error:
        raise ValueError(f"the URL cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("a webhook's URL begins with http:// or https:// and names a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a webhook's URL carries no user and password; the signature proves who sends")
    if parts.fragment or len(url) > URL_CHARS_MAX or not url.isascii() or any(one.isspace() for one in url):
        raise ValueError(f"a webhook's URL has no fragment, no spaces, and at most {URL_CHARS_MAX} ASCII characters")
    if ours != theirs:
        raise ValueError("the URL cannot be read: its host and port can be read in two ways")
    return url


def host_of(url: str) -> str:
    """What may be shown to anybody: the path may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def signature(key: str, timestamp: str, body: bytes) -> str:
    return "v1=" + hmac.new(key.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


async def post(url: str, key: str, payload: dict[str, Any], *, attempt_s: float = ATTEMPT_S) -> str:
    """Delivers, and returns what was answered in a few words. Raises NotDelivered."""
    body = json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()
    timestamp = str(int(time.time()))
    headers = {
        "content-type": "application/json",
        "user-agent": "quorumscope",
        "quorumscope-id": payload["id"],
        "quorumscope-timestamp": timestamp,
        "quorumscope-signature": signature(key, timestamp, body),
    }
    try:
        async with (
            asyncio.timeout(attempt_s),
            client() as http,
            http.stream("POST", url, content=body, headers=headers) as answer,
        ):
            await read_some(answer)
            return judged(answer.status_code)
    except TimeoutError:
        raise NotDelivered(f"no answer within {attempt_s:.0f} s") from None
    except httpx2.TimeoutException:
        raise NotDelivered(f"no connection within {CONNECT_S:.0f} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise NotDelivered(f"cannot be reached: {plain(error, url)}") from None


@functools.cache
def authorities() -> ssl.SSLContext:
    """The system's, or those of SSL_CERT_FILE."""
    return client_context()


def client() -> httpx2.AsyncClient:
    limits = httpx2.Timeout(ATTEMPT_S, connect=CONNECT_S)
    return httpx2.AsyncClient(follow_redirects=False, trust_env=False, verify=authorities(), timeout=limits)


async def read_some(answer: httpx2.Response) -> None:
    """The answer's body says nothing that is needed; a receiver that sends without end is left."""
    size = 0
    async for chunk in answer.aiter_raw():
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            return


def judged(status: int) -> str:
    if 200 <= status < 300:
        return f"answered {status}"
    if 300 <= status < 400:
        raise NotDelivered(f"answered {status}, a redirect, which is not followed: name the final address")
    raise NotDelivered(f"answered {status}")


def plain(error: Exception, url: str) -> str:
    text = " ".join(own_words(error).replace(url, host_of(url)).split()) or type(error).__name__
    return text[:200]
