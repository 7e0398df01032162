"""The requests of the name service, over a registry: 103 to 106, and those of RocketMQ's tools about topics and keys.

A stand-alone name server serves all of them; a broker of ours serves them too, for its own cluster. Keys and values
(100 to 102, 219) are kept in memory: `ORDER_TOPIC_CONFIG`, which each registration is answered with, and others.

Invariants: a request that is refused changes nothing; keys and values are bounded in number, length and their sum, and
a key that is there may be given another value within these; the topics of a long registration are read, and a long list
of all topics made, beside the loop; brokers that come and go behind a registration wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from node.name_service.registrations import Topics, read_registration
from node.name_service.registry import Broker, QueueData, Registration, Registry, RegistryFull
from node.protocol.entry import crc32
from node.rocketmq.bodies import NAME_CHARS_MAX, PERM_READ, PERM_WRITE, DataVersion
from node.rocketmq.codes import VERSION_STANDARD_JSON, Answer, Request
from node.rocketmq.dispatch import Call, Handler, Refusal, Reply, reply_of
from node.rocketmq.header_fields import read_header, write_header
from node.rocketmq.headers import (
    AddedAnswer,
    BrokerNameRequest,
    ClusterRequest,
    DeleteTopicRequest,
    KvRequest,
    NamespaceRequest,
    PutKvRequest,
    RegisterBrokerAnswer,
    RegisterBrokerRequest,
    RouteRequest,
    UnregisterBrokerRequest,
    ValueAnswer,
    WipedAnswer,
)
from node.rocketmq.java_json import BodyError, bean, dump
from node.rocketmq.whole_tables import WholeTable

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
KEYS_MAX: Final = 4096
VALUE_CHARS_MAX: Final = 16 * 1024
VALUES_BYTES_MAX: Final = 1024 * 1024  # of all keys, values and namespaces: each registration is answered with a part
BESIDE_BYTES: Final = 64 * 1024  # a body that is longer is read in a thread: 16 MiB take more than a second
_CRC_MASK: Final = 0x7FFFFFFF
Said = tuple[DataVersion, Topics | None]
T = TypeVar("T")


class NameService:
    """See the module's docstring. `now_ms` is a clock that goes on steadily."""

    def __init__(self, registry: Registry, now_ms: Callable[[], int]) -> None:
        self.registry = registry
        self._now_ms = now_ms
        self._values: dict[str, dict[str, str]] = {}  # by namespace; one that was used stays, as in Java
        self._values_bytes = 0  # of all texts in it
        self._reader = ThreadPoolExecutor(1, "registrations")  # its thread starts with the first long body
        self._waiting = 0  # requests that the reader has

    def handlers(self) -> Mapping[int, Handler]:
        """By request code."""
        topics = self.registry.topics
        return {
            Request.REGISTER_BROKER: self._register,
            Request.UNREGISTER_BROKER: self._unregister,
            Request.GET_ROUTEINFO_BY_TOPIC: self._route,
            Request.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: WholeTable(lambda: len(topics), self._all_topics).handle,
            Request.GET_TOPICS_BY_CLUSTER: self._cluster_topics,
            Request.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            Request.ADD_WRITE_PERM_OF_BROKER: self._add,
            Request.DELETE_TOPIC_IN_NAMESRV: self._delete_topic,
            Request.PUT_KV_CONFIG: self._put_value,
            Request.GET_KV_CONFIG: self._get_value,
            Request.DELETE_KV_CONFIG: self._delete_value,
            Request.GET_KVLIST_BY_NAMESPACE: self._list_values,
        }

    # --- brokers ------------------------------------------------------------------------------------------------
    def _register(self, call: Call) -> Reply | None:
        said = read_header(RegisterBrokerRequest, call.request.fields)
        body = call.request.body
        _check_names(said.broker_name, said.broker_addr, said.cluster_name, said.ha_server_addr)
        if said.broker_id < 0:
            raise BodyError(f"brokerId {said.broker_id} is no id of a broker")

        def read() -> Said:
            if said.body_crc32 and said.body_crc32 != crc32(body) & _CRC_MASK:
                raise Refusal(Answer.SYSTEM_ERROR, "crc32 not match", {})
            return read_registration(body, compressed=said.compressed)

        return self._in_turn(call, read, partial(self._registered, call, said))

    def _registered(self, call: Call, said: RegisterBrokerRequest, found: Said) -> Reply:
        if call.peer.closed:  # nobody would take it off again
            raise Refusal(Answer.SYSTEM_ERROR, "the connection has ended")
        registration = Registration(
            said.cluster_name, said.broker_name, said.broker_addr, said.broker_id, said.ha_server_addr, *found
        )
        try:
            held = self.registry.register(registration, self._now_ms(), call.peer)
        except RegistryFull as error:
            raise Refusal(Answer.SYSTEM_ERROR, str(error), {}) from None
        answer = RegisterBrokerAnswer(held.ha_address, held.master_address)
        table = self._values.get(ORDER_TOPIC_CONFIG)
        return Reply(fields=write_header(answer), body=b"" if table is None else dump({"table": table}))

    def _unregister(self, call: Call) -> Reply | None:
        said = read_header(UnregisterBrokerRequest, call.request.fields)

        def unregistered(_: None) -> Reply:
            self.registry.unregister(said.broker_name, said.broker_addr, said.broker_id)
            return Reply()

        return self._in_turn(call, lambda: None, unregistered)

    def _in_turn(self, call: Call, read: Callable[[], T], answer: Callable[[T], Reply]) -> Reply | None:
        """`answer` of what `read` found: at once where the body is short and no long one is being read."""
        if not self._waiting and len(call.request.body) <= BESIDE_BYTES:
            return answer(read())
        loop = asyncio.get_running_loop()
        self._waiting += 1
        under_way = loop.run_in_executor(self._reader, read)

        def done(found: asyncio.Future[T]) -> None:
            self._waiting -= 1
            reply, _sound = reply_of(lambda _call: answer(found.result()), call)
            if reply is not None:
                call.answer(reply)

        under_way.add_done_callback(done)
        return None

    def _cluster_info(self, call: Call) -> Reply:
        brokers = {one.name: _broker(one, quoted=False) for one in self.registry.brokers.values()}
        clusters = {name: list(held) for name, held in self.registry.clusters.items()}
        return Reply(body=dump({"brokerAddrTable": brokers, "clusterAddrTable": clusters}))

    def _wipe(self, call: Call) -> Reply:
        name = read_header(BrokerNameRequest, call.request.fields).broker_name
        count = self.registry.set_permission(name, keep=~PERM_WRITE, add=0)
        return Reply(fields=write_header(WipedAnswer(count)))

    def _add(self, call: Call) -> Reply:
        name = read_header(BrokerNameRequest, call.request.fields).broker_name
        count = self.registry.set_permission(name, keep=0, add=PERM_READ | PERM_WRITE)
        return Reply(fields=write_header(AddedAnswer(count)))

    # --- topics -------------------------------------------------------------------------------------------------
    def _route(self, call: Call) -> Reply:
        said = read_header(RouteRequest, call.request.fields)
        found = self.registry.route(said.topic)
        if found is None:
            topic = said.topic[:NAME_CHARS_MAX]
            raise Refusal(Answer.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}{FAQ}")
        quoted = said.accept_standard_json_only or call.request.version >= VERSION_STANDARD_JSON
        queues, brokers = found
        return Reply(
            body=dump(
                bean(
                    brokerDatas=[_broker(one, quoted=quoted) for one in brokers],
                    filterServerTable={},
                    queueDatas=[_queue(one) for one in queues],
                )
            )
        )

    def _all_topics(self) -> Callable[[], bytes]:
        return partial(_topics_answer, list(self.registry.topics))

    def _cluster_topics(self, call: Call) -> Reply:
        cluster = read_header(ClusterRequest, call.request.fields).cluster
        return Reply(body=_topics_answer(self.registry.topics_of_cluster(cluster)))

    def _delete_topic(self, call: Call) -> Reply:
        said = read_header(DeleteTopicRequest, call.request.fields)
        self.registry.delete_topic(said.topic, said.cluster_name or None)
        return Reply()

    # --- keys and values ----------------------------------------------------------------------------------------
    def _put_value(self, call: Call) -> Reply:
        said = read_header(PutKvRequest, call.request.fields)
        _check_names(said.namespace, said.key)
        if len(said.value) > VALUE_CHARS_MAX:
            raise _too_much(f"a value of {len(said.value)} characters, {VALUE_CHARS_MAX} are the most of one")
        table = self._values.get(said.namespace)
        before = None if table is None else table.get(said.key)
        count = len(self._values) + sum(map(len, self._values.values()))
        if before is None and count + (table is None) >= KEYS_MAX:
            raise _too_much(f"{count} keys and namespaces are here, {KEYS_MAX} are the most of all")
        more_bytes = _size(said.value) + (_size(said.key) if before is None else -_size(before))
        more_bytes += _size(said.namespace) if table is None else 0
        if more_bytes > 0 and self._values_bytes + more_bytes > VALUES_BYTES_MAX:
            held = f"{self._values_bytes} bytes of keys and values are here"
            raise _too_much(f"{held}, and {more_bytes} more are beyond {VALUES_BYTES_MAX}, the most of all")
        self._values.setdefault(said.namespace, {})[said.key] = said.value
        self._values_bytes += more_bytes
        return Reply()

    def _get_value(self, call: Call) -> Reply:
        said = read_header(KvRequest, call.request.fields)
        value = self._values.get(said.namespace, {}).get(said.key)
        if value is None:
            remark = f"No config item, Namespace: {said.namespace[:NAME_CHARS_MAX]} Key: {said.key[:NAME_CHARS_MAX]}"
            raise Refusal(Answer.QUERY_NOT_FOUND, remark, {})
        return Reply(fields=write_header(ValueAnswer(value)))

    def _delete_value(self, call: Call) -> Reply:
        said = read_header(KvRequest, call.request.fields)
        gone = self._values.get(said.namespace, {}).pop(said.key, None)
        if gone is not None:
            self._values_bytes -= _size(said.key) + _size(gone)
        return Reply()

    def _list_values(self, call: Call) -> Reply:
        namespace = read_header(NamespaceRequest, call.request.fields).namespace
        table = self._values.get(namespace)
        if table is None:
            raise Refusal(Answer.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace[:NAME_CHARS_MAX]}")
        return Reply(body=dump({"table": table}))


def _topics_answer(topics: list[str]) -> bytes:
    return dump({"topicList": topics})


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _too_much(why: str) -> Refusal:
    return Refusal(Answer.SYSTEM_ERROR, f"{why}: delete keys that no topic needs any more (102)")


def _check_names(*names: str) -> None:
    """What is kept is bounded. Raises BodyError."""
    for name in names:
        if len(name) > NAME_CHARS_MAX:
            raise BodyError(f"a name of {len(name)} characters, {NAME_CHARS_MAX} at most")


def _broker(broker: Broker, *, quoted: bool) -> dict[str, Any]:
    """Clients before 4.9.4 expect ids as bare numbers."""
    addresses: Mapping[Any, str] = broker.addresses
    if quoted:
        addresses = {str(number): broker.addresses[number] for number in sorted(broker.addresses)}
    return bean(brokerAddrs=addresses, brokerName=broker.name, cluster=broker.cluster)


def _queue(queue: QueueData) -> dict[str, Any]:
    return bean(
        brokerName=queue.broker_name, perm=queue.perm, readQueueNums=queue.read_queues,
        topicSysFlag=queue.sys_flag, writeQueueNums=queue.write_queues,
    )  # fmt: skip
