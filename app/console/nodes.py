"""The console's client of control planes: one connection pool for all, bounded, with short time limits.

Invariants: at most IN_FLIGHT_MAX requests at a time over all nodes. An answer is bounded while it is read: by
ANSWER_BYTES_MAX where it carries bodies or tables, else by VIEW_BYTES_MAX or a little more (it is parsed on the loop,
16 MiB for a second, and a member is asked twice a second), as it comes over the wire (no compression is asked for,
and none is undone), and by one time limit for
everything from the connection to its last byte, so that a byte now and then keeps nobody busy. A redirect is never
followed (a control plane has none), and a token goes only where `credentials` says (app.console.addresses).
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_text
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import httpx2

from app.console.errors import ConsoleError, NodeUnreachable, NothingListens
from app.console.settings import ConsoleSettings
from app.health.facts import CERTIFICATE_SOON
from app.refusals import TITLE_CHARS_MAX, reason_in
from app.times import utc_now
from app.why_unreached import is_refused, why_unreached
from node.background import Background, reason_of
from node.certificates import not_after
from node.measured_tls import client_context
from node.tls_files import tls_trouble

Json = dict[str, Any]
IN_FLIGHT_MAX: Final = 64
READS_MAX: Final = 32  # of these, what somebody wants to see: whoever samples the members finds a place
# What perhaps cannot be written again: half of a character, as JSON writes it; numbers that are none, or without end.
PERHAPS: Final = re.compile(rb"\\u[dD][89a-fA-F]|[:,\[\s]-?(?:NaN|Infinity|[0-9]{300}|[0-9][0-9.]*[eE]\+?[0-9]{2})")
DEPTH_MAX: Final = 128  # of an answer: the body of an entry, as JSON in it, has 64 levels at most
ANSWER_BYTES_MAX: Final = 16 << 20
VIEW_BYTES_MAX: Final = 512 << 10
LONG: Final = ("entries", "truncations", "segments", "snapshots", "digests", "messages", "consumer-groups")
BYTES_MAX: Final = dict.fromkeys(LONG, ANSWER_BYTES_MAX) | {"state": 1 << 20, "events": 2 << 20}
OLDER_S: Final = 60.0  # longer than any request
TIMEOUT_S: Final = 2.0  # for each step: a connection's next bytes
TOTAL_S: Final = 5.0  # for all of it
CONNECT_TIMEOUT_S: Final = 1.0
WAIT_S_MAX: Final = 60  # no member has those who ask here wait for longer
RENEWED_WITHIN_S: Final = 20.0  # so often a certificate that ends is looked at on a new connection


# What a member's refusal may become here; another one, such as a wrong token of the console's own, is a bad gateway.
PASSED_ON: Final = frozenset({403, 404, 409, 410, 412, 413, 415, 416, 421, 422, 500, 502, 503, 504})
# Names of ConsoleError's own: a member sets none of them, least of all headers.
OWN_NAMES: Final = frozenset(
    {"type", "status", "title", "detail", "code", "action", "headers", "scope", "self", "node"}
)


class NodeRefused(ConsoleError):
    """The control plane answered, with an error; `body` is its problem document. `wait_s`: it asks to be left alone for
    so long, and so is whoever asked here."""

    title = "The node refused"

    def __init__(self, status: int, body: Json, node: str, wait_s: int | None = None) -> None:
        detail = reason_in(body, f"status {status}")
        extra = {key: value for key, value in body.items() if key not in OWN_NAMES}
        super().__init__(
            detail,
            status=status if status in PASSED_ON else 502,
            title=str(body.get("title") or self.title)[:TITLE_CHARS_MAX],
            code=body.get("code"),
            action=body.get("action"),
            headers={"retry-after": str(wait_s)} if wait_s is not None else None,
            **{"node": node, **extra},
        )
        self.body, self.node_status = body, status


@dataclass(frozen=True, slots=True)
class Answer:
    """What a control plane answered, read to its end."""

    status_code: int
    headers: Mapping[str, str]
    content: bytes


class Nodes:
    """A thin client over httpx2; `transport` replaces the network in tests."""

    def __init__(
        self,
        settings: ConsoleSettings,
        transport: httpx2.AsyncBaseTransport | None = None,
        credentials: Callable[[str], str | None] = lambda _url: None,
    ) -> None:
        self.credentials = credentials
        # Control URL -> until when the certificate is valid that it showed last.
        self.certificate_ends: dict[str, datetime] = {}
        self._looked_again: dict[str, float] = {}
        self._ca_file, self._transport = settings.node_ca_file, transport
        self.client = self.client_with(self.read_authorities())
        self._closing = Background()
        self.slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self.reads = asyncio.Semaphore(READS_MAX)

    def read_authorities(self) -> ssl.SSLContext | None:
        """Of the control planes' certificates; None: those that this machine knows. Raises OSError, ValueError."""
        trouble = tls_trouble(None, None, self._ca_file)
        if trouble is not None:
            raise ValueError(trouble)
        return None if self._ca_file is None else client_context(self._ca_file)

    def use_authorities(self, authorities: ssl.SSLContext | None) -> None:
        """For connections from now on; what is under way ends as it began."""
        older, self.client = self.client, self.client_with(authorities)
        self._closing.run("closing an older client", self._close_later(older))

    @staticmethod
    async def _close_later(older: httpx2.AsyncClient) -> None:
        try:
            await asyncio.sleep(OLDER_S)
        finally:
            await older.aclose()

    def client_with(self, authorities: ssl.SSLContext | None) -> httpx2.AsyncClient:
        if authorities is None and self._transport is None:
            authorities = client_context()
        return httpx2.AsyncClient(
            headers={"accept": "application/json", "accept-encoding": "identity"},
            timeout=httpx2.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=IN_FLIGHT_MAX, max_keepalive_connections=IN_FLIGHT_MAX),
            follow_redirects=False,
            trust_env=False,
            verify=True if authorities is None else authorities,
            transport=self._transport,
        )

    async def close(self) -> None:
        await self._closing.stop()
        await self.client.aclose()

    async def request(
        self,
        method: str,
        control_url: str,
        path: str,
        *,
        params: Json | None = None,
        json: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
        token: str | None = None,
    ) -> Answer:
        """The answer, whatever its status; NodeUnreachable when there is none. `token`: instead of the known one, for
        an address that somebody with the right to do so has just given."""
        asked = {key: value for key, value in (params or {}).items() if value is not None}
        sent = dict(headers or {})
        shown = token or self.credentials(control_url)
        if shown:
            sent["authorization"] = f"Bearer {shown}"
        if self.renewal_due(control_url):
            sent["connection"] = "close"
        limit: Any = httpx2.USE_CLIENT_DEFAULT
        if timeout_s is not None:  # for an answer; whoever is not there takes no connection as soon as ever
            limit = httpx2.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        target = f"{control_url}/api/v1/{path}"
        try:
            async with self.slots, asyncio.timeout(TOTAL_S if timeout_s is None else timeout_s):
                stream = self.client.stream(method, target, params=asked, json=json, headers=sent, timeout=limit)
                async with stream as answer:
                    self.note_certificate(control_url, answer)
                    content = await read_bounded(answer, control_url, path)
                    return Answer(answer.status_code, answer.headers, content)
        except (httpx2.TimeoutException, TimeoutError):
            raise NodeUnreachable(f"{control_url} did not answer in time", code="timeout") from None
        except httpx2.HTTPError as error:
            kind = NothingListens if is_refused(error) else NodeUnreachable
            raise kind(f"{control_url}: {why_unreached(error)}", code="unreachable") from None
        except (OSError, ValueError, httpx2.InvalidURL) as error:  # such as a host name that no resolver takes
            raise NodeUnreachable(f"{control_url}: {reason_of(error)}", code="unreachable") from None

    def renewal_due(self, control_url: str) -> bool:
        """Whether this connection shall be its last answer's: a certificate that ends may have been exchanged, and only
        a new connection shows that."""
        ends, now_s = self.certificate_ends.get(control_url), time.monotonic()
        if ends is None or ends - utc_now() > CERTIFICATE_SOON:
            return False
        if now_s - self._looked_again.get(control_url, -RENEWED_WITHIN_S) < RENEWED_WITHIN_S:
            return False
        self._looked_again[control_url] = now_s
        return True

    def note_certificate(self, control_url: str, answer: httpx2.Response) -> None:
        """Of what was verified a moment ago; one that cannot be read ends nothing."""
        connection = answer.extensions.get("network_stream")
        tls = connection.get_extra_info("ssl_object") if connection is not None else None
        shown = tls.getpeercert(binary_form=True) if tls is not None else None
        if shown:
            with contextlib.suppress(ValueError):
                self.certificate_ends[control_url] = not_after(shown)

    async def json(self, method: str, control_url: str, path: str, **more: Any) -> Json:
        """The answer's object; NodeRefused for an error status. What a change is answered is handed on or kept; what is
        only asked for is read by a view. Raises NodeUnreachable."""
        answer = await self.request(method, control_url, path, **more)
        check_status(answer, control_url, path)
        body = object_in(answer, control_url, path)
        if method != "GET":
            check_writable(answer, body, control_url, path)
        return body

    async def get(self, control_url: str, path: str, **params: Any) -> Json:
        """What may be handed on as it is. Raises NodeUnreachable."""
        async with self.reads:
            answer = await self.request("GET", control_url, path, params=params)
        check_status(answer, control_url, path)
        body = object_in(answer, control_url, path)
        check_writable(answer, body, control_url, path)
        return body

    async def content(self, control_url: str, path: str, **more: Any) -> Answer:
        """Bytes as they are, 200 or 206; NodeRefused for an error status. Raises NodeUnreachable."""
        async with self.reads:
            answer = await self.request("GET", control_url, path, **more)
        check_status(answer, control_url, path)
        if answer.status_code not in (200, 206):
            raise NodeUnreachable(f"{control_url} answered {path} with {answer.status_code}", code="odd_status")
        return answer


