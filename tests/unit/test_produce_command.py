"""`produce`: lines become messages, and each that was sent has one outcome."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli import run
from app.commands.endings import Exit, Failure
from app.commands.message_lines import Form, lines_of, messages_of
from app.commands.producing import WINDOW, Producing
from app.commands.topics_io import delay_level
from node.message_client import NotSent, OutgoingMessage, SendStatus, SendUnknown, Sent, Unavailable
from tests.unit.engine_kit import until

PLAIN = OutgoingMessage("T", b"", ("k",), "AA")


def messages(text: bytes, form: Form = Form.JSON) -> list[OutgoingMessage]:
    return [one.message for one in messages_of(lines_of(io.BytesIO(text)), form, PLAIN, delay_level)]


def test_lines_of_text_are_bodies_and_json_says_more() -> None:
    assert [one.body for one in messages(b"one\r\n\n{two", Form.TEXT)] == [b"one", b"", b"{two"]
    said = {"body": "é", "keys": ["a", "b"], "tags": "UA", "shard": "s", "delay": "5s", "properties": {"p": "1"}}
    assert messages(json.dumps(said).encode()) == [
        OutgoingMessage("T", "é".encode(), ("a", "b"), "UA", (("p", "1"),), "s", 2)
    ]
    consumed = {"topic": "X", "queue_id": 1, "queue_offset": 2, "message_id": "m", "keys": "a  b", "tags": ""}
    assert messages(json.dumps(consumed | {"base64": "/w=="}).encode() + b"\n\n") == [
        OutgoingMessage("T", b"\xff", ("a", "b"), None)
    ]
    assert messages(b'{"body": "x"}') == [OutgoingMessage("T", b"x", ("k",), "AA")]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"nonsense", "line 2"), (b"[]", "it is no object"), (b"{}", "one of the two"), (b"[" * 100_000, "line 2"),
        (b'{"body": 1}', "body: 1 is no text"), (b'{"body": "x", "base64": "eA=="}', "one of the two"),
        (b'{"base64": "?"}', "base64"), (b'{"body": "x", "colour": 1}', "'colour' is nothing"),
        (b'{"body": "x", "delay": "7s"}', "line 2: --delay"), (b'{"body": "x", "keys": [1]}', "keys: 1 is no text"),
        (b'{"body": "x", "properties": [1]}', "properties"), (b"\xff", "line 2"), (b'{"body": "\\ud800"}', ""),
    ],
)  # fmt: skip
def test_a_line_that_no_message_can_be_made_of_ends_the_input_with_its_number(line: bytes, text: str) -> None:
    each = messages_of(lines_of(io.BytesIO(b'{"body": "good"}\n' + line)), Form.JSON, PLAIN, delay_level)
    assert next(each).message.body == b"good"
    if not text:
        assert next(each).message.body == b"\xed\xa0\x80"
        return
    with pytest.raises(Failure, match=text) as failed:
        next(each)
    assert failed.value.code == Exit.USAGE


class FakeProducer:
    """`outcomes` are those of the first so many, and come when all of these were sent; later ones are the test's."""

    outcomes: tuple[Any, ...] = ()
    sent: list[tuple[OutgoingMessage, asyncio.Future[Sent]]]

    def __init__(self, *_given: object) -> None:
        type(self).sent = []

    async def __aenter__(self) -> FakeProducer:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass

    def submit(self, message: OutgoingMessage) -> asyncio.Future[Sent]:
        future: asyncio.Future[Sent] = asyncio.get_running_loop().create_future()
        self.sent.append((message, future))
        if len(self.sent) == len(self.outcomes):
            for at, outcome in enumerate(self.outcomes):
                if isinstance(outcome, Exception):
                    self.sent[at][1].set_exception(outcome)
                else:
                    name, status = outcome if isinstance(outcome, tuple) else (outcome, SendStatus.SEND_OK)
                    self.sent[at][1].set_result(Sent(name, 0, at, status=status))
        return future


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProducer]:
    monkeypatch.setattr("node.message_client.MessageProducer", FakeProducer)
    return FakeProducer


