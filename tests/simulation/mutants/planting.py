"""Planting a bug into the production code of this process, and taking it out again.

A mutant is a handful of edits: in one function, one piece of source text is replaced by another one, and the function
gets the code that the new text compiles to. So the rest of the function stays what it is today, and an edit whose text
is not there exactly once (because the code has changed) fails loudly instead of doing nothing. The new text speaks to a
`Tally` by the name `MUTANT`, which counts how often the wrong path was not the right one as well: a mutant that never
differed has proved nothing.

Invariants: no production code knows of this; whatever happens inside a planting, the functions get their own code back;
the code object is exchanged, never the function, so that every name under which it was imported sees the change.
"""

from __future__ import annotations
import __future__

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import CodeType, FunctionType
from typing import Any, TypeVar

T = TypeVar("T")
HOOK = "MUTANT"


class PlantingError(Exception):
    """The production code is not what this mutant was written for: write the mutant anew."""


class Tally:
    """What a planted piece of code calls. `differed` counts how often the bug made a difference where it lies."""

    def __init__(self) -> None:
        self.differed = 0

    def instead(self, right: T, wrong: T) -> T:
        """The wrong value; counted where it is not the right one."""
        self.differed += right != wrong
        return wrong

    def ignored(self, condition: object) -> bool:
        """A test whose outcome is taken no notice of; counted where it holds."""
        self.differed += bool(condition)
        return False

    def left_out(self, *_unused: object) -> None:
        """Stands in place of a statement that the right code has."""
        self.differed += 1


@dataclass(slots=True, frozen=True)
class Edit:
    """In `target` ("package.module:Class.function") the text `old`, which is there once, becomes `new`."""

    target: str
    old: str
    new: str


def ignored(target: str, condition: str) -> Edit:
    """A test is dropped: as if the condition never held."""
    return Edit(target, condition, f"{HOOK}.ignored({condition})")


def swapped(target: str, right: str, wrong: str) -> Edit:
    """Another value is taken; both expressions are free of side effects."""
    return Edit(target, right, f"{HOOK}.instead({right}, {wrong})")


def left_out(target: str, statement: str) -> Edit:
    """A whole statement is missing."""
    return Edit(target, statement, f"{HOOK}.left_out()")


@dataclass(slots=True, frozen=True)
class Mutant:
    """One planted bug: the rule of SAFETY.md that it breaks, and the kind of world (fields of its swarm) to find it."""

    name: str
    rule: str
    about: str
    edits: tuple[Edit, ...]
    profile: Mapping[str, Any] = field(default_factory=dict)
    helpers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)  # names that the new texts use
    world: str = "core"  # which world hunts it: that of the core, or the real driver's (tests/simulation/driver)
    # What the world does not do by itself, and the right code stands: planted with the bug, and without it as well.
    cause: tuple[Edit, ...] = ()
    lasts: int = 1  # so many times as long as others' worlds: what has to happen first takes its time

    def plant(self) -> AbstractContextManager[Tally]:
        """The bug is in this process while the context lasts. Raises PlantingError before anything has changed."""
        return self._plant((*self.cause, *self.edits))

    def plant_cause(self) -> AbstractContextManager[Tally]:
        """Only what the right code has to stand."""
        return self._plant(self.cause)

    @contextmanager
    def _plant(self, all_edits: tuple[Edit, ...]) -> Iterator[Tally]:
        tally = Tally()
        names = {HOOK: tally, **self.helpers}
        planned: list[tuple[FunctionType, CodeType]] = []
        for target in dict.fromkeys(edit.target for edit in all_edits):
            function = find(target)
            edits = [edit for edit in all_edits if edit.target == target]
            planned.append((function, _edited(function, target, edits)))
            taken = names.keys() & function.__globals__.keys()
            if taken:
                raise PlantingError(f"{target}: {sorted(taken)} mean something in that module already")
        before = [(function, function.__code__) for function, _code in planned]
        try:
            for function, code in planned:
                function.__globals__.update(names)
                function.__code__ = code
            yield tally
        finally:
            for function, code in before:
                function.__code__ = code
                for name in names:
                    function.__globals__.pop(name, None)


def find(target: str) -> FunctionType:
    """The function that "package.module:Class.function" names; a property's getter for a property."""
    module_name, _, path = target.partition(":")
    found: Any = importlib.import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise PlantingError(f"{target}: there is no {name!r} any more")
        found = getattr(found, name)
    if isinstance(found, property):
        found = found.fget
    found = getattr(found, "__func__", found)
    if not isinstance(found, FunctionType):
        raise PlantingError(f"{target} is no function but a {type(found).__name__}")
    return found


def _edited(function: FunctionType, target: str, edits: list[Edit]) -> CodeType:
    lines, first_line = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    code = _compiled(source, function, first_line)
    if code.co_code != function.__code__.co_code:
        raise PlantingError(f"{target}: its source on disk is not what this process runs")
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise PlantingError(f"{target}: {edit.old!r} is there {count} times; the code has changed")
        source = source.replace(edit.old, edit.new)
    try:
        return _compiled(source, function, first_line)
    except SyntaxError as error:
        raise PlantingError(f"{target}: the edited text does not compile: {error}") from error


def _compiled(source: str, function: FunctionType, first_line: int) -> CodeType:
    tree = ast.parse(source)
    made = tree.body[0]
    if not isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef) or function.__code__.co_freevars:
        raise PlantingError(f"{function.__qualname__} is no plain function: it cannot be edited")
    made.decorator_list.clear()
    ast.increment_lineno(tree, first_line - 1)
    tree.body[:0] = _imports(function.__module__)  # the compiler calls what a module imported in a way of its own
    flags = __future__.annotations.compiler_flag
    whole = compile(tree, function.__code__.co_filename, "exec", flags=flags, dont_inherit=True)
    for constant in whole.co_consts:
        if isinstance(constant, CodeType) and constant.co_name == function.__name__:
            return constant.replace(co_qualname=function.__qualname__)
    raise PlantingError(f"{function.__qualname__}: its code was not found in what was compiled")


@cache
def _imports(module_name: str) -> list[ast.stmt]:
    """The import statements of a module, as far as its names are concerned."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module_name)))
    found = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return [node for node in found if not (isinstance(node, ast.ImportFrom) and node.module == "__future__")]
