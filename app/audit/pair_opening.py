"""Which logs an audit of a classic pair is about, as they are when it begins; tasks need none of it.

A directory's log is what its files say (`node/message_store/log_span.py`), a broker's what its control plane says.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from app.audit.fence import FenceError
from app.audit.pair_logs import PairLog
from app.audit.replicas import FENCE_TIMEOUT_S, ControlPlane, ReplicaSpec
from app.audit.segments import ReadFailed
from node.ha.lineage import read_lineage
from node.message_store.errors import MessageStoreError
from node.message_store.log_span import span_of
from node.views.ha import HA_FILES_MAX, HaLog


def master_first(specs: Sequence[ReplicaSpec]) -> list[ReplicaSpec]:
    """The broker that takes messages before the others; in the order in which they were named where none says that it
    does, or several do: what two masters hold is compared all the same."""
    masters = [one for one in specs if one.kind == "http" and _is_master(one)]
    if len(masters) != 1:
        return list(specs)
    return [*masters, *(one for one in specs if one is not masters[0])]


def _is_master(spec: ReplicaSpec) -> bool:
    try:
        return _said_by(spec).is_master is True
    except (ReadFailed, ValidationError):
        return False


def opened(specs: Sequence[ReplicaSpec]) -> list[PairLog]:
    """The master first, as named. Slaves are looked at before it, so that none seems ahead of a master that goes on.

    Raises FenceError.
    """
    names: list[str] = []
    for number, spec in enumerate(specs):
        name = spec.id or Path(spec.location).name or f"log-{number}"
        names.append(name if name not in names else f"{name}-{number}")
    slaves = [log_of(spec, name) for spec, name in zip(specs[1:], names[1:], strict=True)]
    logs = [log_of(specs[0], names[0]), *slaves]
    for number, one in enumerate(logs):
        for other in logs[:number]:
            if one.id == other.id:
                raise FenceError(f"{one.id} is named twice: {other.source} and {one.source}")
    return logs


def log_of(spec: ReplicaSpec, name: str) -> PairLog:
    """One log; `problem` where it cannot be read."""
    return _of_broker(spec, name) if spec.kind == "http" else _of_directory(spec, name)


def _of_directory(spec: ReplicaSpec, name: str) -> PairLog:
    root = Path(spec.location)
    try:
        found, lineage = span_of(root), read_lineage(root)
    except (MessageStoreError, OSError) as error:
        return PairLog(name, spec.location, problem=str(error))
    return PairLog(
        name, spec.location, found.begin, found.end, found.file_bytes, found.starts, lineage.pair, lineage.epochs
    )


def _of_broker(spec: ReplicaSpec, name: str) -> PairLog:
    try:
        said = _said_by(spec)
    except ReadFailed as error:
        return PairLog(name, spec.public, problem=str(error))
    except ValidationError as error:
        return PairLog(name, spec.public, problem=f"what it says of its log is no answer: {error.errors()[0]['msg']}")
    size_bytes = said.end_offset - said.begin_offset
    if size_bytes < 0 or said.file_bytes < 1 or size_bytes > HA_FILES_MAX * said.file_bytes:
        return PairLog(name, spec.public, problem="what it says of its log cannot be")
    starts = tuple(one for one in said.files if one % said.file_bytes == 0)
    epochs = tuple((one.epoch, one.start) for one in said.epochs)
    return PairLog(
        spec.id or said.self_id, spec.public, said.begin_offset, said.end_offset, said.file_bytes, starts,
        said.pair or "", epochs, version=said.version,
    )  # fmt: skip


def _said_by(spec: ReplicaSpec) -> HaLog:
    """Raises ReadFailed, ValidationError."""
    plane = ControlPlane(spec, FENCE_TIMEOUT_S)
    try:
        return HaLog.model_validate(plane.get_json("/ha/log"))
    finally:
        plane.close()
