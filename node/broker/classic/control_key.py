"""`DATA/quorumscope/control-key`: what a broker's own control plane shows where it asks for more than to look.

RocketMQ's port proves nobody, and everybody on this machine reaches it: who may read the broker's directory may change
its role, nobody else.

Invariants: drawn anew at each start, readable by its owner only; compared in constant time.
"""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from node.message_store.dispatch_mark import OURS

NAME: Final = "control-key"
KEY_BYTES: Final = 32


def key_path(root: Path) -> Path:
    return root / OURS / NAME


def make_key(root: Path) -> str:
    """Raises OSError."""
    path = key_path(root)
    key = secrets.token_hex(KEY_BYTES)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(key)
    return key


def read_key(root: Path) -> str:
    """Raises OSError."""
    return key_path(root).read_text()


def is_key(key: str, shown: object) -> bool:
    return isinstance(shown, str) and hmac.compare_digest(key.encode(), shown.encode("utf-8", "replace"))
