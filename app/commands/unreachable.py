"""Why a control plane cannot be reached, in words that an operator can act on."""

from __future__ import annotations


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
