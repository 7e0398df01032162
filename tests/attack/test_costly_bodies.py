"""Bodies that take far more as they are shown than their bytes say: control characters, what cannot be printed, quotes.

Whoever may append or send chooses them. What a control plane answers stays within what the console and commands read
of an answer, and gives every body; what a page draws of one is bounded, for it is drawn on the console's loop. Which
bodies comes from a seed that is printed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from jinja2 import Environment

from app.console import fragments
from app.console.beginnings import BEGINNING_CHARS_MAX, Beginning
from app.console.nodes import ANSWER_BYTES_MAX, Nodes
from app.console.settings import ConsoleSettings
from node.config import load
from node.control import messages
from node.control.messages import described
from node.message_store.bodies import opened_body
from node.message_store.java_text import printable
from node.message_store.properties import PROPERTIES_BYTES_MAX
from node.message_store.record import Compression, MessageRecord, SysFlag, encode_record
from node.protocol.entry import BODY_BYTES_MAX
from node.server import open_store
from node.views.message_answers import Messages
from tests.attack.test_web_floods import SEED, answers, process, until
from tests.ports import free_ports
from tests.unit.message_kit import record
from tests.unit.store_fixtures import sync

TEMPLATES: Final = Path(__file__).parents[2] / "templates"
PIECES: Final = (b"\x01", b"\x1b[2J", b'"', b"\\\\", b"\n", b"<", b"x", "\u200b".encode(), "\ue000".encode(), b"\xff")


def bodies(name: str, count: int) -> list[bytes]:
    """The longest there may be of one kind of piece, shorter ones of a few, and small ones."""
    chosen = random.Random(f"{SEED} {name}")
    print(f"ATTACK_SEED={SEED} ({name})")
    made = [b"\x01" * BODY_BYTES_MAX]
    while len(made) < count:
        pieces = chosen.sample(PIECES, chosen.choice([1, 1, 2, 3]))
        size = chosen.choice([BODY_BYTES_MAX, 1 << 20, chosen.randrange(1 << 20), 100])
        made.append((b"".join(pieces) * size)[:size])
    return made


def body_of(item: dict[str, Any]) -> bytes:
    if item.get("as") == "hex":
        return bytes.fromhex(item["body"])
    shown = item["base64"] if "base64" in item else item.get("text", item.get("body"))
    return base64.b64decode(shown) if item.get("as") == "base64" or "base64" in item else shown.encode()


@pytest.mark.process
def test_every_entry_comes_in_answers_that_a_console_reads(tmp_path: Path) -> None:
    """One of 4 MiB of control characters took 24 MiB: it, and whatever stood on its page, was shown nowhere."""
    wanted = bodies("entries", 12)
    member, port = free_ports(2)
    peers = f"n0-127.0.0.1:{member}"
    set_to = {"node.id": "n0", "node.init": True, "peers": peers, "node.data": str(tmp_path)}
    store = open_store(load(set_to, environ={}))
    for body in wanted:
        store.append_as_leader([body], 1)
    sync(store)
    store.close()

    async def read(as_: str, limit: int) -> list[bytes]:
        nodes, found, following = Nodes(ConsoleSettings()), [], "0"
        try:
            while following is not None:
                page = await nodes.get(url, "entries", view="raw", limit=limit, **{"as": as_, "from": following})
                found += [body_of(one) for one in page["items"]]
                following = page["next"]
        finally:
            await nodes.close()
        return found

    flags = ["--id", "n0", "--group", "default", "--peers", peers, "--data", str(tmp_path)]
    with process("node.control", *flags, "--control", f"127.0.0.1:{port}"):
        url = f"http://127.0.0.1:{port}"
        until(lambda: answers(f"{url}/healthz"))
        for as_ in ("text", "hex", "base64"):
            assert asyncio.run(read(as_, 50)) == wanted


def test_messages_come_in_an_answer_that_a_console_reads(tmp_path: Path) -> None:
    """As many as a broker gives at a time: 4 MiB of records, and one more."""
    for number, body in enumerate(bodies("messages", 8)):
        sent = [body] + [b"\x02" * (1 << 16)] * 63
        items = described(tmp_path, b"".join(encode_record(record(one)) for one in sent))
        assert [body_of(one["body"]) for one in items] == sent
        assert len(json.dumps(items, ensure_ascii=False).encode()) < ANSWER_BYTES_MAX, number


def test_bodies_that_open_to_too_much_are_opened_a_few_times_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kilobyte or four that a stranger sent is gigabytes: 256 of them took 2.2 s of a page that showed none."""
    chosen, opened = random.Random(f"{SEED} bombs"), list[int]()

    def counted(one: MessageRecord, bytes_max: int) -> bytes:
        opened.append(bytes_max)
        return opened_body(one, bytes_max)

    monkeypatch.setattr(messages, "opened_body", counted)
    flag = Compression.ZLIB | SysFlag.COMPRESSED
    bomb = replace(record(zlib.compress(bytes(chosen.randrange(5, 30) << 20), 9)), sys_flag=flag)
    small = replace(record(zlib.compress(b"in order")), sys_flag=flag)
    few = chosen.randrange(messages.TOO_LONG_MAX)
    for count, is_shown in ((few, True), (chosen.randrange(100, 200), False)):
        opened.clear()
        found = described(
            tmp_path, encode_record(bomb) * count + encode_record(small) + encode_record(record(b"plain"))
        )
        assert len(opened) == min(count, messages.TOO_LONG_MAX) + is_shown + 1
        assert all("text" not in one["body"] for one in found[:count])
        assert (found[-2]["body"].get("text") == "in order") is is_shown
        assert found[-1]["body"]["text"] == "plain"


