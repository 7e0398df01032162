"""The demo's live table in a terminal (`--no-console`): the members and the feed, redrawn once a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from app.commands.status_table import leader_end_of, quorum_words, row_of

if TYPE_CHECKING:
    from app.demo.run import Demo

EVERY_S: Final = 0.5
LEFT: Final = ("id", "role")
RIGHT: Final = ("term", "end", "durable", "committed", "behind")


def table_of(demo: Demo) -> Table:
    """One picture of the group."""
    table = Table(box=None, pad_edge=False)
    for name in LEFT:
        table.add_column(name)
    for name in RIGHT:
        table.add_column(name, justify="right", min_width=10)
    summary = demo.summary
    if summary is None:
        return table
    end = leader_end_of(summary)
    for member in summary.members:
        row = row_of(member, end)
        style = "bold" if row["role"] == "LEADER" else "dim" if member.state is None else None
        table.add_row(*(row[name] for name in (*LEFT, *RIGHT)), style=style)
    fed = demo.feeder.fed if demo.feeder else None
    table.caption = quorum_words(summary) + (
        f"; {fed.appended:,} messages, {fed.unknown} of unknown outcome" if fed else ""
    )
    table.caption_justify = "left"
    return table


async def show_table(demo: Demo) -> None:
    """Redraws until cancelled."""
    with Live(table_of(demo), console=Console(stderr=True), auto_refresh=False) as live:
        while True:
            await asyncio.sleep(EVERY_S)
            live.update(table_of(demo), refresh=True)
