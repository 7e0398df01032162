"""The container's recipe copies what a wheel is made of: all of it, and nothing else that lies in a clone (a console's
database and tokens under .quorumscope, a gigabyte under .venv). No container engine runs where this is tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "docs/deploy/container/Containerfile"


def test_it_copies_what_a_wheel_is_made_of_and_nothing_else() -> None:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", RECIPE.read_text(), re.MULTILINE)
    copied = {path.name for line in lines for word in line.split() for path in ROOT.glob(word)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["only-include"], *wheel["force-include"], project["project"]["readme"], "pyproject.toml"}
    needed |= set(project["project"]["license-files"]) | {path.name for path in ROOT.glob("requirements*.txt")}
    assert copied == needed
