"""A group's id: what tells two groups of one name apart (SAFETY C9)."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Final

GROUP_ID: Final = re.compile(r"[0-9a-f]{32}")


def group_id_of(token: str, group: str) -> str:
    """The id of a group that was made with this token; the same for all its members."""
    return sha256(b"quorumscope group id\0" + json.dumps([token, group]).encode()).hexdigest()[:32]


def is_group_id(value: object) -> bool:
    """Whether it has the form of one."""
    return isinstance(value, str) and GROUP_ID.fullmatch(value) is not None
