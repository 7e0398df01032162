"""What `/api/v1/broker`, `topics`, `consumer-groups` and `messages` answer, as models (`views/answers.py`).

Times are RFC 3339 UTC; null where nothing is known. `perm` is RocketMQ's: 4 to read, 2 to write, 1 to inherit.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, FiniteFloat

BrokerState = Literal["ok", "down"]
Role = Literal["MASTER", "SLAVE"]
Outcome = Literal["running", "done", "given up", "failed"]
DISPATCH_BEHIND_MS: Final = 1000
"""A master whose dispatch is further behind takes no more messages (docs/broker.md)."""

OVERDUE_MS: Final = 5000
"""A delivery takes one put; what has been due for so long is held up."""


def _within_63_bits(value: int) -> int:
    if abs(value) >= 1 << 63:
        raise ValueError("is out of range")
    return value


Int = Annotated[int, AfterValidator(_within_63_bits)]


# --- the broker -----------------------------------------------------------------------------------------------------
class Dispatch(BaseModel):
    """How far the committed log is in queues and index. `behind_ms`: for how long something committed has waited;
    `still_ms`: for how long nothing went on meanwhile; `stopped_by`: why nothing can. `end_offset`: behind it nothing
    can be read yet."""

    committed_index: Int
    dispatched_index: Int
    behind_entries: Int
    behind_ms: Int
    still_ms: Int
    stopped_by: str | None
    end_offset: Int


class NameServer(BaseModel):
    """`registered_at`: when a registration was last sent, over the connection that there is; null: there is none."""

    address: str
    registered_at: str | None


class RoleStep(BaseModel):
    """One step of a change of role; `error` is empty where it went well."""

    step: str
    took_ms: FiniteFloat
    error: str


class RoleChange(BaseModel):
    """One change of role: the engine's `state` in `term` that it follows, and how it ended."""

    at: str | None
    state: str
    term: Int
    change: str
    outcome: Outcome
    took_ms: FiniteFloat
    steps: list[RoleStep]


class LevelPending(BaseModel):
    """Messages that wait in one delay level: `due_at` is the first one's time, `overdue_ms` how long ago that was."""

    level: Int
    delay_ms: Int
    waiting: Int
    due_at: str | None
    overdue_ms: Int


class Schedule(BaseModel):
    """The schedule service of a master. `delivered`: since its process began; `levels`: those with messages."""

    waiting: Int
    delivered: Int
    levels: list[LevelPending]


class GroupTransactions(BaseModel):
    """Open transactions of one producer group; `producers`: how many of it are connected, to be asked."""

    producer_group: str
    open: Int
    producers: Int


class Transactions(BaseModel):
    """Half messages that wait for their producer's decision. `all_read`: False while a new master still reads what is
    open; `oldest_at`: by its producer's clock; `unanswered`: asked three times or more, and not decided; after
    `checks_max` checks one is given up. `groups`: those with most, 20 at most."""

    open: Int
    all_read: bool
    oldest_at: str | None
    unanswered: Int
    checks_max: Int
    groups: list[GroupTransactions]


class Kept(BaseModel):
    """How long messages are kept: files of the log go `hours` after they were written last, in the hours `delete_when`
    of the day; null: for ever."""

    hours: Int
    delete_when: list[str]
    max_log_bytes: Int


class Counts(BaseModel):
    """`consumer_groups`: those with members now."""

    topics: Int
    consumer_groups: Int
    consumers: Int
    producers: Int


class DamagedMessage(BaseModel):
    """A message that was read and is not what was written: its place in the log, and its topic, queue and offset where
    they can be read."""

    offset: Int
    message: str | None


class Broker(BaseModel):
    """This member's broker. Where it is down, `reason` says why, and what it would say itself is null.

    `role`: null before the first election. `broker_id`: 0 for the master, a slave's member number + 1. `schedule` and
    `transactions`: only the master has them.
    """

    as_of: str
    broker: BrokerState
    reason: str | None
    group: str
    self_id: str
    address: str
    vip: bool
    role: Role | None
    broker_id: Int | None
    term: Int | None
    leader_id: str | None
    name_servers: list[NameServer]
    dispatch: Dispatch | None
    connections: Int | None
    pulls_held: Int | None
    counts: Counts | None
    kept: Kept | None
    schedule: Schedule | None
    transactions: Transactions | None
    role_changes: list[RoleChange]
    damaged_messages: list[DamagedMessage]


# --- topics ---------------------------------------------------------------------------------------------------------
class Topic(BaseModel):
    """`messages`: what can be read now; `messages_ever`: since the topic was made; `messages_per_s`: over the last
    minute, null before it was seen twice; `oldest_at`, `newest_at`: when the first and the last that can be read were
    stored. `size_bytes`: of their records in the log; of a queue with more than 512 of them it is estimated from some
    (`size_is_estimated`)."""

    topic: str
    read_queues: Int
    write_queues: Int
    perm: Int
    is_ordered: bool
    is_system: bool
    messages: Int
    messages_ever: Int
    messages_per_s: FiniteFloat | None
    size_bytes: Int
    size_is_estimated: bool
    oldest_at: str | None
    newest_at: str | None


