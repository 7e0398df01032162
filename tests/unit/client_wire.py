"""The other end of RocketMQ's remoting protocol, for tests: a blocking socket, and a peer without any."""

from __future__ import annotations

import socket
import struct

from node.rocketmq.command import Command, decode, encode
from node.rocketmq.dispatch import Dispatcher


class Wire:
    """A client's connection; every wait ends within a minute."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), timeout=60)
        self._opaque = 0

    def send(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **changes: object) -> Command:
        self._opaque += 1
        command = Command(code, self._opaque, 0, fields, None, body, "JAVA")._replace(**changes)  # type: ignore[arg-type]
        self.socket.sendall(encode(command))
        return command

    def receive(self) -> Command:
        """Raises EOFError where the other side has closed."""
        (rest,) = struct.unpack(">i", self._exactly(4))
        return decode(struct.pack(">i", rest) + self._exactly(rest))

    def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"", **changes: object) -> Command:
        request = self.send(code, fields, body, **changes)
        answer = self.receive()
        assert (answer.opaque, answer.is_response, answer.binary) == (request.opaque, True, request.binary)
        return answer

    def is_closed(self) -> bool:
        """Waits for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise EOFError
            found += piece
        return found

    def close(self) -> None:
        self.socket.close()


class FakePeer:
    """A connection without a socket: what is sent over it goes through the codec and is kept."""

    def __init__(self, address: str = "127.0.0.1:40000") -> None:
        self.address, self.closed, self.sent, self.open, self.open_bytes = address, False, list[Command](), 0, 0

    def send(self, command: Command) -> None:
        self.sent.append(decode(encode(command)))

    def send_encoded(self, data: bytes) -> None:
        self.sent.append(decode(data))

    def note_open(self, change: int, body_bytes: int) -> None:
        self.open += change
        self.open_bytes += change * body_bytes

    def ask(self, dispatcher: Dispatcher, request: Command) -> Command | None:
        """What it is answered at once; None: nothing."""
        before = len(self.sent)
        dispatcher.handle(self, decode(encode(request)))
        answers = [one for one in self.sent[before:] if one.is_response]
        assert len(answers) <= 1
        return answers[0] if answers else None
