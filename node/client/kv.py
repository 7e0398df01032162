"""KvClient: the key-value store of a group (`--state-machine kv`), over a `LedgerClient`.

Gets and ranges are linearizable: they see every write that was acknowledged before they began. A write that ends in
OutcomeUnknown may have happened: read the key before it is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from node.client.errors import LedgerError, OutcomeUnknown
from node.client.gathered import Gathered
from node.client.ledger_client import LedgerClient
from node.client.machine import COMMANDS_BYTES_MAX, COMMANDS_MAX, MachineClient, unknown_each
from node.protocol.kv import (
    ABSENT,
    GET,
    ITEMS_MAX,
    If,
    KvCommand,
    KvError,
    KvEvent,
    KvItem,
    KvResult,
    Op,
    Status,
    ask_range,
    ask_watch,
    check_key,
    decode_got,
    decode_items,
    decode_watched,
    encode_command,
    encode_put,
    results_in,
)
from node.transport.machine_frames import QUESTIONS_MAX
from node.transport.slab_frames import ReadMode

WATCH_WAIT_MS: Final = 20_000


@contextmanager
def _readable() -> Iterator[None]:
    """What a member answers and cannot be read is no fault of the caller's. Raises LedgerError."""
    try:
        yield
    except KvError as error:
        raise LedgerError(f"what the member answers cannot be read: {error}") from error


class WatchGone(LedgerError):
    """What happened from that entry on is not kept any more: read what is there now, and watch from `next_index` on."""

    def __init__(self, from_index: int, next_index: int) -> None:
        super().__init__(f"events from entry {from_index} on are not kept: read the keys, then watch from {next_index}")
        self.next_index = next_index