class Topics(BaseModel):
    """By name; `next` is the next `cursor`, null at the end."""

    as_of: str
    items: list[Topic]
    next: str | None


class TopicDeleted(BaseModel):
    """Its messages stay in the log until they expire; a topic of that name begins at offset 0 again."""

    topic: str
    deleted: bool


class QueueOffsets(BaseModel):
    """From `min_offset` up to, without, `max_offset`; when the first and the last message were stored."""

    queue_id: Int
    min_offset: Int
    max_offset: Int
    messages: Int
    oldest_at: str | None
    newest_at: str | None


class Queues(BaseModel):
    """By number; `next` is the next `cursor`, null at the end."""

    as_of: str
    topic: str
    items: list[QueueOffsets]
    next: str | None


# --- groups ---------------------------------------------------------------------------------------------------------
class Member(BaseModel):
    """A client of the group; `heard_at`: its last heartbeat."""

    client_id: str
    address: str
    heard_at: str | None


class SubscribedTopic(BaseModel):
    """What the members want of a topic: `*`, or tags as `A || B`."""

    topic: str
    expression: str
    type: str


class ConsumerGroup(BaseModel):
    """`lag_messages`: between committed offsets and ends, of all queues; `lag_ms`: how long ago the oldest of them was
    stored, at `lag_since`. `queues_without_offset` have messages, and are in neither: the group has committed nothing
    there. Members count at the broker that is asked; clients say theirs to all of them. `topics_left_out`: how many
    more it wants, or has offsets of, than are listed."""

    group: str
    members: list[Member]
    message_model: str | None
    consume_enabled: bool
    subscriptions: list[SubscribedTopic]
    topics: list[str]
    topics_left_out: Int = 0
    lag_messages: Int
    lag_ms: Int
    lag_since: str | None
    queues_without_offset: Int


class ConsumerGroups(BaseModel):
    """By name; `next` is the next `cursor`, null at the end."""

    as_of: str
    items: list[ConsumerGroup]
    next: str | None


class GroupQueue(BaseModel):
    """`committed_offset`: the next message that the group wants; null, as the lag then is: it has committed none.
    `client_id`: whose the queue is; by its `lock` (orderly consumers), or as RocketMQ's clients share queues by default
    (`average`); null: no client has it, or each has all (broadcasting)."""

    topic: str
    queue_id: Int
    committed_offset: Int | None
    min_offset: Int
    max_offset: Int
    lag_messages: Int | None
    lag_ms: Int | None
    client_id: str | None
    assigned_by: Literal["lock", "average"] | None


class OneConsumerGroup(ConsumerGroup):
    """With its queues; `queues_left_out` of them, those least behind, where there are too many."""

    as_of: str
    queues: list[GroupQueue]
    queues_left_out: Int


class QueueReset(BaseModel):
    """`before` null: nothing was committed."""

    queue_id: Int
    before: Int | None
    after: Int


class OffsetsReset(BaseModel):
    """What was, or with `dry_run` would be, set."""

    group: str
    topic: str
    dry_run: bool
    items: list[QueueReset]


# --- messages -------------------------------------------------------------------------------------------------------
class Body(BaseModel):
    """As it was sent: `text`, or `base64` where it is no UTF-8 or its control characters take too much room as text
    (`why`). Where it cannot be opened (`why` and not `opened`), as it lies."""

    stored_bytes: Int
    compression: str
    crc_ok: bool
    bytes: Int | None
    opened: bool
    why: str | None = None
    text: str | None = None
    base64: str | None = None


class QueueUnit(BaseModel):
    """The unit of the consume queue, and whether it points to this message."""

    file: str
    queue_offset: Int
    points_here: bool
    points_to_offset: Int | None


class Where(BaseModel):
    """Where it lies here: entry, physical offset, file, queue unit, index files."""

    offset: Int
    size_bytes: Int
    file: str
    file_position: Int | None
    entry_index: Int | None
    queued: bool
    queue_unit: QueueUnit | None
    index_files: list[str]


class Message(BaseModel):
    """`message_id`: the broker's; the sender's own is the property UNIQ_KEY. `where` null: it expired meanwhile.
    `left_out`: why neither tags nor keys nor properties are here, where an answer had no room for them."""

    message_id: str
    topic: str
    queue_id: Int
    queue_offset: Int
    born_at: str | None
    born_host: str
    stored_at: str | None
    store_host: str
    tags: str | None
    keys: list[str]
    properties: dict[str, str]
    transaction: str
    prepared_transaction_offset: Int
    reconsume_times: Int
    flag: Int
    sys_flag: Int
    version: Int
    left_out: str | None = None
    body: Body
    where: Where | None


class Messages(BaseModel):
    """What was found, committed and dispatched here; `next` is the next `cursor`, null at the end."""

    as_of: str
    items: list[Message]
    next: str | None


class Produced(BaseModel):
    """Stored, and in its queue: `GET messages?id=` finds it. `status` as producers get it: SEND_OK where it is
    committed; the others of a master in classic mode that has not yet what it promises, its disk or its slaves."""

    topic: str
    queue_id: Int
    queue_offset: Int
    message_id: str
    unique_key: str
    status: Literal["SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"] = "SEND_OK"
