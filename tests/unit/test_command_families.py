"""Only the modules of the command that is asked for are imported: the table that says which are its own is complete."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from inspect import signature

import pytest

import app.commands
from app.command_line import ALL, FAMILIES

TREE = """
import json, sys
from contextlib import redirect_stdout
import io
import typer
from app import command_line
command_line.bring_in(sys.argv[1:])
def tree(command):
    return {name: tree(one) for name, one in command.commands.items()} if hasattr(command, "commands") else {}
brought = {name: tree(one) for name, one in typer.main.get_command(command_line.app).commands.items()}
print(json.dumps([brought, sorted(name for name in sys.modules if name.startswith("app.commands."))]))
"""


def brought_in(*words: str) -> tuple[dict[str, object], list[str]]:
    """Commands with theirs, and what of app/commands was imported, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", TREE, *words], capture_output=True, text=True, check=True)
    commands, modules = json.loads(done.stdout)
    return commands, modules


def test_every_module_that_registers_with_the_whole_is_named() -> None:
    modules = {
        one.name: import_module(f"app.commands.{one.name}") for one in pkgutil.iter_modules(app.commands.__path__)
    }
    given = {
        name: list(signature(one.register).parameters) for name, one in modules.items() if hasattr(one, "register")
    }
    assert set(ALL) == {name for name, given_names in given.items() if given_names != ["commands"]}  # of one family


@pytest.mark.parametrize("words", [[], ["--help"], ["no-such-command"]])
def test_where_no_command_is_named_all_are_there(words: list[str]) -> None:
    assert set(brought_in(*words)[0]) == set(FAMILIES)


@pytest.mark.parametrize("name", ["store", "topic", "status"])
def test_a_command_is_the_same_alone(name: str) -> None:
    everything, modules = brought_in()
    alone, fewer = brought_in(name)
    assert alone[name] == everything[name]
    assert len(fewer) < len(modules) / 2
