"""A group's id: what tells two groups of one name apart (SAFETY C9)."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Final

GROUP_ID: Final = re.compile(r"[0-9a-f]{32}")
GROUP_TOKEN: Final = re.compile(r"[!-~]{8,255}")


def check_group_token(token: str) -> None:
    """Raises ValueError on a token that no group is made with, wherever it was given."""
    if not GROUP_TOKEN.fullmatch(token):
        raise ValueError(f'"{token[:255]}" is no group token: {GROUP_TOKEN.pattern} is allowed')


def group_id_of(token: str, group: str) -> str:
    """The id of a group that was made with this token; the same for all its members."""
    return sha256(b"quorumscope group id\0" + json.dumps([token, group]).encode()).hexdigest()[:32]


def is_group_id(value: object) -> bool:
    """Whether it has the form of one."""
    return isinstance(value, str) and GROUP_ID.fullmatch(value) is not None
