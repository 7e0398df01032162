"""Which right a call of the control plane needs, and who asks: the rights of `[access]`, by method and path.

Invariant: what is not listed needs `operate` to be changed and `observe` to be read; nothing but the health checks goes
without a token where one is in force.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from node.access_rows import ALL, Right

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/leaderz"})
ENTRIES: Final = "/api/v1/entries"
MESSAGES: Final = "/api/v1/messages"
KEYS: Final = "/api/v1/kv/"
COMMAND: Final = "/api/v1/machine/command"
QUERY: Final = "/api/v1/machine/query"
# Bodies of entries, or what tells whether a body is a certain one.
BODIES: Final = re.compile(
    r"/api/v1/(entries(/.*)?|messages/?|kv(/.*)?|kv-events/?|truncations/[^/]+/entries/?|segments/[^/]+/[^/]+/?|ha/log/[^/]+/?|digests/?|snapshots/[^/]+/[^/]+/?)",
    re.DOTALL,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose token came with a request: `name` as in the tokens file; the trail and the log carry it."""

    name: str
    rights: Right
    token_id: str = ""


THE_NODE: Final = Caller("node", ALL)  # whoever shows the one token of token_file
ANYBODY: Final = Caller("-", ALL)  # no token is in force


def is_recorded(method: str, path: str) -> bool:
    """Whether a call is in the trail: what operators do, and a message that somebody sends by hand."""
    return needed(method, path) == Right.OPERATE or (method == "POST" and path.rstrip("/") == MESSAGES)


def needed(method: str, path: str) -> Right:
    if path in OPEN_PATHS or path == "/api/v1":
        return Right.NOTHING
    if method in ("GET", "HEAD", "OPTIONS"):
        return Right.READ if BODIES.fullmatch(path) else Right.OBSERVE
    called = path.rstrip("/")
    if called == QUERY:  # a question is a body, and changes nothing
        return Right.READ
    return Right.APPEND if called in (ENTRIES, MESSAGES, COMMAND) or path.startswith(KEYS) else Right.OPERATE
