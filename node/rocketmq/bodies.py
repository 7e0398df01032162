"""The bodies of requests and answers, typed: what clients say of themselves, queues to lock, topics, groups, routes.

Invariants: reading ends in a value or in BodyError; names that are kept are bounded (NAME_CHARS_MAX), and so is how
many of them come at once; writing gives the bytes that Java gives, but for the order of its hash maps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class
from node.rocketmq.java_json import (
    BodyError,
    bean,
    choice_in,
    dump,
    flag_in,
    items_in,
    load,
    number_in,
    object_in,
    text_in,
)

NAME_CHARS_MAX: Final = 255
GROUPS_MAX: Final = 256  # of one client
SUBSCRIPTIONS_MAX: Final = 1024  # of one group
TAGS_MAX: Final = 1024  # of one subscription
EXPRESSION_CHARS_MAX: Final = 16 * 1024
QUEUES_MAX: Final = 4096  # in one request to lock
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")  # the enums in Java's order
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip
INT32_MAX: Final = (1 << 31) - 1


def name_in(said: Mapping[Any, Any], name: str, default: str | None = None) -> str:
    """A text that is kept. Raises BodyError."""
    value = text_in(said, name, default)
    if len(value) > NAME_CHARS_MAX:
        raise BodyError(f"{name} has {len(value)} characters, {NAME_CHARS_MAX} at most")
    return value


def _choice(said: Mapping[Any, Any], name: str, choices: tuple[str, ...], default: int) -> str:
    value = choice_in(said, name, choices, choices[default])
    if len(value) > NAME_CHARS_MAX:
        raise BodyError(f"{name} has {len(value)} characters, {NAME_CHARS_MAX} at most")
    return value


def _objects(said: Mapping[Any, Any], name: str, most: int) -> list[dict[Any, Any]]:
    found = items_in(said, name)
    if len(found) > most or not all(isinstance(one, dict) for one in found):
        raise BodyError(f"{name} is no list of at most {most} objects")
    return found


# --- 34: what a client says of itself -------------------------------------------------------------------------------
@value_class(slots=True, frozen=True)
class Subscription:
    """One topic of a group; `codes` are the hashes of `tags`, both empty for all messages."""

    topic: str
    expression: str = "*"
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()
    version: int = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False

    def as_said(self) -> dict[str, Any]:
        return bean(
            classFilterMode=self.class_filter_mode, codeSet=list(self.codes), expressionType=self.expression_type,
            subString=self.expression, subVersion=self.version, tagsSet=list(self.tags), topic=self.topic,
        )  # fmt: skip


@value_class(slots=True, frozen=True)
class ConsumerData:
    """One group that a client consumes in."""

    group: str
    subscriptions: tuple[Subscription, ...]
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    unit_mode: bool = False


@value_class(slots=True, frozen=True)
class Heartbeat:
    """`consumers` are whole only without `without_subscriptions` (5.x's second form of a heartbeat)."""

    client_id: str
    producers: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]
    without_subscriptions: bool = False

    def encode(self) -> bytes:
        return dump(
            bean(
                clientID=self.client_id,
                consumerDataSet=[
                    bean(
                        consumeFromWhere=one.consume_from, consumeType=one.consume_type, groupName=one.group,
                        messageModel=one.message_model, unitMode=one.unit_mode,
                        subscriptionDataSet=[each.as_said() for each in one.subscriptions],
                    )
                    for one in self.consumers
                ],
                producerDataSet=[bean(groupName=one) for one in self.producers],
            )
        )  # fmt: skip


def read_heartbeat(body: BytesLike) -> Heartbeat:
    """Raises BodyError."""
    said = load(body, 1024 * 1024)
    consumers = tuple(_consumer(one) for one in _objects(said, "consumerDataSet", GROUPS_MAX))
    producers = tuple(name_in(one, "groupName") for one in _objects(said, "producerDataSet", GROUPS_MAX))
    return Heartbeat(name_in(said, "clientID"), producers, consumers, flag_in(said, "withoutSub"))


def _consumer(said: dict[Any, Any]) -> ConsumerData:
    return ConsumerData(
        name_in(said, "groupName"),
        tuple(_subscription(one) for one in _objects(said, "subscriptionDataSet", SUBSCRIPTIONS_MAX)),
        _choice(said, "consumeType", CONSUME_TYPES, 1), _choice(said, "messageModel", MESSAGE_MODELS, 1),
        _choice(said, "consumeFromWhere", CONSUME_FROM, 0), flag_in(said, "unitMode"),
    )  # fmt: skip


