"""Why a control plane cannot be reached, in words that an operator can act on.

Invariant: of a change that left and got no answer nobody says that its node was not reached: it may have been made.
"""

from __future__ import annotations


def without_answer(base: str, error: Exception, *, changes: bool) -> tuple[bool, str]:
    """Whether what was asked may have been done all the same, and what to say of it."""
    import httpx2

    why = why_unreachable(error)
    if not changes or isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        return False, f"{base} cannot be reached: {why}"
    return True, f"outcome unknown: {base} gave no answer ({why}): look whether it was done before it is asked again"


def why_unreachable(error: Exception) -> str:
    """What an operator can act on, where the library says it in words of its own."""
    why = f"{error or type(error).__name__}"
    if "Connection refused" in why:
        return f"{why}: nothing listens there; start that node, or name another address"
    if "WRONG_VERSION_NUMBER" in why or "record layer failure" in why:
        return "it speaks no TLS there: write http://"
    if "disconnected without sending a response" in why:
        return f"{why} (where it speaks TLS: write https://)"
    return why + (" (--ca FILE names the authority that signed its certificate)" if "self-signed" in why else "")
