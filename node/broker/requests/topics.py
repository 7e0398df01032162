"""The topics of a broker: their queues and permissions, made by hand or by the first message that needs one.

A broker's master writes each change into the log before it counts (`write`); what the log says comes in by `take`.

Invariants: a name is checked before anything is made of it; system topics are not made or changed by hand; each change
has a new data version; how many topics and queues there are is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from node.message_store.new_message import OWN_TOPIC_PREFIX
from node.message_store.queue_units import SCHEDULE_TOPIC
from node.rocketmq.bodies import PERM_INHERIT, PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from node.rocketmq.codes import Answer
from node.rocketmq.dispatch import Refusal

AUTO_CREATE: Final = "TBW102"
RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TOPIC_CHARS_MAX: Final = 127
RETRY_CHARS_MAX: Final = 255
QUEUES_MAX: Final = 16_384  # of one topic
TOPICS_MAX: Final = 20_000
# So many of them may be there before a message, or a group that consumes, makes no more: who may send may not take the
# room of topics that are made by hand, or that transactions need.
SENT_TOPICS_MAX: Final = 15_000
GROUPS_TOPICS_MAX: Final = 18_000
_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SYSTEM: Final = frozenset(
    {AUTO_CREATE, SCHEDULE_TOPIC, "BenchmarkTest", HALF_TOPIC, "RMQ_SYS_TRACE_TOPIC", OP_TOPIC,
     "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)  # fmt: skip
NOT_SENT_TO: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"}
)


class TopicTable:
    """`on_change` is called with the topics that changed, after each change. `write` is given each change before it is
    made (None: the topic is deleted), and raises Refusal where it may not be."""

    def __init__(self, cluster: str, broker_name: str, now_ms: Callable[[], int], levels: int = 18) -> None:
        self._now_ms = now_ms
        self._own_names = {cluster, broker_name}
        both = PERM_READ | PERM_WRITE
        made = [
            TopicConfig("SELF_TEST_TOPIC", 1, 1), TopicConfig(AUTO_CREATE, 8, 8, both | PERM_INHERIT),
            TopicConfig("BenchmarkTest", 1024, 1024), TopicConfig(cluster, 16, 16, both | PERM_INHERIT),
            TopicConfig(broker_name, 1, 1, both | PERM_INHERIT), TopicConfig("OFFSET_MOVED_EVENT", 1, 1),
            TopicConfig(SCHEDULE_TOPIC, levels, levels), TopicConfig(f"{cluster}_REPLY_TOPIC", 1, 1),
        ]  # fmt: skip
        self.topics: dict[str, TopicConfig] = {one.name: one for one in made}
        self.version = DataVersion(0, now_ms())
        self.auto_create = True
        self.counts: Callable[[], bool] = lambda: True  # a slave's version is its master's
        self._made = dict(self.topics)
        self.on_change: list[Callable[[list[TopicConfig]], None]] = []
        self.write: Callable[[str, TopicConfig | None], None] = lambda _name, _topic: None

    def get(self, name: str) -> TopicConfig | None:
        return self.topics.get(name)

    def is_system(self, name: str) -> bool:
        return name in _SYSTEM or name in self._own_names or name.startswith("rmq_sys_")

    def put(self, topic: TopicConfig, most: int | None = None) -> TopicConfig:
        """`most`: it is made only where fewer are there. Raises Refusal."""
        most = TOPICS_MAX if most is None else most
        if topic.name not in self.topics and len(self.topics) >= most:
            text = f"no room for another topic: {len(self.topics)} are there"
            text += "" if most == TOPICS_MAX else f", and from {most} on they are made by hand only"
            raise Refusal(Answer.SYSTEM_ERROR, text)
        if self.topics.get(topic.name) != topic:
            self.write(topic.name, topic)
            self.take(topic.name, topic)
        return topic

    def delete(self, name: str) -> None:
        """Nothing where it is not there. Raises Refusal."""
        if self.is_system(name):
            raise Refusal(Answer.SYSTEM_ERROR, f"The topic[{name}] is conflict with system topic.")
        if name in self.topics:
            self.write(name, None)
            self.take(name, None)

    # --- from the log -------------------------------------------------------------------------------------------
    def take(self, name: str, topic: TopicConfig | None) -> None:
        """As it is from now on; None: it is deleted."""
        if self.topics.get(name) == topic:
            return
        if topic is None:
            del self.topics[name]
        else:
            self.topics[name] = topic
        self._changed([] if topic is None else [topic])

    def take_all(self, topics: dict[str, TopicConfig]) -> None:
        """These, and those that every broker has."""
        before, self.topics = self.topics, self._made | topics
        if self.topics != before:
            self._changed(list(topics.values()))

    def load(self, topics: dict[str, TopicConfig], version: DataVersion) -> None:
        """As they were kept, with the version that they had."""
        self.topics = self._made | topics
        self.version = version
        for hear in self.on_change:
            hear(list(topics.values()))

    def _changed(self, topics: list[TopicConfig]) -> None:
        if self.counts():
            self.version = replace(self.version, counter=self.version.counter + 1, timestamp_ms=self._now_ms())
        for hear in self.on_change:
            hear(topics)

    def create_by_hand(self, topic: TopicConfig) -> None:
        """Raises Refusal."""
        check_name(topic.name)
        if self.is_system(topic.name):
            raise Refusal(Answer.SYSTEM_ERROR, f"The topic[{topic.name}] is conflict with system topic.")
        for count in (topic.read_queues, topic.write_queues):
            if not 0 <= count <= QUEUES_MAX:
                raise Refusal(Answer.SYSTEM_ERROR, f"{count} queues: 0 to {QUEUES_MAX} are allowed")
        if not 0 <= topic.perm <= 7:
            raise Refusal(Answer.SYSTEM_ERROR, f"perm {topic.perm}: 0 to 7, of 4 (read), 2 (write) and 1 (inherit)")
        self.put(topic)

    def create_for_send(self, name: str, default: str, queues: int) -> TopicConfig | None:
        """As the first message of a topic has it made of a default topic that may be inherited from; None: it may not.

        Raises Refusal.
        """
        pattern = self.topics.get(default)
        if pattern is not None and pattern.perm & PERM_INHERIT and (default != AUTO_CREATE or self.auto_create):
            count = max(0, min(queues, pattern.write_queues))
            perm = pattern.perm & ~PERM_INHERIT
            topic = TopicConfig(name, count, count, perm, pattern.filter_type, pattern.sys_flag)
            return self.put(topic, SENT_TOPICS_MAX)
        if name.startswith(RETRY_PREFIX):
            return self.create_own(name, 1)
        return None

    def seen(self, name: str, queue_id: int) -> None:
        """A queue that the log has messages of. One that has no room is passed over: nothing was promised of it."""
        known = self.topics.get(name) or TopicConfig(name, 0, 0)
        count = min(queue_id + 1, QUEUES_MAX)
        found = replace(known, read_queues=max(known.read_queues, count), write_queues=max(known.write_queues, count))
        if name in self.topics or len(self.topics) < TOPICS_MAX:
            self.take(name, found)

    def create_own(self, name: str, queues: int) -> TopicConfig:
        """A topic that the broker needs: for retries, dead letters, transactions. Raises Refusal."""
        most = GROUPS_TOPICS_MAX if name.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPICS_MAX
        return self.topics.get(name) or self.put(TopicConfig(name, queues, queues), most)


def check_name(name: str) -> None:
    """Raises Refusal."""
    if not name.strip():
        raise Refusal(Answer.SYSTEM_ERROR, "The specified topic is blank.")
    if _NAME.fullmatch(name) is None:
        text = "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
        raise Refusal(Answer.SYSTEM_ERROR, text)
    if len(name) > (RETRY_CHARS_MAX if name.startswith(RETRY_PREFIX) else TOPIC_CHARS_MAX):
        raise Refusal(Answer.SYSTEM_ERROR, "The specified topic is longer than topic max length.")
    if name.startswith(OWN_TOPIC_PREFIX):
        text = f"the message is illegal: topics named {OWN_TOPIC_PREFIX}... are the group's own"
        raise Refusal(Answer.MESSAGE_ILLEGAL, text)
