"""`python -m node.store.backup`: restores a back-up, or tries whether it can be restored, in a process of its own.

The order is one JSON object on stdin, the result one on stdout. Exit code 0: done; 1: refused, or the back-up is
damaged, the reason on stderr; then nothing was restored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from node.operator_trail import OperatorTrail, login_name
from node.printable import escaped
from node.store.backup.manifest import LogBackup, check_files, read_manifest
from node.store.backup.restoring import TRAIL, Birth, alone_at, as_json, restore_group, restore_member
from node.store.backup.trial import try_restore
from node.store.errors import StoreError, StoreRefused

FINE, FINDING = 0, 1
TRY, MEMBER, GROUP = "try", "member", "group"
ACTIONS: Final = (TRY, MEMBER, GROUP)


def carry_out(order: Mapping[str, Any]) -> dict[str, Any]:
    """Raises StoreError, OSError."""
    source = Path(order["source"])
    manifest = read_manifest(source)
    if manifest is None:
        raise StoreRefused(f"{source} is no back-up: there is no manifest in it")
    check_files(source, manifest)
    if order["action"] == TRY:
        tried = try_restore(source, manifest, Path(order["scratch"]))
        return {"log": None if tried is None else asdict(tried) | {"entries": tried.entries}}
    if manifest.log is None:
        raise StoreRefused(f"{source} holds no log, only the console's database")
    done = _restored(order, source, manifest.log)
    return {"restored": done, "group_id": Birth(order["group"], order["token"]).group_id(manifest.log)}


def _restored(order: Mapping[str, Any], source: Path, log: LogBackup) -> list[Mapping[str, object]]:
    birth = Birth(order["group"], order["token"], order["voters"])
    target = Path(order["into"])

    def note(data: Path) -> None:
        """The first row of the new directory's trail."""
        trail = OperatorTrail(data / TRAIL)
        row = trail.begin(
            user_name=login_name(), role="-", via="command line", credential="", address="", method="", path="",
            action=f"restore of entries {log.begin_index} to {log.end_index}", target=str(source),
        )  # fmt: skip
        trail.end(row, 0, {"from_group": log.group, "from_group_id": log.group_id, "group_id": birth.group_id(log)})

    with alone_at(target, is_group=order["action"] == GROUP):
        if order["action"] == GROUP:
            return as_json(restore_group(source, log, target, birth, note))
        return as_json([restore_member(source, log, target, order["id"], birth, note)])


def main() -> int:
    try:
        result = carry_out(json.loads(sys.stdin.read()))
    except (StoreError, OSError) as error:
        print(escaped(f"backup: {error}"), file=sys.stderr)
        return FINDING
    print(json.dumps(result))
    return FINE
