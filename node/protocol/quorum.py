"""The size of a majority: the one place where it is computed.

The core asks `consensus/configuration.py`, which knows who the voters are; whoever sees a group from outside (client,
console) has only their number. Pure.
"""

from __future__ import annotations


def majority_of(voters: int) -> int:
    """So many of `voters` that any two such sets have a member in common."""
    return voters // 2 + 1
