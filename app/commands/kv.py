"""`kv put|get|delete|cas|range|watch`: the key-value store of a group (`node --state-machine kv`).

Keys and values are the bytes of the arguments. Reads are linearizable. Exit codes: 1 where a key is not there, or a
condition did not hold; 75 where nobody can say whether a write happened.
"""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, TypeVar

import typer

from app.commands.endings import Exit, Failure
from app.commands.ledger_calls import run_async
from app.commands.output import JsonOption, say
from app.commands.targets import I64_MAX, Target, in_group
from node.client import Unsupported
from node.client.kv import KvClient, WatchGone
from node.printable import escaped_bytes, escaped_json, json_for
from node.protocol.kv import ABSENT, ITEMS_MAX, EventType, KvError, KvEvent, KvItem, KvResult, Status

T = TypeVar("T")
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The key.")]
TtlOption = Annotated[int, typer.Option("--ttl-ms", metavar="MS", min=0, help="It goes after so long; 0: it stays.")]
LimitOption = Annotated[
    int | None, typer.Option("--limit", "-n", metavar="N", min=1, max=I64_MAX, help="So many keys at most.")
]
HELP = "The key-value store of a group that was born with --state-machine kv."
EXPECTED_INDEX: Final = "--expected-index"
IF_WRITTEN_BY: Final = "Only if that entry wrote what it holds now (get --json shows it)"
commands = typer.Typer(help=HELP, no_args_is_help=True)


def with_store(target: Target, work: Callable[[KvClient], Awaitable[T]]) -> T:
    """Runs `work` with the group's store; what it raises becomes an exit code."""

    async def run() -> T:
        client = target.client()
        try:
            return await work(KvClient(client))
        except Unsupported as error:
            begun = "a group has one if it was begun with node --state-machine kv"
            raise Failure(
                Exit.FINDING, f"this group has no key-value store, and nothing was sent: {begun} ({error})"
            ) from None
        except KvError as error:
            raise Failure(Exit.USAGE, str(error)) from None
        finally:
            await client.close()

    return run_async(run)


def text_of(name: str, raw: bytes) -> dict[str, Any]:
    """Text where it is UTF-8; otherwise None, and base64 under another name."""
    try:
        return {name: raw.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(raw).decode()}


def print_json(value: dict[str, Any]) -> None:
    written = json_for(sys.stdout, value)
    print(escaped_json(written) if sys.stdout.isatty() else written, flush=True)


def print_raw(*pieces: bytes) -> None:
    """With a tab between: bytes as they are to a pipe. A terminal gets what cannot be printed in them escaped, so that
    a line is a key's or an event's, and a tab stands between two pieces."""
    shown = map(escaped_bytes, pieces) if sys.stdout.isatty() else pieces
    sys.stdout.buffer.write(b"\t".join(shown) + b"\n")
    sys.stdout.flush()


def item_json(item: KvItem) -> dict[str, Any]:
    return {**text_of("key", item.key), **text_of("value", item.value), "found": True, "index": item.index}


def not_changed(key: str, result: KvResult, as_json: bool) -> int:
    """Says what the key holds, whose condition did not hold."""
    if as_json:
        holds = text_of("value", result.value) if result.found else {}
        known = {**text_of("key", os.fsencode(key)), "done": False, "found": result.found, "index": result.index}
        print_json({**known, **holds})
    else:
        say(f"kv: nothing was changed: {key} " + ("holds something else" if result.found else "is not there"))
    return Exit.FINDING


