"""Sending a stream of messages, and what became of each: `produce`.

Lines are read in a thread of their own and sent as they come, WINDOW of them under way; outcomes are shown in the
order of the lines. The first message that is not stored ends the reading; what is under way then still gets its
outcome.

Invariants: each message that was sent is one outcome; nothing is called stored, or refused, that is not known to be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from app.commands.endings import Exit, Failure
from app.commands.ledger import read_ahead
from app.commands.message_lines import Line
from app.commands.output import say, show, show_json

if TYPE_CHECKING:
    from node.message_client import MessageProducer, Sent

WINDOW: Final = 512
SAID_MAX: Final = 10  # messages that were not stored, one by one


class Producing:
    """One run. `stored`, `refused` (never stored), `unknown` (may be stored): how many; `failed`: the first error."""

    def __init__(self, lines: Iterator[Line], as_json: bool) -> None:
        self._lines, self._as_json = lines, as_json
        self.stored = self.refused = self.unknown = self._said = self._at_too_few = 0
        self.failed: Exception | None = None
        self._failed_at = 0  # the line
        self._open: asyncio.Queue[tuple[Line, asyncio.Future[Sent]] | None] = asyncio.Queue()
        self._room = asyncio.Semaphore(WINDOW)
        self._now: tuple[Line, asyncio.Future[Sent]] | None = None  # whose outcome is waited for

    async def run(self, name_servers: list[str], group: str, deadline_s: float) -> None:
        """Ends early where something is not stored, and where a line cannot be read: then with `failed`. Cancelled (a
        Ctrl-C), what is under way counts as unknown."""
        from node.message_client import MessageProducer

        async with MessageProducer(name_servers, group, deadline_s) as producer:
            sending = asyncio.create_task(self._send_all(producer))
            try:
                await self._outcomes(sending)
            finally:
                sending.cancel()
                await asyncio.wait([sending])
                self._count_open()
            if not sending.cancelled():
                sending.result()  # what ended the reading, where that was no line

    async def _send_all(self, producer: MessageProducer) -> None:
        from node.message_client import ClientError

        try:
            async for line in read_ahead(self._lines):
                await self._room.acquire()
                try:
                    self._open.put_nowait((line, producer.submit(line.message)))
                except ClientError as error:  # what no message can hold
                    self._not_stored(line, error)
                    break
        except Failure as error:
            self.failed = self.failed or error
        finally:
            self._open.put_nowait(None)

    async def _outcomes(self, sending: asyncio.Task[None]) -> None:
        """In their order; whatever ends the reading, those that were sent are waited for."""
        from node.message_client import ClientError

        while (one := await self._open.get()) is not None:
            self._now = one
            line, sent = one
            try:
                self._stored(line, await asyncio.shield(sent))
            except ClientError as error:
                self._not_stored(line, error)
                sending.cancel()
            self._now = None
            self._room.release()

    def _stored(self, line: Line, sent: Sent) -> None:
        is_ok = sent.status == "SEND_OK"
        self.stored += 1
        self._at_too_few += not is_ok
        if self._as_json:
            show_json(
                {"outcome": "stored", "line": line.number, "message_id": sent.message_id, "queue_id": sent.queue_id,
                 "queue_offset": sent.queue_offset, "status": sent.status}
            )  # fmt: skip
        else:
            show(f"{sent.message_id} {sent.queue_id} {sent.queue_offset}" + ("" if is_ok else f" {sent.status}"))

    def _not_stored(self, line: Line, error: Exception) -> None:
        from node.message_client import SendUnknown

        is_unknown = isinstance(error, SendUnknown)
        self.unknown += is_unknown
        self.refused += not is_unknown
        words = "unknown" if is_unknown else "not stored"
        if self._as_json:
            show_json({"outcome": words, "line": line.number, "reason": str(error)})
        elif self.failed is not None and self._said < SAID_MAX:  # the first one is said at the end
            self._said += 1
            say(f"line {line.number}: {words}: {error}")
        if self.failed is None:
            self.failed, self._failed_at = error, line.number

    def _count_open(self) -> None:
        """What nobody waits for any more, after a Ctrl-C."""
        if self._now is not None:
            self._end_open(*self._now)
        while not self._open.empty():
            if (one := self._open.get_nowait()) is not None:
                self._end_open(*one)

    def _end_open(self, line: Line, sent: asyncio.Future[Sent]) -> None:
        from node.message_client import ClientError, SendUnknown

        if not sent.done():
            sent.cancel()
            self._not_stored(line, SendUnknown("it was under way"))
        elif (error := sent.exception()) is None:
            self._stored(line, sent.result())
        elif isinstance(error, ClientError):
            self._not_stored(line, error)

    @property
    def needs_words(self) -> bool:
        """Whether the lines for the messages do not say it all."""
        return self.stored != 1 or self.failed is not None or self._at_too_few > 0

    def summary(self) -> str:
        """What is certain, and what is not."""
        text = f"{self.stored:,} stored"
        if self._at_too_few:
            text += f" ({self._at_too_few:,} of them not at as many brokers, or disks, as the master waits for)"
        text += f", {self.refused:,} not stored" if self.refused else ""
        return text + (f", {self.unknown:,} of unknown outcome" if self.unknown else "")

    def failure(self) -> Failure:
        """With the exit code that the worst outcome has."""
        error = self.failed
        if error is None or isinstance(error, Failure):
            return error or Failure(Exit.UNKNOWN_OUTCOME, self.summary())
        found = failure_of_client(error)
        code = Exit.UNKNOWN_OUTCOME if self.unknown else found.code
        return Failure(code, f"line {self._failed_at}: {found}")


def failure_of_client(error: BaseException) -> Failure:
    """The exit code for what the messages' client raised."""
    from node.message_client import NotSent, SendUnknown, Unavailable

    if isinstance(error, SendUnknown):
        return Failure(Exit.UNKNOWN_OUTCOME, f"it may be stored: {error}")
    if isinstance(error, Unavailable):
        return Failure(Exit.UNREACHABLE, str(error))
    return Failure(Exit.FINDING if isinstance(error, NotSent) else Exit.USAGE, str(error))
