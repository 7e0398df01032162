"""Where the console's templates, static files, migrations and pages of documentation are, in a checkout and installed.

A checkout has them in folders of their own beside `app` (ARCHITECTURE.md); the wheel carries them in `app/_data`
(pyproject.toml, `[tool.hatch.build.targets.wheel.sources]`). Invariant: nothing else knows that there are two places.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final, Literal

INSTALLED: Final = "_data"
Resource = Literal["templates", "static", "migrations", "docs"]


def code_root() -> Path:
    """The folder that `app` and `node` lie in: what a process needs on its path to import this very code."""
    return Path(str(files("app"))).resolve().parent


def resource(name: Resource) -> Path:
    """One of the folders. Raises FileNotFoundError where the installation is broken."""
    tried = (code_root() / "app" / INSTALLED / name, code_root() / name)
    for folder in tried:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name} is neither at {tried[0]} nor at {tried[1]}: install quorumscope again")
