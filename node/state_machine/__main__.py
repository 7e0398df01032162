"""`python -m node.state_machine FD CHOICE DIRECTORY SAVE_EVERY KEPT LAYOUT`: what an engine starts beside itself.

FD is one end of a pair of sockets; its engine holds the other. Nothing here is for anybody else to start.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

from node.state_machine.frames import LAYOUT, Kind, frame
from node.state_machine.kind import kind_of
from node.state_machine.process import Options, serve

EXIT_REFUSED = 3
EXIT_USAGE = 64
ANOTHER_RELEASE = b"its files were replaced by those of another release while the engine runs: start the node again"


def main(words: list[str]) -> int:
    try:
        number, choice, directory, save_every, kept, *layout = words
        connection = _with_a_low_number(int(number))
        options = Options(choice, Path(directory), int(save_every), int(kept))
    except (ValueError, OSError):
        print("state machine: an engine starts this, with its own end of a pair of sockets", file=sys.stderr)
        return EXIT_USAGE
    if layout != [str(LAYOUT)]:
        connection.sendall(b"".join(frame(Kind.FAILED, ANOTHER_RELEASE)))
        return EXIT_REFUSED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's end is its own
    return serve(connection, options, kind_of(choice))


def _with_a_low_number(number: int) -> socket.socket:
    """An engine of many connections passes on a number that `select` does not take (FD_SETSIZE, 1,024); here the lowest
    are free. Raises OSError."""
    with socket.socket(fileno=number) as given:
        return given.dup()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(
        code
    )  # whatever threads the state machine left: the interpreter would wait for them, and the engine for it
