"""What the tests need beyond Python packages: Debian's Chromium, installed where that is possible.

`python -m tests.prepare`. Where the browser cannot be had, the browser tests are reported as NOT RUN and the run fails,
unless QUORUMSCOPE_WAIVE names them ("browser").
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    """The path of an installed Chromium, or None."""
    return next((path for name in CHROMIUM_NAMES if (path := shutil.which(name))), None)


def install_chromium() -> None:
    """Asks apt for Chromium; silent success is checked by the caller with `find_chromium`."""
    if shutil.which("apt-get") is None:
        return
    sudo = [] if os.geteuid() == 0 else (["sudo", "-n"] if shutil.which("sudo") else None)
    if sudo is None:
        return
    print("prepare: installing Debian's chromium for the browser tests", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium"],
    ):
        done = subprocess.run([*sudo, *command], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            print(f"prepare: {' '.join(command)} failed with {done.returncode}", file=sys.stderr)


def main() -> int:
    if find_chromium() is None:
        install_chromium()
    path = find_chromium()
    if path:
        print(f"prepare: browser tests use {path}")
        return 0
    waived = "browser" in os.environ.get("QUORUMSCOPE_WAIVE", "").split(",")
    print("NOT RUN: browser tests (no Chromium; install Debian's package `chromium`)", file=sys.stderr)
    if waived:
        return 0
    print("To go on without them: QUORUMSCOPE_WAIVE=browser make test", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
