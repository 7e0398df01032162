"""What one answer with bodies may hold: no entry that somebody appended makes it cost far more than its bytes say."""

from __future__ import annotations

import json
import os
import random
from typing import Final

import pytest

from node.control.entry_pages import ANSWER_BODY_BYTES_MAX, VALUES_MAX, EntryPage, entry_json, shown_bytes, values_in
from node.protocol.entry import Entry

SEED: Final = int(os.environ.get("ATTACK_SEED", 12))
DENSE: Final = (b"[],", b"1,", b'{"a":{}},', b"null,", b'"",')  # much JSON in few bytes


def entry(body: bytes, index: int = 0) -> Entry:
    return Entry(1, index, 1, 0, body)


def dense(rng: random.Random, about_bytes: int) -> bytes:
    piece = rng.choice(DENSE)
    return b"[" + piece * (about_bytes // len(piece)) + b"0]"


def count_values(value: object) -> int:
    """As the answer carries them: each is an object of its own."""
    if isinstance(value, dict):
        return 1 + sum(map(count_values, value.values()))
    return 1 + sum(map(count_values, value)) if isinstance(value, list) else 1


def test_bodies_as_json_have_a_bounded_number_of_values() -> None:
    """One answer of 8 MiB of `[],[],…` took 3.3 s of a control plane, 2.2 s of its loop at a time, and 196 MiB."""
    rng = random.Random(f"{SEED} values")
    print(f"ATTACK_SEED={SEED}")
    for _ in range(8):
        bodies = [dense(rng, rng.choice([100, 5_000, 40_000, 400_000])) for _ in range(200)]
        page, shown = EntryPage("json"), 0
        while shown < len(bodies) and page.add(entry(bodies[shown], shown)):
            shown += 1
        assert 1 <= shown == len(page.items)
        values = sum(count_values(one["body"]) for one in page.items if one["as"] == "json")
        assert values <= VALUES_MAX
        assert shown == len(bodies) or shown == 1 or values + values_in(bodies[shown]) > VALUES_MAX // 3


def test_a_body_of_more_values_is_shown_as_text_and_says_why() -> None:
    body = dense(random.Random(SEED), 2 << 20)
    shown = entry_json(entry(body), "json")
    assert (shown["as"], shown["body"]) == ("text", body.decode())
    assert str(VALUES_MAX) in shown["note"]
    most = b"[" + b"1," * (VALUES_MAX - 3) + b"1]"
    assert values_in(most) <= VALUES_MAX and entry_json(entry(most), "json")["as"] == "json"


@pytest.mark.parametrize("body", [b"", b"1", b"[]", b'{"a": [1, {"b": []}], "c": "x,y"}', b"[[[[1,2]]]]"])
def test_no_value_is_counted_less_than_once(body: bytes) -> None:
    assert values_in(body) >= (count_values(json.loads(body)) if body else 1)


@pytest.mark.parametrize("as_", ["text", "json", "hex", "base64"])
def test_an_answer_has_bounded_bytes_and_at_least_one_entry(as_: str) -> None:
    page = EntryPage(as_)
    assert page.add(entry(bytes(ANSWER_BODY_BYTES_MAX + 1))) and not page.add(entry(b"x", 1))
    body = b'"' + b"1" * (1 << 16) + b'"'
    shown = entry(body).size - len(body) + shown_bytes(entry_json(entry(body), as_))
    page, count = EntryPage(as_), 0
    while page.add(entry(body, count)):
        count += 1
    assert count == ANSWER_BODY_BYTES_MAX // shown