def json_of(answer: Answer) -> Any:
    """None where it is no JSON."""
    try:
        return json_text.loads(answer.content) if answer.content else {}
    except (ValueError, RecursionError):
        return None


def object_in(answer: Answer, control_url: str, path: str) -> Json:
    """Raises NodeUnreachable."""
    body = json_of(answer)
    if not isinstance(body, dict):
        raise NodeUnreachable(f"{control_url} answered {path} with something else than JSON", code="not_json")
    return body


def check_writable(answer: Answer, body: Any, control_url: str, path: str) -> None:
    """Raises NodeUnreachable for what can be read, and not be written again."""
    if is_nested_beyond(body, DEPTH_MAX):
        raise NodeUnreachable(f"{control_url} answered {path} nested deeper than {DEPTH_MAX}", code="not_json")
    if why := unwritable(answer, body):
        raise NodeUnreachable(f"{control_url} answered {path} with {why}", code="not_json")


def unwritable(answer: Answer, body: Any) -> str:
    """What of it cannot be written; empty: all can. JSON can name half of a character, which has no bytes, and Python
    reads numbers that are none; only where there may be some the whole is looked at."""
    if PERHAPS.search(answer.content) is None:
        return ""
    try:
        json_text.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        return "half a character"
    except ValueError:
        return "a number that is none"
    return ""


