"""`store inspect|verify`: a store as it lies there, read-only; `store repair|adopt`: what only a person may decide.

Invariants: `inspect` and `verify` write nothing, also not a lock, and a directory of the Java original is as welcome as
ours; `verify` ends with 1 when it found a problem. The other two run in a process of their own that takes the store's
lock, and end with 1 when it refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.commands.common import Exit, Failure, JsonOption, say, show_json

if TYPE_CHECKING:
    from node.store.reader import StoreReader

PROGRESS_EVERY_S: Final = 2.0
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="DATA/dledger-<id>, or DATA itself if it holds one.")]
SizeOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Only where it cannot be told from the files.")
]

commands = typer.Typer(help="Look at a store's files.", no_args_is_help=True, rich_markup_mode=None)


def store_directory(directory: Path) -> Path:
    """The directory that holds `data/` and `index/`. Raises Failure with what was looked for."""
    if not directory.is_dir():
        raise Failure(Exit.USAGE, f"{directory}: there is no such directory")
    if (directory / "data").is_dir():
        return directory
    found = sorted(path for path in directory.glob("dledger-*") if (path / "data").is_dir())
    if len(found) == 1:
        return found[0]
    if found:
        raise Failure(Exit.USAGE, f"{directory} holds several stores: name one of {', '.join(map(str, found))}")
    raise Failure(Exit.USAGE, f"{directory} is no store: there is no data/ in it and no dledger-<id>/")


@contextmanager
def _reading(directory: Path, data_file_size: int | None, index_file_size: int | None) -> Iterator[StoreReader]:
    """A reader; whatever keeps it from reading means that nothing could be determined."""
    from node.store.log_store import StoreError
    from node.store.reader import StoreReader

    store = store_directory(directory)
    try:
        yield StoreReader(store, data_file_size=data_file_size, index_file_size=index_file_size)
    except (StoreError, OSError) as error:
        raise Failure(Exit.UNDETERMINED, f"{store}: {error}") from error


@commands.command()
def inspect(
    directory: Directory,
    data_file_size: SizeOption = None,
    index_file_size: SizeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a store holds."""
    with _reading(directory, data_file_size, index_file_size) as reader:
        found = reader.inspect()
    if as_json:
        show_json(found)
    else:
        print("\n".join(described(found)))
    return Exit.FINE


@commands.command()
def verify(
    directory: Directory,
    data_file_size: SizeOption = None,
    index_file_size: SizeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Read every byte and check every record."""
    with _reading(directory, data_file_size, index_file_size) as reader:
        report = reader.verify(progress=Progress()).as_json()
    if as_json:
        show_json(report)
    else:
        problems = report["problems"]
        span = f"indexes {report['begin_index']} to {report['end_index']}" if report["entries"] else "empty"
        # A store of the Java original has no seals at all; a broken seal is a problem of its own below.
        sealed = "sealed" if report["sealed"] else "not sealed throughout"
        print(f"{report['entries']:,} entries, {span}, end term {report['end_term']}, {sealed}")
        for problem in problems:
            where = "?" if problem["index"] is None else problem["index"]
            print(f"! {problem['class']} at index {where} in {problem['file']}: {problem['detail']}")
        print(f"{len(problems)} problems" if problems else "no problem found; every record was read")
    return Exit.FINDING if report["problems"] else Exit.FINE


@commands.command()
def repair(
    directory: Directory,
    set_term: Annotated[
        int, typer.Option("--set-term", metavar="N", min=0, help="The group's highest term; no vote up to it.")
    ],
) -> int:
    """Give a stopped member whose term file was lost a term."""
    return _decided(directory, "--set-term", str(set_term))


@commands.command()
def adopt(directory: Directory) -> int:
    """Take back a stopped store of ours that a Java node wrote to."""
    return _decided(directory, "--adopt")


def _decided(directory: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "node.store.repair", str(store_directory(directory)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        print(done.stdout.strip())
        return Exit.FINE
    lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    raise Failure(Exit.FINDING, lines[-1].removeprefix("repair: "))


class Progress:
    """Says now and then how far a verification is."""

    def __init__(self) -> None:
        self.said_at = time.monotonic()

    def __call__(self, entries: int) -> None:
        if time.monotonic() - self.said_at >= PROGRESS_EVERY_S:
            self.said_at = time.monotonic()
            say(f"verify: {entries:,} entries")


def described(value: dict[str, Any], indent: str = "") -> list[str]:
    """A nested dictionary, one `key: value` a line."""
    lines: list[str] = []
    for key, item in value.items():
        if isinstance(item, dict) and item:
            lines += [f"{indent}{key}:", *described(item, indent + "  ")]
        elif isinstance(item, list) and item and isinstance(item[0], dict):
            lines.append(f"{indent}{key}:")
            lines += [f"{indent}  - " + ", ".join(f"{name}={part}" for name, part in row.items()) for row in item]
        else:
            shown = "unknown" if item is None else item if isinstance(item, str) else json.dumps(item)
            lines.append(f"{indent}{key}: {shown}")
    return lines


def register(app: typer.Typer) -> None:
    """Adds this family's commands."""
    app.add_typer(commands, name="store")
