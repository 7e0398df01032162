"""Gauges of classic pairs in the console's `/metrics`. What is unknown is absent, never 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.health.group_view import GroupView
from app.health.pair_links import ha_of, hangs, master_of
from node.views.ha import HaConnection, HaView

Gauge = tuple[str, str, tuple[str, ...], dict[tuple[str, ...], float]]


def gauges(views: Sequence[GroupView]) -> Iterator[Gauge]:
    """(name, what it is, labels, values) of all pairs among them."""
    pairs = [view for view in views if view.is_pair]
    masters = [(view, found[1]) for view in pairs if (found := master_of(view)) is not None]
    yield (
        "pair_has_master", "Whether a broker of a classic pair takes messages", ("cluster",),
        {(view.cluster.id,): int(master_of(view) is not None) for view in pairs},
    )  # fmt: skip
    yield (
        "pair_end_offset", "Where a broker's commit log ends", ("cluster", "member"),
        {
            (view.cluster.id, one.id): said.end_offset for view in pairs for one in view.members
            if (said := ha_of(one)) is not None and said.end_offset is not None
        },
    )  # fmt: skip
    yield (
        "pair_slave_served", "Whether a slave that is connected to its master gets its log", ("cluster", "slave"),
        {
            (pair.cluster.id, name): int(one.state == "transfer" and not hangs(one, pair))
            for pair, name, one in links(masters)
        },
    )  # fmt: skip
    yield (
        "pair_slave_lag_bytes", "What a slave has not acknowledged", ("cluster", "slave"),
        {
            (pair.cluster.id, name): one.lag_bytes for pair, name, one in links(masters) if one.lag_bytes is not None
        },
    )  # fmt: skip
    yield (
        "pair_slave_lag_seconds", "For how long a slave has not acknowledged it", ("cluster", "slave"),
        {
            (pair.cluster.id, name): one.lag_ms / 1000
            for pair, name, one in links(masters) if one.lag_ms is not None
        },
    )  # fmt: skip
    yield (
        "pair_sends_waiting", "Sends that wait for slaves", ("cluster",),
        {(pair.cluster.id,): one.waiting_count for pair, one in masters if one.waiting_count is not None},
    )  # fmt: skip


def links(masters: Sequence[tuple[GroupView, HaView]]) -> Iterator[tuple[GroupView, str, HaConnection]]:
    """(pair, slave, its connection)."""
    return ((pair, one.peer_id or one.address, one) for pair, said in masters for one in said.connections or ())
