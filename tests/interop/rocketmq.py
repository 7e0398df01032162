"""The recorded directories of RocketMQ's message store, for the tests that read them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from node.message_store.index_file import IndexFile


@cache
def manifest_of(store: Path) -> dict[str, Any]:
    """What the real store had in memory while it wrote this directory."""
    path = store / "manifest.json"
    loaded: dict[str, Any] = json.loads((path if path.exists() else store.parent / "manifest.json").read_bytes())
    return loaded


def commit_log_bytes(store: Path) -> tuple[bytes, int]:
    """All of the commit log, old files and the replicated log, and the offset at which it begins."""
    files = sorted(
        (path for folder in ("commitlog", "dledger-n0/data") for path in (store / folder).glob("0*")),
        key=lambda path: path.name,
    )
    return b"".join(path.read_bytes() for path in files), int(files[0].name)


def index_rows(file: IndexFile) -> list[list[int]]:
    """As the manifests have them: number, hash, offset, seconds, the entry before."""
    return [[number, *row] for number, row in enumerate(file.entries.tolist(), start=1)]


def copied(source: Path, target: Path) -> Path:
    """A copy that may be written to; over what is there already."""
    shutil.copytree(source, target, dirs_exist_ok=True, copy_function=shutil.copyfile)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def whole(store: Path, target: Path) -> Path:
    """A copy with all files that the real store had: those that an upgrade left alone are in `store/data` only."""
    if store.name == "upgraded":
        copied(store.parents[1] / "store" / "data" / "commitlog", target / "commitlog")
    return copied(store, target)


def case_of(vectors: Path, name: str, target: Path) -> tuple[Path, dict[str, Any]]:
    """A store as a recovery left it, and what it had in memory then. Only cases that have all their files."""
    folder = vectors / "rocketmq" / "store-cases"
    case: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())["cases"][name]
    root = copied(vectors / "rocketmq" / "store" / "data", target)
    if (folder / name).is_dir():
        copied(folder / name, root)
    for gone in [path for path in root.rglob("*") if path.is_file()]:
        if str(gone.relative_to(root)) not in case["filesAfter"]:
            gone.unlink()
    for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    sizes = {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}
    assert sizes == case["filesAfter"]
    return root, case
