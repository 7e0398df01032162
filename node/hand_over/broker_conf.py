"""The lines of a Java broker's `broker.conf` that a directory of ours needs: what it was written with.

What is kept of our broker's own configuration (`kept_conf.py`) comes last: delay levels, times, addresses.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.hand_over.report import Report
from node.message_store.delay_levels import DEFAULT_DELAY_LEVELS
from node.message_store.dispatch_mark import DerivedSizes
from node.message_store.kept_conf import DELAY_LEVEL
from node.protocol.group_members import GroupMembers

UNKNOWN_PEERS = "<id>-<host>:<port>;… of all members, as their [peers] say"


def broker_conf(
    report: Report,
    sizes: DerivedSizes,
    data_file_bytes: int,
    members: GroupMembers | None,
    peers: str,
    kept: Mapping[str, str],
) -> list[str]:
    """In the order in which they are looked for: where, sizes, DLedger, and what the broker was configured with."""
    return [
        f"storePathRootDir={report.directory.absolute()}",
        f"mappedFileSizeCommitLog={data_file_bytes}",
        f"mappedFileSizeConsumeQueue={sizes.queue_file_bytes}",
        f"maxHashSlotNum={sizes.index_slots}",
        f"maxIndexNum={sizes.index_entries}",
        "enableDLegerCommitLog=true",
        f"dLegerGroup={report.group}",
        f"dLegerPeers={peers or _peers_of(members)}",
        f"dLegerSelfId={report.node_id}",
        "forceVerifyPropCRC=false",
        *(f"{key}={value}" for key, value in ({DELAY_LEVEL: DEFAULT_DELAY_LEVELS} | dict(kept)).items()),
    ]


def _peers_of(members: GroupMembers | None) -> str:
    """By the newest entry about the group; one without addresses leaves them to each member's configuration."""
    addresses = {} if members is None else {**members.voters, **members.learners}
    if not addresses or not all(addresses.values()):
        return UNKNOWN_PEERS
    return ";".join(f"{member}-{address}" for member, address in sorted(addresses.items()))
