"""A RocketMQ broker's configuration (`broker.conf`, Java's Properties) as ours: which key became which.

The table is document 3's ("RocketMQ on DLedger", how DLedgerCommitLog builds its DLedgerConfig), and what a broker in
that mode reads beside it. Every key of the file ends in one of three ways: it is a setting of ours, it has no meaning
here (with the reason), or it is not known.

Invariants: nothing is guessed where the original refuses to start; what is translated was checked as a member's own
configuration is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from node.config import ConfigError, Settings, is_loopback, load
from node.config_models import RESERVED_HOURS_MAX
from node.protocol.peers import parse_peers, split_address

PROPERTIES_BYTES_MAX: Final = 1 << 20
DEFAULT_LISTEN_PORT: Final = 10911
SECRET_FILE: Final = "group.secret"
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BREAK: Final = re.compile(r"\r\n|\r|\n")


class BrokerConfError(ValueError):
    """The file is no configuration that a member can have; the text says why and what to do."""


def read_properties(data: bytes) -> dict[str, str]:
    """As java.util.Properties reads a file: the last of two equal keys counts. Raises BrokerConfError."""
    if len(data) > PROPERTIES_BYTES_MAX:
        raise BrokerConfError(f"{len(data)} bytes: a broker.conf has at most {PROPERTIES_BYTES_MAX}")
    found: dict[str, str] = {}
    natural = iter(_BREAK.split(data.decode("utf-8", "replace")))
    for first in natural:
        line = first.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while (len(line) - len(line.rstrip("\\"))) % 2:  # an odd number: the last one continues the line
            line = line[:-1] + next(natural, "").lstrip(" \t\f")
        name, value = _split(line)
        found[_unescaped(name)] = _unescaped(value)
    return found


def _split(line: str) -> tuple[str, str]:
    """At the first `=`, `:` or blank that no backslash stands before."""
    match = re.match(r"(?:\\.|[^\\=: \t\f])*", line)
    assert match is not None
    rest = line[match.end() :].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return match[0], rest


def _unescaped(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        sign = match[1]
        return chr(int(sign[1:], 16)) if len(sign) == 5 else _ESCAPES.get(sign, sign)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, text)


@dataclass
class Translated:
    """`values` by our tables' names, `notes` what was not taken over as it stood, by its name in broker.conf."""

    values: dict[str, Any] = field(default_factory=dict)
    peers: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


def _number(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,18}", value.strip(), re.ASCII):
        raise BrokerConfError(f"{name} = {value}: it has to be a number")
    return int(value)


def _flag(value: str) -> bool:
    return value.strip().lower() == "true"  # as Boolean.parseBoolean


def _hours(name: str, value: str) -> list[str]:
    hours = [one.strip() for one in value.split(";") if one.strip()]
    return [f"{_number(name, one):02}" for one in hours]


def _plain(key: str) -> Callable[[Translated, str, str], None]:
    def put(into: Translated, _name: str, value: str) -> None:
        into.values[key] = value.strip()

    return put


def _count(key: str) -> Callable[[Translated, str, str], None]:
    def put(into: Translated, name: str, value: str) -> None:
        into.values[key] = _number(name, value)

    return put


def _put_reserved(into: Translated, name: str, value: str) -> None:
    hours = _number(name, value) + 1  # DLedgerCommitLog adds the one
    into.values["retention.file_reserved_hours"] = min(hours, RESERVED_HOURS_MAX)
    if hours > RESERVED_HOURS_MAX:
        into.notes[name] = f"is longer than the longest here, {RESERVED_HOURS_MAX} hours (ten years), which is taken"


def _put_ratio(into: Translated, name: str, value: str) -> None:
    percent = min(max(_number(name, value), 10), 95)  # the bounds of RocketMQ
    ratio = percent / 100
    into.values["retention.disk_space_ratio_to_check_expired"] = ratio
    for key, default in (("disk_space_ratio_to_force_clean", 0.85), ("disk_full_ratio", 0.90)):
        if ratio > default:
            into.values[f"retention.{key}"] = ratio
            into.notes[name] = "is above RocketMQ's 85 and 90 % for forced cleaning and a full disk: they follow"


def _put_flush(into: Translated, name: str, value: str) -> None:
    if value.strip() != "SYNC_FLUSH":
        into.notes[name] = (
            'an acknowledged message is on a quorum\'s disks here; [node] flush = "async" would be page caches alone'
        )


