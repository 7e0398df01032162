"""What commands print. Invariant: results go to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import typer

from node.printable import escaped, escaped_json, json_for

COMMAND: Final = "      "  # what begins so is to be pasted
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def say(line: str) -> None:
    """Progress and remarks for people on stderr, a line each; one that cannot be written changes no exit code."""
    with contextlib.suppress(OSError):
        print(escaped(line), file=sys.stderr, flush=True)


def show(line: str) -> None:
    """One line of a result for people, on stdout; also to a pipe, where something may read line by line."""
    print(escaped(line), flush=True)


def show_lines(lines: Iterable[str]) -> None:
    """Several of them: an element is a line."""
    print("\n".join(map(escaped, lines)), flush=True)


def terminal_width() -> int | None:
    """How many characters a line of stdout has room for; None where it is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """Broken between words, the rest of a line below its first words; commands stay whole."""
    found: list[str] = []
    for line in lines:
        if width is None or len(line) <= width or line.startswith(COMMAND):
            found.append(line)
            continue
        indent = " " * (len(line) - len(line.lstrip()) or 2)
        found += textwrap.wrap(
            line, max(width, 20), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    return found


def show_json(value: Any) -> None:
    """A result as JSON on stdout."""
    on_terminal = sys.stdout.isatty()
    text = json_for(sys.stdout, value, 2 if on_terminal else None)
    print(escaped_json(text) if on_terminal else text, flush=True)
