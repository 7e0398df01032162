"""When another value of a configuration key is in force; docs/configuration.md says it of each key.

Invariant: every key is in exactly one row; a key is LIVE only if `engine/settings_reload.py` (or, for a level of
logging, the process itself) puts it in force.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from node.config import Settings, known_keys


class Change(StrEnum):
    """What it takes."""

    LIVE = "SIGHUP"
    RESTART = "restart"
    BIRTH = "never"
    FIRST_START = "first start"
    COMMAND = "next command"


MEANING: Final[Mapping[Change, str]] = {
    Change.LIVE: "in force with the next SIGHUP (`systemctl reload`)",
    Change.RESTART: "in force with the next start of that process",
    Change.BIRTH: "fixed when the group, or the member's store, was made",
    Change.FIRST_START: "looked at when the store is made; later it has no effect",
    Change.COMMAND: "read by each command anew",
}

_LIVE: Final = frozenset({
    "node.flush", "node.lease_reads", "node.preferred_leaders", "node.max_pending_requests_num",
    "node.max_pending_entries", "node.max_pending_bytes", "node.peer_push_quota_bytes_per_s",
    "node.max_leadership_transfer_wait_index", "node.secret", "node.allow_plaintext", "node.log_level",
    "store.max_unsynced_bytes", "store.scrub_bytes_per_s", "store.scrub_pause_s", "access.rows",
})  # fmt: skip
_BIRTH: Final = frozenset({
    "node.id", "node.group", "node.state_machine", "store.mapped_file_size_for_entry_data_bytes",
    "store.mapped_file_size_for_entry_index_bytes",
})  # fmt: skip
_FIRST_START: Final = frozenset({"node.init", "node.join", "node.group_token", "node.make_secret"})
_LIVE_TABLES: Final = ("timing", "retention")
NODE_TABLES: Final = ("node", "store", "retention", "timing", "control", "access", "broker")


def change_of(key: str) -> Change:
    """What it takes to change that key; `peers` is one."""
    table = key.partition(".")[0]
    if key in _LIVE or table in _LIVE_TABLES:
        return Change.LIVE
    if key in _BIRTH:
        return Change.BIRTH
    if key in _FIRST_START:
        return Change.FIRST_START
    return Change.COMMAND if table == "audit" else Change.RESTART


def value_of(settings: Settings, key: str) -> object:
    table, dot, name = key.partition(".")
    return getattr(getattr(settings, table), name) if dot else settings.peers


def keys_of(tables: Iterable[str]) -> list[str]:
    """Those of these tables, and "peers" with the node's."""
    tables = tuple(tables)
    found = [key for key in known_keys() if key.partition(".")[0] in tables]
    return [*found, "peers"] if "node" in tables else found


def differences(before: Settings, after: Settings, tables: Iterable[str]) -> list[str]:
    """The keys that have another value."""
    return [key for key in keys_of(tables) if value_of(before, key) != value_of(after, key)]


def with_keys(before: Settings, after: Settings, keys: Iterable[str]) -> Settings:
    """`before` with these keys from `after`; `peers` stays."""
    changed: dict[str, dict[str, object]] = {}
    for key in keys:
        table, _, name = key.partition(".")
        changed.setdefault(table, {})[name] = value_of(after, key)
    tables = {table: getattr(before, table).model_copy(update=values) for table, values in changed.items()}
    return before.model_copy(update=tables)
