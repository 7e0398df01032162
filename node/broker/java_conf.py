"""This broker's configuration in RocketMQ's words: what a Java broker in its place would need in its `broker.conf`.

What the files themselves say (sizes, group, members) is not here: `store hand-over` reads it from them.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from node.config import Settings, split_address
from node.config_models import RESERVED_HOURS_MAX
from node.logs import Log
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.errors import MessageStoreError
from node.message_store.kept_conf import DELAY_LEVEL, read_conf, write_conf
from node.message_store.write_files import OsDisk

# Without retention: RocketMQ always removes what has expired. Taken over again it is the most that a member takes.
FOR_EVER_HOURS: Final = RESERVED_HOURS_MAX - 1


def java_conf(settings: Settings) -> dict[str, str]:
    """By RocketMQ's keys, in the order in which they are looked for."""
    broker, kept = settings.broker, settings.retention
    host, port = split_address(broker.address)
    found = {"brokerClusterName": settings.node.group, "brokerName": settings.node.group, "listenPort": str(port)}
    with suppress(ValueError):  # a name: RocketMQ takes addresses alone, and finds its own
        found["brokerIP1"] = str(ip_address(host))
    if broker.name_servers:
        found["namesrvAddr"] = ";".join(broker.name_server_addresses)
    found |= {
        DELAY_LEVEL: broker.delay_levels,
        "transactionTimeOut": str(broker.transaction_timeout_ms),
        "transactionCheckInterval": str(broker.transaction_check_interval_ms),
        "transactionCheckMax": str(broker.transaction_check_max),
        "deleteWhen": ";".join(kept.delete_when),
    }
    if kept.enabled:
        percent = round(kept.disk_space_ratio_to_check_expired * 100)
        found |= {
            "fileReservedTime": str(max(1, kept.file_reserved_hours - 1)),  # DLedgerCommitLog adds the one
            "cleanFileForciblyEnable": str(kept.enable_disk_force_clean).lower(),
            "diskMaxUsedSpaceRatio": str(min(max(percent, 10), 95)),
        }
    else:
        found |= {
            "fileReservedTime": str(FOR_EVER_HOURS), "cleanFileForciblyEnable": "false", "diskMaxUsedSpaceRatio": "95",
        }  # fmt: skip
    return found


def moved_levels(before: str, now: str) -> str:
    """What is wrong with other delay levels than before; empty: nothing, they are the same, or more at the end."""
    old, new = parse_delay_levels(before), parse_delay_levels(now)
    if new[: len(old)] == old:
        return ""
    return (
        f"[broker] delay_levels was {before!r} and is {now!r}: what waits lies in the queue of its level, with the time"
        " at which it is due by the old ones; only add levels at the end"
    )


def keep_conf(settings: Settings, log: Log) -> None:
    """For who works on this directory without a configuration. Raises OSError."""
    data, conf, before = settings.node.data, java_conf(settings), dict[str, str]()
    with suppress(MessageStoreError):  # it is written anew
        before = read_conf(data)
    wrong = moved_levels(before.get(DELAY_LEVEL, conf[DELAY_LEVEL]), conf[DELAY_LEVEL])
    if wrong:
        log.note("delay_levels_changed", "warning", reason=wrong)
    if before != conf:
        disk = OsDisk()
        try:
            write_conf(data, conf, disk)
        finally:
            disk.close()
