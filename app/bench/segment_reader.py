"""Reads a member's data files over REST at a given pace: `python -m app.bench.segment_reader HOST:PORT MB_PER_S`.

Again and again, in a process of its own, so that whoever measures can stop and continue it with signals. Prints the
bytes read so far, a line every second.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from typing import Final

READ_BYTES: Final = 4 << 20
RETRY_S: Final = 0.2


def read_for_ever(host: str, port: int, bytes_per_s: float) -> None:
    """Until it is killed."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    total, credit_from, said_at = 0, time.monotonic(), 0.0
    position, name = 0, ""
    while True:
        try:
            if not name:
                connection.request("GET", "/api/v1/segments")
                items = json.loads(connection.getresponse().read())["items"]
                name = [item["name"] for item in items if item["kind"] == "data"][-1]
                position = 0
            last = position + READ_BYTES - 1
            connection.request("GET", f"/api/v1/segments/data/{name}", headers={"range": f"bytes={position}-{last}"})
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError):
            connection.close()
            time.sleep(RETRY_S)
            continue
        if answer.status != 206 and answer.status != 200:  # the end, for now: begin again
            name = ""
            time.sleep(0.01)
            continue
        position += len(content)
        total += len(content)
        now = time.monotonic()
        if now - said_at >= 1.0:
            print(total, flush=True)
            said_at = now
        wait_s = credit_from + len(content) / bytes_per_s - now
        credit_from = max(now, credit_from + len(content) / bytes_per_s)  # a pause is not caught up with
        if wait_s > 0:
            time.sleep(wait_s)


if __name__ == "__main__":
    address_host, _, address_port = sys.argv[1].rpartition(":")
    read_for_ever(address_host, int(address_port), float(sys.argv[2]) * 1e6)
