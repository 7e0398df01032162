"""A webhook against a real HTTP server: what is sent verifies as the documentation says, and nothing runs away."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.notify.message import trial_payload
from app.notify.webhook import NotDelivered, checked_url, host_of, post
from app.times import utc_now
from tests.ports import free_ports
from tests.unit.console_kit import run
from tests.unit.receivers import http_receiver

KEY = "a key of the route's own"
DOCUMENT = Path(__file__).parents[2] / "docs" / "notifications.md"
Verifier = Callable[..., dict[str, Any] | None]


def verifier() -> Verifier:
    """As the documentation prints it."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert len(code[code.index("def ") :].strip().splitlines()) <= 15
    names: dict[str, Any] = {}
    exec(code, names)
    found: Verifier = names["verified"]
    return found


def payload() -> dict[str, Any]:
    return trial_payload("ops", "ann", utc_now(), "http://127.0.0.1:8421") | {"text": "n2 ist weg \u2013 seit 3:00"}


def test_the_documented_verifier_accepts_what_is_sent_and_nothing_else() -> None:
    async def work() -> None:
        async with http_receiver() as receiver:
            sent = payload()
            assert await post(receiver.url, KEY, sent) == "answered 204"
            ((headers, body),) = receiver.got
        verified, seen = verifier(), set[str]()
        assert verified(headers, body, KEY, seen) == sent and headers["quorumscope-id"] == sent["id"]
        assert verified(headers, body, KEY, seen) is None, "the same again is known by its id"
        for wrong in (
            (headers, body, "another key"),
            (headers, body + b" ", KEY),
            (headers | {"quorumscope-timestamp": str(int(time.time()) + 1)}, body, KEY),
        ):
            with pytest.raises(ValueError, match="not signed"):
                verified(*wrong, set())
        with pytest.raises(ValueError, match="too old"):
            verified(headers, body, KEY, set(), lambda: time.time() + 400)
        assert headers["content-type"] == "application/json" and json.loads(body) == sent

    run(work())


@pytest.mark.parametrize(
    ("mode", "why"),
    [(500, "answered 500"), (404, "answered 404"), ("redirect", "a redirect, which is not followed"),
     ("hang", "no answer within 1 s")],
)  # fmt: skip
def test_what_is_no_success_is_said(mode: int | str, why: str) -> None:
    async def work() -> None:
        async with http_receiver() as receiver:
            receiver.mode = mode
            with pytest.raises(NotDelivered, match=why):
                await post(receiver.url, KEY, payload(), attempt_s=1.0 if mode == "hang" else 30.0)
            assert len(receiver.got) == 1 and receiver.elsewhere == 0

    run(work())


def test_an_answer_without_end_is_left_and_counts_as_taken() -> None:
    async def work() -> None:
        async with http_receiver() as receiver:
            receiver.mode = "endless"
            assert await post(receiver.url, KEY, payload()) == "answered 200"

    run(work())


def test_where_nobody_listens_and_where_no_http_is_spoken() -> None:
    async def work() -> None:
        secret = f"http://127.0.0.1:{free_ports(1)[0]}/hook/s3cret-path"
        with pytest.raises(NotDelivered, match="cannot be reached") as caught:
            await post(secret, KEY, payload())
        assert "s3cret" not in str(caught.value), "the path may be the receiver's secret"
        async with http_receiver() as receiver:
            with pytest.raises(NotDelivered):
                await post(receiver.url.replace("http:", "https:"), KEY, payload())
            assert receiver.got == []

    run(work())


def test_no_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with http_receiver() as receiver:
            assert await post(receiver.url, KEY, payload()) == "answered 204"

    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{free_ports(1)[0]}")
    run(work())


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h/x", "begins with http"), ("file:///etc/passwd", "begins with http"), ("h/x", "begins with http"),
        ("http://", "names a host"), ("http://u:p@h/x", "no user"), ("http://h:99999/", "cannot be read"),
        ("http://h/a b", "no spaces"), ("http://h/#x", "fragment"), ("http://h/" + "a" * 1000, "at most"),
        ("http://[::1/", "cannot be read"), ("https://[::ffff:1.2.3.4]65536", "cannot be read"),
        ("http://h/\r\nx: y", "ASCII|spaces|read"), ("https://b\u00fccher.example/x", "ASCII"),
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        checked_url(url)


@pytest.mark.parametrize(
    "url",
    ["https://H.example:443/x", "http://[::1]:80/x", "http://xn--bcher-kva.example/x", "http://h./x?y=%20&z[]=1",
     "https://[2001:DB8::1]:8443/x", "HTTP://h:08080", "http://[0:0::ffff:1.2.3.4]/", "http://h_1:/x"],
)  # fmt: skip
def test_urls_that_are_taken(url: str) -> None:
    assert checked_url(url) == url


def test_of_a_url_only_the_host_is_shown() -> None:
    assert host_of(checked_url(" https://hooks.example:8443/T0/B1/s3cret?x=1 ")) == "https://hooks.example:8443"
