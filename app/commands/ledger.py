"""`append`: entries, in.

Invariant: nothing is claimed that is not known. `append` stops at the first batch that was not acknowledged, reports
what was, what was not and what is unknown, and never sends an unknown batch again.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, TypeVar

import typer

from app.commands.endings import Exit, Failure
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, say, show_json
from app.commands.targets import I64_MAX, Target, in_group
from node.client import LedgerClient, NotAppended, OutcomeUnknown
from node.client.arguments import SECONDS_MAX
from node.protocol.codes import ResponseCode
from node.protocol.entry import BODY_BYTES_MAX

PROGRESS_EVERY_S: Final = 1.0
HANDS_OVER_WITHIN_S: Final = 2.0
BATCH_BYTES_MAX: Final = 1024 * 1024
BATCHES_AHEAD: Final = 4
T = TypeVar("T")


class Split(StrEnum):
    """How input becomes bodies: a line each, the whole of it, or a big-endian uint32 length before each."""

    LINES = "lines"
    FILE = "file"
    LENGTH = "length"


def bodies_of(source: BinaryIO, split: Split) -> Iterator[bytes]:
    """The bodies in a stream. Raises Failure for input that cannot be split so."""
    if split is Split.FILE:
        yield _bounded(source.read(BODY_BYTES_MAX + 1))
    elif split is Split.LINES:
        while line := source.readline(BODY_BYTES_MAX + 2):
            yield _bounded(line.removesuffix(b"\n").removesuffix(b"\r"))
    else:
        while head := source.read(4):
            if len(head) < 4:
                raise Failure(Exit.USAGE, f"--split length: the input ends inside a length ({len(head)} of 4 bytes)")
            (length,) = struct.unpack(">I", head)
            if length > BODY_BYTES_MAX:
                raise Failure(Exit.USAGE, f"--split length: a body of {length} bytes is over the {BODY_BYTES_MAX}")
            body = source.read(length)
            if len(body) < length:
                raise Failure(Exit.USAGE, f"--split length: the input ends inside a body ({len(body)} of {length})")
            yield body


def _bounded(body: bytes) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise Failure(Exit.USAGE, f"a body is larger than the {BODY_BYTES_MAX} bytes that an entry can hold")
    return body


def batches_of(bodies: Iterator[bytes], batch: int) -> Iterator[list[bytes]]:
    """Runs of at most `batch` bodies and about a megabyte."""
    run: list[bytes] = []
    size = 0
    for body in bodies:
        if run and (len(run) >= batch or size + len(body) > BATCH_BYTES_MAX):
            yield run
            run, size = [], 0
        run.append(body)
        size += len(body)
    if run:
        yield run


async def read_ahead(batches: Iterator[T]) -> AsyncIterator[T]:
    """The batches, read in a daemon thread: a Ctrl-C must not wait for a line that nobody types."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[T | BaseException | None] = asyncio.Queue()
    wanted = threading.Semaphore(BATCHES_AHEAD)

    def hand_over(item: T | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody wants it any more
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def read() -> None:
        try:
            for batch in batches:
                wanted.acquire()
                hand_over(batch)
        except BaseException as error:
            hand_over(error)
        else:
            hand_over(None)

    threading.Thread(target=read, name="append-input", daemon=True).start()
    while (item := await queue.get()) is not None:
        if isinstance(item, BaseException):
            raise item
        wanted.release()
        yield item


@dataclass(slots=True)
class Tally:
    """What `append` can say for certain. `ranges` are inclusive runs of acknowledged indexes."""

    appended: int = 0
    unknown: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, first_index: int, last_index: int) -> None:
        """Counts an acknowledged run."""
        self.appended += last_index - first_index + 1
        if self.ranges and self.ranges[-1][1] + 1 == first_index:
            self.ranges[-1][1] = last_index
        else:
            self.ranges.append([first_index, last_index])

    def as_json(self) -> dict[str, Any]:
        """The shape that `append --json` promises; -1 where nothing was appended."""
        seconds = max(time.monotonic() - self.began, 1e-6)
        return {
            "appended": self.appended,
            "unknown": self.unknown,
            "first_index": self.ranges[0][0] if self.ranges else -1,
            "last_index": self.ranges[-1][1] if self.ranges else -1,
            "ranges": self.ranges,
            "entries_per_s": round(self.appended / seconds, 1),
        }


