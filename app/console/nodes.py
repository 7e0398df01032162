"""The console's client of control planes: one connection pool for all, bounded, with short time limits.

Invariants: at most IN_FLIGHT_MAX requests at a time over all nodes; an answer longer than ANSWER_BYTES_MAX is refused;
a redirect is never followed (a control plane has none, and our token must not travel).
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any
from urllib.parse import urlsplit

import httpx2

from app.console.errors import ConsoleError, Invalid, NodeUnreachable
from app.console.settings import ConsoleSettings
from node.background import reason_of
from node.protocol.peers import check_host

IN_FLIGHT_MAX = 64
ANSWER_BYTES_MAX = 16 << 20
TIMEOUT_S = 2.0
CONNECT_TIMEOUT_S = 1.0


class NodeRefused(ConsoleError):
    """The control plane answered, with an error; `body` is its problem document."""

    title = "The node refused"

    def __init__(self, status: int, body: dict[str, Any], node: str) -> None:
        detail = str(body.get("detail") or body.get("title") or f"status {status}")
        known = {"type", "status", "title", "detail", "code", "action"}
        extra = {key: value for key, value in body.items() if key not in known}
        super().__init__(
            detail,
            status=status,
            title=str(body.get("title") or self.title),
            code=body.get("code"),
            action=body.get("action"),
            **{"node": node, **extra},
        )
        self.body = body


def normal_control_url(text: str) -> str:
    """`http://host:port` without a path; Invalid otherwise."""
    url = text.strip().rstrip("/").removesuffix("/api/v1")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
        check_host(parts.hostname or "")
    except ValueError as error:
        raise Invalid(f"{text!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query or parts.username:
        raise Invalid(f"{text!r} is not the address of a control plane, such as http://127.0.0.1:8431")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


class Nodes:
    """A thin client over httpx2; `transport` replaces the network in tests."""

    def __init__(self, settings: ConsoleSettings, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        headers = {"accept": "application/json"}
        if settings.node_token:
            headers["authorization"] = f"Bearer {settings.node_token}"
        verify: ssl.SSLContext | bool = True
        if settings.node_ca_file is not None:
            verify = ssl.create_default_context(cafile=str(settings.node_ca_file))
        self.client = httpx2.AsyncClient(
            headers=headers,
            timeout=httpx2.Timeout(TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=IN_FLIGHT_MAX, max_keepalive_connections=IN_FLIGHT_MAX),
            follow_redirects=False,
            trust_env=False,
            verify=verify,
            transport=transport,
        )
        self.slots = asyncio.Semaphore(IN_FLIGHT_MAX)

    async def close(self) -> None:
        await self.client.aclose()

    async def request(
        self,
        method: str,
        control_url: str,
        path: str,
        *,
        params: dict[str, Any] | None = None,
        json: Any = None,
        headers: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> httpx2.Response:
        """The answer, whatever its status; NodeUnreachable when there is none."""
        asked = {key: value for key, value in (params or {}).items() if value is not None}
        limit: Any = httpx2.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s
        try:
            async with self.slots:
                return await self.client.request(
                    method, f"{control_url}/api/v1/{path}", params=asked, json=json, headers=headers, timeout=limit
                )
        except httpx2.TimeoutException:
            raise NodeUnreachable(f"{control_url} did not answer in time", code="timeout") from None
        except httpx2.HTTPError as error:
            raise NodeUnreachable(f"{control_url}: {error or type(error).__name__}", code="unreachable") from None
        except (OSError, ValueError, httpx2.InvalidURL) as error:  # such as a host name that no resolver takes
            raise NodeUnreachable(f"{control_url}: {reason_of(error)}", code="unreachable") from None

    async def json(self, method: str, control_url: str, path: str, **more: Any) -> dict[str, Any]:
        """The answer's object; NodeRefused for an error status."""
        answer = await self.request(method, control_url, path, **more)
        if len(answer.content) > ANSWER_BYTES_MAX:
            raise NodeUnreachable(f"{control_url} answered {len(answer.content)} bytes for {path}", code="too_long")
        try:
            body = answer.json() if answer.content else {}
        except (ValueError, RecursionError):
            body = None
        if answer.status_code >= 400:
            raise NodeRefused(answer.status_code, body if isinstance(body, dict) else {}, control_url)
        if not isinstance(body, dict):
            raise NodeUnreachable(f"{control_url} answered {path} with something else than JSON", code="not_json")
        return body

    async def get(self, control_url: str, path: str, **params: Any) -> dict[str, Any]:
        return await self.json("GET", control_url, path, params=params)
