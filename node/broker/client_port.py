"""What RocketMQ's clients reach of a broker: its main and VIP port, and the name service for its own group.

Invariants: queues that got messages wake the pulls that wait for them in the same turn of the loop; a connection that
ended leaves nothing; topics that the log has messages of are known, whoever was master when they were made.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from node.background import Background
from node.broker.host import BrokerHost
from node.broker.introspection import INTROSPECT, Asked, Introspection
from node.broker.open_puts import OpenPut
from node.broker.registration import MasterWanted, OwnRegistration, Registrar, Role
from node.broker.requests.config_files import ConfigFiles
from node.broker.requests.context import Context, Identity, host_of
from node.broker.requests.quick_sends import QuickSends
from node.broker.requests.store import Store
from node.broker.requests.table import BrokerRequests
from node.broker.topic_rates import TopicRates
from node.broker.transactions import TransactionTimes
from node.config import Settings, split_address
from node.message_store.new_message import PutLimits
from node.name_service.registry import Registry
from node.name_service.requests import NameService
from node.own_addresses import VIP_BELOW, why_not_listening
from node.rocketmq.codes import Request
from node.rocketmq.connection import ClientConnection
from node.rocketmq.dispatch import Dispatcher, Handler
from node.rocketmq.server import RemotingServer

LOOK_EVERY_S: Final = 1.0
SAVE_EVERY_S: Final = 5.0
ROUTES: Final = frozenset({Request.GET_ROUTEINFO_BY_TOPIC, Request.GET_BROKER_CLUSTER_INFO})  # they name the master


Touched = dict[tuple[str, int], int]


Learn = Callable[[Iterable[tuple[str, int]]], None]


class Service(Protocol):
    """What runs on the master only."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Tables(Protocol):
    """Where topics, groups and offsets are kept, beside the context that has them in memory."""

    @property
    def is_known(self) -> bool: ...
    def close(self) -> None: ...


class Served(Store, Protocol):
    """What is needed of a broker: one on the replicated log, or one with a log of its own."""

    transactions: Service | None
    on_role: list[Callable[[], None]]
    on_dispatched: list[Callable[[Touched], None]]

    @property
    def settings(self) -> Settings: ...
    @property
    def host(self) -> BrokerHost: ...
    @property
    def limits(self) -> PutLimits: ...
    @property
    def roles(self) -> Role: ...
    @property
    def next_offsets(self) -> Mapping[tuple[str, int], int]: ...
    @property
    def ha_address(self) -> str | None:
        """Where slaves connect; None: RocketMQ's rule, one above the main port."""

    @property
    def master_wanted(self) -> MasterWanted | None:
        """Who learns where a master listens for slaves; None: nobody asks."""

    def put_record(
        self, topic: str, queue_id: int, size_bytes: int, record_of: Callable[[int, int, float], OpenPut]
    ) -> bool: ...
    def tables(self, context: Context, files: ConfigFiles, learn: Learn) -> Tables:
        """`learn`: of queues that messages are in, so that their topics are known."""

    def state(self) -> dict[str, Any]:
        """Role, epoch or term, dispatch: for `node/broker/introspection.py`."""

    def requests(self) -> Mapping[int, Handler]:
        """Of its own, by code."""

    def questions(self) -> Mapping[str, Callable[[Asked], Any]]:
        """More that this machine may ask, by name."""

    def said(self, kind: str, severity: str, reason: str) -> None: ...


class ClientPort:
    """See the module's docstring. Raises OSError where the broker's own address has no number."""

    def __init__(self, broker: Served) -> None:
        self._broker, settings = broker, broker.settings
        host, port = split_address(settings.broker.address)
        ip = str(host_of(host, port))
        identity = Identity(settings.node.group, settings.node.group, ip.rpartition(":")[0].strip("[]"), port)
        loop = asyncio.get_running_loop()
        self.context = Context(
            identity, broker, broker.host.now_ms, broker.limits.body_bytes_max, broker.limits.delay_levels,
            elapsed_ms=lambda: int(loop.time() * 1000),
        )  # fmt: skip
        config = settings.broker
        times = TransactionTimes(
            config.transaction_timeout_ms, config.transaction_check_interval_ms, config.transaction_check_max
        )
        self.requests = BrokerRequests(self.context, times, broker.said)
        self._files = ConfigFiles(settings.node.data, self.context)
        self._tables = broker.tables(self.context, self._files, self.requests.learn)
        self._background = Background()
        self.registry = Registry()
        names = NameService(self.registry, self.context.steady_ms)
        routes = {code: self.context.as_master(handler) for code, handler in names.handlers().items() if code in ROUTES}
        self._rates = TopicRates()
        introspection = Introspection(self.context, self._state, self._rates.of, broker.questions())
        handlers: Mapping[int, Handler] = {
            **names.handlers(), **routes, **self.requests.handlers(), **broker.requests(),
            INTROSPECT: introspection.handle,
        }  # fmt: skip
        quick = QuickSends(
            self.context, self.requests.sends, broker.limits, broker.put_record, waits=settings.ha.is_classic
        )
        self.server = RemotingServer(
            Dispatcher(handlers), on_closed=self._closed, take_send=quick.send, listening=broker.host.listen
        )
        own = OwnRegistration(self.context, broker.roles, broker.ha_address)
        self.registrar = Registrar(own, self.registry, config.name_server_addresses, broker.master_wanted)
        self.context.topics.on_change.append(self.registrar.changed)
        broker.on_role.append(self.registrar.soon)
        self._timers: dict[str, asyncio.TimerHandle] = {}
        broker.transactions = self.requests.transactions
        if broker.is_master:
            self.requests.transactions.start()
        broker.on_dispatched.append(self._dispatched)

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
            if self._tables.is_known:
                before = self._files.unsaved_by
                with contextlib.suppress(OSError):  # it is tried again
                    await self._files.save()
                if (why := self._files.unsaved_by) and why != before:
                    self._broker.said("config_not_saved", "warning", why)

    def save(self) -> None:
        """All that is not in its file. Raises OSError."""
        if self._tables.is_known:
            self._files.save_now()

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
        registered = self.registrar.registered_ms
        return {
            **self._broker.state(),
            "address": self.context.identity.address,
            "vip": self._broker.settings.broker.vip,
            "name_servers": [{"address": one, "registered_ms": at} for one, at in registered.items()],
            "connections": len(self.server.connections),
            "pulls_held": self.requests.pulls.held,
            "transactions": self.requests.transactions.pending(),
        }

    def _closed(self, connection: ClientConnection) -> None:
        self.registry.owner_gone(connection)
        self.requests.gone(connection)

    def _dispatched(self, touched: Touched) -> None:
        self.requests.arrived(touched)

    def _look(self) -> None:
        self._timers["look"] = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._look)
        self.requests.look()
        self._rates.look(self._broker.next_offsets)
        self.registrar.look()
        for owner in self.registry.expire(self.context.steady_ms()):
            if isinstance(owner, ClientConnection):
                owner.close()


class PortTaken(Exception):
    """Clients cannot reach this broker."""


async def listen(clients: ClientPort, settings: Settings) -> int:
    """Raises PortTaken, OSError."""
    address = settings.broker.address
    host, port = split_address(address)
    try:
        return await clients.open(host, port, vip=settings.broker.vip)
    except OSError as error:
        raise not_listening(address, error, "--broker") from error


def not_listening(address: str, error: OSError, key: str) -> PortTaken | OSError:
    """Only a port that is taken keeps a broker down."""
    why = why_not_listening(address, error, key)
    return PortTaken(why) if error.errno == errno.EADDRINUSE else OSError(why)
