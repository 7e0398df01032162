"""Which logs an audit of a classic pair is about, as they are when it begins; tasks need none of it.

The end of a log is behind its last message, or where its own mark says that it was flushed, whichever is further: what
a mark vouches for and the files do not hold is damage, no shorter log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from app.audit.pair_logs import PairLog
from app.audit.replicas import ReplicaSpec
from node.ha.lineage import read_lineage
from node.message_store.commit_log import COMMIT_LOG, local_commit_log
from node.message_store.errors import MessageStoreError
from node.message_store.local_mark import read_log_mark


def opened(specs: Sequence[ReplicaSpec]) -> list[PairLog]:
    """The master first, as named. Slaves are looked at before it, so that none seems ahead of a master that goes on."""
    names: list[str] = []
    for number, spec in enumerate(specs):
        name = spec.id or Path(spec.location).name or f"log-{number}"
        names.append(name if name not in names else f"{name}-{number}")
    slaves = [log_of(spec, name) for spec, name in zip(specs[1:], names[1:], strict=True)]
    return [log_of(specs[0], names[0]), *slaves]


def log_of(spec: ReplicaSpec, name: str) -> PairLog:
    """One directory's log; `problem` where it cannot be read."""
    root = Path(spec.location)
    try:
        log = local_commit_log(root)
        if not log.queue.folder.is_dir():
            return PairLog(name, spec.location, problem=f"there is no commit log in {root} (no folder {COMMIT_LOG}/)")
        mark, lineage = read_log_mark(root), read_lineage(root)
        file_bytes = mark.file_bytes if mark is not None else log.queue.file_size_bytes
        end = max(log.find_end(), mark.flushed if mark is not None else 0)
    except (MessageStoreError, OSError) as error:
        return PairLog(name, spec.location, problem=str(error))
    starts = tuple(one.start for one in log.queue.files if one.start < end)
    begin = starts[0] if starts else end
    return PairLog(name, spec.location, begin, end, file_bytes, starts, lineage.pair, lineage.epochs)
