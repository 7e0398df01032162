"""What the tests need beyond Python packages, installed from Debian where that is possible.

`python -m tests.prepare`. What cannot be had is reported as NOT RUN and the run fails, unless QUORUMSCOPE_WAIVE names
it (`QUORUMSCOPE_WAIVE=browser,promtool`). Of `prometheus` only one file is taken, and nothing is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
EXTRACTED: Final = Path(__file__).resolve().parents[1] / ".venv" / "debian"


class Tool(NamedTuple):
    """`name` is what QUORUMSCOPE_WAIVE calls it; `get` tries to make `find` find it."""

    name: str
    tests: str
    package: str
    find: Callable[[], Path | str | None]
    get: Callable[[str], None]


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def find_postgresql() -> Path | None:
    """The folder of the server's programs, of the newest one installed."""
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    folders = [one for one in folders if (one / "pg_ctl").exists()]
    return max(
        folders, key=lambda one: [int(part) for part in one.parent.name.split(".") if part.isdigit()], default=None
    )


def find_promtool() -> str | None:
    return shutil.which("promtool", path=f"{os.environ.get('PATH', '')}{os.pathsep}{EXTRACTED}")


def find_systemd() -> str | None:
    return shutil.which("systemd-analyze")


def waived(name: str) -> bool:
    return name in os.environ.get("QUORUMSCOPE_WAIVE", "").split(",")


def apt(*words: str, root: bool = True, cwd: Path | None = None) -> bool:
    """Whether that worked; complaints go to stderr."""
    sudo = [] if not root or os.geteuid() == 0 else (["sudo", "-n"] if shutil.which("sudo") else None)
    if sudo is None or shutil.which("apt-get") is None:
        return False
    # RUNLEVEL: packages of servers start none of them.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    command = [*sudo, "apt-get", "-q", *words]
    done = subprocess.run(command, env=environment, cwd=cwd, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(f"prepare: {' '.join(command)} failed with {done.returncode}", file=sys.stderr)
    return done.returncode == 0


def install(package: str) -> None:
    apt("update")
    apt("install", "-y", "--no-install-recommends", package)


def extract_promtool(package: str) -> None:
    """That one program out of Debian's package, which would install a server."""
    if shutil.which("dpkg-deb") is None:
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if not apt("download", package, root=False, cwd=folder):
            apt("update")
            apt("download", package, root=False, cwd=folder)
        for path in folder.glob("*.deb"):
            files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(path)], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "./usr/bin/promtool"], stdin=files.stdout, cwd=folder, check=False)
            files.communicate()
        found = folder / "usr/bin/promtool"
        if found.exists():
            EXTRACTED.mkdir(parents=True, exist_ok=True)
            shutil.move(found, EXTRACTED / "promtool")


TOOLS: Final = (
    Tool("browser", "browser tests", "chromium", find_chromium, install),
    Tool("postgresql", "tests on PostgreSQL", "postgresql", find_postgresql, install),
    Tool("promtool", "tests of the Prometheus rules", "prometheus", find_promtool, extract_promtool),
    Tool("systemd", "tests of the systemd units", "systemd", find_systemd, install),
)


def missing() -> list[Tool]:
    """What this machine lacks."""
    return [one for one in TOOLS if one.find() is None]


def main() -> int:
    for tool in missing():
        print(f"prepare: getting Debian's {tool.package} for the {tool.tests}", flush=True)
        tool.get(tool.package)
    for tool in TOOLS:
        if (path := tool.find()) is not None:
            print(f"prepare: {tool.tests} use {path}")
    lacking = missing()
    for tool in lacking:
        print(f"NOT RUN: {tool.tests} (install Debian's package `{tool.package}`)", file=sys.stderr)
    names = [tool.name for tool in lacking if not waived(tool.name)]
    if names:
        print(f"To go on without them: QUORUMSCOPE_WAIVE={','.join(names)} make test", file=sys.stderr)
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
