"""The body of INSTALL_BASE (52013): where a leader's log begins, for a member that is to begin there, too (SAFETY M6).

`>BBHqqqqqIqI`: version, 0, flags (bit 0: chain known), dispatch epoch, term, committed index; the base's index, term
and chain, the position behind it; bytes of JSON, which follows: `{"group_id", "members": [index, body]}`. It is
answered like a slab push. Invariant: counts and lengths are checked before anything is taken apart.
"""

from __future__ import annotations

import json
import struct
from typing import Any, Final

from node.protocol.entry import POSITION_MAX, TERM_MAX, BytesLike
from node.protocol.group_id import is_group_id
from node.protocol.group_members import BODY_BYTES_MAX, members_in
from node.protocol.messages import InstallRequest
from node.transport.slab_frames import FLAG_CHAIN_KNOWN, VERSION, BodyError

INSTALL_HEAD: Final = struct.Struct(">BBHqqqqqIqI")
JSON_BYTES_MAX: Final = 2 * BODY_BYTES_MAX  # a body inside a JSON text


def encode_install(request: InstallRequest) -> bytes:
    flags = FLAG_CHAIN_KNOWN if request.base_chain is not None else 0
    fields: dict[str, Any] = {"group_id": request.group_id, "members": request.members}
    text = json.dumps(fields).encode()
    head = INSTALL_HEAD.pack(
        VERSION, 0, flags, request.dispatch_epoch, request.term, request.commit_index, request.base_index,
        request.base_term, request.base_chain or 0, request.base_pos, len(text),
    )  # fmt: skip
    return head + text


def decode_install(body: BytesLike, leader_id: str, seq: int) -> InstallRequest:
    """An order from `leader_id`, which the connection's HELLO named. Raises BodyError."""
    if len(body) < INSTALL_HEAD.size:
        raise BodyError(f"a base install of {len(body)} bytes; its head alone takes {INSTALL_HEAD.size}")
    version, _, flags, epoch, term, commit_index, index, base_term, chain, pos, text_bytes = INSTALL_HEAD.unpack_from(
        body
    )
    if version != VERSION:
        raise BodyError(f"base install version {version}; this node speaks {VERSION}")
    if text_bytes > JSON_BYTES_MAX or len(body) != INSTALL_HEAD.size + text_bytes:
        raise BodyError(f"a base install of {len(body)} bytes says {INSTALL_HEAD.size + text_bytes}")
    if term > TERM_MAX or not 0 <= base_term <= term or not 0 <= index <= POSITION_MAX or not 0 <= pos <= POSITION_MAX:
        raise BodyError(f"a base at entry {index} of term {base_term} and position {pos}, in term {term}")
    group_id, members = group_in(bytes(body[INSTALL_HEAD.size :]), index)
    known = chain if flags & FLAG_CHAIN_KNOWN else None
    return InstallRequest(seq, leader_id, term, epoch, commit_index, index, base_term, known, pos, group_id, members)


def group_in(text: bytes, base_index: int) -> tuple[str | None, tuple[int, str] | None]:
    """The group's id, and who belongs to it. Raises BodyError."""
    try:
        fields = json.loads(text)
        group_id, members = fields["group_id"], fields["members"]
        named = None if members is None else (members[0], members[1])
    except (ValueError, RecursionError, KeyError, TypeError, IndexError):
        raise BodyError("a base install says nothing of its group that can be read") from None
    if group_id is not None and not is_group_id(group_id):
        raise BodyError(f"a base install of group {group_id!r:.100}")
    if named is not None:
        index, body = named
        sound = type(index) is int and 0 <= index <= base_index and isinstance(body, str) and _is_text(body)
        if not sound or members_in(body.encode()) is None:
            raise BodyError("a base install names members that cannot be")
    return group_id, named


def _is_text(body: str) -> bool:
    """Whether it can be stored: JSON's escapes make halves of characters, too."""
    return not any("\ud800" <= one <= "\udfff" for one in body)
