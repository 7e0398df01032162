"""What a control plane says of why it refuses: its words, in bounds.

An answer may have 16 MiB, and whoever answers may be anybody. A reason is said in a line, is kept with an operation or
an audit, and is shown on a page: a few sentences are all that one of our own ever has.
"""

from __future__ import annotations

from typing import Any, Final

REASON_CHARS_MAX: Final = 2000
TITLE_CHARS_MAX: Final = 200


def reason_in(problem: dict[str, Any], otherwise: object) -> str:
    """The detail of a problem document, else its title, else what the caller knows of it."""
    return str(problem.get("detail") or problem.get("title") or otherwise)[:REASON_CHARS_MAX]
