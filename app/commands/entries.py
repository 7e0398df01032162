"""`get` and `tail`: committed entries, out.

Invariant: nothing is called committed that is not known to be: where a plain DLedger leads, each answer says so.
"""

from __future__ import annotations

import base64
import sys
from typing import Annotated, Any, Final

import typer

from app.commands.endings import Exit, Failure
from app.commands.following import READ_BYTES, print_from
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, say
from app.commands.targets import I64_MAX, Target, in_group
from node.client import LedgerClient, Trimmed, Unsupported
from node.printable import escaped_bytes, escaped_json, json_for
from node.protocol.entry import Entry, Magic

RawOption = Annotated[
    bool, typer.Option("--raw", help="Bodies as they are, control characters included, also to a terminal.")
]
UNVERIFIED: Final = (
    "consistency: unverified: a plain DLedger leads; it gives what its own log holds, which may not be committed and"
    " may go again"
)


def entry_json(entry: Entry) -> dict[str, Any]:
    """One entry as `get --json` and `tail --json` print it: text where the body is UTF-8, base64 otherwise."""
    shown: dict[str, Any] = {"index": entry.index, "term": entry.term, "body_bytes": len(entry.body)}
    if entry.magic != Magic.NORMAL:
        shown["magic"] = Magic(entry.magic).name
    try:
        shown["text"] = entry.body.decode()
    except UnicodeDecodeError:
        shown["base64"] = base64.b64encode(entry.body).decode()
    return shown


def print_entry(entry: Entry, as_json: bool, unverified: bool = False, raw: bool = False) -> None:
    """One entry on stdout: a JSON object a line, or the body and a line break.

    On a terminal control characters and line breaks are escaped, for anybody may have written the body: it is one line,
    and none is another entry's. A pipe gets the bytes; so does `raw`.
    """
    escape = sys.stdout.isatty() and not raw
    if as_json:
        more = {"consistency": "unverified"} if unverified else {}
        written = json_for(sys.stdout, entry_json(entry) | more)
        print(escaped_json(written) if escape else written)
    else:
        sys.stdout.buffer.write((escaped_bytes(entry.body) if escape else entry.body) + b"\n")


@in_group
def get(
    target: Target,
    index: Annotated[int, typer.Argument(metavar="INDEX", min=0, max=I64_MAX, help="The first index to read.")],
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, max=100_000, help="How many indexes to read.")
    ] = 1,
    as_json: JsonOption = False,
    raw: RawOption = False,
) -> int:
    """Read committed entries by index."""

    async def work() -> None:
        client, at, first = target.client(), index, -1
        try:
            while at < index + count:
                wanted = min(index + count - at, 1000)
                entries = await client.read(at, wanted, include_all=True, enough_bytes=READ_BYTES)
                if client.unverified and first < 0:
                    say(f"get: {UNVERIFIED}")
                if not entries:
                    break
                first, at = entries[0].index if first < 0 else first, entries[-1].index + 1
                for entry in entries:
                    if entry.index < index + count:
                        print_entry(entry, as_json, client.unverified, raw)
            if first != index:
                sys.stdout.flush()
                log = "its leader's log" if client.unverified else "the committed log"
                raise Failure(Exit.FINDING, f"index {index} is not in {log}")
        finally:
            await client.close()

    run_async(work)
    sys.stdout.flush()
    return Exit.FINE


@in_group
def tail(
    target: Target,
    from_index: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, max=I64_MAX, help="Start at this index.")
    ] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            "--lines",
            "-n",
            metavar="N",
            min=0,
            max=I64_MAX,
            help="The last N entries (10); with --from: N and no more.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as entries are committed.")] = False,
    as_json: JsonOption = False,
    raw: RawOption = False,
) -> int:
    """Print the newest entries, or those from an index; -f follows."""

    async def work() -> Exit:
        client = target.client()
        try:
            end = await _committed(client)
            if from_index is None:
                last = 10 if lines is None else lines
                at, wanted = max(end - last + 1, 0), None
            else:
                at, wanted = from_index, lines
                if at > end:
                    ends = f"the log ends at {end}" if end >= 0 else "the log is empty"
                    nothing = "there is nothing" if client.unverified else "nothing is committed"
                    say(f"tail: {nothing} from {at} on: {ends}" + ("; waiting" if follow else ""))
                    if not follow:
                        return Exit.UNDETERMINED

            def show(entry: Entry) -> None:
                print_entry(entry, as_json, client.unverified, raw)

            try:
                await print_from(client, at, follow, wanted, show, end)
            except Trimmed as gone:
                if from_index is not None or gone.begin_index <= at:
                    raise
                await print_from(client, gone.begin_index, follow, wanted, show, end)  # fewer than so many are left
            return Exit.FINE
        finally:
            await client.close()

    return run_async(work)


async def _committed(client: LedgerClient) -> int:
    """The last committed index, -1 for an empty log; where a plain DLedger leads, the last index that it holds."""
    try:
        return await client.committed_index()
    except Unsupported:
        say(f"tail: {UNVERIFIED}")
        return await client.plain_end_index()


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    for command in (get, tail):
        app.command()(command)
