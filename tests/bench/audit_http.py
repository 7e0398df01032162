"""How long an audit of real nodes over HTTP takes, cold start included.

`python -m tests.bench.audit_http [entries] [body bytes] [depth …]` prints one JSON object a depth. The aim for 200,000
entries of 256 bytes on each of three nodes, depth bytes, is 45 s on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.audit.launch import Lines, start_job, write_spec
from app.audit.replicas import ReplicaSpec
from tests.audit.nodes import nodes

AIM_S = 45.0


def audit(urls: tuple[str, ...], depth: str, directory: Path) -> tuple[dict[str, Any], float]:
    """The result and the wall time of the whole process."""
    write_spec(directory, [ReplicaSpec("http", url) for url in urls], depth=depth)
    started_s = time.monotonic()
    process: subprocess.Popen[bytes] = start_job(directory)
    process.wait()
    seconds = time.monotonic() - started_s
    last = list(Lines(directory).read())[-1]
    if last["event"] != "result":
        raise RuntimeError(f"the audit ended with {last}")
    return last["result"], seconds


def main() -> int:
    count, body_bytes = (int(sys.argv[n]) if len(sys.argv) > n else d for n, d in ((1, 200_000), (2, 256)))
    depths = sys.argv[3:] or ["bytes"]
    with tempfile.TemporaryDirectory(prefix="quorumscope-bench-") as root, nodes(Path(root)) as group:
        started_s = time.monotonic()
        group.fill(count, body_bytes)
        filled_s = time.monotonic() - started_s
        for depth in depths:
            result, seconds = audit(group.urls, depth, Path(root) / depth)
            reported = {
                "entries": count, "body_bytes": body_bytes, "depth": depth, "seconds": round(seconds, 1),
                "aim_s": AIM_S, "verdict": result["verdict"], "rows": result["rows"], "filled_s": round(filled_s, 1),
            }  # fmt: skip
            print(json.dumps(reported))
    return 0


if __name__ == "__main__":
    sys.exit(main())
