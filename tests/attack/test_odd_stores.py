"""Directories that come from somebody else, looked at and backed up: files that are links, devices, FIFOs, of a size
that no disk has, of a name far behind all others, or twice. Drawn from a seed (ATTACK_SEED has others drawn).

A command ends, in words, and nothing from outside of the directory is in what it shows or makes.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from app.cli import run as run_cli
from app.commands.endings import Exit
from tests.attack.remoting_kit import drawn
from tests.unit.backup_kit import make_member

SECRET: Final = b"hush-4711 "
Odd = Callable[[random.Random, Path, Path], None]


def newest(rng: random.Random, store: Path) -> Path:
    return sorted((store / rng.choice(["data", "index"])).iterdir())[-1]


def a_link_outside(rng: random.Random, store: Path, outside: Path) -> None:
    file = newest(rng, store)
    file.unlink()
    file.symlink_to(outside)


def a_folder_outside(rng: random.Random, store: Path, outside: Path) -> None:
    folder = store / rng.choice(["data", "index"])
    shutil.rmtree(folder)
    folder.symlink_to(rng.choice([outside.parent, Path()]))


def a_second_name(rng: random.Random, store: Path, outside: Path) -> None:
    file = newest(rng, store)
    file.unlink()
    os.link(outside, file)


def a_device(rng: random.Random, store: Path, _outside: Path) -> None:
    file = newest(rng, store)
    file.unlink()
    file.symlink_to(rng.choice(["/dev/zero", "/dev/full", "/dev/tty"]))


def a_fifo(rng: random.Random, store: Path, _outside: Path) -> None:
    file = rng.choice([newest(rng, store), store / "hardstate", store / "quorumscope.json", store / "checkpoint"])
    file.unlink()
    os.mkfifo(file)


def a_file_without_end(rng: random.Random, store: Path, _outside: Path) -> None:
    os.truncate(newest(rng, store), rng.randrange(1 << 36, 1 << 42))


def a_file_far_behind(rng: random.Random, store: Path, _outside: Path) -> None:
    file = newest(rng, store)
    far = rng.choice([1 << 62, 10**20 - 1, (1 << 63) - 1, rng.randrange(1, 4096)])
    shutil.copy(file, file.with_name(f"{far:020d}"))


def a_file_of_another_name(rng: random.Random, store: Path, _outside: Path) -> None:
    file = newest(rng, store)
    for name in rng.sample(
        [f"{file.name}.bak", f"0{file.name}", "٠" * 20, "-1", "..x", "a\nb\x1b[2J", f" {file.name}"], 4
    ):
        shutil.copy(file, file.with_name(name))


ODD: Final[list[Odd]] = [
    a_link_outside, a_folder_outside, a_second_name, a_device, a_fifo, a_file_without_end, a_file_far_behind,
    a_file_of_another_name,
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.__name__)
def test_a_directory_of_strangers_ends_no_command_otherwise_than_in_words(
    tmp_path: Path, odd: Odd, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = drawn(odd.__name__)
    make_member(tmp_path / "a", rng.randrange(1, 4), rng.randrange(1, 40)).close()
    outside = tmp_path / "outside" / f"{0:020d}"
    outside.parent.mkdir()
    outside.write_bytes(SECRET * rng.randrange(1, 2000))
    store = tmp_path / "a" / "dledger-n0"
    odd(rng, store, outside)
    before = outside.read_bytes()
    back_up = str(tmp_path / "b")
    for words in (
        ["store", "verify", str(store)],
        ["store", "inspect", str(store)],
        ["backup", back_up, "--data", str(store)],
    ):
        code = run_cli(words)
        said = capsys.readouterr()
        assert code in (Exit.FINE, Exit.FINDING, Exit.UNDETERMINED, Exit.USAGE), words
        assert "Traceback" not in said.err, said.err
        assert SECRET.decode() not in said.out + said.err and "\x1b" not in said.out + said.err
    assert outside.read_bytes() == before
    for file in (tmp_path / "b").rglob("*"):
        assert not file.is_symlink() and (file.is_dir() or SECRET not in file.read_bytes())
