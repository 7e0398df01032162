"""How the code is built: modules of a readable length, composition, and processes that load no more than they need."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES_MAX = 400


def modules() -> list[Path]:
    return [path for part in ("node", "app") for path in sorted((ROOT / part).rglob("*.py"))]


def test_no_module_is_longer_than_can_be_read_at_once() -> None:
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    assert len(lines) > 300
    assert {name: count for name, count in lines.items() if count > LINES_MAX} == {}


def test_the_supervisor_loads_no_store() -> None:
    """It lives as long as its member and does next to nothing: numpy alone is several times its size."""
    say = (
        "import sys, node.__main__\n"
        "print(*(one for one in sys.modules if one.split('.')[0] in ('node', 'numpy', 'pydantic')))"
    )
    done = subprocess.run([sys.executable, "-c", say], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.split())
    assert "node.store.files.data_lock" in loaded
    assert not loaded & {"numpy", "pydantic", "node.protocol.entry", "node.store.log_store", "node.config"}


def test_a_majority_is_computed_in_one_place() -> None:
    """Where two formulas decide what a quorum is, one of them is wrong some day."""
    halves = {str(path.relative_to(ROOT)) for path in modules() if "voters) // 2" in path.read_text()}
    halves |= {str(path.relative_to(ROOT)) for path in (ROOT / "node").rglob("*.py") if "// 2 + 1" in path.read_text()}
    assert halves == {"node/protocol/quorum.py"}


# What may be inherited from: exceptions and models are values with a family; an interface has nothing to inherit but
# its promises. Bases of libraries (`uvicorn.Server`) are theirs to say.
INTERFACES = {"ABC", "Protocol"}
FAMILIES = {"Exception", "LookupError", "ValueError", "OSError", "BaseModel", "DeclarativeBase"}


def bases_of(definition: ast.ClassDef) -> list[str]:
    """Names only: `Base` of `class A(Base[T])`; a dotted base is a library's."""
    bases = [one.value if isinstance(one, ast.Subscript) else one for one in definition.bases]
    return [one.id for one in bases if isinstance(one, ast.Name)]


def inherited_code(sources: dict[str, str]) -> list[str]:
    """Classes that inherit from a class of ours which is no interface, no exception and no model."""
    ours: dict[str, list[str]] = {}
    found: list[tuple[str, str, list[str]]] = []
    for name, text in sources.items():
        for one in ast.walk(ast.parse(text)):
            if isinstance(one, ast.ClassDef):
                ours.setdefault(one.name, []).extend(bases_of(one))
                found.append((name, one.name, bases_of(one)))

    def of_a_family(base: str, below: frozenset[str] = frozenset()) -> bool:
        if base in FAMILIES:
            return True
        return base in ours and base not in below and any(of_a_family(one, below | {base}) for one in ours[base])

    def is_fine(base: str) -> bool:
        return base not in ours or bool(INTERFACES & set(ours[base])) or of_a_family(base)

    return [f"{name}: {own}({base})" for name, own, bases in found for base in bases if not is_fine(base)]


def test_no_class_is_split_over_files_by_inheritance() -> None:
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in modules()}
    assert inherited_code(sources) == []


def test_inherited_code_is_found() -> None:
    base = "class Store(LogStore): pass\nclass LogStore(ABC): pass\nclass Gone(StoreError): pass\n"
    assert (
        inherited_code({"a": base + "class StoreError(Exception): pass\n", "b": "class View(pydantic.X): pass"}) == []
    )
    assert inherited_code({"a": base, "b": "class Repair(Store): pass"}) == ["b: Repair(Store)"]
    assert inherited_code({"a": "class A(B): pass\nclass B(A): pass"}) == ["a: A(B)", "a: B(A)"]
