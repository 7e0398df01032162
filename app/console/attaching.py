"""How a group comes to be watched, and where its members are asked: what admins and the configuration give, what they
approve of what members name, and what they take back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from app.console.addresses import Addresses, AddressesView, normal_control_url
from app.console.errors import Invalid
from app.console.pair_asking import ask_either
from app.db.models import ClusterNode
from app.health.group_view import GroupView
from node.views.state import PeerView

if TYPE_CHECKING:
    from app.console.console import Console

EARLIER = "an earlier start"


def url_or_none(url: str | None) -> str | None:
    """One that no member can be asked at is as good as none: another member may name a better one."""
    with contextlib.suppress(Invalid):
        return normal_control_url(url) if url else None
    return None


def where(addresses: Addresses, cluster_id: str, node: ClusterNode) -> tuple[str | None, str | None]:
    """(where it may be asked, which address of it waits): what was stored before addresses were approved waits."""
    url = node.control_url
    if url is None or addresses.named(cluster_id, node.node_id, url, by=EARLIER, first=True):
        return url, None
    return None, addresses.waits_for(cluster_id, node.node_id)


async def add_cluster(console: Console, control_url: str, name: str | None, *, by: str, token: str | None) -> GroupView:
    """One control plane names them all: `state.peers` carries the others' addresses. The address that `by` gave is
    approved by that; the others are used or wait as `Addresses` says. Raises Invalid."""
    url, addresses = normal_control_url(control_url), console.addresses
    shown = token or addresses.token_for(url) or addresses.console_token
    state, ha = await ask_either(console.nodes, url, is_classic=False, token=shown)
    if not state.group or not state.self_id:
        raise Invalid(f"{url} is no control plane of a node: it names neither group nor node")
    for said in (name or "", state.group):  # it goes into mails' headers, to terminals and into the trail
        if not said.isprintable():
            raise Invalid(f"{said!r} is no name of a group: it has characters that cannot be printed")
    peers = {one.id: one for one in state.peers or () if one.id}
    peers.setdefault(state.self_id, PeerView(id=state.self_id))
    # One at a time: two seeds of one group must find one row, not make two.
    async with console.attaching:
        group_id = state.group_id
        if ha is not None:
            group_id = ha.pair
            peers |= {one: PeerView(id=one) for one in known_brokers(console, state.group, group_id)}
        members: list[tuple[str, str, str | None]] = [
            (key, one.address or "", None) for key, one in sorted(peers.items())
        ]
        row = await console.clusters_kept.save(name, state.group, members, group_id)
        if token is not None:
            await addresses.set_token(row.id, token)
        await addresses.approve(row.id, url, by)
        urls: dict[str, str | None] = {one.node_id: one.control_url for one in row.nodes}
        for key, one in peers.items():
            named, known = url_or_none(one.control_url), urls.get(key)
            first = known is None or not addresses.usable(row.id, known)
            if named is not None and addresses.named(row.id, key, named, by=state.self_id, first=first) and first:
                urls[key] = named
        row = await console.clusters_kept.move_all(row.id, {**urls, state.self_id: url})
        watch = console.watches.get(row.id)
        if watch is not None and watch.follow(row.name, {one.node_id: one.control_url for one in row.nodes}):
            return watch.assemble()
        fresh = console.watch(row)
        for sample in fresh.samples:  # the next broker of its pair may be attached before this one is asked again
            sample.ha = ha if sample.node_id == state.self_id else None
        if watch is not None:
            await watch.stop()
        return fresh.view if ha is None else fresh.assemble()


def known_brokers(console: Console, group: str, pair: str | None) -> list[str]:
    """The brokers of this pair that are watched already: a broker of a pair names no other one itself."""
    for watch in console.watches.values():
        known, classic = watch.info.group_id, any(one.ha is not None for one in watch.samples)
        if watch.info.group == group and classic and (known is None or pair is None or known == pair):
            return [one.node_id for one in watch.samples]
    return []


async def approve_address(
    console: Console, cluster_id: str, control_url: str, by: str, node_id: str | None = None
) -> AddressesView:
    """From now on it may be asked, with the group's token, and the node that it is of is asked there.

    Raises Invalid.
    """
    watch, url = console.watch_of(cluster_id), normal_control_url(control_url)
    if node_id is not None and node_id not in watch.pollers:
        raise Invalid(f"{node_id!r} is no member of this group")
    waited = await console.addresses.approve(cluster_id, url, by)
    watch.approved(url, node_id or (waited.node_id if waited is not None else None))
    return addresses_of(console, cluster_id)


async def withdraw_address(console: Console, cluster_id: str, control_url: str) -> AddressesView:
    watch, url = console.watch_of(cluster_id), normal_control_url(control_url)
    await console.addresses.withdraw(cluster_id, url)
    watch.withdrawn(url)
    return addresses_of(console, cluster_id)


async def set_node_token(console: Console, cluster_id: str, token: str | None) -> None:
    """What was only used first, while there was no token, waits once there is one."""
    watch = console.watch_of(cluster_id)
    await console.addresses.set_token(cluster_id, token)
    watch.token_changed()


def addresses_of(console: Console, cluster_id: str) -> AddressesView:
    """Pinned and waiting ones, and which members are asked there."""
    watch, listing = console.watch_of(cluster_id), console.addresses.listing(cluster_id)
    asked = {one.control_url: one.node_id for one in watch.samples}
    for item in listing.items:
        item.node_id = item.node_id or asked.get(item.control_url)
        item.in_use = item.control_url in asked
    return listing
