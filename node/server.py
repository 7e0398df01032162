"""`python -m node.server …`: one engine. Opens the store, serves the member port, ends with a code that says why.

A log that is damaged in the middle is opened, and repaired from the peers while the member runs (SAFETY S6).

Exit codes: 0 a clean end; 1 an error that a restart may get past; 3 a refusal that an operator must settle; 64 a wrong
command line; 69 the port cannot be had. Anything but 0 prints one line on stderr, and 1, 3 and 69 also leave it in
DATA/engine-refused.json for the control plane.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":  # modules bring next to no garbage, and it was looked for 240 times
    gc.disable()

import asyncio
import errno
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from node.children import how_ended
from node.collector import Collector
from node.config import USAGE, ConfigError, Settings, parse_node_arguments, read_again
from node.down_reason import REASON_FILE, clear_reason, leave_reason
from node.engine.action_trail import ActionTrail
from node.engine.clock import wall_text
from node.engine.engine import Engine
from node.engine.first_members import refuse_another_id, settle_founders
from node.engine.machine_process import Alarm, MachineOptions, MachineProcess, Note
from node.engine.memory_share import limit_bytes, share_of
from node.engine.pin_leases import MACHINE
from node.engine.process import Process
from node.logs import Log
from node.member_secret import make_secret, read_secrets
from node.message_store.broker_kind import BrokerKind
from node.own_addresses import why_not_listening
from node.printable import escaped, print_line
from node.private_files import keep_files_private
from node.protocol.codes import VoterState
from node.protocol.group_id import group_id_of
from node.protocol.group_kind import PLAIN, GroupKind
from node.rereading import HangUp
from node.state_machine.kind import kind_of
from node.store.errors import StoreCorrupt, StoreError, StoreRefused, is_denied
from node.store.file_store import FileStore
from node.store.files.data_lock import DataLock
from node.store.files.identity import Base
from node.store.files.platform import OS, Platform
from node.unwritable import why_denied, why_gone

EXIT_CRASHED: Final = 1
EXIT_REFUSED: Final = 3
EXIT_USAGE: Final = 64
EXIT_UNAVAILABLE: Final = 69
Reread = Callable[[], Settings]  # the configuration as it is by now


def say(code: int, reason: str, data: Path | None, log: Log | None = None) -> int:
    """The one line on stderr, and the same for the control plane; returns the code."""
    line = " ".join(reason.split())
    if data is not None and data.is_dir():
        try:
            leave_reason(data, line, code)
        except OSError as error:
            print_line(f"node: {data / REASON_FILE}: {error.strerror}", sys.stderr)
    if log is None:
        print_line(f"node: {escaped(line)}", sys.stderr)
    else:
        log.last_word(f"node: {line}", reason=line, exit_code=code)
    return code


def with_command(reason: str, directory: Path) -> str:
    """A refusal says how to see what is wrong, and what settles it, where the store did not say so itself."""
    if "quorumscope store" in reason or "set [node] id back" in reason:
        return reason
    if "open in another process" in reason:  # nothing is wrong with that store
        return f"{reason}: stop that process first, or give this member another --data"
    return (
        f"{reason} (`quorumscope store verify {directory}` shows what is there,"
        f" `quorumscope store repair {directory}` settles what an operator must decide)"
    )


def open_store(settings: Settings, platform: Platform = OS, *, born_at: Base | None = None) -> FileStore:
    """`born_at`: what a new member's log begins behind, the same in all of its group. Raises StoreError, OSError."""
    platform.make_directory(settings.node.data)
    return FileStore.open(
        settings.store_directory,
        group=settings.node.group,
        node_id=settings.node.id,
        data_file_size=settings.store.mapped_file_size_for_entry_data_bytes,
        index_file_size=settings.store.mapped_file_size_for_entry_index_bytes,
        init=settings.node.init,
        flush=settings.node.flush,
        page_cache_bytes=settings.store.page_cache_bytes,
        serving=True,
        group_id=group_id_of(settings.node.group_token, settings.node.group) if settings.node.group_token else None,
        kind=group_kind(settings).name,
        platform=platform,
        born_at=born_at,
    )


