"""`python -m tests.unit.openapi_examples`: writes what a console answers to each call of its API into its document."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from app.api.openapi import EXAMPLES_FILE
from tests.unit.console_tour import toured


def examples() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        seen = asyncio.run(toured(Path(place))).seen
        whole = json.dumps(
            {
                name: ({"response": answer} if answer else {}) | ({"request": asked} if asked is not None else {})
                for name, (asked, answer) in seen.items()
                if isinstance(answer, dict) or asked is not None
            }
        ).replace(place, "/var/lib/quorumscope")
    found: dict[str, Any] = json.loads(whole)
    return found


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in examples().items())
    EXAMPLES_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
