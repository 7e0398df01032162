"""The control plane's one connection to its engine, over the engine's own port.

Invariants: an answer finds its request by `opaque`; whatever waits when the connection ends learns that it was *sent*,
so an append is then unknown and never "not appended". A connection is opened when it is needed, one at a time. Nothing
is asked over it, and no token shown, before it is known that the engine of this very directory is at its other end: of
this group by name and id, and this member (SAFETY C9).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections.abc import Callable
from typing import Any

from node.config import Settings, read_token, split_address
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.protocol.entry import BytesLike
from node.protocol.peers import dialled
from node.store.errors import StoreError
from node.store.files.hard_state import read_hard_state
from node.store.files.platform import OS, Platform
from node.tls_files import tls_trouble
from node.transport.connection import Connection, dial
from node.transport.remoting import Frame
from node.transport.tls import client_context

CONNECT_TIMEOUT_S = 0.5
KNOW_TIMEOUT_S = 0.4
LOOK_AGAIN_S = 0.1
UNTAKEN_BYTES_MAX = 32 << 20  # of requests that the engine has not taken: two of the longest
RECORDED = frozenset({RequestCode.LEADERSHIP_TRANSFER, RequestCode.OPERATOR_ACTION})  # by the engine, too


class EngineAway(Exception):
    """No connection can be made: the engine does not run. Nothing was sent."""


class EngineForeign(EngineAway):
    """Another group's engine, or another member's, listens where this one's should. Nothing was sent to it."""


class EngineSilent(Exception):
    """No answer came: stopped, paused, or the connection broke. `sent`: whether the request may have reached it."""

    def __init__(self, reason: str, *, sent: bool = True) -> None:
        super().__init__(reason)
        self.sent = sent


class EngineRefused(Exception):
    """The engine answered with a remoting error, or with what is no answer."""


class EngineDeclined(EngineRefused):
    """The engine answered with its reason not to begin what it was asked: nothing was done."""

    def __init__(self, reason: str, code: int | None = None) -> None:
        super().__init__(reason)
        self.code = code


