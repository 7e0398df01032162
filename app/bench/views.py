"""Reads the members' state for benches, as typed views: a field that is gone fails here."""

from __future__ import annotations

from node.client import LedgerClient
from node.views.reading import read
from node.views.replication import WatermarksView
from node.views.state import StateView


async def state_of(client: LedgerClient, member_id: str) -> StateView:
    """Raises LedgerError where it does not answer, Unreadable where that is no state."""
    return read(StateView, await client.state(member_id))


async def leaders_watermarks(client: LedgerClient) -> WatermarksView:
    """As the present leader tells them. Raises as `state_of`."""
    return read(WatermarksView, await client.introspect(await client.leader(), "watermarks"))