def group_kind(settings: Settings) -> GroupKind:
    """What the group's log may hold."""
    if settings.broker.has_broker:
        return BrokerKind(lambda: time.time_ns() // 1_000_000)
    return kind_of(settings.node.state_machine) if settings.node.state_machine else PLAIN


def state_machine(settings: Settings, store: FileStore, note: Note, alarm: Alarm) -> MachineProcess | None:
    """The group's, in a process of its own; None: it is a log alone. What it needs again after a restart stays."""
    node = settings.node
    if not node.state_machine:
        return None

    def saved(index: int) -> None:
        if index + 1 >= store.begin_index:
            store.pin(index + 1, MACHINE)
        else:
            store.release(MACHINE)

    saved(store.begin_index - 1)
    options = MachineOptions(node.state_machine, store.directory, node.snapshot_entries, node.snapshots_kept)
    return MachineProcess(options, note, saved, alarm)


MACHINE_ALARMS: Final = {
    # Until one is saved nothing of the log may go.
    "snapshot_failed": "the state cannot be saved, and the log stays behind the newest snapshot: {why}. It is tried"
    " again by itself, but not while an entry cannot be applied",
    "applier_silent": "{why}, and nothing was heard of it since: its process hangs, or has more to do than it can",
}


def say_of_machine(engine: Engine, code: str, why: str | None) -> None:
    """An alarm of MACHINE_ALARMS, or its end."""
    member, now = engine.replica.member, engine.now_ns()
    if why is None:
        engine.step(lambda: member.clear_alarm(code, now))
        return
    text = MACHINE_ALARMS[code].format(why=why)
    engine.step(lambda: member.alarm(code, text, now, severity="warning"))


def check_secret(settings: Settings) -> None:
    """Makes the file where that was asked for; a bad one is said before anything is stored. Raises ConfigError."""
    path = settings.node.secret_file
    if path is not None:
        if settings.node.make_secret:
            make_secret(path)
        read_secrets(path)


def engine_log(settings: Settings) -> Log:
    node = settings.node
    log = Log("engine", node.log_level, node.log_format, member=node.id, group=node.group)
    log.take_over()
    return log


def note_start(engine: Engine, store: FileStore) -> None:
    """What this member has, and so what it may do."""
    hard, node = store.hard_state, engine.settings.node
    if store.end_index >= 0:
        reason = f"the log holds {store.begin_index}..{store.end_index}"
    elif hard.voter_state is VoterState.REJOINING:
        reason = "the directory is empty: no vote before a leader has brought back what this member may have held"
    else:
        reason = "the log is empty"
    detail = {"reason": reason, "voter_state": hard.voter_state.value, "flush": node.flush.value, "init": node.init}
    engine.note("started", "info", {**detail, "pid": os.getpid(), "boot_id": engine.boot_id})


async def serve(settings: Settings, store: FileStore, log: Log, reread: Reread | None = None) -> int:
    """Runs the engine until a signal or an error."""
    data = settings.node.data
    process = Process(share=share_of(limit_bytes()))
    machine = state_machine(
        settings, store, lambda *event: engine.note(*event), lambda code, why: say_of_machine(engine, code, why)
    )
    engine = Engine(
        settings, store, process, lambda kind, severity, detail: log.note(kind, severity, **line_fields(detail)),
        machine=machine, kind=group_kind(settings),
    )  # fmt: skip
    trail = ActionTrail(data, process.loop)
    trail.keep_room()
    engine.use_trail(trail)
    note_start(engine, store)
    for alarm in store.alarms:
        engine.note("alarm", "critical", {"code": "store", "text": str(alarm)})
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, engine, number)

    if reread is not None:
        engine.settings_reload.follow(reread, engine.files, log.set_level)

    hang_up = HangUp(engine.files.again, lambda: stop(engine, signal.SIGHUP))
    hang_up.listen()

    collector = Collector(loop)
    collector.start()
    process.when_ticked.append(collector.ticked)

    def ready(port: int) -> None:
        clear_reason(data)
        line = {"event": "ready", "id": settings.node.id, "port": port, "pid": os.getpid(), "boot_id": engine.boot_id}
        print_line(json.dumps(line), sys.stdout)

    try:
        code = await engine.run(ready)
    except OSError as error:
        why = why_not_listening(settings.self_address, error, "--peers")
        if error.errno == errno.EADDRINUSE:
            return say(EXIT_UNAVAILABLE, why, data, log)
        return say(EXIT_CRASHED, f"the engine {how_ended(EXIT_CRASHED)}: {why}", data, log)
    finally:
        hang_up.ignore()
        collector.stop()
        process.close()
    if code and not store.is_in_place():  # whatever it met then: a start would make another, empty one there
        return say(EXIT_REFUSED, f"the engine ended: {engine.reason}: {why_gone(settings.store_directory)}", data, log)
    if code:
        return say(code, f"the engine ended: {engine.reason}", data, log)
    return 0


