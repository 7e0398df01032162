"""`store inspect` and `store verify`: a store directory as it lies there, read-only.

Invariants: nothing is written, also not a lock; a directory of the Java original is as welcome as ours. `verify` ends
with 1 when it found a problem.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from app.commands.common import Exit, Failure, JsonOption, say, show_json

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


def _reader(directory: Path, data_file_size: int | None, index_file_size: int | None) -> Any:
    from node.store.log_store import StoreError
    from node.store.reader import StoreReader

    try:
        return StoreReader(store_directory(directory), data_file_size=data_file_size, index_file_size=index_file_size)
    except StoreError as error:
        raise Failure(Exit.UNDETERMINED, str(error)) from error


@commands.command()
def inspect(
    directory: Directory,
    data_file_size: SizeOption = None,
    index_file_size: SizeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say what a store holds."""
    found = _reader(directory, data_file_size, index_file_size).inspect()
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
    reader = _reader(directory, data_file_size, index_file_size)
    report = json_of(reader.verify(progress=_progress))
    if as_json:
        show_json(report)
    else:
        problems = report["problems"]
        span = f"indexes {report['begin_index']} to {report['end_index']}" if report["entries"] else "empty"
        sealed = "sealed" if report["sealed"] else "not sealed throughout (written by the Java original)"
        print(f"{report['entries']:,} entries, {span}, end term {report['end_term']}, {sealed}")
        for problem in problems:
            where = "?" if problem["index"] is None else problem["index"]
            print(f"! {problem['class']} at index {where} in {problem['file']}: {problem['detail']}")
        print(f"{len(problems)} problems" if problems else "no problem found; every record was read")
    return Exit.FINDING if report["problems"] else Exit.FINE


def _progress(*numbers: Any) -> None:
    say("verify: " + " of ".join(f"{number:,}" if isinstance(number, int) else str(number) for number in numbers))


def json_of(report: Any) -> dict[str, Any]:
    """A report as a plain dictionary, whether it is one or knows how to become one."""
    if isinstance(report, dict):
        return report
    if hasattr(report, "as_json"):
        return dict(report.as_json())
    from dataclasses import asdict

    return asdict(report)


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
