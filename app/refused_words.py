"""Refuses words that no command can use, before any does: an empty one where a command line has to say where something
lies (a path, an address, the members), and text that is not UTF-8 and names no file.

A script whose variable is not set writes `--into "$TARGET"`. pathlib takes "" for the current directory, and an empty
address reads as none given, so that a command would work on something that nobody named. Bytes that are no UTF-8 (in
the C locale with PYTHONUTF8=0, all but ASCII) reach Python as halves of surrogate pairs, which no request carries.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import typer

PATHS: Final = frozenset({"FILE", "[FILE]", "DIR", "[ID=]DIR", "[verify] DIR"})  # whatever bytes a file's name has
PLACES: Final = PATHS | {"URL", "ID-HOST:PORT;…"}
RAW: Final = frozenset({"key", "value", "old", "new", "from_key", "to_key", "prefix", "bodies"})  # bytes
WHY: Final = "it is empty; a variable that is not set, perhaps"


def refusing(command: Any) -> Any:
    """The same command, and every one below it, with parameters that refuse such words as usage errors."""
    for parameter in command.params:
        if is_given_as(parameter, Path) or is_given_as(parameter, str):
            parameter.process_value = partial(_checked, parameter, parameter.process_value)
    for below in getattr(command, "commands", {}).values():
        refusing(below)
    return command


def is_given_as(parameter: Any, kind: type) -> bool:
    annotation = parameter.type_descriptor.annotation
    return kind in (annotation, *get_args(annotation))


def names_a_place(parameter: Any) -> bool:
    """Whether it is a path, or text that its placeholder calls one."""
    return is_given_as(parameter, Path) or parameter.metavar in PLACES


def is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(parameter: Any, process: Any, context: Any, value: Any) -> Any:
    words = value if isinstance(value, list | tuple) else [value]
    if "" in words and names_a_place(parameter):
        raise typer.BadParameter(WHY, ctx=context, param=parameter)
    if is_given_as(parameter, str) and parameter.metavar not in PATHS and parameter.name not in RAW:
        for word in words:
            if isinstance(word, str) and not is_text(word):
                raise typer.BadParameter(f"{word!a} is no text in UTF-8", ctx=context, param=parameter)
    return process(context, value)
