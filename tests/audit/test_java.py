"""Finding a Java for Spark, and the wrapper for a runtime without the vector module."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from app.audit import java


def fake_java(root: Path, version: str) -> Path:
    binary = root / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"""#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "{version}" 2025-04-15' >&2; exit; fi
for argument do echo "<$argument>"; done
""")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_402", 8), ("25.0.2", 25)])
def test_versions_are_read(tmp_path: Path, text: str, major: int) -> None:
    assert java.java_version(fake_java(tmp_path, text)) == major


def test_what_does_not_run_has_no_version(tmp_path: Path) -> None:
    assert java.java_version(tmp_path / "nothing") is None


def test_the_wrapper_drops_one_option_and_keeps_every_other_whole(tmp_path: Path) -> None:
    home = java.wrap_java(fake_java(tmp_path / "real", "25"), tmp_path / "wrapped")
    arguments = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "-Dx=$y 'z'", "", "Main"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-cp>", "<a b:*>", "<-Dx=$y 'z'>", "<>", "<Main>"]


def as_a_link(home: Path, elsewhere: Path) -> None:
    elsewhere.mkdir(0o700)
    home.symlink_to(elsewhere)


def that_others_may_write(home: Path, _elsewhere: Path) -> None:
    home.mkdir()
    home.chmod(0o777)


def with_a_link_for_its_programs(home: Path, elsewhere: Path) -> None:
    home.mkdir(0o700)
    elsewhere.mkdir(0o700)
    (home / "bin").symlink_to(elsewhere)


@pytest.mark.parametrize("lay", [as_a_link, that_others_may_write, with_a_link_for_its_programs])
def test_a_wrapper_is_started_from_no_place_that_somebody_else_prepared(
    tmp_path: Path, lay: Callable[[Path, Path], None]
) -> None:
    """Its place has a name that everybody knows, below /tmp."""
    home, elsewhere = tmp_path / "quorumscope-java", tmp_path / "elsewhere"
    lay(home, elsewhere)
    with pytest.raises(java.NoJava, match="remove it, or set JAVA_HOME"):
        java.wrap_java(fake_java(tmp_path / "real", "25"), home)
    assert not list(elsewhere.glob("**/java"))


@pytest.mark.parametrize("mode", [None, 0o755])
def test_a_wrappers_place_is_its_owners_whatever_the_umask(tmp_path: Path, mode: int | None) -> None:
    """Also one that an earlier version made."""
    if mode is not None:
        (tmp_path / "wrapped").mkdir(mode)
    before = os.umask(0)
    try:
        home = java.wrap_java(fake_java(tmp_path / "real", "25"), tmp_path / "wrapped")
    finally:
        os.umask(before)
    assert [one.stat().st_mode & 0o077 for one in (home, home / "bin", home / "bin" / "java")] == [0, 0, 0]


def test_an_old_java_is_passed_over_and_an_explicit_home_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    fake_java(old, "11.0.2")
    fake_java(new, "21.0.1")
    monkeypatch.setattr(java, "_system_homes", lambda: [old, new])
    assert java.find_java_home() == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.undo()
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.find_java_home() == new


def test_without_any_java_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_system_homes", list)
    monkeypatch.setattr(java, "_bundled_home", lambda: None)
    with pytest.raises(java.NoJava, match="openjdk-17-jre-headless"):
        java.find_java_home()
