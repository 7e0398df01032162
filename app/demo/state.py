"""The note that a running demo leaves, so that `demo break` and the other commands find it from any terminal.

Invariants: the note is readable by its owner only (it holds the secret of the demo's server); a note whose process is
gone, or whose process id went to another process, is no demo.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from node.config import parse_peers
from node.private_files import own_directory


@dataclass(frozen=True, slots=True)
class DemoMember:
    """One member: `data` is what `--data` says, `pid` the supervisor's, `started_with` what starts it again."""

    id: str
    address: str
    control_url: str
    data: str
    pid: int
    started_with: str = ""
    broker: str = ""  # its address, where it has one


@dataclass(frozen=True, slots=True)
class DemoState:
    """What others need to know of a demo. `demo_url` ends in a secret; whoever knows it may break things."""

    pid: int
    started_ticks: int
    group: str
    peers: str
    members: tuple[DemoMember, ...]
    directory: str
    console_url: str | None
    demo_url: str
    folder: str = ""  # where it was started
    group_id: str | None = None
    name_servers: str = ""  # of a demo with messages, as "host:port;host:port"

    @property
    def target(self) -> dict[str, Any]:
        """The group for a command (app.commands.targets.Target): its members as they listen, not as they reach each
        other, for a demo's links are cut on purpose."""
        return {
            "peers": parse_peers(self.peers), "group": self.group, "group_id": self.group_id, "demo": True,
            "control_urls": {member.id: member.control_url for member in self.members},
            "starts": {member.id: member.started_with for member in self.members if member.started_with},
            "has_brokers": bool(self.name_servers),
        }  # fmt: skip

    def member_at(self, control_url: str) -> str | None:
        """Whose control plane that is."""
        return next((one.id for one in self.members if one.control_url == base_of(control_url)), None)

    @property
    def spelled(self) -> str:
        """How to tell it from other demos."""
        return f"pid {self.pid}" + (f", started in {self.folder}" if self.folder else "")


class SeveralDemos(Exception):
    """More than one demo may be meant, and taking one of them by itself would be a guess."""

    def __init__(self, demos: Sequence[DemoState], *, of_this_folder: bool) -> None:
        which = "were started in this folder" if of_this_folder else "run, none of them started in this folder"
        listed = "; ".join(f"{state.spelled} (--node {state.members[0].control_url})" for state in demos)
        super().__init__(f"{len(demos)} demos {which}: {listed}")


def process_start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def notes_directory() -> Path:
    """Where notes lie: the user's runtime directory, or one of our own that nobody else can have put there.

    Raises PermissionError.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
    return own_directory(base / f"quorumscope-{os.getuid()}")


def write_note(state: DemoState) -> Path:
    """Leaves the note; returns its path, which the demo removes at its end."""
    path = notes_directory() / f"demo-{state.pid}.json"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(state), file)
    return path


def running_demos() -> Iterator[DemoState]:
    """All demos of this user that live; notes of dead ones are swept away."""
    try:
        paths = sorted(notes_directory().glob("demo-*.json"))
    except OSError:
        return
    for path in paths:
        try:
            noted = json.loads(path.read_text())
            members = tuple(DemoMember(**member) for member in noted.pop("members"))
            state = DemoState(members=members, **noted)
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if process_start_ticks(state.pid) == state.started_ticks:
            yield state
        else:
            path.unlink(missing_ok=True)


def running_demo(folder: Path | None = None) -> DemoState | None:
    """The demo that is meant in a folder (the current one): its own, else the only one. Raises SeveralDemos."""
    demos = sorted(running_demos(), key=lambda state: state.started_ticks)
    here = [state for state in demos if state.folder == str((folder or Path.cwd()).resolve())]
    candidates = here or demos
    if len(candidates) > 1:
        raise SeveralDemos(candidates, of_this_folder=bool(here))
    return candidates[0] if candidates else None


def base_of(control_url: str) -> str:
    """A control plane's address as it is noted, however it was typed."""
    return (control_url if "://" in control_url else f"http://{control_url}").rstrip("/").removesuffix("/api/v1")


def demo_of(control_url: str) -> DemoState | None:
    """The demo that has a member with that control plane."""
    return next((one for one in running_demos() if one.member_at(control_url) is not None), None)
