"""What an operator sets of classic HA, by RocketMQ's names, and who of a pair a broker is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from node.ha.proof import Proof
from node.protocol.value_class import value_class


class BrokerRole(StrEnum):
    """brokerRole."""

    SYNC_MASTER = "SYNC_MASTER"
    ASYNC_MASTER = "ASYNC_MASTER"
    SLAVE = "SLAVE"

    @property
    def is_master(self) -> bool:
        return self is not BrokerRole.SLAVE


def anybody(_ip: str) -> bool:
    return True


@value_class(slots=True, frozen=True)
class HaSettings:
    """RocketMQ's names and defaults, but for `in_sync_replicas` (there 1: SYNC_MASTER waits for no slave).

    `flow_control_bytes_s` 0: none. Of ours: `cuts_back` (a slave that is ahead or forked cuts its log back to the last
    common record, instead of being refused), `java_after_ms` (so long a slave waits for a master of ours to answer).
    """

    in_sync_replicas: int = 2  # inSyncReplicas: the master and one slave
    slave_timeout_ms: int = 3000  # slaveTimeout
    slave_fall_behind_max_bytes: int = 256 << 20  # haSlaveFallbehindMax
    transfer_batch_bytes: int = 32_768  # haTransferBatchSize
    heartbeat_ms: int = 5000  # haSendHeartbeatInterval
    housekeeping_ms: int = 20_000  # haHousekeepingInterval
    flow_control_bytes_s: int = 0  # haFlowControlEnable, maxHaTransferByteInSecond
    reconnect_ms: int = 5000
    java_after_ms: int = 500
    cuts_back: bool = False
    handshake_ms: int = 5000  # a connection that says nothing for so long at its beginning is closed
    proof: Proof | None = None  # between our own ends; None: nobody proves anything
    admits: Callable[[str], bool] = anybody  # by IP address: a peer that proves nothing
