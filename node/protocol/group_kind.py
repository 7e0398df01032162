"""The kind of a group: what its log may hold. Fixed at birth, the same on all members, on record in `quorumscope.json`.

A plain group's log takes any body, and a leader's own entries (first of a term, configuration change) are known by
their magic. In a group of any other kind *every* entry is a valid body of that kind, with magic NORMAL, because an
older reader of those files knows nothing else; there the head's `channel` says what an entry is. So the leader's own
entries need bodies of that kind, too: its `GroupKind` encodes them, in the same turn, without asking anybody.

Invariants: what an entry is, its head alone says, never its body; channel 1 and 2 are the engine's own; bodies
are judged by the leader only, before it appends (`refusal`); a follower takes what its leader committed to.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

from node.protocol.entry import BytesLike

PLAIN_NAME: Final = "plain"
BROKER_NAME: Final = "broker"  # `message_store/broker_kind.py`; no state machine has this name
NO_PATCH: Final = -1  # of `patch_at`: bodies stay as they are
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_CAPABILITY: Final = "kind:"


class Channel(IntEnum):
    """What an entry of a group that is not plain is, in its head. In a plain group it is always MESSAGE."""

    MESSAGE = 0
    FIRST_OF_TERM = 1
    CONFIG_CHANGE = 2
    METADATA = 3
    SNAPSHOT_PART = 4


ENGINES_OWN: Final = frozenset({Channel.FIRST_OF_TERM, Channel.CONFIG_CHANGE})


class GroupKind(ABC):
    """One kind. `name` is what stores and HELLOs say; `position_at` is where in each body its own place is written.

    Times are the kind's own, in milliseconds, as bodies carry them; -1: this kind's bodies carry none.
    """

    name: str
    position_at: int = NO_PATCH
    takes_commands: bool = False  # appends are commands that end with their result, and nothing else is

    @property
    def is_plain(self) -> bool:
        return self.name == PLAIN_NAME

    @property
    def keeps_places(self) -> bool:
        """Whether bodies say where they lie: then no entry ever lies elsewhere, on any member."""
        return self.position_at != NO_PATCH

    @abstractmethod
    def first_of_term(self, last_time_ms: int) -> bytes:
        """The body of a leader's first entry; `last_time_ms` is that of the entry before, -1 where there is none."""

    @abstractmethod
    def config_change(self, content: bytes, last_time_ms: int) -> bytes:
        """The body of an entry about the group itself."""

    @abstractmethod
    def content_of(self, body: bytes) -> bytes:
        """What `config_change` was given; empty where nothing can be read."""

    @abstractmethod
    def time_ms(self, body: BytesLike) -> int:
        """The time that a body of this kind carries, or -1."""

    @abstractmethod
    def refusal(self, bodies: Sequence[bytes], channel: int, patch_at: int, last_time_ms: int) -> str | None:
        """Why these may not be appended, or None: judged by the leader, for a whole request at once.

        `last_time_ms`: that of the entry before them, -1 where there is none.
        """


class PlainKind(GroupKind):
    """Any body; no entry of the engine's has one of its own form."""

    name = PLAIN_NAME

    def first_of_term(self, last_time_ms: int) -> bytes:
        return b""

    def config_change(self, content: bytes, last_time_ms: int) -> bytes:
        return content

    def content_of(self, body: bytes) -> bytes:
        return body

    def time_ms(self, body: BytesLike) -> int:
        return -1

    def refusal(self, bodies: Sequence[bytes], channel: int, patch_at: int, last_time_ms: int) -> str | None:
        return None if channel == Channel.MESSAGE else f"a plain log has no entries of channel {channel}"


PLAIN: Final = PlainKind()


def has_state_machine(kind_name: str) -> bool:
    """Whether a group of that kind has a state beside its log, which the log alone may not bring back."""
    return kind_name not in (PLAIN_NAME, BROKER_NAME)


def is_kind_name(name: object) -> bool:
    """Whether this may be the name of a kind."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def capabilities(kind_name: str) -> tuple[str, ...]:
    """What a HELLO says of its sender's kind: nothing for a plain log, as releases do that know of no kinds."""
    return () if kind_name == PLAIN_NAME else (_CAPABILITY + kind_name,)


def kind_in(caps: Iterable[str]) -> str:
    """The kind that a HELLO's capabilities name."""
    return next((cap[len(_CAPABILITY) :] for cap in caps if cap.startswith(_CAPABILITY)), PLAIN_NAME)
