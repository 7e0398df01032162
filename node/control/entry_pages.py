"""Entries as an answer shows them: one by one, and as many as one answer has room for.

Invariants: an answer has at most ANSWER_BODY_BYTES_MAX of entries as they are shown (as text a control character takes
six bytes, in hex each byte two) and, as JSON, VALUES_MAX values in their bodies (a value takes some 60 bytes and 1 us
where its text takes 2 bytes), or one entry, of twice its bytes at most where these are many; a body that cannot be
shown as asked is shown in another form, and says why.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Final, Literal

from fastapi import Query

from node.control.common import Json
from node.protocol.entry import Entry, Magic, seal_of

As = Annotated[Literal["text", "json", "hex", "base64"], Query(alias="as")]
ANSWER_BODY_BYTES_MAX: Final = 8 << 20
VALUES_MAX: Final = 50_000
JSON_DEPTH_MAX: Final = 64
CONTROLS: Final = bytes(range(0x20))
SHORT: Final = b'"\\\b\f\n\r\t'  # what a backslash and a letter stand for


class EntryPage:
    """The entries of one answer. `items` may be given others beside: what cannot be read."""

    def __init__(self, as_: str) -> None:
        self.items: list[Json] = []
        self._as = as_
        self._left_bytes, self._left_values = ANSWER_BODY_BYTES_MAX, VALUES_MAX

    def add(self, entry: Entry) -> bool:
        """False: there is no room left for it."""
        if self._as == "json":
            self._left_values -= values_in(entry.body)
        self._left_bytes -= entry.size
        if self.items and min(self._left_bytes, self._left_values) < 0:
            return False
        item = entry_json(entry, self._as)
        self._left_bytes -= shown_bytes(item) - len(entry.body)
        if self.items and self._left_bytes < 0:
            return False
        self.items.append(item)
        return True


def shown_bytes(item: Json) -> int:
    """Of a body as an answer carries it; a value of JSON is about as long as its text."""
    if item["as"] == "text":
        return text_bytes(item["body"].encode())
    return len(item["body"]) if item["as"] != "json" else item["body_bytes"]


def text_bytes(body: bytes) -> int:
    """As a string of JSON in UTF-8, without its quotation marks."""
    escaped = len(body) - len(body.translate(None, CONTROLS + SHORT))
    short = len(body) - len(body.translate(None, SHORT))
    return len(body) + short + 5 * (escaped - short)


def values_in(body: bytes) -> int:
    """At least as many as there are in this JSON: what separates them in a text counts, too."""
    return 1 + body.count(b",") + body.count(b"[") + body.count(b"{")


def entry_json(entry: Entry, as_: str) -> Json:
    """Bodies are bytes; a form that cannot carry them says so instead of losing some."""
    known = {
        "index": entry.index,
        "term": entry.term,
        "magic": Magic(entry.magic).name,
        "pos": entry.pos,
        "size_bytes": entry.size,
        "body_bytes": len(entry.body),
        "body_crc": entry.body_crc,
        "chain_crc": entry.chain_crc,
        # Whether the body still matches its own CRC; "unsealed": written by DLedger, which fills none.
        "seal": seal_of(entry, None).value,
    }
    if as_ == "hex":
        return {**known, "as": "hex", "body": entry.body.hex()}
    if as_ == "base64":
        return {**known, "as": "base64", "body": base64.b64encode(entry.body).decode()}
    note = f"the body is not {as_}"
    try:
        text = entry.body.decode()
        if text_bytes(entry.body) > ANSWER_BODY_BYTES_MAX:
            note = f"its control characters would take more than {ANSWER_BODY_BYTES_MAX} bytes as text"
            raise ValueError(note)
        if as_ == "json" and values_in(entry.body) > VALUES_MAX:
            return {**known, "as": "text", "body": text, "note": f"the body may have more than {VALUES_MAX} values"}
        return {**known, "as": as_, "body": json_value(text) if as_ == "json" and text else text}
    except (UnicodeDecodeError, ValueError, RecursionError):
        body = base64.b64encode(entry.body).decode()
        return {**known, "as": "base64", "body": body, "note": note}


def json_value(text: str) -> Any:
    """A value that an answer can carry: ValueError for NaN, half surrogate pairs, and nesting beyond JSON_DEPTH_MAX."""
    value = json.loads(text)
    if text.count("[") + text.count("{") > JSON_DEPTH_MAX:
        level, depth = [value], 0
        while level:
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise ValueError(f"nested deeper than {JSON_DEPTH_MAX}")
            nested = [one for one in level if isinstance(one, (dict, list))]
            level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value
