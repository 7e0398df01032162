"""What a command does about a control plane that does not answer, or never ends its answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from app.commands.common import Exit, Failure, Target, say


def asked_elsewhere(failure: Failure, configured: Target | None) -> Target:
    """The members where this machine's settings, or a demo's note, name them. Raises Failure where nothing does."""
    if failure.code != Exit.UNREACHABLE:
        raise failure
    if configured is None:
        import httpx2

        gone = "nothing listens there" in str(failure)
        if not gone and not isinstance(failure.__cause__, httpx2.TimeoutException):
            raise failure  # something answers there
        others = "ask by another member's control plane (--node), or the members at their own ports (--peers)"
        raise Failure(failure.code, f"{failure}; {others}") from failure
    say(f"{failure}; the members are asked at their own ports")
    return replace(configured, unanswered=str(failure))


def bounded(base: str, pieces: Iterable[bytes], bytes_max: int) -> bytes:
    """An answer as it came over the wire. Raises Failure where it is too long."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > bytes_max:
            raise Failure(Exit.UNREACHABLE, f"{base} answered more than {bytes_max >> 20} MiB")
    return bytes(body)
