"""The header of every request and answer of the closed list (`codes.Request`), in Java's names and types.

Fields that Java clients of one version send and others do not are optional. `bname`, the broker's name that 4.9.8 and
5.x repeat in most requests, and `ReqT` (a flag of 4.9's client for its own use) decide nothing and are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from node.protocol.value_class import value_class


@value_class(slots=True, frozen=True)
class SendRequest:
    """10; with the names of SEND_V2 also 310 and 320."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    batch: bool | None = None
    broker_name: str | None = None
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"broker_name": "bname"}


@value_class(slots=True, frozen=True)
class SendRequestV2:
    """The same in one letter each: 310, 320."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None
    batch: bool | None = None
    broker_name: str | None = None
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {
        "producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queue_nums": "d", "queue_id": "e",
        "sys_flag": "f", "born_timestamp": "g", "flag": "h", "properties": "i", "reconsume_times": "j",
        "unit_mode": "k", "max_reconsume_times": "l", "batch": "m", "broker_name": "n",
    }  # fmt: skip


@value_class(slots=True, frozen=True)
class SendAnswer:
    """Of all sends. A client reads the region unguarded, also in a refusal."""

    msg_id: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    transaction_id: str | None = None
    region: str = "DefaultRegion"
    trace_on: bool = True
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"region": "MSG_REGION", "trace_on": "TRACE_ON"}


@value_class(slots=True, frozen=True)
class PullRequest:
    """11."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None


@value_class(slots=True, frozen=True)
class PullAnswer:
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int


@value_class(slots=True, frozen=True)
class QueryRequest:
    """12."""

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key_query: bool = False
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"unique_key_query": "_UNIQUE_KEY_QUERY"}


@value_class(slots=True, frozen=True)
class QueryAnswer:
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@value_class(slots=True, frozen=True)
class QueueRequest:
    """30, 31, 32; 29 with a timestamp."""

    topic: str
    queue_id: int


@value_class(slots=True, frozen=True)
class SearchOffsetRequest:
    """29."""

    topic: str
    queue_id: int
    timestamp: int


@value_class(slots=True, frozen=True)
class OffsetAnswer:
    """Of 14, 29, 30, 31."""

    offset: int


@value_class(slots=True, frozen=True)
class TimestampAnswer:
    """Of 32."""

    timestamp: int


@value_class(slots=True, frozen=True)
class QueryOffsetRequest:
    """14. With set_zero_if_not_found false (5.x) nothing stored is answered as not found, never as 0."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None


@value_class(slots=True, frozen=True)
class UpdateOffsetRequest:
    """15. `only_forward`: a slave of ours merges what was committed there; the master's own stays where it is higher. A
    master of RocketMQ's does not know the word."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    only_forward: bool | None = None


@value_class(slots=True, frozen=True)
class CreateTopicRequest:
    """17."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int | None = None
    order: bool = False


@value_class(slots=True, frozen=True)
class ViewRequest:
    """33: a record by its physical offset."""

    offset: int


@value_class(slots=True, frozen=True)
class UnregisterClientRequest:
    """35: out of the one group, of the other, or of both."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"client_id": "clientID"}


@value_class(slots=True, frozen=True)
class SendBackRequest:
    """36: a message that could not be consumed, by its physical offset."""

    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


@value_class(slots=True, frozen=True)
class EndTransactionRequest:
    """37."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool
    msg_id: str
    transaction_id: str | None = None


@value_class(slots=True, frozen=True)
class CheckTransactionRequest:
    """39, from a broker to a producer; the body is the record in its real topic and queue."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@value_class(slots=True, frozen=True)
class GroupRequest:
    """38, and 40 from a broker to all consumers of the group."""

    consumer_group: str


@value_class(slots=True, frozen=True)
class RegisterBrokerRequest:
    """103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: int
    compressed: bool = False
    body_crc32: int = 0
    WIRE_NAMES: ClassVar[Mapping[str, str]] = {"body_crc32": "bodyCrc32"}


@value_class(slots=True, frozen=True)
class RegisterBrokerAnswer:
    """Of 103: only a slave's answer names a master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


@value_class(slots=True, frozen=True)
class UnregisterBrokerRequest:
    """104."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


@value_class(slots=True, frozen=True)
class RouteRequest:
    """105."""

    topic: str
    accept_standard_json_only: bool = False


@value_class(slots=True, frozen=True)
class KvRequest:
    """101, 102; 100 with a value."""

    namespace: str
    key: str


@value_class(slots=True, frozen=True)
class PutKvRequest:
    """100."""

    namespace: str
    key: str
    value: str


@value_class(slots=True, frozen=True)
class NamespaceRequest:
    """219."""

    namespace: str


@value_class(slots=True, frozen=True)
class ValueAnswer:
    """Of 101."""

    value: str


@value_class(slots=True, frozen=True)
class ClusterRequest:
    """224."""

    cluster: str


@value_class(slots=True, frozen=True)
class BrokerNameRequest:
    """205, 327."""

    broker_name: str


@value_class(slots=True, frozen=True)
class DeleteTopicRequest:
    """215, and 216: there without a cluster in all of them."""

    topic: str
    cluster_name: str | None = None


@value_class(slots=True, frozen=True)
class WipedAnswer:
    """Of 205."""

    wipe_topic_count: int


@value_class(slots=True, frozen=True)
class AddedAnswer:
    """Of 327."""

    add_topic_count: int
