"""Commands that sentences of the source print between backticks can be given as they stand there."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.command_line import _registered, bring_in, put_together

PRINTED = re.compile(r"`quorumscope ([^`]+)`")
GAP = "GAP"  # in place of what a sentence puts in


def sentences() -> Iterator[tuple[str, str]]:
    """Every text of the source but docstrings, and where it is."""
    for path in [*Path("node").rglob("*.py"), *Path("app").rglob("*.py")]:
        tree = ast.parse(path.read_text())
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docs = {id(one.body[0].value) for one in ast.walk(tree)
                if isinstance(one, documented) and one.body and isinstance(one.body[0], ast.Expr)}  # fmt: skip
        for one in ast.walk(tree):
            if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docs:
                yield one.value, f"{path}:{one.lineno}"
            elif isinstance(one, ast.JoinedStr):
                parts = [str(part.value) if isinstance(part, ast.Constant) else GAP for part in one.values]
                yield "".join(parts), f"{path}:{one.lineno}"


def wrong_with(command: Any, words: list[str]) -> str | None:
    while words and hasattr(command, "commands"):
        if words[0] not in command.commands:
            return f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if not words:
        return None  # the name of a command or a family, and no line to be given
    options = [one for one in command.params if one.param_type_name == "option"]
    known = {name for one in options for name in (*one.opts, *one.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    missing = [one.opts[0] for one in options if one.required and not given & set(one.opts)]
    return f"unknown {given - known}, missing {missing}" if given - known or missing else None


def test_they_have_the_options_that_the_command_line_knows_and_wants() -> None:
    bring_in(["--help"])
    root = put_together(frozenset(_registered))
    found, wrong = 0, []
    for text, where in sentences():
        for line in PRINTED.findall(text):
            found += 1
            reason = wrong_with(root, shlex.split(re.sub(r"\{\w*\}", GAP, line)))
            wrong += [f"{where}: {line}: {reason}"] if reason else []
    assert wrong == [] and found > 30
