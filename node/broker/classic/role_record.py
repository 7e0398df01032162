"""`DATA/quorumscope/role`: what a broker of a pair is from now on, where that is not what its configuration says.

Written by a promotion, by a master that met a later one, and by a slave, with what its master is: a promotion after a
restart makes it that, too. It counts more than the configuration, so that no restart makes a second master of a pair.

Invariant: on disk before what follows from it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from node.ha.settings import BrokerRole
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.write_files import Disk
from node.protocol.value_class import value_class

NAME: Final = "role"
WHY_LETTERS_MAX: Final = 1000


@value_class(slots=True, frozen=True)
class RoleRecord:
    """`master`: of a slave's record, what the master is that it follows; None: it followed none of ours yet."""

    role: BrokerRole
    why: str
    master: BrokerRole | None = None


def record_path(root: Path) -> Path:
    return root / OURS / NAME


def read_role(root: Path) -> RoleRecord | None:
    """None: there is none. Raises MessageStoreError."""
    path = record_path(root)
    try:
        said = json.loads(path.read_bytes())
        role, why = BrokerRole(said["role"]), str(said["why"])[:WHY_LETTERS_MAX]
        master = BrokerRole(said["master"]) if "master" in said else None
        if master is BrokerRole.SLAVE:
            raise ValueError("a slave is no master")
        return RoleRecord(role, why, master)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MessageStoreError(
            f"{path} cannot be read ({error}): it says which broker of the pair is master. Find out which one"
            ' is, and write {"role": "SLAVE", "why": "by hand"} into it on all others'
        ) from error


def write_role(root: Path, record: RoleRecord, disk: Disk) -> None:
    said = {"role": record.role.value, "why": record.why[:WHY_LETTERS_MAX]}
    if record.master is not None:
        said["master"] = record.master.value
    disk.replace(record_path(root), json.dumps(said).encode() + b"\n")
