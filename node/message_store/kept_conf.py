"""What a broker of ours was configured with, in RocketMQ's words: `DATA/quorumscope/broker.conf`, `key=value` lines.

The broker writes it at its start. Who works on a stopped directory has no configuration, and needs it: units of
messages that wait for their time say when they are due, so they can be checked and written anew only with the levels
that they were written with; and a Java broker that takes the directory over has to have the same.

Invariants: written whole; a directory without one has RocketMQ's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.read_files import OS, Files
from node.message_store.write_files import Disk

KEPT_CONF: Final = "broker.conf"
DELAY_LEVEL: Final = "messageDelayLevel"
_BYTES_MAX: Final = 1 << 20


def write_conf(root: Path, conf: Mapping[str, str], disk: Disk) -> None:
    """Raises OSError."""
    disk.replace(root / OURS / KEPT_CONF, "".join(f"{key}={value}\n" for key, value in conf.items()).encode())


def read_conf(root: Path, files: Files = OS) -> dict[str, str]:
    """Nothing where there is none. Raises MessageStoreError where it cannot be read."""
    path = root / OURS / KEPT_CONF
    size = files.size(path)
    if size is None:
        return {}
    try:
        lines = bytes(files.read(path, 0, min(size, _BYTES_MAX))).decode().splitlines()
        found = {key: value for key, _equals, value in (line.partition("=") for line in lines)}
        parse_delay_levels(found.get(DELAY_LEVEL, DEFAULT_DELAY_LEVELS))
    except ValueError as error:  # UnicodeDecodeError is one
        raise MessageStoreError(f"{path} cannot be read ({error}): the broker writes it anew when it starts") from error
    return found


def delay_levels_of(root: Path, files: Files = OS) -> tuple[int, ...]:
    """In milliseconds. Raises MessageStoreError."""
    return parse_delay_levels(read_conf(root, files).get(DELAY_LEVEL, DEFAULT_DELAY_LEVELS))
