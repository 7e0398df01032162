"""The small files of a store: `checkpoint`, `abort`, `lock`, and `config/*.json` as fastjson writes them.

Invariants: nothing is written; a decoder raises MessageFormatError and nothing else. `abort` is there while a broker
runs and after one that crashed; `lock` holds four letters, and only the lock on it says whether a broker runs.
"""

from __future__ import annotations

import json
import re
import struct
from typing import Any, Final

from node.message_store.errors import MessageFormatError
from node.protocol.entry import BytesLike
from node.protocol.value_class import value_class

CHECKPOINT_BYTES: Final = 4096
LOCK_CONTENT: Final = b"lock"
CONFIG_BYTES_MAX: Final = 256 << 20
_CHECKPOINT: Final = struct.Struct(">qqqqq")
_PID_DIGITS_MAX: Final = 19
# The quantifiers take all they can and never try with less, so that no text costs more than its length.
_STRING_OR_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*+"|([{,]\s*+)(-?[0-9A-Za-z_$]++)(?=\s*+:)', re.DOTALL)


@value_class(slots=True, frozen=True)
class StoreCheckpoint:
    """Up to when which files are on disk; times in ms."""

    physic_msg_timestamp_ms: int
    logics_msg_timestamp_ms: int
    index_msg_timestamp_ms: int
    master_flushed_offset: int
    confirm_offset: int

    @property
    def min_timestamp_ms(self) -> int:
        """From when on an abnormal recovery looks."""
        return max(0, min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms) - 3000)


def decode_checkpoint(data: BytesLike) -> StoreCheckpoint:
    """Raises MessageFormatError."""
    if len(data) != CHECKPOINT_BYTES:
        raise MessageFormatError(f"a checkpoint has {CHECKPOINT_BYTES} bytes, this one {len(data)}")
    return StoreCheckpoint(*_CHECKPOINT.unpack_from(data, 0))


def encode_checkpoint(checkpoint: StoreCheckpoint) -> bytes:
    fields = (
        checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms, checkpoint.index_msg_timestamp_ms,
        checkpoint.master_flushed_offset, checkpoint.confirm_offset,
    )  # fmt: skip
    return _CHECKPOINT.pack(*fields).ljust(CHECKPOINT_BYTES, b"\0")


def abort_pid(data: BytesLike) -> int | None:
    """The process that `abort` names; None where it names none (an older broker's is empty)."""
    text = bytes(data[: _PID_DIGITS_MAX + 1]).strip()
    return int(text) if text.isdigit() and len(text) <= _PID_DIGITS_MAX else None


def parse_config(data: BytesLike) -> dict[str, Any]:
    """An object as fastjson writes it: names may be bare numbers (`{0:16}`), which become texts.

    Raises MessageFormatError.
    """
    if len(data) > CONFIG_BYTES_MAX:
        raise MessageFormatError(f"{len(data)} bytes of configuration, {CONFIG_BYTES_MAX} at most")
    try:
        found = json.loads(_with_quoted_names(bytes(data).decode("utf-8")))
    except (ValueError, RecursionError) as error:
        raise MessageFormatError(f"no JSON as a broker writes it: {error}") from error
    if not isinstance(found, dict):
        raise MessageFormatError("no JSON object")
    return found


def _with_quoted_names(text: str) -> str:
    """The text with each bare name within quotes. Strings are passed over whole."""
    return _STRING_OR_NAME.sub(lambda one: f'{one[1]}"{one[2]}"' if one[2] else one[0], text)