def stop(engine: Engine, number: signal.Signals) -> None:
    engine.note("stopping", "info", {"reason": f"asked to with {number.name}"})
    engine.retirement.begin()


def line_fields(detail: dict[str, Any]) -> dict[str, Any]:
    """An event's detail as a line's fields: every line says why as its reason."""
    fields = dict(detail)
    if "at_ns" in fields:  # when it happened: what it caused elsewhere must not look older
        fields["time"] = wall_text(fields.pop("at_ns"))
    if "why" in fields:
        fields["reason"] = fields.pop("why")
    if "silent" in fields:
        fields["reason"] = f"{fields['reason']}: {fields.pop('silent')}"
    for name in ("text", "detail"):
        if name in fields and "reason" not in fields:
            fields["reason"] = fields.pop(name)
    return fields


def run(settings: Settings, platform: Platform = OS, reread: Reread | None = None) -> int:
    """From the opened store to the closed one, and whatever was said on the way written."""
    log = engine_log(settings)
    try:
        return _run(settings, log, platform, reread)
    finally:
        log.close()


def _run(settings: Settings, log: Log, platform: Platform, reread: Reread | None) -> int:
    """From the opened store to the closed one."""
    data = settings.node.data
    try:
        check_secret(settings)
        platform.make_directory(data)
        data_lock = DataLock(data, platform)
        refuse_another_id(settings, platform)
        store = open_store(settings, platform)
    except ConfigError as error:
        return say(EXIT_REFUSED, str(error), data, log)
    except StoreError as error:
        if is_denied(error):
            return say(EXIT_REFUSED, f"{error}: {why_denied(data)}", data, log)
        if isinstance(error, StoreRefused | StoreCorrupt):
            return say(EXIT_REFUSED, with_command(str(error), settings.store_directory), data, log)
        return say(EXIT_CRASHED, str(error), data, log)
    except OSError as error:
        why = f": {why_denied(data)}" if is_denied(error) else ": give a directory that can be written"
        return say(EXIT_REFUSED, f"{error.filename or data}: {error.strerror}{why}", None, log)
    try:
        settle_founders(settings, store)
        code = int(uvloop.run(serve(settings, store, log, reread)))
    except (StoreRefused, ConfigError, ValueError) as error:
        code = say(EXIT_REFUSED, str(error), data, log)
    except StoreError as error:
        code = say(EXIT_CRASHED, str(error), data, log)
    try:
        store.close()
    except StoreError as error:
        return code or say(EXIT_CRASHED, str(error), data, log)
    finally:
        data_lock.release()
    return code


def main(arguments: Sequence[str] | None = None, platform: Platform = OS) -> int:
    keep_files_private()
    words = sys.argv[1:] if arguments is None else list(arguments)
    if "--help" in words:
        print(USAGE)
        return 0
    try:
        settings = parse_node_arguments(words)
    except ConfigError as error:
        return say(EXIT_USAGE, str(error), None)
    return run(settings, platform, lambda: read_again(words))


if __name__ == "__main__":
    gc.freeze()
    gc.enable()
    sys.exit(main())
