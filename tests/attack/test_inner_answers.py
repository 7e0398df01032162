"""What the console says of an address that answers, drawn from a seed (ATTACK_SEED has others drawn): whoever may name
addresses names a service inside of the network, which speaks no HTTP, or one of its own. That it answers, and with
which status, is said; its words are nobody's.
"""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from app.console.errors import ConsoleError
from app.console.nodes import Nodes
from app.console.settings import ConsoleSettings
from app.notify import webhook
from app.notify.webhook import NotDelivered
from app.security.bounded_transport import ProviderError
from app.security.oidc import Provider
from node.config_models import OidcTable
from tests.attack.remoting_kit import drawn

ANSWERS: Final = [
    "SSH-2.0-{}\r\n", "-ERR {} is no command\r\n\r\n", "220 {} ESMTP\r\n502 {}\r\n\r\n", "{}\r\n\r\n",
    "HTTP/1.1 200 {}\r\n{} \0: x\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: {}\r\n\r\nx", "HTTP/1.1 302 {}\r\nlocation: http://{}/\r\n\r\n",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{}\r\n", "HTTP/1.1 500 {}\r\nx: {}\r\n\r\n<p>{}",
    "HTTP/1.1 200 OK\r\ncontent-encoding: {}\r\ncontent-length: 1\r\n\r\nx", "HTTP/{} 200 OK\r\n\r\n",
    "HTTP/1.1 {} OK\r\n\r\n", "HTTP/1.1 200 OK\r\nx: {}\r\n\r\n<html>{}",
]  # fmt: skip


async def hook(port: int) -> str:
    return await webhook.post(f"http://127.0.0.1:{port}/x", "key", {"id": "1"})


async def node(port: int) -> str:
    nodes = Nodes(ConsoleSettings())
    try:
        return str(await nodes.get(f"http://127.0.0.1:{port}", "state"))
    finally:
        await nodes.close()


async def provider(port: int) -> str:
    asked = Provider(OidcTable(issuer=f"http://127.0.0.1:{port}", client_id="q", roles=("x = admin",)))
    try:
        return str(await asked.metadata())
    finally:
        await asked.close()


@pytest.mark.parametrize("ask", [hook, node, provider], ids=lambda ask: ask.__name__)
def test_nothing_of_what_answers_inside_is_shown_but_its_status(ask: object) -> None:
    rng = drawn("inner answers")

    async def work() -> None:
        for form in rng.sample(ANSWERS, len(ANSWERS)):
            secret = f"hush{rng.randbytes(rng.randrange(2, 40)).hex()}"
            whole = form.replace("{}", secret).encode()
            pieces = [whole] if rng.random() < 0.5 else [whole[:7], whole[7:]]

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.read(10)
                for piece in pieces:  # noqa: B023 - it is served before the next one is drawn
                    writer.write(piece)
                    await writer.drain()
                writer.close()

            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                try:
                    said = await ask(server.sockets[0].getsockname()[1])  # type: ignore[operator]
                except (ConsoleError, NotDelivered, ProviderError) as error:
                    said = f"{error}"
            assert said and secret not in said, f"{whole!r}: {said}"

    asyncio.run(work())
