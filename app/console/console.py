"""The console object that pages and the REST API share: one function for a page and its JSON twin.

It owns the watches (one a group), the history, the operations and the clients of the control planes. Synchronous
methods do no I/O and answer from the newest view; asynchronous ones ask the database or the nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any

import httpx2
from sqlalchemy.exc import SQLAlchemyError

from app.console import attaching, proxy, recent
from app.console.addresses import CONFIGURATION, Addresses
from app.console.aggregate import ClusterInfo
from app.console.configurations import Configurations
from app.console.cursors import before_id
from app.console.demo import Demo
from app.console.errors import Conflict, ConsoleError, Invalid, NotFound, TermMoved, UnknownCluster
from app.console.event_store import EventsWaiting
from app.console.history import History
from app.console.member_changes import MemberChanges
from app.console.nodes import Nodes
from app.console.preflight import Preflight, may_accept, preflight, refused_transfer
from app.console.remote_operations import RemoteOperations
from app.console.repairs import Repairs
from app.console.sample import NodeSample
from app.console.sent_once import SentOnce
from app.console.settings import ConsoleSettings, Seed
from app.console.starts import Starts
from app.console.transfers import Transfers
from app.console.watch import Note, Watch
from app.db.engine import Sessions
from app.db.idempotency import fingerprint
from app.db.models import Cluster
from app.db.repositories import RUNNING, Clusters, Events, Operations
from app.health.facts import SEVERITY_ORDER
from app.health.group_view import AuditView, GroupView, Incident, Problem
from app.security.roles import ALL, Sight, Viewer
from app.security.sealed import Seal, key_file_of
from app.times import shifted, utc_now
from node.background import Background, reason_of
from node.config import read_token
from node.rereading import Rereading
from node.views.events import EventView
from node.views.message_answers import Produced

log = logging.getLogger(__name__)

Json = dict[str, Any]
SEED_RETRY_S = 1.0
TRANSFER_DEADLINE_MS = 5000
TRANSFER_DEADLINE_MS_MAX = 60_000
SAVE_EVERY_S = 60.0
# Where a group's id stands, for what concerns the console itself; no group's id has an underscore.
OWN = "_console"


class Console:
    """See the module's docstring."""

    def __init__(
        self, settings: ConsoleSettings, sessions: Sessions, transport: httpx2.AsyncBaseTransport | None = None
    ) -> None:
        self.settings = settings
        urls = [url for one in settings.seeds if (url := attaching.url_or_none(one.control_url))]
        self.addresses = Addresses(sessions, Seal(key_file_of(settings.db_url)), settings.node_token, urls)
        self.nodes = Nodes(settings, transport, self.addresses.token_for)
        self.rereading = Rereading()
        self.restart_needed: tuple[str, ...] = ()  # keys that the configuration says otherwise by now
        if settings.node_token_file is not None:
            file = settings.node_token_file
            self.rereading.add("the token for control planes", lambda: read_token(file), self.addresses.use_token)
        if settings.node_ca_file is not None:
            authorities = self.nodes.read_authorities, self.nodes.use_authorities
            self.rereading.add("the authorities of control planes", *authorities)
        self.clusters_kept = Clusters(sessions)
        self.operations_kept = Operations(sessions)
        self.events_kept = Events(sessions)
        self.history_kept = History(sessions, days=settings.history_days)
        self.starts = Starts(sessions)
        self.messages_sent: SentOnce[Produced] = SentOnce()
        self.demo = Demo(settings, self.nodes)
        self.background = Background()
        self.transfers = Transfers(self.nodes, self.operations_kept, self.background)
        self.member_changes = MemberChanges(self.nodes, self.operations_kept, self.background)
        self.configurations = Configurations(self.events_kept)
        self.repairs = Repairs(self.nodes, self.operations_kept, self.background)
        self.remote_operations = RemoteOperations(self.nodes, self.operations_kept, self.background)
        self.watches: dict[str, Watch] = {}
        self.seed_problems: dict[str, str] = {}
        # Group -> the audit that counts (`open_audit`), None where there was none; absent: not looked up yet.
        self.audits: dict[str, AuditView | None] = {}
        # Group -> what was over within the last hour, newest first (`app.console.recent`).
        self.recent: dict[str, tuple[Incident, ...]] = {}
        # Problems of the console itself, by who found them; `own_problems` is all of them.
        self.own: dict[str, Sequence[Problem]] = {}
        # (group, problem) -> what people said of it (`app.notify.notifier`).
        self.notes: dict[tuple[str, str], Note] = {}
        self.events_waiting = EventsWaiting(self.events_kept)
        self.attaching = asyncio.Lock()

    # --- life ---

    async def start(self) -> None:
        await self.operations_kept.orphaned()
        await self.addresses.load()
        await self.starts.load()
        for row in await self.clusters_kept.all():
            self.watch(row)
        self.background.keep("assembling views", self.assemble_forever)
        self.background.keep("storing events", self.events_waiting.store_forever)
        self.background.keep("looking up what is over", partial(recent.look_up_forever, self))
        self.background.keep("storing history", self.save_history_forever)
        self.background.keep("keeping how members were started", partial(self.starts.keep_forever, self.all_samples))
        for seed in self.settings.seeds:
            self.background.keep(f"attaching {seed.control_url}", partial(self.attach_seed, seed))

    async def stop(self) -> None:
        """Once its tasks have ended: whoever owns the console ends `background` before what they write to."""
        await asyncio.gather(*(one.stop() for one in self.watches.values()))
        try:
            await self.events_waiting.store_now()
            await self.history_kept.save()
        except SQLAlchemyError:  # the console ends whether or not its last minute can be kept
            log.exception("the last events, or the history, could not be stored")
        await self.nodes.close()

    def watch(self, row: Cluster) -> Watch:
        members = [
            NodeSample(one.node_id, one.address, *attaching.where(self.addresses, row.id, one)) for one in row.nodes
        ]
        for sample in members:
            sample.start = self.starts.of(row.id, sample.node_id)
        info = ClusterInfo(row.id, row.name, row.group, row.group_id, demo=self.settings.demo)
        one = Watch(
            info,
            members,
            self.nodes,
            self.settings.sample_interval_ms / 1000,
            addresses=self.addresses,
            on_events=self.take_events,
            on_address=self.address_learned,
            audits=self.audits,
            recent=self.recent,
            notes=self.notes,
            on_group_id=self.group_id_learned,
            on_members=self.members_changed,
        )
        self.watches[row.id] = one
        one.start()
        return one

    async def assemble_forever(self) -> None:
        """Views are rebuilt at the sampling rate whether or not nodes answer: silence must show."""
        while True:
            await asyncio.sleep(self.settings.sample_interval_ms / 1000)
            for watch in list(self.watches.values()):
                try:
                    view = watch.assemble()
                    self.history_kept.record(view)
                except Exception:
                    # One group's odd answer must not freeze the others; its own view keeps its old `as_of`.
                    log.exception("assembling the view of %s failed", watch.info.id)

    async def attach_seed(self, seed: Seed) -> None:
        """Tries until the group is found: a console may start before its nodes."""
        while True:
            try:
                await self.add_cluster(seed.control_url, seed.name, by=CONFIGURATION)
                self.seed_problems.pop(seed.control_url, None)
                return
            except ConsoleError as error:
                self.seed_problems[seed.control_url] = error.detail
            except Exception as error:  # such as a database that is away: said on the page, and tried again
                log.exception("attaching %s failed", seed.control_url)
                self.seed_problems[seed.control_url] = reason_of(error)
            await asyncio.sleep(SEED_RETRY_S)

    def take_events(self, cluster_id: str, node_id: str | None, items: Sequence[EventView]) -> None:
        self.configurations.note(cluster_id, items)
        self.events_waiting.put(cluster_id, node_id, items)

    async def save_history_forever(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            try:
                await self.history_kept.save()
                for cluster_id in self.watches:
                    await self.events_kept.trim(cluster_id)
            except Exception:
                log.exception("the history could not be saved")

    def address_learned(self, cluster_id: str, sample: NodeSample) -> None:
        moved = self.clusters_kept.moved(cluster_id, sample.node_id, sample.address, sample.control_url)
        self.background.run(f"storing where {sample.node_id} is", moved)

    def group_id_learned(self, cluster_id: str, group_id: str) -> None:
        self.background.run(f"storing the id of {cluster_id}", self.clusters_kept.named(cluster_id, group_id))

    def members_changed(self, cluster_id: str, joined: NodeSample | None, left: str | None) -> None:
        """The group's configuration names another member, or one no more that does not answer."""
        if joined is not None:
            joined.start = self.starts.of(cluster_id, joined.node_id)
            kept = self.clusters_kept.joined(cluster_id, joined.node_id, joined.address)
            self.background.run(f"storing that {joined.node_id} is a member", kept)
        if left is not None:
            self.background.run(f"forgetting {left}", self.clusters_kept.left(cluster_id, left))

    # --- what is watched ---

    def all_samples(self) -> list[tuple[str, list[NodeSample]]]:
        return [(cluster_id, watch.samples) for cluster_id, watch in self.watches.items()]

    @property
    def samples(self) -> list[NodeSample]:
        return [one for watch in self.watches.values() for one in watch.samples]

    def clusters(self, sight: Sight = ALL) -> list[GroupView]:
        seen = (one.view for one in self.watches.values() if sight.sees(one.info.id))
        return sorted(seen, key=lambda view: view.cluster.name)

    def watch_of(self, cluster_id: str) -> Watch:
        found = self.watches.get(cluster_id)
        if found is None:
            raise UnknownCluster(cluster_id)
        return found

    def group_view(self, cluster_id: str) -> GroupView:
        return self.watch_of(cluster_id).view

    def problems(self, cluster_id: str | None = None, sight: Sight = ALL) -> list[Json]:
        views = [self.group_view(cluster_id)] if cluster_id is not None else self.clusters(sight)
        return [{"cluster_id": view.cluster.id, **one.to_json()} for view in views for one in view.problems]

    def own_problems(self) -> list[Problem]:
        """Those of the console itself, worst first, with what people said of them."""
        found = [one for each in self.own.values() for one in each]
        noted = [one.model_copy(update=dict(self.notes.get((OWN, one.id)) or {})) for one in found]
        return sorted(noted, key=lambda one: (SEVERITY_ORDER.index(one.severity), one.since))

    async def add_cluster(
        self, control_url: str, name: str | None = None, *, by: str, token: str | None = None
    ) -> GroupView:
        return await attaching.add_cluster(self, control_url, name, by=by, token=token)

    async def rename_cluster(self, cluster_id: str, name: str) -> GroupView:
        watch = self.watch_of(cluster_id)
        await self.clusters_kept.rename(cluster_id, name)
        watch.rename(name)
        return watch.assemble()

    async def remove_cluster(self, cluster_id: str) -> None:
        watch = self.watch_of(cluster_id)
        await self.clusters_kept.remove(cluster_id)  # first: where it fails, it can be tried again
        if self.watches.get(cluster_id) is watch:
            del self.watches[cluster_id]
        await watch.stop()
        self.addresses.forget(cluster_id)
        self.starts.forget(cluster_id)
        self.configurations.forget(cluster_id)
        self.history_kept.forget(cluster_id)

    # --- nodes ---

    def control_url(self, cluster_id: str, node_id: str | None) -> tuple[str, str]:
        """(node id, control URL) of a member, or of the leader, or of any that answers."""
        view = self.group_view(cluster_id)
        return proxy.pick(view, node_id)

    async def ask(self, cluster_id: str, path: str, *, node_id: str | None = None, **params: Any) -> Json:
        chosen, url = self.control_url(cluster_id, node_id)
        return {**await self.nodes.get(url, path, **params), "node_id": chosen}

    async def entries(
        self,
        cluster_id: str,
        *,
        node_id: str | None = None,
        from_index: int | None = None,
        limit: int = 50,
        view: str = "committed",
        as_: str = "text",
        consistency: str | None = None,
    ) -> Json:
        asked: Json = {"from": from_index, "limit": limit, "as": as_, "consistency": consistency}
        asked["view"] = None if view == "committed" else view
        return await self.ask(cluster_id, "entries", node_id=node_id, **asked)

    async def entry(self, cluster_id: str, index: int, as_: str = "text") -> Json:
        return await proxy.side_by_side(self.nodes, self.group_view(cluster_id), index, as_)

    async def truncations(self, cluster_id: str, node_id: str | None = None) -> Json:
        return await proxy.truncations(self.nodes, self.group_view(cluster_id), node_id)

    async def truncation_entries(self, cluster_id: str, node_id: str, seq: str, **params: Any) -> Json:
        return await self.ask(cluster_id, f"truncations/{seq}/entries", node_id=node_id, **params)

    # --- time ---

    async def history(
        self, cluster_id: str, since: datetime | None = None, until: datetime | None = None, points: int = 600
    ) -> Json:
        until = until or utc_now()
        since = since or shifted(until, -3600)
        if since >= until:
            raise Invalid("`since` must be before `until`")
        ids = [one.id for one in self.group_view(cluster_id).members]
        answer = await self.history_kept.query(cluster_id, ids, since, until, points)
        answer["events"] = await self.events_kept.list(cluster_id, limit=500, since=since, until=until)
        return answer

    async def view_at(self, cluster_id: str, at: datetime) -> GroupView:
        return await self.history_kept.view_at(self.group_view(cluster_id), at)

    async def events(
        self, cluster_id: str | None = None, limit: int = 100, cursor: str | None = None, sight: Sight = ALL
    ) -> Json:
        if cluster_id is not None:
            self.watch_of(cluster_id)
        items = await self.events_kept.list(cluster_id, limit=limit + 1, before_id=before_id(cursor), sight=sight)
        more = items[limit - 1]["id"] if len(items) > limit else None
        return {"items": items[:limit], "next": more}

    # --- leadership transfers ---

    def preflight(self, cluster_id: str, to: str | None = None) -> Preflight:
        return preflight(self.group_view(cluster_id), to)

    async def transfer(
        self,
        cluster_id: str,
        to: str | None,
        *,
        if_term: int | None = None,
        deadline_ms: int | None = None,
        accept_data_loss: bool = False,
        caller: Viewer,
        idempotency_key: str | None = None,
    ) -> Json:
        """`accept_data_loss`: an admin's word, for the member that `to` names, that a first leadership may cut.

        Raises Invalid, TermMoved.
        """
        view = self.group_view(cluster_id)
        asked: Json = {"cluster": cluster_id, "to": to, "if_term": if_term, "deadline_ms": deadline_ms}
        asked |= {"accept_data_loss": True} if accept_data_loss else {}
        said = fingerprint(caller, "leadership_transfer", asked)
        # First of all: the group has changed by what the first call did.
        known = await self.operations_kept.earlier(caller.name, idempotency_key, said)
        if known is not None:
            return known
        if if_term is not None and view.term is not None and if_term != view.term:
            raise TermMoved(f"The group is in term {view.term}, not {if_term}; look again, then repeat.")
        checked = preflight(view, to)
        if accept_data_loss:
            may_accept(checked, to, caller)
        elif not checked.allowed:
            raise refused_transfer(checked)
        deadline_ms = deadline_ms or TRANSFER_DEADLINE_MS
        if not 100 <= deadline_ms <= TRANSFER_DEADLINE_MS_MAX:
            raise Invalid(f"deadline_ms must be between 100 and {TRANSFER_DEADLINE_MS_MAX}")
        leader_id, url = proxy.pick(view, view.leader_id)
        operation, fresh = await self.operations_kept.open(
            cluster_id,
            "leadership_transfer",
            caller.name,
            node_id=leader_id,
            key=idempotency_key,
            progress={"detail": f"from {leader_id} to {to or 'the best peer'}"},
            fingerprint=said,
        )
        if fresh:
            body = {"to": to, "if_term": if_term if if_term is not None else view.term, "deadline_ms": deadline_ms}
            self.transfers.transfer(operation, url, body, deadline_ms, lambda: self.group_view(cluster_id).leader_id)
        return operation

    async def operation(self, operation_id: str, sight: Sight = ALL) -> Json:
        found = await self.operations_kept.get(operation_id)
        if found is None or not sight.sees(found["cluster_id"]):
            raise NotFound(f"There is no operation {operation_id}.", title="Unknown operation")
        return found

    async def cancel(self, operation_id: str) -> Json:
        operation = await self.operation(operation_id)
        if operation["state"] != RUNNING:
            raise Conflict(f"The operation is {operation['state']} already.")
        if operation["kind"] != "leadership_transfer":
            raise Conflict(f"What was asked for ({operation['kind']}) is under way, and ends by itself.")
        _, url = proxy.pick(self.group_view(operation["cluster_id"]), operation["node_id"])
        await self.transfers.cancel(operation, url)
        return await self.operation(operation_id)