@in_group
def append(
    target: Target,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="What to append; - is standard input.")] = "-",
    split: Annotated[
        Split,
        typer.Option(
            help="What is one entry: a line, the whole file, or what follows its length (4 bytes, big-endian).",
            case_sensitive=False,
        ),
    ] = Split.LINES,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Entries per request.")] = 500,
    expected_index: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, max=I64_MAX, help="Append only if the first entry gets this index."),
    ] = None,
    deadline_s: Annotated[
        float,
        typer.Option(metavar="N", min=0.1, max=SECONDS_MAX, help="Give up on one request after this many seconds."),
    ] = 10.0,
    as_json: JsonOption = False,
) -> int:
    """Append entries from a file or stdin."""
    tally = Tally()
    source = opened(file)
    failure: Failure | None = None
    interrupted = False
    try:
        run_async(lambda: _append_all(target, source, split, batch, expected_index, deadline_s, tally))
    except Failure as caught:
        failure = caught
    except KeyboardInterrupt:
        interrupted = True
    result = tally.as_json()
    if as_json:
        show_json(result)
    else:
        where = f", indexes {result['first_index']} to {result['last_index']}" if tally.ranges else ""
        unknown = f"; {tally.unknown} of unknown outcome" if tally.unknown else ""
        print(f"appended {tally.appended}{where}, {result['entries_per_s']:,.0f} entries/s{unknown}")
    if failure is not None:
        raise failure
    return Exit.INTERRUPTED if interrupted else Exit.FINE


def opened(file: str) -> BinaryIO:
    """To read; - is standard input. Raises Failure."""
    if file == "-":
        if sys.stdin.isatty():
            say("reading lines from the terminal; Ctrl-D ends")
        # Not sys.stdin.buffer: at a Ctrl-C the interpreter wants that one's lock, which the reading thread holds.
        return open(0, "rb", closefd=False)
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise Failure(Exit.USAGE, f"{file}: {error.strerror}") from error


async def _append_all(
    target: Target,
    source: BinaryIO,
    split: Split,
    batch: int,
    expected_index: int | None,
    deadline_s: float,
    tally: Tally,
) -> None:
    client = target.client(deadline_s)
    said_at = time.monotonic()
    reading = read_ahead(batches_of(bodies_of(source, split), batch))
    one_by_one = False
    try:
        async for bodies in reading:
            if not one_by_one:
                try:
                    expected_index = await append_where_there_is_room(client, bodies, expected_index, tally)
                except NotAppended as error:
                    one_by_one = error.code is ResponseCode.UNSUPPORTED and len(bodies) > 1 and expected_index is None
                    if not one_by_one:
                        raise
                    say(f"append: {error}; going on with one entry a request")
            if one_by_one:
                for body in bodies:
                    await append_where_there_is_room(client, [body], None, tally)
            if time.monotonic() - said_at >= PROGRESS_EVERY_S:
                said_at = time.monotonic()
                say(f"appended {tally.appended:,}, at index {tally.ranges[-1][1]:,}")
    finally:
        await client.close()


async def append_where_there_is_room(
    client: LedgerClient, bodies: list[bytes], expected_index: int | None, tally: Tally
) -> int | None:
    """As `_append_run`; a leader whose disk is full hands over, and whoever leads a moment later takes what it refused,
    of which nothing is in the log."""
    until_s = time.monotonic() + HANDS_OVER_WITHIN_S
    while True:
        try:
            return await _append_run(client, bodies, expected_index, tally)
        except NotAppended as error:
            if error.code is not ResponseCode.DISK_FULL or time.monotonic() > until_s:
                raise
            await asyncio.sleep(HANDS_OVER_WITHIN_S / 20)
            await client.leader()  # as the members say by now


async def _append_run(
    client: LedgerClient, bodies: list[bytes], expected_index: int | None, tally: Tally
) -> int | None:
    """Appends one run and counts it; where the next one is expected, if that matters."""
    try:
        result = await client.append_many(bodies, expected_index=expected_index)
    except NotAppended:
        raise
    except (OutcomeUnknown, asyncio.CancelledError):  # a Ctrl-C, too, leaves open what was on its way
        tally.unknown += len(bodies)
        raise
    tally.add(result.first_index, result.last_index)
    return None if expected_index is None else result.last_index + 1


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.command()(append)