def properties(chosen: random.Random) -> bytes:
    """As many bytes as there may be, of one kind of piece, as one key, one tag, or many names."""
    piece = chosen.choice([b"\x03", b'"', b"\\", b"\xff", b"k", "\u200b".encode()])
    text = piece * PROPERTIES_BYTES_MAX
    begins = chosen.choice([b"KEYS\1", b"TAGS\1", b"UNIQ_KEY\1", b"p\1", b""])
    if not begins:
        return b"".join(b"%d\1%s\2" % (number, piece) for number in range(4000))[:PROPERTIES_BYTES_MAX]
    return begins + text[: (PROPERTIES_BYTES_MAX - len(begins)) // len(piece) * len(piece)]


def test_messages_of_long_properties_come_in_an_answer_that_a_console_reads(tmp_path: Path) -> None:
    """As many as a broker gives at a time, 4 MiB of records: of control characters in a key they took 48 MiB."""
    chosen = random.Random(f"{SEED} properties")
    for number in range(8):
        sent = [replace(record(b""), properties_data=properties(chosen)) for _ in range(127)]
        sent.append(replace(record(b"x"), properties_data=b"KEYS\1a b\2TAGS\1t"))
        items = described(tmp_path, b"".join(encode_record(one) for one in sent))
        said = json.dumps(items, ensure_ascii=False).encode()
        assert len(said) < ANSWER_BYTES_MAX, number
        assert Messages(as_of="", items=[one | {"where": None} for one in items], next=None)
        for item, one in zip(items, sent, strict=True):
            whole = {printable(name): printable(value) for name, value in one.pairs}
            assert item["properties"] == ({} if "left_out" in item else whole)
        assert any("left_out" in one for one in items)
        for one in sent:  # alone
            assert "left_out" not in described(tmp_path, encode_record(one))[0]


def test_a_page_draws_the_beginning_of_a_body_and_says_how_long_it_is() -> None:
    """The log page drew all 50 twice, and a character that cannot be printed took 2 us each time."""
    fragments.add_filters(env := Environment(autoescape=True))
    page = env.from_string((TEMPLATES / "_entries.html").read_text())
    for body in bodies("pages", 12):
        text = body.decode(errors="replace")
        entry = {"index": 7, "term": 1, "magic": "NORMAL", "body_bytes": len(body), "body": text, "as": "text"}
        drawn = page.render(rows=[entry], link=True, cluster={"id": "c"}, which="committed", as_="text", node="n0")
        # The longest escape has ten characters; an entity has five.
        assert len(drawn) < 12 * BEGINNING_CHARS_MAX
        shown = Beginning.of(text)
        assert shown.characters == len(text) and shown.is_all is (len(text) <= BEGINNING_CHARS_MAX)
        assert shown.is_all or f"{len(text):,} characters" in drawn
        assert shown.is_all or "entries?from=7&amp;limit=1" in drawn