class KvClient:
    """Use from one event loop, that of its `LedgerClient`. `member_id` reads from that member, as fresh as any. A group
    with another state machine than `kind` is refused (Unsupported), and nothing is written there."""

    def __init__(
        self, client: LedgerClient, *, deadline_s: float = 10.0, member_id: str | None = None, kind: str | None = "kv"
    ) -> None:  # fmt: skip
        self._machine, self._member_id = MachineClient(client, deadline_s, kind), member_id
        self._writes: Gathered[bytes, KvResult] = Gathered(COMMANDS_MAX, self._carry_out, COMMANDS_BYTES_MAX)
        self._gets: dict[ReadMode, Gathered[bytes, KvItem | None]] = {}

    # --- writes ---------------------------------------------------------------------------------------------------
    async def put(self, key: bytes, value: bytes, *, ttl_ms: int = 0) -> int:
        """The index of the entry that wrote it. `ttl_ms` 0: it stays; else it goes so much log time later."""
        return (await self.write(KvCommand(Op.PUT, key, value, ttl_ms))).index

    async def delete(self, key: bytes) -> bool:
        """Deletes a key; True where it was there."""
        return (await self.write(KvCommand(Op.DELETE, key))).status is Status.DONE

    async def compare_and_set(self, key: bytes, old: bytes | None, new: bytes | None, *, ttl_ms: int = 0) -> KvResult:
        """Sets (None: deletes) a key that holds `old` (None: is not there); else `CONDITION_FAILED` says what is.

        After OutcomeUnknown the same call may take place a second time, where somebody set the key back to `old`
        meanwhile; `compare_index_and_set` may not.
        """
        if old is None:
            return await self.compare_index_and_set(key, ABSENT, new, ttl_ms=ttl_ms)
        op = Op.DELETE if new is None else Op.PUT
        return await self.write(KvCommand(op, key, new or b"", ttl_ms, If.VALUE_IS, expected_value=old))

    async def compare_index_and_set(
        self, key: bytes, expected_index: int, new: bytes | None, *, ttl_ms: int = 0
    ) -> KvResult:  # fmt: skip
        """Sets (None: deletes) a key that holds what entry `expected_index` wrote (-1: it is not there).

        After OutcomeUnknown the same call may come again: it changes nothing if the first one, or anybody, wrote the
        key since. With -1 that is so only as long as nobody removes the key, and its time to live does not end.
        """
        op = Op.DELETE if new is None else Op.PUT
        return await self.write(KvCommand(op, key, new or b"", ttl_ms, If.INDEX_IS, expected_index=expected_index))

    def submit(self, command: KvCommand) -> asyncio.Future[KvResult]:
        """Any command, without waiting: what is submitted in one turn of the loop travels together, in that order.

        The future raises as `MachineClient.command`. Raises KvError for a command that is not allowed.
        """
        body = encode_command(command)
        return self._writes.add(body, 1, len(body))

    def submit_put(self, key: bytes, value: bytes) -> asyncio.Future[KvResult]:
        """The same for a put that stays, with no object for the command. Raises KvError."""
        body = encode_put(key, value)
        return self._writes.add(body, 1, len(body))

    async def _carry_out(self, bodies: Sequence[bytes]) -> list[KvResult | LedgerError] | Iterator[KvResult]:
        try:
            done = await self._machine.run(bodies)
            try:
                return results_in(done.results)
            except KvError as error:
                first, last = done.first_index, done.first_index + len(bodies) - 1
                text = f"it is in the log for good, and what applying it answered cannot be read: {error}"
                raise OutcomeUnknown(text, first_index=first, last_index=last, term=done.term) from error
        except OutcomeUnknown as error:
            return [*unknown_each(error, [1] * len(bodies))]

    async def write(self, command: KvCommand) -> KvResult:
        """Any command. Raises KvError for one that is not allowed, and as `MachineClient.command`."""
        result = await self.submit(command)
        if result.status is Status.BAD_COMMAND:
            raise KvError("the group does not understand this command: it is of another release")
        return result

    # --- reads ----------------------------------------------------------------------------------------------------
    async def get(self, key: bytes, *, mode: ReadMode = ReadMode.LINEARIZABLE) -> KvItem | None:
        """None: there is no such key."""
        return await self.submit_get(key, mode=mode)

    def submit_get(self, key: bytes, *, mode: ReadMode = ReadMode.LINEARIZABLE) -> asyncio.Future[KvItem | None]:
        """The same, without waiting: those of one turn of the loop travel together. Raises KvError for no key."""
        gets = self._gets.get(mode)
        if gets is None:
            gets = self._gets[mode] = Gathered(QUESTIONS_MAX, partial(self._get_all, mode))
        return gets.add(check_key(key), 1, len(key))

    async def _get_all(
        self, mode: ReadMode, keys: Sequence[bytes]
    ) -> list[KvItem | LedgerError | None] | Iterator[KvItem | None]:
        answers = await self._machine.ask_all([GET + key for key in keys], mode, self._member_id)
        contents = [one.content for one in answers if not isinstance(one, LedgerError)]
        if len(contents) == len(keys):
            with _readable():  # what is wrong with one is raised here
                return iter([*map(decode_got, keys, contents)])
        with _readable():
            return [
                one if isinstance(one, LedgerError) else decode_got(key, one.content)
                for key, one in zip(keys, answers, strict=True)
            ]

    async def range(
        self, from_key: bytes = b"", to_key: bytes = b"", *, limit: int = ITEMS_MAX,
        mode: ReadMode = ReadMode.LINEARIZABLE,
    ) -> tuple[list[KvItem], bool]:  # fmt: skip
        """Keys from the first on, without the second (b"": to the end), and whether there are more of them."""
        answered = await self._ask(ask_range(from_key, to_key, limit), mode)
        with _readable():
            return decode_items(answered)

    async def _ask(self, question: bytes, mode: ReadMode) -> bytes:
        answer = await self._machine.ask(question, mode=mode, member_id=self._member_id)
        assert answer is not None, "a question without a wait has an answer"
        return answer.content

    async def watch(self, prefix: bytes = b"", *, from_index: int | None = None) -> AsyncGenerator[KvEvent, None]:
        """What happens to keys that begin so, in order and without a gap: from now on, or from that entry on.

        Raises WatchGone where that is not kept any more.
        """
        if from_index is None:
            answer = await self._machine.ask(ask_range(b"", b"", 1), member_id=self._member_id)
            assert answer is not None
            from_index = answer.applied_index + 1
        while True:
            question = ask_watch(prefix, from_index)
            answer = await self._machine.ask(question, member_id=self._member_id, wait_ms=WATCH_WAIT_MS)
            if answer is None:
                continue
            with _readable():
                watched = decode_watched(answer.content)
                if watched.next_index <= from_index and not watched.is_gone:
                    raise KvError(f"events up to {watched.next_index - 1} for a watch from {from_index} on")
            if watched.is_gone:
                raise WatchGone(from_index, watched.next_index)
            for event in watched.events:
                yield event
            from_index = watched.next_index
