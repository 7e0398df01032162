"""What `GET /api/v1/ha` answers: a broker of a pair in classic master/slave mode, as models (docs/classic-ha.md).

Offsets are places in the commit log in bytes; ages and lags are milliseconds; null where nothing is known.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from node.views.base import FirstAlarms, Flag, JsonObject, Number, Text, View, Whole, writable

HaRole = Literal["SYNC_MASTER", "ASYNC_MASTER", "SLAVE"]
HA_ITEMS_MAX = 1000
HA_FILES_MAX = 100_000


class HaEpoch(View):
    """A broker of the pair became master of this `epoch` where the log ended at `start`."""

    epoch: Whole
    start: Whole


class HaRecord(View):
    """A role that counts more than the configuration, and why."""

    role: HaRole
    why: Text


class HaConnection(View):
    """One slave's connection. `kind`: rocketmq for a slave of RocketMQ's, of whose log nothing can be compared.

    `state`: new, asked (a slave of ours says what it has), judged (not served), transfer, closed. `stand`: the verdict
    of docs/classic-ha.md. `lag_ms`: for how long there has been something that it has not acknowledged.
    """

    peer_id: Text | None = None
    address: Text
    state: Text
    kind: Literal["ours", "rocketmq", "unknown"]
    stand: Text | None = None
    sent_offset: Whole | None = None
    acked_offset: Whole | None = None
    lag_bytes: Whole | None = None
    lag_ms: Number | None = None
    rate_bytes_per_s: Number | None = None
    last_heard_ms: Number | None = None
    connected_ms: Number | None = None
    reason: Text | None = None


class HaFollowing(View):
    """A slave's end: the master that it follows, or tries. `reason`: why it is not served."""

    address: Text | None = None
    state: Text
    kind: Literal["ours", "rocketmq", "unknown"]
    stand: Text | None = None
    reported_offset: Whole | None = None
    master_offset: Whole | None = None
    lag_bytes: Whole | None = None
    rate_bytes_per_s: Number | None = None
    last_heard_ms: Number | None = None
    reason: Text | None = None


class HaWaiting(View):
    """A put that waits for slaves: until so many of them have everything below `offset`."""

    offset: Whole
    waits_for: tuple[Text, ...] = Field(default=(), max_length=HA_ITEMS_MAX)
    slaves_needed: Whole
    age_ms: Number


class HaCounts(View):
    """Since the broker started. Sends that were stored and answered FLUSH_SLAVE_TIMEOUT or SLAVE_NOT_AVAILABLE, and
    connections of slaves that were refused."""

    flush_slave_timeout: Whole
    slave_not_available: Whole
    slaves_refused: Whole


class HaProblem(View):
    """What is wrong now. `code`: slave_not_served, fenced, too_few_slaves, no_slave, no_master, two_masters,
    metadata_older, log_broken, log_damaged, not_reread."""

    code: Text
    about: Text
    text: Text


class HaPin(View):
    """Somebody, such as an audit that reads, who keeps the files from a place on."""

    owner: Text
    from_offset: Whole
    expires_in_ms: Whole


class HaPinned(View):
    """What was asked for is kept."""

    owner: Text
    from_offset: Whole
    expires_in_s: Whole


class HaDamage(View):
    """A place of the commit log that cannot be read as it was written."""

    from_offset: Whole
    to_offset: Whole
    why: Text


class HaScrub(View):
    """The background reading of the log: how far the pass is that is under way, and what is known to be damaged."""

    offset: Whole
    passes: Whole
    last_pass_ended_ms: Number | None = None
    damaged: tuple[HaDamage, ...] = Field(default=(), max_length=HA_ITEMS_MAX)


class HaLog(View):
    """A broker's commit log. `version`: another one after each cut and each start of the broker; the ETag of its bytes.

    `files`: the first offset of each file that is there, a page of them; `next`: the cursor of the page behind it. A
    broker that is down: `version` is "down", and the end is what its files say.
    """

    as_of: Text
    version: Text
    self_id: Text
    is_master: Flag | None = None
    pair: Text | None = None
    epochs: tuple[HaEpoch, ...] = Field(default=(), max_length=HA_ITEMS_MAX)
    begin_offset: Whole
    end_offset: Whole
    file_bytes: Whole
    files: tuple[Whole, ...] = Field(default=(), max_length=HA_FILES_MAX)
    next: Text | None = None


class HaView(View):
    """A broker of a pair. `broker` down: it does not answer, and all but the first fields are null.

    `role` is what it is now, `configured_role` what its configuration says, `role_on_record` what counts more.
    `is_master`: whether it takes messages; a master that met a later one (`fenced_by_epoch`) does not.
    """

    as_of: Text
    broker: Literal["ok", "down"]
    reason: Text | None = None
    name: Text
    self_id: Text
    broker_id: Whole | None = None
    address: Text
    ha_address: Text
    peers: tuple[Text, ...] = ()
    started_with: Text | None = None
    role: HaRole | None = None
    configured_role: HaRole | None = None
    role_on_record: HaRecord | None = None
    is_master: Flag | None = None
    fenced_by_epoch: Whole | None = None
    pair: Text | None = None
    epoch: Whole | None = None
    epochs: tuple[HaEpoch, ...] | None = Field(default=None, max_length=HA_ITEMS_MAX)
    begin_offset: Whole | None = None
    flushed_offset: Whole | None = None
    end_offset: Whole | None = None
    dispatched_offset: Whole | None = None
    file_bytes: Whole | None = None
    files: Whole | None = None
    flush: Text | None = None
    in_sync_replicas: Whole | None = None
    cuts_back: Flag | None = None
    slave_fall_behind_max_bytes: Whole | None = None
    heartbeat_ms: Whole | None = None
    broken_by: Text | None = None
    log_version: Text | None = None
    pins: tuple[HaPin, ...] | None = Field(default=None, max_length=HA_ITEMS_MAX)
    scrub: HaScrub | None = None
    connections: tuple[HaConnection, ...] | None = Field(default=None, max_length=HA_ITEMS_MAX)
    following: HaFollowing | None = None
    waiting: tuple[HaWaiting, ...] | None = Field(default=None, max_length=HA_ITEMS_MAX)
    waiting_count: Whole | None = None
    so_far: HaCounts | None = None
    problems: Annotated[tuple[HaProblem, ...], FirstAlarms] = ()
    metadata: Annotated[JsonObject, AfterValidator(writable)] | None = None


HaMasterRole = Literal["SYNC_MASTER", "ASYNC_MASTER"]


class HaFinding(View):
    """What a promotion would lose, or what stands against it. `stops`: unless its code is accepted, where it can be.

    `code`: is_master, log_broken, no_pair, before_promotion, not_heard, slave_not_heard, another_pair, master_is_there,
    another_has_more, lacks_bytes, may_lack, not_dispatched, under_way, epoch_moved,
    another_promotion.
    """

    code: Text
    text: Text
    stops: Flag
    can_be_accepted: Flag


class HaPromotion(View):
    """`role`: what it is, or would be. `epoch`: that began; null: nothing was changed."""

    promoted: Flag
    role: HaMasterRole
    epoch: Whole | None = None
    findings: tuple[HaFinding, ...] = Field(default=(), max_length=HA_ITEMS_MAX)
