"""The result of `audit --ha` for people: what it found and proves, the logs, then the findings, side by side."""

from __future__ import annotations

from typing import Any

from node.printable import escaped


def render_pair(result: dict[str, Any]) -> str:
    """The result for people."""
    out = [result["summary"], "", f"verdict  {result['verdict']} (ha)", f"proves   {result['proves']}"]
    for one in result["replicas"]:
        if one["problem"]:
            out.append(f"{one['id']:8} not read: {one['problem']}")
            continue
        said = f"{one['role']}, offsets {one['min_offset']:,} to {one['max_offset']:,}"
        said += f", files of {one['file_bytes']:,} bytes"
        out.append(f"{one['id']:8} {said}" + (f", epoch {one['epoch']}" if one["epoch"] is not None else ""))
    for gap in result["unaudited"]:
        if gap["from_index"] is not None:
            out.append(f"NOT READ {gap['replica']} {gap['from_index']:,} to {gap['to_index']:,}: {gap['reason']}")
    for lone in result["single_copy_ranges"]:
        out.append(f"only on  {lone['replica']}: {lone['from_index']:,} to {lone['to_index']:,}")
    for row in result["findings"]:
        out.append(f"{row['severity']:8} {row['class']:18} {row['detail']}")
        out.append(f"{'':27} means: {row['means']}")
        for side in row.get("sides", []):
            out.append(f"{'':27} {side_line(side)}")
    if result["findings_truncated"]:
        out.append(f"... {result['findings_total'] - len(result['findings']):,} more findings")
    out.append(f"{result['rows']:,} records read in {result['seconds']:.1f} s")
    return "\n".join(map(escaped, out))


def side_line(side: dict[str, Any]) -> str:
    what = side["flaw"] or f"{side['topic']} queue {side['queue_id']} offset {side['queue_offset']}"
    return (
        f"{', '.join(side['replicas'])}: {side['size_bytes']:,} bytes at {side['offset']:,}, CRC {side['crc']}: {what};"
        f" from {side['bytes_at']:,}: {side['bytes']}"
    )