def _subscription(said: dict[Any, Any]) -> Subscription:
    expression, tags, codes = text_in(said, "subString", "*"), items_in(said, "tagsSet"), items_in(said, "codeSet")
    if len(expression) > EXPRESSION_CHARS_MAX or len(tags) > TAGS_MAX or len(codes) > TAGS_MAX:
        raise BodyError(f"a subscription of more than {EXPRESSION_CHARS_MAX} characters or {TAGS_MAX} tags")
    if not all(isinstance(one, str) for one in tags) or not all(type(one) is int for one in codes):
        raise BodyError("tagsSet and codeSet are no lists of texts and of numbers")
    return Subscription(
        name_in(said, "topic"), expression, tuple(tags), tuple(codes), number_in(said, "subVersion", 0),
        name_in(said, "expressionType", "TAG"), flag_in(said, "classFilterMode"),
    )  # fmt: skip


# --- 41, 42: queues to lock -----------------------------------------------------------------------------------------
@value_class(slots=True, frozen=True)
class MessageQueue:
    topic: str
    broker_name: str
    queue_id: int

    def as_said(self) -> dict[str, Any]:
        return bean(brokerName=self.broker_name, queueId=self.queue_id, topic=self.topic)

    def as_name(self) -> tuple[tuple[str, Any], ...]:
        """Where Java has it as the name in a map."""
        return tuple(self.as_said().items())


@value_class(slots=True, frozen=True)
class LockRequest:
    client_id: str
    group: str
    queues: tuple[MessageQueue, ...]


def read_lock_request(body: BytesLike) -> LockRequest:
    """Raises BodyError."""
    said = load(body, 1024 * 1024)
    queues = tuple(
        MessageQueue(name_in(one, "topic"), name_in(one, "brokerName", ""), number_in(one, "queueId"))
        for one in _objects(said, "mqSet", QUEUES_MAX)
    )
    return LockRequest(name_in(said, "clientId"), name_in(said, "consumerGroup"), queues)


def lock_answer(queues: Iterable[MessageQueue]) -> bytes:
    return dump({"lockOKMQSet": [one.as_said() for one in queues]})


# --- topics ---------------------------------------------------------------------------------------------------------
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1


@value_class(slots=True, frozen=True)
class TopicConfig:
    """What a broker has on record of a topic."""

    name: str
    read_queues: int = 8
    write_queues: int = 8
    perm: int = PERM_READ | PERM_WRITE
    filter_type: str = "SINGLE_TAG"
    sys_flag: int = 0
    order: bool = False

    def as_said(self) -> dict[str, Any]:
        return bean(
            order=self.order, perm=self.perm, readQueueNums=self.read_queues, topicFilterType=self.filter_type,
            topicName=self.name, topicSysFlag=self.sys_flag, writeQueueNums=self.write_queues,
        )  # fmt: skip

    def __str__(self) -> str:
        """As Java's toString, which stands in answers."""
        perm = "".join(sign if self.perm & bit else "-" for sign, bit in (("R", 4), ("W", 2), ("X", 1)))
        return (
            f"TopicConfig [topicName={self.name}, readQueueNums={self.read_queues}, writeQueueNums={self.write_queues},"
            f" perm={perm}, topicFilterType={self.filter_type}, topicSysFlag={self.sys_flag},"
            f" order={'true' if self.order else 'false'}]"
        )


