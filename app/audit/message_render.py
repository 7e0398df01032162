"""The result of `audit --messages` for people: the sentence, what it proves, the replicas, then the findings."""

from __future__ import annotations

from typing import Any

from node.printable import escaped


def render_messages(result: dict[str, Any]) -> str:
    """The result for people."""
    out = [result["summary"], "", f"verdict  {result['verdict']} (messages)", f"proves   {result['proves']}"]
    for one in result["replicas"]:
        if one["problem"]:
            out.append(f"{one['id']:8} not read: {one['problem']}")
        else:
            span = f"offsets {one['min_offset']:,} to {one['max_offset']:,}"
            out.append(f"{one['id']:8} {one['kind']}, {span}, {one['messages']:,} messages")
    for row in result["findings"]:
        where = f" in {row['file']}" if row["file"] else ""
        out.append(f"{row['severity']:8} {row['class']:24} {', '.join(row['replicas'])}{where}: {row['detail']}")
        out.append(f"{'':33} means: {row['means']}")
    if result["findings_truncated"]:
        out.append(f"... {result['findings_total'] - len(result['findings']):,} more findings")
    out.append(f"{result['rows']:,} messages read in {result['seconds']:.1f} s")
    return "\n".join(map(escaped, out))