@commands.command()
@in_group
def put(
    target: Target,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What it is to hold.")],
    ttl_ms: TtlOption = 0,
    expected_index: Annotated[
        int | None,
        typer.Option(EXPECTED_INDEX, metavar="N", min=ABSENT, max=I64_MAX, help=f"{IF_WRITTEN_BY}; -1: not there."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Set a key; exit 1, and nothing changes, where --expected-index does not hold."""
    raw, new = os.fsencode(key), os.fsencode(value)

    async def work(store: KvClient) -> KvResult:
        if expected_index is None:
            return KvResult(Status.DONE, True, await store.put(raw, new, ttl_ms=ttl_ms))
        return await store.compare_index_and_set(raw, expected_index, new, ttl_ms=ttl_ms)

    result = with_store(target, work)
    if result.status is not Status.DONE:
        return not_changed(key, result, as_json)
    if as_json:
        print_json({**text_of("key", raw), "index": result.index})
    return Exit.FINE


@commands.command()
@in_group
def get(target: Target, key: KeyArgument, as_json: JsonOption = False) -> int:
    """Print what a key holds; exit 1 where it is not there."""
    raw = os.fsencode(key)
    item = with_store(target, lambda store: store.get(raw))
    if as_json:
        nothing = {**text_of("key", raw), "value": None, "found": False, "index": -1}
        print_json(nothing if item is None else item_json(item))
    elif item is not None:
        print_raw(item.value)
    if item is None and not as_json:
        say(f"kv: there is no key {key}")
    return Exit.FINDING if item is None else Exit.FINE


@commands.command()
@in_group
def delete(
    target: Target,
    key: KeyArgument,
    expected_index: Annotated[
        int | None, typer.Option(EXPECTED_INDEX, metavar="N", min=0, max=I64_MAX, help=f"{IF_WRITTEN_BY}.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Remove a key; exit 1 where it was not there, or, and nothing changes, --expected-index does not hold."""
    raw = os.fsencode(key)

    async def work(store: KvClient) -> KvResult:
        if expected_index is None:
            return KvResult(Status.DONE if await store.delete(raw) else Status.NOT_FOUND, False, ABSENT)
        return await store.compare_index_and_set(raw, expected_index, None)

    result = with_store(target, work)
    if result.status is Status.CONDITION_FAILED:
        return not_changed(key, result, as_json)
    deleted = result.status is Status.DONE
    if as_json:
        print_json({**text_of("key", raw), "deleted": deleted})
    elif not deleted:
        say(f"kv: there is no key {key}")
    return Exit.FINE if deleted else Exit.FINDING


@commands.command()
@in_group
def cas(
    target: Target,
    key: KeyArgument,
    old: Annotated[str, typer.Argument(metavar="OLD", help="What it must hold now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="What it is to hold.")],
    absent: Annotated[bool, typer.Option("--absent", help="It must not be there; OLD is not looked at.")] = False,
    ttl_ms: TtlOption = 0,
    as_json: JsonOption = False,
) -> int:
    """Set a key that holds OLD; exit 1, and nothing changes, where it holds something else."""
    expected = None if absent else os.fsencode(old)

    async def work(store: KvClient) -> KvResult:
        return await store.compare_and_set(os.fsencode(key), expected, os.fsencode(new), ttl_ms=ttl_ms)

    result = with_store(target, work)
    if result.status is not Status.DONE:
        return not_changed(key, result, as_json)
    if as_json:
        known = text_of("key", os.fsencode(key))
        print_json({**known, "done": True, "found": result.found, "index": result.index})
    return Exit.FINE


@commands.command("range")
@in_group
def range_(
    target: Target,
    from_key: Annotated[str, typer.Argument(metavar="FROM", help="The first key; empty: from the beginning.")] = "",
    to_key: Annotated[str, typer.Argument(metavar="TO", help="Without this key and what is behind it.")] = "",
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> int:
    """Print keys and values in order: a JSON object a line, or both with a tab between."""

    async def work(store: KvClient) -> None:
        at, left = os.fsencode(from_key), sys.maxsize if limit is None else limit
        more = True
        while more and left:
            items, more = await store.range(at, os.fsencode(to_key), limit=min(left, ITEMS_MAX))
            for item in items:
                if as_json:
                    print_json(item_json(item))
                else:
                    print_raw(item.key, item.value)
            left -= len(items)
            at = items[-1].key + b"\0" if items else at
        return

    with_store(target, work)
    return Exit.FINE


@commands.command()
@in_group
def watch(
    target: Target,
    prefix: Annotated[str, typer.Argument(metavar="PREFIX", help="Keys that begin so; empty: all.")] = "",
    from_index: Annotated[
        int | None, typer.Option("--from", metavar="N", min=0, max=I64_MAX, help="From this entry on.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", "-n", metavar="N", min=1, max=I64_MAX, help="End after N events.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Print what happens to keys, as it happens; Ctrl-C ends it."""

    async def work(store: KvClient) -> None:
        seen = 0
        watching = store.watch(os.fsencode(prefix), from_index=from_index)
        try:
            async for event in watching:
                print_event(event, as_json)
                seen += 1
                if seen == count:
                    return
        except WatchGone as error:
            raise Failure(Exit.FINDING, f"{error}") from None
        finally:
            await watching.aclose()

    with_store(target, work)
    return Exit.FINE


def print_event(event: KvEvent, as_json: bool) -> None:
    kind = event.type.name.lower()
    if as_json:
        value = text_of("value", event.value) if event.type is EventType.PUT else {}
        print_json({"type": kind, **text_of("key", event.key), "index": event.index, **value})
    else:
        print_raw(kind.encode(), event.key, event.value)


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="kv", short_help="The key-value store of a group.")
