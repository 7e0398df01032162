"""What RocketMQ's clients reach of a broker: its main and VIP port, and the name service for its own group.

Invariants: queues that got messages wake the pulls that wait for them in the same turn of the loop; a connection that
ended leaves nothing; topics that the log has messages of are known, whoever was master when they were made.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from node.background import Background
from node.broker.broker import Broker, wall_ms
from node.broker.dispatched_log import Touched
from node.broker.introspection import INTROSPECT, Introspection
from node.broker.metadata_tables import TablesInLog
from node.broker.registration import OwnRegistration, Registrar
from node.broker.requests.config_files import ConfigFiles
from node.broker.requests.context import Context, Identity, host_of
from node.broker.requests.quick_sends import QuickSends
from node.broker.requests.table import BrokerRequests
from node.broker.topic_rates import TopicRates
from node.broker.transactions import TransactionTimes
from node.config import split_address
from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.rocketmq.codes import Request
from node.rocketmq.connection import ClientConnection
from node.rocketmq.dispatch import Dispatcher, Handler
from node.rocketmq.server import RemotingServer

VIP_BELOW: Final = 2  # the VIP port lies so far below the main one
LOOK_EVERY_S: Final = 1.0
SAVE_EVERY_S: Final = 5.0
ROUTES: Final = frozenset({Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CLUSTER_INFO})  # they name the master


class ClientPort:
    """See the module's docstring. Raises OSError where the broker's own address has no number."""

    def __init__(self, broker: Broker) -> None:
        self._broker, settings = broker, broker.settings
        host, port = split_address(settings.broker.address)
        ip = str(host_of(host, port))
        identity = Identity(settings.node.group, settings.node.group, ip.rpartition(":")[0].strip("[]"), port)
        self.context = Context(identity, broker, wall_ms, broker.limits.body_bytes_max, broker.limits.delay_levels)
        config = settings.broker
        times = TransactionTimes(
            config.transaction_timeout_ms, config.transaction_check_interval_ms, config.transaction_check_max
        )
        self.requests = BrokerRequests(self.context, times, broker.said)
        self._files = ConfigFiles(settings.node.data, self.context)
        self._tables = TablesInLog(
            self.context, broker.metadata, lambda: self.requests.learn(broker.log.next_offsets)
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        self.context.locks.steady_ms = lambda: int(loop.time() * 1000)
        self._background = Background()
        self.registry = Registry()
        names = NameService(self.registry, wall_ms)
        routes = {code: self.context.as_master(handler) for code, handler in names.handlers().items() if code in ROUTES}
        self._rates = TopicRates()
        introspection = Introspection(self.context, self._state, self._rates.of)
        handlers: Mapping[int, Handler] = {
            **names.handlers(), **routes, **self.requests.handlers(), INTROSPECT: introspection.handle,
        }  # fmt: skip
        quick = QuickSends(self.context, self.requests.sends, broker.limits, broker.lane.put_record)
        self.server = RemotingServer(Dispatcher(handlers), on_closed=self._closed, take_send=quick.send)
        own = OwnRegistration(self.context, broker.roles)
        self.registrar = Registrar(own, self.registry, settings.broker.name_server_addresses)
        self.context.topics.on_change.append(lambda _topics: self.registrar.soon())
        broker.on_role.append(self.registrar.soon)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        broker.transactions = self.requests.transactions
        if broker.is_master:
            self.requests.transactions.start()
        broker.log.on_dispatched.append(self._dispatched)

    async def open(self, host: str, port: int, *, vip: bool = False) -> int:
        """The main port's number. Raises OSError."""
        bound = await self.server.listen(host, port)
        if vip:
            await self.server.listen(host, port - VIP_BELOW)
        self._look()
        self._background.keep("config files", self._save_now_and_then)
        return bound

    async def _save_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            due = self._files.due() if self._broker.metadata.is_known else None
            if due:
                await asyncio.to_thread(self._files.write, due)

    def save(self) -> None:
        """All that is not in its file. Raises OSError."""
        if self._broker.metadata.is_known:
            self._files.write(self._files.due())

    def close(self) -> None:
        for task in self._background.tasks:
            task.cancel()
        for timer in self._timers.values():
            timer.cancel()
        self.requests.transactions.stop()
        self._broker.transactions = None
        self._tables.close()
        self.registrar.close()
        self.server.close()

    def _state(self) -> dict[str, Any]:
        """What this broker is now, for `node/broker/introspection.py`."""
        broker, log, roles = self._broker, self._broker.log, self._broker.roles
        registered = self.registrar.registered_ms
        return {
            "role": None if roles.role is None else roles.role.name,
            "broker_id": roles.broker_id if roles.role is not None else None,
            "term": roles.term if roles.role is not None else None,
            "leader_id": broker.leader_id,
            "address": self.context.identity.address,
            "vip": broker.settings.broker.vip,
            "name_servers": [{"address": one, "registered_ms": at} for one, at in registered.items()],
            "dispatch": {
                "committed_index": log.committed_index, "dispatched_index": log.dispatched_index,
                "behind_entries": max(0, log.committed_index - log.dispatched_index),
                "behind_ms": round(log.behind_s * 1000), "still_ms": round(log.still_s * 1000),
                "stopped_by": log.stopped_by or None, "end_offset": log.end_position,
            },
            "connections": len(self.server.connections),
            "pulls_held": self.requests.pulls.held,
            "role_changes": [one.as_said() for one in roles.timeline],
        }  # fmt: skip

    def _closed(self, connection: ClientConnection) -> None:
        self.registry.owner_gone(connection)
        self.requests.gone(connection)

    def _dispatched(self, touched: Touched) -> None:
        self.requests.arrived(touched)

    def _look(self) -> None:
        self._timers["look"] = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)
        self.requests.look()
        self._rates.look(self._broker.log.next_offsets)
        self.registrar.look()
        for owner in self.registry.expire(wall_ms()):
            if isinstance(owner, ClientConnection):
                owner.close()
