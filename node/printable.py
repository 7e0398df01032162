"""Texts and bytes from outside, made fit for a terminal, a log line or a page.

Invariant: what comes out holds no control character (escape sequences, line breaks, tabs) and none that turns the
direction of writing, so that no stranger's words begin a line or a column.
"""

from __future__ import annotations

import contextlib
import json
import os
from functools import lru_cache
from typing import Any, Final, TextIO

PICTURES: Final = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}  # U+2400 block
_BETWEEN: Final = "\n\t"  # what JSON may hold between its values, and nowhere else


def escaped(text: str) -> str:
    """Everything that cannot be printed as a backslash escape: one line, whatever the text holds."""
    if text.isprintable():
        return text
    return text.translate(_ESCAPES)


def escaped_bytes(raw: bytes) -> bytes:
    """A body as a terminal may show it, on one line; what is not UTF-8 becomes backslash escapes, too."""
    return escaped(raw.decode("utf-8", "backslashreplace")).encode("utf-8", "backslashreplace")


def escaped_json(written: str) -> str:
    """JSON that says the same, in characters that can be printed; its line breaks stand between values."""
    if written.isprintable():
        return written
    return "".join(one if one.isprintable() or one in _BETWEEN else _json_escape(one) for one in written)


def json_for(to: TextIO, value: Any, indent: int | None = None) -> str:
    """As JSON, in ASCII where `to` is not in UTF-8: how it escapes what it has no character for is no JSON."""
    in_utf_8 = str(to.encoding).lower() in ("utf-8", "utf8")
    return json.dumps(value, ensure_ascii=not in_utf_8, indent=indent)


def pictured(text: str) -> str:
    """Control characters as their pictures; what else cannot be printed, as a backslash escape."""
    return escaped(text.translate(PICTURES))


def print_line(text: str, to: TextIO | None) -> None:
    """Writes a line in one piece. `print` writes the line's end by itself where nothing is buffered, and what other
    threads or processes write to the same pipe or file comes between. None, as Python has it where the process was
    started with that stream closed: nobody reads it. Nobody reads it any more, or there is no room: the same."""
    if to is not None:
        try:
            to.write(f"{text}\n")
            to.flush()
        except BrokenPipeError:
            _lead_nowhere(to)
        except (OSError, ValueError):
            pass


def _lead_nowhere(to: TextIO) -> None:
    """What nobody reads any more is still held, and Python would write it once more at the process's end: then it says
    that an exception was ignored, and makes the exit code 120."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, to.fileno())
        os.close(nowhere)
        to.flush()


@lru_cache(4096)
def _escape(code: int) -> str:
    one = chr(code)
    return one if one.isprintable() else one.encode("unicode_escape").decode()


class _Escapes:
    """For str.translate: what stands for a character."""

    def __getitem__(self, code: int) -> str:
        return _escape(code)


_ESCAPES: Final = _Escapes()
_escape(ord("\n"))  # loads the codec now: later there may be no descriptor for its file, and a log says just that


def _json_escape(one: str) -> str:
    units = one.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
