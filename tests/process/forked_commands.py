"""Commands of the command line, each in a process of its own that costs no start: it is forked off one that has
everything imported already. Run as a module it reads cells as JSON on stdin, and prints what came of each.

A cell is `{arguments, directory, variables, encoding, stdout, listens, signal}`. `{port}` in its arguments is a port of
its own: nobody listens there, or (`listens`) somebody accepts and never answers. `signal` is sent once the command
connected to it, or at `WITHOUT_CONNECTION_S`. `stdout`: "read", "closed" (its reader went away) or "full" (a full
disk). What came of it is `{code, out, err, connected}`; code None: it had to be killed.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from typing import IO, Any, Final

from tests.ports import free_ports

AT_ONCE: Final = 80  # most of them wait for ten seconds
LOOKS_EVERY_S: Final = 0.02
WITHOUT_CONNECTION_S: Final = 60.0
LIMIT_S: Final = 120.0
IMPORTED_FOR_ALL: Final = ("asyncio", "httpx2", "node.client", "node.message_client")


@dataclass
class Running:
    """One cell's process."""

    cell: dict[str, Any]
    listener: socket.socket | None
    out: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    err: IO[bytes] = field(default_factory=tempfile.TemporaryFile)
    pid: int = 0
    began_s: float = field(default_factory=time.monotonic)
    held: list[socket.socket] = field(default_factory=list)
    is_signalled: bool = False

    def look(self) -> dict[str, Any] | None:
        """Goes on with it; what came of it once it ended."""
        age_s = time.monotonic() - self.began_s
        while self.listener is not None and select.select([self.listener], [], [], 0)[0]:
            self.held.append(self.listener.accept()[0])
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if pid else None
        if not pid:
            if "signal" in self.cell and not self.is_signalled and (self.held or age_s > WITHOUT_CONNECTION_S):
                self.is_signalled = True
                os.kill(self.pid, self.cell["signal"])
            if age_s < LIMIT_S:
                return None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        return {"code": code, "out": said(self.out), "err": said(self.err), "connected": self.end()}

    def end(self) -> bool:
        for one in (*self.held, *([self.listener] if self.listener is not None else [])):
            one.close()
        return bool(self.held)


def said(file: IO[bytes]) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="backslashreplace")


def begun(cell: dict[str, Any]) -> Running:
    """A port of its own, and the process."""
    listener, port = None, 0
    if cell.get("listens"):
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        port = listener.getsockname()[1]
    elif any("{port}" in word for word in cell["arguments"]):
        (port,) = free_ports(1)
    words = [word.replace("{port}", str(port)) for word in cell["arguments"]]
    one = Running(cell, listener)
    one.pid = os.fork()
    if one.pid == 0:
        code = 70
        try:
            code = inside(cell, words, one)
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(code)
    return one


def inside(cell: dict[str, Any], words: list[str], one: Running) -> int:
    """Of the forked process: all that a shell sets, then the command, from the script's entry point to the exit."""
    os.setsid()
    os.chdir(cell["directory"])
    os.environ.update(cell["variables"])
    out = one.out.fileno()
    if cell.get("stdout") == "full":
        out = os.open("/dev/full", os.O_WRONLY)
    elif cell.get("stdout") == "closed":
        reader, out = os.pipe()
        os.close(reader)
    for number, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, one.err.fileno())):
        os.dup2(source, number)
    encoding = cell.get("encoding", "utf-8")
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 (as long as the process)
    sys.stdout = open(1, "w", encoding=encoding, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.argv[1:] = words
    from app.cli import main

    try:
        main()
    except SystemExit as leaving:
        code = leaving.code
    sys.stdout.flush()  # as the interpreter does
    return int(code or 0)


def main() -> None:
    import app.commands

    for one in pkgutil.iter_modules(app.commands.__path__):
        importlib.import_module(f"app.commands.{one.name}")
    for name in IMPORTED_FOR_ALL:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is shared with those that are forked is not written to
    waiting = list(enumerate(json.load(sys.stdin)))
    running: dict[int, Running] = {}
    results: dict[int, dict[str, Any]] = {}
    while waiting or running:
        if waiting and len(running) < AT_ONCE:  # one at a time: those that run are looked at meanwhile
            number, cell = waiting.pop(0)
            running[number] = begun(cell)
        for number, one in list(running.items()):
            if (result := one.look()) is not None:
                results[number] = result
                del running[number]
        if not waiting or len(running) >= AT_ONCE:
            time.sleep(LOOKS_EVERY_S)
    json.dump([results[number] for number in sorted(results)], sys.stdout)


if __name__ == "__main__":
    main()
