"""An audit's result as files: `findings.parquet` for analysis, `result.json` whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

FINDINGS_SCHEMA = pa.schema(
    [
        ("class", pa.string()),
        ("severity", pa.string()),
        ("replicas", pa.list_(pa.string())),
        ("good", pa.list_(pa.string())),
        ("from_index", pa.int64()),
        ("to_index", pa.int64()),
        ("detail", pa.string()),
    ]
)


def write_out(directory: Path, result: dict[str, Any]) -> None:
    """Writes both files; an empty list of findings gives an empty table of the same schema."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [{name: row.get(name) for name in FINDINGS_SCHEMA.names} for row in result["findings"]]
    pq.write_table(pa.Table.from_pylist(rows, schema=FINDINGS_SCHEMA), directory / "findings.parquet")
    (directory / "result.json").write_text(json.dumps(result, indent=2) + "\n")
