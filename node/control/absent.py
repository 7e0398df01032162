"""Why a resource that other nodes have is not at this one: what a 404 says beside the path."""

from __future__ import annotations

from typing import Final

from node.config import Settings

PREFIX: Final = "/api/v1/"
OF_A_MACHINE: Final = frozenset({"snapshots", "machine"})
OF_KEYS: Final = frozenset({"kv", "kv-events"})


def why_absent(settings: Settings, path: str) -> str | None:
    """One sentence; None where no other kind of node has it either."""
    resource = path.removeprefix(PREFIX).partition("/")[0] if path.startswith(PREFIX) else ""
    machine = settings.node.state_machine
    if resource not in OF_A_MACHINE | OF_KEYS:
        return None
    if settings.ha.is_classic:
        return "This is a broker in classic mode, no member of a group: it has no state machine."
    if not machine:
        return "This group is a log alone: it has no state machine to ask, and no state to save a snapshot of."
    if resource in OF_KEYS and machine != "kv":
        return f"This group's state machine is {machine}, not the key-value store: ask it at {PREFIX}machine/query."
    return None
