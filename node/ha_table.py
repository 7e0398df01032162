"""The table `[ha]`: a broker in classic master/slave mode, which has a commit log of its own and no engine.

Names are RocketMQ's where it has them. Invariant: nothing is stored before `ha_trouble` has found nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from node.config_table import AddressOrNothing, Table, is_loopback
from node.protocol.peers import split_address

if TYPE_CHECKING:
    from node.broker_table import BrokerTable
    from node.config_models import NodeTable

PEERS_MAX: Final = 8


def _addresses(text: str) -> str:
    found = [one for one in text.split(";") if one]
    for one in found:
        split_address(one)
    if len(found) > PEERS_MAX:
        raise ValueError(f"{len(found)} peers, {PEERS_MAX} at most")
    return text


def _networks(text: str) -> str:
    for one in filter(None, text.split(";")):
        ip_network(one)
    return text


def _role(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Peers = Annotated[str, AfterValidator(_addresses)]
Networks = Annotated[str, AfterValidator(_networks)]
Role = Annotated[Literal["", "sync_master", "async_master", "slave"], BeforeValidator(_role)]
Millis = Annotated[int, Field(ge=1, le=24 * 3600 * 1000)]


class HaTable(Table):
    role: Role = ""
    """What this broker is in classic master/slave mode (RocketMQ's brokerRole): sync_master, async_master or slave.
    There is no engine and no [peers] then (docs/classic-ha.md). A promotion, or a later master that was met, is on
    record in the data directory, and counts more. Empty: no classic mode."""

    address: AddressOrNothing = ""
    """Where it listens for slaves, on every broker of a pair, so that any can be promoted (haListenPort)."""

    peers: Peers = ""
    """Where the other brokers of the pair listen for slaves, as "host:port;host:port": a slave follows the one of them
    that is master (haMasterAddress), a master looks there for a later one. A slave also tries where the name servers
    of [broker] say that its master listens."""

    broker_id: Annotated[int, Field(ge=1, le=2**31 - 1)] = 1
    """What a slave is registered as (RocketMQ's brokerId); a master is 0. Each slave of a pair has another."""

    in_sync_replicas: Annotated[int, Field(ge=1, le=9)] = 2
    """On how many brokers, the master among them, a message is before sync_master answers (inSyncReplicas)."""

    slave_timeout_ms: Millis = 3_000
    """For how long a put waits for slaves (slaveTimeout); then it is answered FLUSH_SLAVE_TIMEOUT, and stays."""

    sync_flush_timeout_ms: Millis = 5_000
    """For how long a put waits for the disk with [node] flush = "sync" (syncFlushTimeout); then FLUSH_DISK_TIMEOUT."""

    slave_fall_behind_max_bytes: Annotated[int, Field(ge=1, le=2**62)] = 256 << 20
    """A slave that is further behind is not waited for (haSlaveFallbehindMax)."""

    transfer_batch_bytes: Annotated[int, Field(ge=4096, le=4 << 20)] = 32_768
    """How much of the log goes to a slave of RocketMQ's in one frame (haTransferBatchSize)."""

    heartbeat_ms: Millis = 5_000
    """How often something is sent where there is nothing to send (haSendHeartbeatInterval)."""

    housekeeping_ms: Millis = 20_000
    """A connection over which nothing came for so long is closed (haHousekeepingInterval)."""

    flow_control_bytes_per_s: Annotated[int, Field(ge=0, le=2**40)] = 0
    """How much each slave gets a second (maxHaTransferByteInSecond); 0: as much as it takes."""

    reconnect_ms: Millis = 1_000
    """How soon a slave tries again, and how often a master looks for a later one."""

    cuts_back: bool = False
    """Whether a slave whose log is ahead of its master's, or forked from it, keeps a copy of what differs, cuts it off
    and goes on; without it, it waits for an operator."""

    slave_read_enable: bool = False
    """Whether a master that has to read from the disk sends consumers to a slave (slaveReadEnable)."""

    allow: Networks = ""
    """From where slaves of RocketMQ's, which prove nothing, may come, and where their masters are: addresses or
    networks, as "10.0.0.7;10.1.0.0/16". Empty: without [node] secret_file anybody who reaches the port,
    with it nobody."""

    @property
    def is_classic(self) -> bool:
        return bool(self.role)

    @property
    def peer_addresses(self) -> tuple[str, ...]:
        return tuple(one for one in self.peers.split(";") if one)

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(one for one in self.allow.split(";") if one)

    @model_validator(mode="after")
    def _whole(self) -> HaTable:
        if self.role and not self.address:
            raise ValueError("role needs address: where this broker listens for slaves, also a slave's (--ha)")
        if self.address and not self.role:
            raise ValueError("address needs role: sync_master, async_master or slave (--role)")
        if self.address in self.peer_addresses:
            raise ValueError(f"peers names this broker's own address {self.address}")
        return self


def ha_trouble(ha: HaTable, node: NodeTable, broker: BrokerTable, peers: Mapping[str, str]) -> str:
    """Why no broker can be started in classic mode with this; empty: one can."""
    if not node.id:
        return "[node] id is missing: say which broker of the pair this is with --id"
    if not broker.has_broker:
        return "[ha] role needs [broker] address: where RocketMQ's clients reach this broker (--broker)"
    if peers:
        return "[ha] role and [peers] exclude each other: in classic mode there is no replicated log"
    if node.state_machine:
        return "[ha] role and [node] state_machine exclude each other: in classic mode there is no replicated log"
    if ha.role == "slave" and not ha.peers and not broker.name_servers:
        return (
            "[ha] role = slave needs [ha] peers, where its master listens for slaves (--ha-peers), or [broker]"
            " name_servers, which say it"
        )
    if not is_loopback(split_address(ha.address)[0]) and node.secret_file is None and not ha.allow:
        return (
            f"[ha] address {ha.address} is beyond loopback: give [node] secret_file, which the brokers of a pair prove"
            " to each other, or [ha] allow, from where RocketMQ's own may come"
        )
    return ""
