"""The word that a member's engine, or its broker in classic mode, leaves in its data directory when it ends: why.

Its supervisor leaves one where it could not, and its control plane passes it on. Whoever runs has none.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

REASON_FILE: Final = "engine-refused.json"


def leave_reason(data: Path, reason: str, exit_code: int | None = None) -> None:
    """Takes the place of an earlier one. Raises OSError."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    left = {"reason": reason, "at": at, "command": "quorumscope node", "exit_code": exit_code}
    (data / REASON_FILE).write_text(json.dumps(left) + "\n")


def reason_left(data: Path) -> str | None:
    """None: there is none, or none that can be read."""
    try:
        return str(json.loads((data / REASON_FILE).read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clear_reason(data: Path) -> None:
    """Raises OSError."""
    (data / REASON_FILE).unlink(missing_ok=True)
