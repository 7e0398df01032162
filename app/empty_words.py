"""Refuses an empty word where a command line has to say where something lies: a path, an address, the members.

A script whose variable is not set writes `--into "$TARGET"`. pathlib takes "" for the current directory, and an empty
address reads as none given, so that a command would work on something that nobody named.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import typer

PLACES: Final = frozenset({"FILE", "[FILE]", "DIR", "[ID=]DIR", "[verify] DIR", "URL", "ID-HOST:PORT;…"})
WHY: Final = "it is empty; a variable that is not set, perhaps"


def refusing_empty(command: Any) -> Any:
    """The same command, and every one below it, with parameters that name a place refusing "" as a usage error."""
    for parameter in command.params:
        if names_a_place(parameter):
            parameter.process_value = partial(_checked, parameter, parameter.process_value)
    for below in getattr(command, "commands", {}).values():
        refusing_empty(below)
    return command


def names_a_place(parameter: Any) -> bool:
    """Whether it is a path, or text that its placeholder calls one."""
    annotation = parameter.type_descriptor.annotation
    return Path in (annotation, *get_args(annotation)) or parameter.metavar in PLACES


def _checked(parameter: Any, process: Any, context: Any, value: Any) -> Any:
    if value == "" or (isinstance(value, list | tuple) and "" in value):
        raise typer.BadParameter(WHY, ctx=context, param=parameter)
    return process(context, value)