@pytest.mark.parametrize(
    ("outcomes", "code", "stored", "text"),
    [
        (("a", "b", "c"), Exit.FINE, 3, "3 stored"),
        (("a", NotSent(13, "too large"), "c"), Exit.FINDING, 2, "line 2: too large"),
        (("a", Unavailable("nobody"), "c"), Exit.UNREACHABLE, 2, "line 2: nobody"),
        (("a", SendUnknown("cut"), "c"), Exit.UNKNOWN_OUTCOME, 2, "1 of unknown outcome"),
        ((NotSent(1, "no"), SendUnknown("cut"), "c"), Exit.UNKNOWN_OUTCOME, 1, "line 2: unknown: cut"),
    ],
)
def test_the_exit_code_is_that_of_the_worst_outcome(
    fake: type[FakeProducer], tmp_path: Path, capsys: pytest.CaptureFixture[str], outcomes: tuple[Any, ...], code: Exit,
    stored: int, text: str,
) -> None:  # fmt: skip
    fake.outcomes = outcomes
    (tmp_path / "lines").write_text("1\n2\n3\n")
    given = ["produce", "T", "--name-server", "127.0.0.1:1"]
    found = run([*given, *(word for one in "123" for word in ("--body", one))])
    out = capsys.readouterr()
    assert found == code and text in out.err
    assert len(out.out.splitlines()) == stored
    fake.outcomes = outcomes
    assert run([*given, str(tmp_path / "lines"), "--json"]) == code
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["line"] for one in rows] == [1, 2, 3], "one outcome each, in their order"


def test_what_is_at_too_few_brokers_is_named(fake: type[FakeProducer], capsys: pytest.CaptureFixture[str]) -> None:
    fake.outcomes = (("a", SendStatus.SLAVE_NOT_AVAILABLE),)
    given = ["produce", "T", "--name-server", "127.0.0.1:1", "--body", "1"]
    assert run(given) == Exit.FINE
    out = capsys.readouterr()
    assert out.out == "a 0 0 SLAVE_NOT_AVAILABLE\n" and "1 of them not at as many brokers" in out.err
    assert run([*given, "--json"]) == Exit.FINE
    assert json.loads(capsys.readouterr().out)["status"] == "SLAVE_NOT_AVAILABLE"


def test_an_interrupt_says_what_is_stored_and_what_may_be(
    fake: type[FakeProducer], capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        fake.outcomes = ("a", "b")
        lines = messages_of(iter(b"%d" % n for n in range(WINDOW * 3)), Form.TEXT, PLAIN, delay_level)
        producing = Producing(lines, as_json=False)
        running = asyncio.create_task(producing.run([], "g", 1.0))
        await until(lambda: hasattr(fake, "sent") and len(fake.sent) >= WINDOW + 2)
        await asyncio.sleep(0.01)
        assert len(fake.sent) == WINDOW + 2, "no more is under way at a time"
        fake.sent[5][1].set_result(Sent("late", 0, 5))
        running.cancel()
        await asyncio.wait([running])
        assert (producing.stored, producing.refused, producing.unknown) == (3, 0, WINDOW - 1)
        assert producing.summary() == f"3 stored, {WINDOW - 1} of unknown outcome"
        assert producing.failure().code == Exit.UNKNOWN_OUTCOME

    asyncio.run(story())
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["a", "b", "late"]


def test_a_line_that_is_wrong_ends_it_when_those_before_it_have_their_outcome(
    fake: type[FakeProducer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.outcomes = ("a", "b")
    (tmp_path / "lines").write_text('{"body": "1"}\n{"body": "2"}\nnonsense\n{"body": "4"}\n')
    given = ["produce", "T", str(tmp_path / "lines"), "--name-server", "127.0.0.1:1"]
    assert run([*given, "--format", "json"]) == Exit.USAGE
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == 2 and "line 3" in out.err and "2 stored" in out.err
    assert run([*given, "--body", "x"]) == Exit.USAGE
    assert run(["produce", "T", str(tmp_path / "absent")]) == Exit.USAGE
    fake.outcomes = ("a",)
    assert run(["produce", "T", "--name-server", "127.0.0.1:1", "--body", "x", "--key", "a\x01b"]) == Exit.FINE


def test_input_that_cannot_be_read_any_more_is_no_end(fake: type[FakeProducer]) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1"
        raise OSError("the disk is gone")

    fake.outcomes = ("a",)
    producing = Producing(messages_of(lines(), Form.TEXT, PLAIN, delay_level), as_json=True)
    with pytest.raises(OSError, match="the disk is gone"):
        asyncio.run(producing.run([], "g", 1.0))
    assert producing.stored == 1
