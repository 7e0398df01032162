"""The table `[broker]`, and what a member of a broker group has to be like.

Java brokers can take such a log over (docs/broker-groups.md), so it is in files, and has members, as they know them:
RocketMQ cannot set the size of an entry index file, and its members are n0, n1, ...

Invariant: nothing is stored before `broker_trouble` has found nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from node.config_table import AddressOrNothing, Table
from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from node.protocol.peers import split_address

INDEX_FILE_BYTES: Final = 167_772_160
MEMBER_ID: Final = re.compile(r"n(0|[1-9]\d{0,5})", re.ASCII)


NAME_SERVERS_MAX: Final = 16


def _name_servers(text: str) -> str:
    addresses = [one for one in text.split(";") if one]
    for one in addresses:
        split_address(one)
    if len(addresses) > NAME_SERVERS_MAX:
        raise ValueError(f"{len(addresses)} name servers, {NAME_SERVERS_MAX} at most")
    return text


def _delay_levels(text: str) -> str:
    parse_delay_levels(text)
    return text


DelayLevels = Annotated[str, AfterValidator(_delay_levels)]
NameServers = Annotated[str, AfterValidator(_name_servers)]


class BrokerTable(Table):
    address: AddressOrNothing = ""
    """Where this member's broker listens for RocketMQ's clients. A group whose members are born with it is a broker
    group: its log is a commit log of RocketMQ's, for good, and takes nothing but records (docs/broker-groups.md).
    Whether there is one never changes; the address may. Empty: no broker."""

    vip: bool = False
    """Whether it listens two ports below as well, where clients with vipChannelEnabled look for it."""

    name_servers: NameServers = ""
    """Name servers that it registers at, as "host:port;host:port". The brokers of a group can be each other's: name
    all of them here, and in the clients' configuration."""

    delay_levels: DelayLevels = DEFAULT_DELAY_LEVELS
    """For how long a message of each delay level waits (RocketMQ's messageDelayLevel): level 1 first, in s, m, h or d.
    Alike on all members, and only ever longer at its end: what waits already lies in the queue of its level. A message
    must not wait longer than it is kept ([retention] file_reserved_hours)."""

    transaction_timeout_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 6_000
    """How old a half message is when its producer is first asked what became of its transaction (RocketMQ's
    transactionTimeOut)."""

    transaction_check_interval_ms: Annotated[int, Field(ge=100, le=86_400_000)] = 60_000
    """How often producers are asked (RocketMQ's transactionCheckInterval)."""

    transaction_check_max: Annotated[int, Field(ge=1, le=1_000)] = 15
    """So often, then the transaction is given up (RocketMQ's transactionCheckMax): its message goes to
    TRANS_CHECK_MAX_TIME_TOPIC."""

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        return parse_delay_levels(self.delay_levels)

    @property
    def name_server_addresses(self) -> tuple[str, ...]:
        return tuple(one for one in self.name_servers.split(";") if one)

    @property
    def has_broker(self) -> bool:
        return bool(self.address)


def broker_trouble(index_file_size: int, member_ids: Iterable[str], state_machine: str) -> str:
    """Why this cannot be a member of a broker group; empty: it can."""
    if state_machine:
        return "[broker] and [node] state_machine exclude each other: a group's log is for one of them"
    if index_file_size != INDEX_FILE_BYTES:
        return (
            f"[store] mapped_file_size_for_entry_index_bytes is {index_file_size}: with [broker] it is"
            f" {INDEX_FILE_BYTES}, which RocketMQ cannot set; leave it out"
        )
    odd = sorted(one for one in member_ids if not MEMBER_ID.fullmatch(one))
    if odd:
        return f'[peers] "{odd[0]}": with [broker] members are called n0, n1, ..., as a RocketMQ broker calls them'
    return ""