def is_nested_beyond(value: Any, depth_max: int) -> bool:
    """What is nested by the hundreds is read, and cannot be written again."""
    level = [value]
    for _ in range(depth_max):
        nested = [one for one in level if isinstance(one, (dict, list))]
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
        if not level:
            return False
    return True


def check_status(answer: Answer, control_url: str, path: str) -> None:
    if 300 <= answer.status_code < 400:
        raise NodeUnreachable(f"{control_url} answered {path} with a redirect; it is not followed", code="redirect")
    if answer.status_code >= 400:
        body, wait = json_of(answer), answer.headers.get("retry-after", "")
        wait_s = min(int(wait), WAIT_S_MAX) if wait.isascii() and wait.isdigit() and len(wait) < 10 else None
        fits = isinstance(body, dict) and not is_nested_beyond(body, DEPTH_MAX) and not unwritable(answer, body)
        raise NodeRefused(answer.status_code, body if fits else {}, control_url, wait_s)


async def read_bounded(answer: httpx2.Response, control_url: str, path: str) -> bytes:
    """The body as it came over the wire; NodeUnreachable as soon as it is too long, or where it is compressed."""
    coding = answer.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise NodeUnreachable(f"{control_url} answered {path} compressed", code="compressed")
    body, bytes_max = bytearray(), BYTES_MAX.get(path.partition("/")[0], VIEW_BYTES_MAX)
    async for piece in answer.aiter_bytes():
        body += piece
        if len(body) > bytes_max:
            raise NodeUnreachable(f"{control_url} answered more than {bytes_max} bytes for {path}", code="too_long")
    return bytes(body)
