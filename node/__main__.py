"""The supervisor: `python -m node …` runs a member's processes: engine, control plane, in a broker group the broker.

In classic mode (`[ha] role`) there is no engine: the broker is in its place, with all that is said of the engine here.

Rules (SAFETY S1): an engine that crashed is restarted with back-off; one that refused for a reason that an operator
must settle is not. The control plane outlives the engine to say `engine: down` and why, unless `--exit-with-engine`.
SIGHUP is passed on to all, which then read their files again.
All of them die with this one, also when it is killed with SIGKILL (Linux: parent-death signal). The arguments are
passed on unread, so there is one place that understands them: node.config. Whether there is a broker, a look at their
text says; one that was started in vain ends at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from node.background import Background, reason_of
from node.children import apart, environment, how_ended, python
from node.down_reason import REASON_FILE, clear_reason, leave_reason
from node.private_files import keep_files_private
from node.regular_file import CONFIG_BYTES_MAX, read_regular
from node.rereading import HangUp
from node.store.errors import StoreError
from node.store.files.data_lock import DataLock
from node.supervised import BROKER_AGAIN, START_AGAIN, supervise_children
from node.supervisor_log import OURS, note

EXIT_REFUSED: Final = 3  # an operator must settle it: lock held, wrong node, lost hard state, corruption
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69  # the port is in use
NOT_RESTARTED: Final = frozenset({0, EXIT_REFUSED, EXIT_USAGE, EXIT_UNAVAILABLE})

BACK_OFF_S_MIN: Final = 0.2
BACK_OFF_S_MAX: Final = 10.0
STEADY_AFTER_S: Final = 30.0  # an engine that ran this long starts again without a wait
STOP_WITHIN_S: Final = 2.5  # then SIGKILL: a node stops within three seconds
LOOK_AGAIN_S: Final = 0.1  # until the directory is there
LOOK_AGAIN_AT_DISK_S: Final = 1.0
STAYS_DOWN: Final = "it refused to run, its output says why, and nothing starts it again by itself"
DEFAULT_DATA: Final = "data"  # as `node.config_models` has it
DATA_VARIABLES: Final = ("QUORUMSCOPE_NODE__DATA", "QUORUMSCOPE_NODE_DATA")
FLAG_EXIT_WITH_ENGINE: Final = "--exit-with-engine"
ENGINE: Final = "node.server"
BROKER: Final = "node.broker"
RUNNING: Final[dict[str, asyncio.subprocess.Process]] = {}  # by module, the newest of each


def back_off_s(previous_s: float, ran_s: float) -> float:
    """The wait before the next start, in seconds: doubles up to the limit, and starts over after a steady run."""
    if ran_s >= STEADY_AFTER_S:
        return BACK_OFF_S_MIN
    return min(max(previous_s * 2, BACK_OFF_S_MIN), BACK_OFF_S_MAX)


def data_directory(arguments: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Where the node's data are, as `node.config` finds it: flags, variables, the file, else the default. For the lock
    that is held between two engines, and for the file that says why there is none."""
    named = [one.removeprefix("node.data=") for one in values_of("--set", arguments) if one.startswith("node.data=")]
    named = (values_of("--data", arguments) or named)[-1:]
    named += [environ[name] for name in DATA_VARIABLES if name in environ]
    for name in values_of("--config", arguments)[-1:] or [environ.get("QUORUMSCOPE_CONFIG", "")]:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # the engine says what is wrong with it
            if name:
                read = read_regular(Path(name), CONFIG_BYTES_MAX)
                found = tomllib.loads(read.decode()).get("node", {}).get("data")
                named += [found] if isinstance(found, str) else []
    return Path(named[0] if named else DEFAULT_DATA)


def values_of(flag: str, arguments: Sequence[str]) -> list[str]:
    """What stands behind each of these flags, or in it."""
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word == flag and at + 1 < len(arguments):
            found.append(arguments[at + 1])
        elif word.startswith(f"{flag}="):
            found.append(word.removeprefix(f"{flag}="))
    return found


@dataclass(slots=True)
class Child:
    """One of the processes, and when it started (monotonic seconds)."""

    process: asyncio.subprocess.Process
    started_at: float


async def start(module: str, arguments: Sequence[str]) -> Child:
    """Starts `python -m module` with our own interpreter, output passed through."""
    process = await asyncio.create_subprocess_exec(
        *python("-m", module, *arguments),
        env=environment(),
        preexec_fn=apart(signal.SIGTERM, hold_hang_up=True),
    )
    RUNNING[module] = process
    return Child(process, time.monotonic())


def pass_on_hang_up() -> None:
    """Passes a SIGHUP on to the processes of this member: each reads its files again."""
    for process in RUNNING.values():
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)


