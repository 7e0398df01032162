"""The kind of a group with a state machine: every body is one of its commands, stamped with the leader's time.

A body is `u8 type, i64 time_ms, content`. The name of the kind is the state machine's, so that members of one group
have the same one: it is on record in each store, and in HELLO.

Invariants: a client's bytes are always the content of a COMMAND; what else may stand in a body is made by leaders.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from node.protocol.entry import BytesLike, Entry, Magic
from node.protocol.group_entries import STAMP, STAMPED_CONFIG_CHANGE
from node.protocol.group_kind import BROKER_NAME, PLAIN_NAME, Channel, GroupKind, is_kind_name
from node.protocol.packed_bodies import PackedBodies, first_bytes_of
from node.state_machine.interface import Command

HEAD: Final = STAMP
TIME_MS_MAX: Final = 1 << 53
_PATH: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
SHIPPED: Final = {"kv": "node.state_machine.kv:KeyValue"}


class Type(IntEnum):
    """What a body is."""

    COMMAND = 1
    TICK = 2  # time passed
    FIRST_OF_TERM = 3
    CONFIG_CHANGE = STAMPED_CONFIG_CHANGE


def body_of(type_: Type, time_ms: int, content: bytes = b"") -> bytes:
    return HEAD.pack(type_, time_ms) + content


class MachineKind(GroupKind):
    """See the module's docstring."""

    takes_commands = True

    def __init__(self, name: str) -> None:
        """Raises ValueError for what is no name of a kind."""
        if not is_kind_name(name) or name in (PLAIN_NAME, BROKER_NAME):
            text = f"small letters, digits and - are allowed, but for {PLAIN_NAME!r} and {BROKER_NAME!r}"
            raise ValueError(f"{name!r} is no name for a state machine: {text}")
        self.name = name

    def first_of_term(self, last_time_ms: int) -> bytes:
        return body_of(Type.FIRST_OF_TERM, max(last_time_ms, 0))

    def config_change(self, content: bytes, last_time_ms: int) -> bytes:
        return body_of(Type.CONFIG_CHANGE, max(last_time_ms, 0), content)

    def content_of(self, body: bytes) -> bytes:
        return body[HEAD.size :]

    def time_ms(self, body: BytesLike) -> int:
        return int(HEAD.unpack_from(body)[1]) if len(body) >= HEAD.size else -1

    def refusal(self, bodies: Sequence[bytes], channel: int, patch_at: int, last_time_ms: int) -> str | None:
        if channel != Channel.MESSAGE:
            return f"a log of kind {self.name} takes no entries of channel {channel}"
        if type(bodies) is PackedBodies:
            sound = int(bodies.lengths.min()) >= HEAD.size and bool((first_bytes_of(bodies) <= Type.TICK).all())
            if sound and bool((first_bytes_of(bodies) >= Type.COMMAND).all()):
                return None
        for body in bodies:
            if len(body) < HEAD.size or body[0] not in (Type.COMMAND, Type.TICK):
                return f"a body is no command of a log of kind {self.name}"
        return None


def command_in(kind: GroupKind, entry: Entry, time_ms: int) -> Command | None:
    """What of this entry is the state machine's; None: it is the engine's own. `time_ms`: of the command before."""
    if kind.is_plain:
        return Command(entry.index, time_ms, bytes(entry.body)) if entry.magic == Magic.NORMAL else None
    if entry.channel != Channel.MESSAGE:
        return None
    type_, stamped_ms = HEAD.unpack_from(entry.body)
    body = bytes(entry.body[HEAD.size :]) if type_ == Type.COMMAND else None
    return Command(entry.index, max(time_ms, stamped_ms), body)


def path_of(choice: str) -> str:
    """`package.module:Class`; `choice` is that, or the name of one that ships. Raises ValueError."""
    path = SHIPPED.get(choice, choice)
    if _PATH.fullmatch(path) is None:
        known = ", ".join(SHIPPED)
        raise ValueError(f"{choice!r} is no state machine: name one that ships ({known}) or package.module:Class")
    return path


def kind_of(choice: str) -> MachineKind:
    """The kind of a group with that state machine: the class's name in small letters, or that of the one that ships.

    The class is not loaded for it: an engine does not run a state machine's code. Raises ValueError.
    """
    path = path_of(choice)
    return MachineKind(choice if choice in SHIPPED else path.partition(":")[2].lower().replace("_", "-"))