@value_class(slots=True, frozen=True)
class DataVersion:
    """Which of two sets of metadata is newer; `state_version` is the term's (5.x)."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def as_said(self) -> dict[str, Any]:
        """4.9.8 has no stateVersion: a 0 is left out."""
        return bean(counter=self.counter, stateVersion=self.state_version or None, timestamp=self.timestamp_ms)


def read_data_version(said: Mapping[Any, Any]) -> DataVersion:
    """Raises BodyError."""
    return DataVersion(
        number_in(said, "counter", 0), number_in(said, "timestamp", 0), number_in(said, "stateVersion", 0)
    )


def _int32(said: Mapping[Any, Any], name: str, default: int) -> int:
    value = number_in(said, name, default)
    if not -INT32_MAX <= value <= INT32_MAX:
        raise BodyError(f"{name} is no int32")
    return value


def read_topics(table: Mapping[Any, Any], most: int) -> dict[str, TopicConfig]:
    """Raises BodyError."""
    if len(table) > most:
        raise BodyError(f"{len(table)} topics, {most} at most")
    found: dict[str, TopicConfig] = {}
    for name, one in table.items():
        if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or not isinstance(one, dict):
            raise BodyError("topicConfigTable is no table of topics by name")
        name = text_in({"": name}, "")
        found[name] = TopicConfig(
            name, _int32(one, "readQueueNums", 16), _int32(one, "writeQueueNums", 16), _int32(one, "perm", 6),
            name_in(one, "topicFilterType", "SINGLE_TAG"), _int32(one, "topicSysFlag", 0), flag_in(one, "order"),
        )  # fmt: skip
    return found


def topics_answer(version: DataVersion, topics: Iterable[TopicConfig]) -> bytes:
    """Of 21."""
    return dump({"dataVersion": version.as_said(), "topicConfigTable": {one.name: one.as_said() for one in topics}})


# --- 201: groups ----------------------------------------------------------------------------------------------------
@value_class(slots=True, frozen=True)
class GroupConfig:
    """What a broker has on record of a group of consumers."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queues: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_slow: int = 1
    notify_ids_changed: bool = True

    def as_said(self) -> dict[str, Any]:
        return bean(
            brokerId=self.broker_id, consumeBroadcastEnable=self.consume_broadcast_enable,
            consumeEnable=self.consume_enable, consumeFromMinEnable=self.consume_from_min_enable, groupName=self.name,
            notifyConsumerIdsChangedEnable=self.notify_ids_changed, retryMaxTimes=self.retry_max_times,
            retryQueueNums=self.retry_queues, whichBrokerWhenConsumeSlowly=self.which_broker_when_slow,
        )  # fmt: skip


def read_groups(table: Mapping[Any, Any], most: int) -> dict[str, GroupConfig]:
    """Raises BodyError."""
    if len(table) > most:
        raise BodyError(f"{len(table)} groups, {most} at most")
    found: dict[str, GroupConfig] = {}
    for name, one in table.items():
        if not isinstance(name, str) or len(name) > NAME_CHARS_MAX or not isinstance(one, dict):
            raise BodyError("subscriptionGroupTable is no table of groups by name")
        found[name] = GroupConfig(
            name, flag_in(one, "consumeEnable", True), flag_in(one, "consumeFromMinEnable", True),
            flag_in(one, "consumeBroadcastEnable", True), _int32(one, "retryQueueNums", 1),
            _int32(one, "retryMaxTimes", 16), _int32(one, "brokerId", 0),
            _int32(one, "whichBrokerWhenConsumeSlowly", 1),
            flag_in(one, "notifyConsumerIdsChangedEnable", True),
        )  # fmt: skip
    return found


def groups_answer(version: DataVersion, groups: Iterable[GroupConfig]) -> bytes:
    """Of 201."""
    table = {one.name: one.as_said() for one in groups}
    return dump({"dataVersion": version.as_said(), "subscriptionGroupTable": table})


# --- 43, 45: offsets ------------------------------------------------------------------------------------------------
def offsets_answer(table: Mapping[str, Mapping[int, int]]) -> bytes:
    """Of 43: by `topic@group`, then by queue."""
    return dump({"offsetTable": table})


def read_offsets(said: Mapping[Any, Any]) -> dict[tuple[str, str], dict[int, int]]:
    """Of 43: by topic and group, then by queue. Raises BodyError."""
    found: dict[tuple[str, str], dict[int, int]] = {}
    for name, queues in object_in(said, "offsetTable").items():
        topic, _at, group = str(name).partition("@")
        if max(len(topic), len(group)) > NAME_CHARS_MAX or not isinstance(queues, dict):
            raise BodyError("offsetTable is no table of offsets by topic@group")
        found[topic, group] = _numbers(queues)
    return found


def read_delay_offsets(said: Mapping[Any, Any]) -> dict[int, int]:
    """Of 45: by level. Raises BodyError."""
    return _numbers(object_in(said, "offsetTable"))


def _numbers(table: Mapping[Any, Any]) -> dict[int, int]:
    """Java writes the names of such maps without quotes; they are queues or levels. An offset below 0, which RocketMQ
    keeps where a client says it, is left out. Raises BodyError."""
    found: dict[int, int] = {}
    for name, value in table.items():
        text = str(name)
        if not (text.isascii() and text.isdigit() and int(text) <= INT32_MAX and type(value) is int):
            raise BodyError(f"{text[:40]!r}: {str(value)[:40]} is no offset")
        if value >= 0:
            found[int(text)] = value
    return found


def delay_offsets_answer(table: Mapping[int, int]) -> bytes:
    """Of 45: by level."""
    return dump({"offsetTable": table})