async def stop(child: Child) -> None:
    """SIGTERM, and SIGKILL when that did not end it within STOP_WITHIN_S."""
    if child.process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
        child.process.terminate()
    try:
        await asyncio.wait_for(child.process.wait(), STOP_WITHIN_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.process.kill()
        await child.process.wait()


def how(code: int, module: str = ENGINE) -> str:
    """How a process ended, in words."""
    name = "the engine" if module == ENGINE else "the broker"
    return f"{name} {how_ended(code)}"


def record_crash(data: Path | None, reason: str) -> None:
    """Leaves the reason where the control plane looks for it, unless the engine has said it better itself."""
    if data is None or not data.is_dir():
        return
    path = data / REASON_FILE
    try:
        said_at = path.stat().st_mtime if path.exists() else 0.0
        if not 0 <= time.time() - said_at < 5.0:  # a clock that was set back makes it no news
            leave_reason(data, reason)
    except OSError as error:  # a full disk ends engines too: then of all times the supervisor has to go on
        note("no_reason_file", "error", reason=f"{path}: {error.strerror}; {reason}")


async def record_refusal(data: Path) -> None:
    """Leaves a word that the engine stays down, once that is possible, where it could leave none itself: its directory
    was mounted read-only, say. A control plane that finds none says that it is started again by itself."""
    while data.is_dir() and not (data / REASON_FILE).exists():
        with contextlib.suppress(OSError):
            leave_reason(data, STAYS_DOWN)
        await asyncio.sleep(LOOK_AGAIN_AT_DISK_S)


def may_have_broker(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether anything in the configuration speaks of one."""
    return _speaks_of(("broker",), "QUORUMSCOPE_BROKER", arguments, environ)


def _speaks_of(texts: Sequence[str], variables: str, arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    if any(text in word for word in arguments for text in texts) or any(one.startswith(variables) for one in environ):
        return True
    for name in filter(None, [environ.get("QUORUMSCOPE_CONFIG", ""), *values_of("--config", arguments)]):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # the engine says what is wrong with it
            content = read_regular(Path(name), CONFIG_BYTES_MAX).decode()
            if any(text in content for text in texts):
                return True
    return False


def is_classic(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a broker in classic mode takes the engine's place. Most configurations do not speak of it, and are not
    read here."""
    if not _speaks_of(("--role", "ha.role", "[ha]"), "QUORUMSCOPE_HA_", arguments, environ):
        return False
    from node.config import ConfigError, read_again

    try:
        return read_again([one for one in arguments if one != FLAG_EXIT_WITH_ENGINE], environ).ha.is_classic
    except ConfigError:  # the engine says what is wrong with it
        return False


async def keep_beside(
    module: str, name: str, arguments: Sequence[str], stopping: asyncio.Event, again: asyncio.Event
) -> None:
    """Runs a process beside the engine until the stop; whatever ends it, it comes back with back-off. While `again` is
    set it is ended, and started again at once."""
    wait_s = 0.0
    while not stopping.is_set():
        again.clear()
        child = await start(module, arguments)
        code = await _ended(child, stopping, again)
        if code is None:
            if not stopping.is_set():
                note(f"{module.rpartition('.')[2]}_ended", "warning", reason=f"{name} hung, and was ended")
            continue
        if code in NOT_RESTARTED:
            if code:
                reason = f"{name} {how_ended(code)} and stays down"
                note(f"{module.rpartition('.')[2]}_ended", "error", reason=reason, exit_code=code)
            return
        wait_s = back_off_s(wait_s, time.monotonic() - child.started_at)
        reason = f"{name} {how_ended(code)}; it is started again in {wait_s:.1f} s"
        note(f"{module.rpartition('.')[2]}_ended", "error", reason=reason, exit_code=code)
        await _wait(stopping, wait_s)


def hold_data(data: Path | None) -> DataLock | None:
    """Keeps a RocketMQ broker out between two engines; None where there is no such directory yet.

    Where a broker holds it the engine refuses, and says so.
    """
    if data is not None and data.is_dir():
        with contextlib.suppress(StoreError):
            return DataLock(data)
    return None


async def hold_once_made(data: Path | None, child: Child, *reasons: asyncio.Event) -> DataLock | None:
    """The same for a new member, whose first engine makes the directory; None where it ends before, or has to."""
    lock = None
    while lock is None and child.process.returncode is None and not any(one.is_set() for one in reasons):
        await asyncio.sleep(LOOK_AGAIN_S)
        lock = hold_data(data)
    return lock


async def keep_engine(
    arguments: Sequence[str], stopping: asyncio.Event, again: asyncio.Event, data: Path | None, *, restart: bool,
    module: str = ENGINE,
) -> int:  # fmt: skip
    """Runs the engine, or the classic broker in its place, until the stop (0), a refusal (its code) or, without
    `restart`, its crash (1). While `again` is set it is ended, and started again at once."""
    wait_s = 0.0
    lock: DataLock | None = None
    while True:
        began_at = time.monotonic()
        if module == ENGINE:  # the broker holds it alone
            lock = lock or hold_data(data)
        try:
            again.clear()
            child = await start(module, arguments)
            if lock is None and module == ENGINE:
                lock = await hold_once_made(data, child, stopping, again)
            code = await _ended(child, stopping, again)
        except OSError as error:  # no memory or no process to be had: that passes
            code, ended = 1, f"{module} cannot be started ({error})"
        else:
            ended = "" if code is None else how(code, module)
        if code is None and stopping.is_set():
            return 0
        if code is None:
            note("engine_ended", "warning", reason="ended because an operator asked for it; it is started again")
            continue
        if code in NOT_RESTARTED:
            if code == EXIT_REFUSED:
                note("engine_ended", "error", reason=f"{ended}: an operator must settle why", exit_code=code)
            return code
        record_crash(data, ended or how(code, module))
        if not restart:
            note("engine_ended", "error", reason=ended, exit_code=code)
            return 1
        wait_s = back_off_s(wait_s, time.monotonic() - began_at)
        note("engine_ended", "error", reason=f"{ended}; it is started again in {wait_s:.1f} s", exit_code=code)
        if await _wait(stopping, wait_s):
            return 0


async def supervise(arguments: Sequence[str]) -> int:
    """Runs until a signal or, where that ends the node, until the engine ends. Returns the exit code."""
    exit_with_engine = FLAG_EXIT_WITH_ENGINE in arguments
    passed_on = [argument for argument in arguments if argument != FLAG_EXIT_WITH_ENGINE]
    data = data_directory(passed_on, os.environ)
    stopping, again = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    asked_with: list[str] = []

    def stop_all(name: str) -> None:
        asked_with.append(name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_all, number.name)
    loop.add_signal_handler(START_AGAIN, again.set)
    another_broker = asyncio.Event()
    loop.add_signal_handler(BROKER_AGAIN, another_broker.set)
    supervise_children()
    hang_up = HangUp(pass_on_hang_up, lambda: stop_all(signal.SIGHUP.name))
    hang_up.listen()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # `quorumscope node` lets it wait until here

    with contextlib.suppress(OSError):
        clear_reason(data)
    unasked = asyncio.Event()  # nobody asks for another control plane
    background = Background(lambda name, error: note("task_failed", "error", task=name, reason=reason_of(error)))
    control = background.keep(
        "the control plane",
        lambda: keep_beside("node.control", "the control plane", passed_on, stopping, unasked),
    )
    module = BROKER if is_classic(passed_on, os.environ) else ENGINE
    if module == ENGINE and may_have_broker(passed_on, os.environ):
        background.keep("the broker", lambda: keep_beside(BROKER, "the broker", passed_on, stopping, another_broker))
    code = await keep_engine(passed_on, stopping, again, data, restart=not exit_with_engine, module=module)
    # A wrong command line and a port in use help nobody by staying up; a refusal is shown by the control plane. Where
    # that one ended for good too (the same command started twice), nothing is left to stay up for.
    if not exit_with_engine and code not in (0, EXIT_USAGE, EXIT_UNAVAILABLE):
        asked, said = asyncio.create_task(stopping.wait()), asyncio.create_task(record_refusal(data))
        await asyncio.wait((asked, control), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        said.cancel()
    stopping.set()
    await asyncio.gather(*background.tasks)  # they end their processes in order
    await background.stop()
    hang_up.ignore()
    if asked_with:
        note("stopped", reason=f"asked to with {asked_with[0]}")
    return code


async def _ended(child: Child, *reasons: asyncio.Event) -> int | None:
    """The child's exit code, or None when there was a reason to stop it first: then the child has been stopped."""
    tasks = [asyncio.create_task(one) for one in (*(each.wait() for each in reasons), child.process.wait())]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    if not any(one.is_set() for one in reasons):
        return child.process.returncode
    await stop(child)
    return None


async def _wait(stopping: asyncio.Event, seconds: float) -> bool:
    """Sleeps; True when a stop was asked for meanwhile."""
    try:
        await asyncio.wait_for(stopping.wait(), seconds)
    except TimeoutError:
        return False
    return True


def main() -> int:
    keep_files_private()
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        return asyncio.run(supervise(sys.argv[1:]))
    finally:
        OURS.close()


if __name__ == "__main__":
    sys.exit(main())
