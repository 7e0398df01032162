"""`spark.read.format("dledger")`: the log of each replica as rows, for questions of one's own.

    spark.dataSource.register(DledgerDataSource)
    spark.read.format("dledger").option("replicas", "n0=http://127.0.0.1:8431;n1=/data/n1").load()

Options: `replicas` (`[ID=]URL-or-DIR`, separated by `;`), `from_index`, `to_index`, `token`, `ca_file` and
`block_entries`. Partitions are (replica, index range). Invariants: replica and range are options, never pushed filters
(a DataFrame that is filtered two ways in one query would return wrong rows); every index of a replica's range has a
row, and where the record is not sound `fault` says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from app.audit.blocks import CHUNK_BYTES, chunks
from app.audit.fence import ReplicaFence
from app.audit.records import Fault, Records, load, read_units
from app.audit.replicas import ReplicaSpec, open_replica
from app.audit.seals import check_seals
from app.audit.tasks import BLOCK_ENTRIES
from node.protocol.entry import HEAD_BYTES

SCHEMA = (
    "replica string, index long, term long, magic int, position long, head_pos long, channel int, chain_crc long,"
    " body_crc long, sealed boolean, fault string, body binary"
)
ARROW = pa.schema(
    [
        ("replica", pa.string()),
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("magic", pa.int32()),
        ("position", pa.int64()),
        ("head_pos", pa.int64()),
        ("channel", pa.int32()),
        ("chain_crc", pa.int64()),
        ("body_crc", pa.int64()),
        ("sealed", pa.bool_()),
        ("fault", pa.string()),
        ("body", pa.binary()),
    ]
)
_CONTEXT = 2


@dataclass
class RangePartition(InputPartition):  # type: ignore[misc]
    """One replica's index range, with all that a worker needs to read it."""

    spec: dict[str, Any]
    fence: dict[str, Any]
    from_index: int
    to_index: int

    def __post_init__(self) -> None:
        super().__init__((self.fence["id"], self.from_index, self.to_index))


class DledgerDataSource(DataSource):  # type: ignore[misc]
    """See the module's docstring."""

    @classmethod
    def name(cls) -> str:
        return "dledger"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: Any) -> DledgerReader:
        return DledgerReader(dict(self.options))


class DledgerReader(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: dict[str, str]) -> None:
        self.specs = specs_of(options)
        self.from_index = number_or_none(options, "from_index")
        self.to_index = number_or_none(options, "to_index")
        self.block = number_or_none(options, "block_entries") or BLOCK_ENTRIES

    def partitions(self) -> list[RangePartition]:
        from app.audit.fencing import fix_fence  # asked where the audit is planned; tasks need no pydantic

        fence = fix_fence(self.specs, self.from_index, self.to_index)
        unread = [f"{r.id}: {r.problem}" for r in fence.replicas if r.problem is not None]
        if unread:
            raise ValueError(f"dledger: cannot read {'; '.join(unread)}")
        return [
            RangePartition(asdict(spec), one.as_json(), low, min(low + self.block - 1, fence.end_within(one)))
            for spec, one in zip(self.specs, fence.replicas, strict=True)
            for low in range(fence.begin_within(one), fence.end_within(one) + 1, self.block)
        ]

    def read(self, partition: RangePartition) -> Iterator[Any]:
        fence = ReplicaFence.from_json(partition.fence)
        files = open_replica(ReplicaSpec.from_json(partition.spec), fence).files
        start = max(partition.from_index - _CONTEXT, fence.begin_index)
        units = read_units(files, start, partition.to_index)
        for low, high in chunks([units], [start], partition.from_index, partition.to_index, CHUNK_BYTES):
            first = max(low - _CONTEXT, start)
            records = load(files, first, high, units, start)
            check_seals(records, records.held, fence.sealed_range)
            yield batch_of(fence.id, records, low - first)


def specs_of(options: dict[str, str]) -> list[ReplicaSpec]:
    """`replicas` as written in an option. Raises ValueError."""
    named = [text.strip() for text in options.get("replicas", "").split(";") if text.strip()]
    if not named:
        raise ValueError("dledger: the option `replicas` names none, e.g. n0=http://127.0.0.1:8431;n1=/data/n1")
    specs = []
    for text in named:
        name, equals, location = text.partition("=")
        if not equals or "/" in name or ":" in name:
            name, location = "", text
        kind = "http" if location.startswith(("http://", "https://")) else "directory"
        specs.append(ReplicaSpec(kind, location, name or None, options.get("token"), options.get("ca_file")))
    return specs


def number_or_none(options: dict[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not text.isdigit():
        raise ValueError(f"dledger: the option {name} is {text!r}, not an index")
    return int(text)


def batch_of(replica: str, records: Records, start: int) -> Any:
    """Rows `start`.. of the records as one Arrow batch whose schema is exactly ARROW."""
    rows = slice(start, None)
    heads, sizes = records.heads[rows], records.sizes[rows]
    absent = sizes == 0
    broken = (records.faults[rows] & (Fault.RECORD | Fault.MISSING | Fault.UNREAD)) != 0
    lengths = np.maximum(sizes - HEAD_BYTES, 0)
    ends = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=ends[1:])
    values = records.buf[_body_mask(records)]
    skipped = int(np.maximum(records.sizes[:start] - HEAD_BYTES, 0).sum())
    valid = pa.array(~absent).buffers()[1]
    body = pa.Array.from_buffers(
        pa.binary(), len(lengths), [valid, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(values[skipped:]))]
    )

    def column(name: str, kind: Any, dtype: Any) -> Any:
        return pa.array(heads[name].astype(dtype), type=kind, mask=absent)

    sealed = (heads["chain_crc"] != 0) | (heads["body_crc"] != 0)
    faults = [_fault_text(value) for value in records.faults[rows].tolist()]
    columns = [
        pa.array([replica] * len(lengths), type=pa.string()),
        pa.array(np.arange(len(lengths), dtype=np.int64) + records.first_index + start),
        column("term", pa.int64(), np.int64),
        column("magic", pa.int32(), np.int32),
        pa.array(records.positions[rows], mask=absent),
        column("pos", pa.int64(), np.int64),
        column("channel", pa.int32(), np.int32),
        column("chain_crc", pa.int64(), np.int64),
        column("body_crc", pa.int64(), np.int64),
        pa.array(sealed, mask=absent | broken),
        pa.array(faults, type=pa.string()),
        body,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _body_mask(records: Records) -> Any:
    """Which bytes of the buffer belong to bodies."""
    rows = np.flatnonzero(records.sizes)
    mask = np.ones(len(records.buf), dtype=np.bool_)
    if len(rows):
        heads = records.offsets[rows][:, None] + np.arange(HEAD_BYTES)
        mask[heads.reshape(-1)] = False
    return mask


def _fault_text(faults: int) -> str | None:
    if not faults:
        return None
    return ",".join(str(fault.name).lower() for fault in Fault if fault and faults & fault)