class EngineLink:
    """See the module's docstring."""

    def __init__(self, settings: Settings, platform: Platform = OS) -> None:
        self.directory, self.platform = settings.store_directory, platform
        host, self.port = split_address(settings.self_address)
        self.host = dialled(host)
        self.group, self.self_id = settings.node.group, settings.node.id
        self.settings = settings
        self.token = self.read_token()
        self.tls = self.read_tls()
        self.connection: Connection | None = None
        self.known = False  # whose engine it is ...
        self.shown = False  # ... and whether it was shown our token
        self.row: Callable[[], int | None] = lambda: None  # the row of the node's trail that a request belongs to
        self.opening = asyncio.Lock()
        self.opaques = itertools.count(1)
        self.waiting: dict[int, asyncio.Future[Frame]] = {}

    def read_token(self) -> str | None:
        """Raises ConfigError."""
        file = self.settings.node.token_file
        return None if file is None else read_token(file)

    def read_tls(self) -> ssl.SSLContext | None:
        """How this control plane shows itself to the engine. Raises OSError, ValueError."""
        node = self.settings.node
        if node.tls_cert_file is None or node.tls_key_file is None or node.tls_ca_file is None:
            return None
        trouble = tls_trouble(node.tls_cert_file, node.tls_key_file, node.tls_ca_file)
        if trouble is not None:
            raise ValueError(trouble)
        return client_context(node.tls_cert_file, node.tls_key_file, node.tls_ca_file)

    def use_token(self, token: str | None) -> None:
        """It is shown with the next request, also on the connection that there is."""
        self.token, self.shown = token, False

    def use_tls(self, tls: ssl.SSLContext | None) -> None:
        self.tls = tls

    async def connected(self) -> Connection:
        """A connection to our own engine. Raises EngineAway, EngineForeign, EngineSilent, EngineRefused."""
        if self.known and self.connection is not None and not self.connection.closed:
            return self.connection
        async with self.opening:
            if self.connection is None or self.connection.closed:
                self.known = self.shown = False
                connection = Connection(self.on_frame, self.on_closed)
                try:
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        await dial(connection, self.host, self.port, self.tls)
                except TimeoutError:  # it is there, and does not go on: stopped in the midst of a TLS handshake, say
                    raise EngineSilent(f"{self.host}:{self.port}: no connection in time", sent=False) from None
                except OSError as error:
                    why = error.strerror or str(error)
                    raise EngineAway(f"{self.host}:{self.port}: {why}") from None
                self.connection = connection
            connection = self.connection
            if not self.known:
                await self.get_to_know(connection)
                if self.connection is not connection:  # lost while our own directory was looked at
                    raise EngineSilent("the engine closed the connection", sent=False)
                self.known = True
            return connection

    async def get_to_know(self, connection: Connection) -> None:
        """Whose engine that is. Raises EngineForeign, EngineSilent, EngineRefused."""
        asked = {"group": self.group, "remoteId": self.self_id, "localId": "control", "term": -1}
        try:
            body = await self.exchange(connection, RequestCode.METADATA, [json.dumps(asked).encode()], KNOW_TIMEOUT_S)
        except EngineSilent as silent:
            raise EngineSilent(str(silent), sent=False) from None
        answer = object_of(body)
        at, reported = f"what listens at {self.host}:{self.port} is", answer.get("groupId")
        if answer.get("code") == ResponseCode.UNKNOWN_GROUP:
            text = f"{at} no engine of the group {self.group!r}"
        elif answer.get("code") == ResponseCode.UNKNOWN_MEMBER:
            text = f"{at} not {self.self_id}'s engine"
        elif answer.get("code") != ResponseCode.SUCCESS:
            text = f"{at} no engine of ours: it answers {answer.get('code')}"
        elif reported is None or reported in (ours := await self.group_ids()):
            return
        else:
            text = (
                f"{at} of another group {self.group!r}: its id is {reported}, the one in {self.directory} is {ours[-1]}"
            )
        self.connection = None
        connection.close()
        raise EngineForeign(text)

    async def group_ids(self) -> list[str | None]:
        """The id in our directory. An engine tells its own a moment before it is on disk: so there is a second look."""
        found = [await asyncio.to_thread(self.stored_group_id)]
        if found[0] is None:
            await asyncio.sleep(LOOK_AGAIN_S)
            found.append(await asyncio.to_thread(self.stored_group_id))
        return found

    def stored_group_id(self) -> str | None:
        try:
            state = read_hard_state(self.directory, self.platform)
        except StoreError:
            return None
        return None if state is None else state.group_id

    def on_frame(self, _: Connection, frame: Frame) -> None:
        future = self.waiting.pop(frame.opaque, None)
        if future is not None and not future.done():
            future.set_result(frame)

    def on_closed(self, connection: Connection) -> None:
        if self.connection is not connection:
            return  # what waits, waits at another one
        self.connection = None
        waiting, self.waiting = self.waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(EngineSilent("the engine closed the connection"))

    async def request(self, code: RequestCode, pieces: list[bytes], timeout_s: float) -> BytesLike:
        """The answer's body. Raises EngineAway, EngineSilent, EngineRefused, FrameError."""
        connection = await self.connected()
        if connection.backlog_bytes > UNTAKEN_BYTES_MAX:
            raise EngineSilent("it takes nothing of what it was sent before", sent=False)
        return await self.exchange(connection, code, pieces, timeout_s)

    async def exchange(
        self, connection: Connection, code: RequestCode, pieces: list[bytes], timeout_s: float
    ) -> BytesLike:
        """A request and its answer's body. Raises EngineSilent, EngineRefused, FrameError where it is too long."""
        opaque = next(self.opaques) & 0x7FFFFFFF
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.waiting[opaque] = future
        try:
            if self.known and self.token is not None and not self.shown:
                connection.send_frame(Frame(code, opaque, b"".join(pieces), ext_fields={"token": self.token}))
                self.shown = True
            else:
                connection.send_body(code, 0, opaque, pieces)
            async with asyncio.timeout(timeout_s):
                frame = await future
        except TimeoutError:
            raise EngineSilent(f"no answer within {timeout_s:g} s") from None
        finally:
            self.waiting.pop(opaque, None)
        if frame.code == RemotingCode.REQUEST_CODE_NOT_SUPPORTED:  # an older engine
            raise EngineDeclined(frame.remark or "it does not know this request")
        if frame.code != RemotingCode.SUCCESS:
            raise EngineRefused(frame.remark or f"remoting code {frame.code}")
        return frame.body

    async def json(self, code: RequestCode, fields: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """A JSON request with the base fields that DLedger wants, and the answer's object."""
        sent = {"group": self.group, "remoteId": self.self_id, "localId": "control", "term": -1, **fields}
        if code in RECORDED and (row := self.row()) is not None:
            sent["trailRow"] = row
        if self.token is not None:
            sent["token"] = self.token
        body = await self.request(code, [json.dumps(sent).encode()], timeout_s)
        return object_of(body)

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


def object_of(body: BytesLike) -> dict[str, Any]:
    """Raises EngineRefused."""
    try:
        answer = json.loads(bytes(body))
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise EngineRefused("the engine answered something else than a JSON object")
    return answer
