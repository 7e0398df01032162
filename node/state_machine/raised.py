"""What a state machine's own code raised, for whoever has to mend it: its traceback on standard error.

That is the engine's standard error, too: no text of a command's begins a line there.
"""

from __future__ import annotations

import sys
from typing import Final

from node.printable import escaped, print_line

TRACEBACK_CHARS_MAX: Final = 20_000


def tell_raised(traceback: str) -> None:
    """As `traceback.format_exc` has it."""
    lines = traceback[-TRACEBACK_CHARS_MAX:].splitlines()
    print_line("\n".join(f"state machine: {escaped(line)}" for line in lines), sys.stderr)
