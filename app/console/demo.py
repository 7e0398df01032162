"""The demo-only card: asks the demo that started this console to break something.

Invariant: the demo's address carries its secret and never leaves this process.
"""

from __future__ import annotations

from typing import Any, Literal

import httpx2

from app.console.errors import ConsoleError, NodeUnreachable, NotFound
from app.console.nodes import Nodes
from app.console.settings import ConsoleSettings

Json = dict[str, Any]
Break = Literal["flip", "pause", "kill", "partition", "slow"]
TIMEOUT_S = 15.0


class Demo:
    def __init__(self, settings: ConsoleSettings, nodes: Nodes) -> None:
        self.url = settings.demo_control_url
        self.nodes = nodes

    async def break_one(self, what: str, node_id: str | None) -> Json:
        """What it did and what to watch, as sentences to show."""
        return await self.ask("POST", f"break/{what}", {"node": node_id} if node_id else {})

    async def state(self) -> Json:
        return await self.ask("GET", "state", {})

    async def ask(self, method: str, path: str, params: Json) -> Json:
        if self.url is None:
            raise NotFound("This console belongs to no demo.", title="No demo")
        try:
            answer = await self.nodes.client.request(method, f"{self.url}/{path}", params=params, timeout=TIMEOUT_S)
            body = answer.json()
        except (httpx2.HTTPError, ValueError):
            # The error's own text would name the address.
            raise NodeUnreachable("the demo does not answer") from None
        if not isinstance(body, dict):
            raise NodeUnreachable("the demo answered something else than an object")
        if answer.status_code >= 400:
            detail = str(body.get("detail") or f"the demo refused {path}")
            raise ConsoleError(detail, status=answer.status_code, title="Not now")
        return body