TAKEN: Final[Mapping[str, Callable[[Translated, str, str], None]]] = {
    "dLegerGroup": _plain("node.group"),
    "dLegerSelfId": _plain("node.id"),
    "storePathRootDir": _plain("node.data"),
    "namesrvAddr": _plain("broker.name_servers"),
    "messageDelayLevel": _plain("broker.delay_levels"),
    "transactionTimeOut": _count("broker.transaction_timeout_ms"),
    "transactionCheckInterval": _count("broker.transaction_check_interval_ms"),
    "transactionCheckMax": _count("broker.transaction_check_max"),
    "preferredLeaderId": _plain("node.preferred_leaders"),
    "mappedFileSizeCommitLog": lambda into, name, value: into.values.update(
        {"store.mapped_file_size_for_entry_data_bytes": _number(name, value)}
    ),
    "deleteWhen": lambda into, name, value: into.values.update({"retention.delete_when": _hours(name, value)}),
    "fileReservedTime": _put_reserved,
    "cleanFileForciblyEnable": lambda into, _name, value: into.values.update(
        {"retention.enable_disk_force_clean": _flag(value)}
    ),
    "diskMaxUsedSpaceRatio": _put_ratio,
    "flushDiskType": _put_flush,
}
"""Keys with a setting of ours; the file's peers, address and mode are in `translate`."""
SEEN_TO: Final = frozenset({"enableDLegerCommitLog", "dLegerPeers", "listenPort", "brokerIP1"})
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "brokerName": "is the group's name here (dLegerGroup)",
    "brokerClusterName": "is the group's name here (dLegerGroup)",
    "brokerId": "comes from the role: 0 for the master, else the digits of the member's id and one more",
    "brokerRole": "comes from the election",
    "brokerIP2": "is the address of classic master/slave replication; members have theirs in dLegerPeers",
    "haListenPort": "is the port of classic master/slave replication; members have theirs in dLegerPeers",
    "storePathCommitLog": "is for old files (commitlog); the log itself is in dledger-ID below storePathRootDir",
    "storePathConsumeQueue": "consume queues are in consumequeue below storePathRootDir",
    "storePathIndex": "the index is in index below storePathRootDir",
    "maxMessageSize": "is 4 MiB here, the default of RocketMQ",
    "autoCreateTopicEnable": "is on: a topic is made with its first message",
    "autoCreateSubscriptionGroup": "is on: a group is made with its first consumer",
    "defaultTopicQueueNums": "what a producer asks for counts, 8 at most",
    "waitTimeMillsInSendQueue": "there is no queue of sends: what cannot be taken at once is answered 2 at once",
    "osPageCacheBusyTimeOutMills": "a put waits at most a second for a lane that is being replaced",
    "transientStorePoolEnable": "there is no pool of buffers outside the heap",
    "warmMapedFileEnable": "files are not warmed: they are sparse until they are written",
}
_THREADS: Final = re.compile(r"\w+(ThreadPoolNums|ThreadPoolQueueCapacity|ThreadNums)")


def translate(properties: Mapping[str, str]) -> Translated:
    """Raises BrokerConfError where this is no broker of DLedger's mode, or none that could start."""
    if not _flag(properties.get("enableDLegerCommitLog", "false")):
        raise BrokerConfError(
            "enableDLegerCommitLog is not true: this broker replicates by master and slaves, not by DLedger"
        )
    missing = [name for name in ("dLegerGroup", "dLegerPeers", "dLegerSelfId") if not properties.get(name, "").strip()]
    if missing:
        raise BrokerConfError(f"{', '.join(missing)}: without it a broker of DLedger's mode does not start either")
    found = Translated()
    try:
        found.peers = parse_peers(properties["dLegerPeers"])
    except ValueError as error:
        raise BrokerConfError(f"dLegerPeers: {error}") from None
    own = found.peers.get(properties["dLegerSelfId"].strip())
    if own is None:
        raise BrokerConfError(f"dLegerSelfId = {properties['dLegerSelfId']}: it is none of dLegerPeers")
    for name, value in properties.items():
        if name in TAKEN:
            TAKEN[name](found, name, value)
        elif name in WITHOUT_MEANING:
            found.notes[name] = WITHOUT_MEANING[name]
        elif _THREADS.fullmatch(name):
            found.notes[name] = "one event loop does this here, without pools of threads"
        elif name not in SEEN_TO:
            found.notes[name] = "is not known here"
    if "node.data" not in found.values:
        found.values["node.data"] = str(Path.home() / "store")
        found.notes["storePathRootDir"] = "is not given: RocketMQ's default, store in the home of the broker's user"
    found.values["retention.enabled"] = True  # a RocketMQ broker always removes what has expired
    found.values.setdefault("retention.file_reserved_hours", 73)
    found.values.setdefault("retention.disk_space_ratio_to_check_expired", 0.75)
    port = _number("listenPort", properties.get("listenPort", str(DEFAULT_LISTEN_PORT)))
    host = properties.get("brokerIP1", "").strip() or split_address(own)[0]
    found.values["broker.address"] = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not all(is_loopback(split_address(one)[0]) for one in found.peers.values()):
        found.values["node.secret_file"] = SECRET_FILE
        found.notes["dLegerPeers"] = (
            "are on several machines: other than DLedger's, our members prove a secret to each other, or have TLS."
            f" One member's first start with --init --make-secret makes {SECRET_FILE}; the others need a copy"
        )
    return found


def checked(found: Translated) -> Settings:
    """As a member would read it, but for files that are not there yet. Raises BrokerConfError."""
    try:
        settings = load({**found.values, "peers": found.peers}, environ={})
        settings.check_tables()
    except ConfigError as error:
        raise BrokerConfError(str(error)) from None
    return settings
