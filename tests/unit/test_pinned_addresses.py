"""Where a node token goes: to addresses that the configuration or an admin gave, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.console import nodes as nodes_module
from app.console.addresses import normal_control_url, origin_of
from app.console.errors import ConsoleError, Invalid, NodeUnreachable
from app.console.nodes import NodeRefused, Nodes
from app.console.settings import ConsoleSettings, Seed
from app.security.sealed import Seal, SealError
from tests.unit.console_kit import Kit, run, running
from tests.unit.engine_kit import until
from tests.unit.fake_control import FakeGroup

CONSOLE_TOKEN, OWN_TOKEN = "the-console-started-with-it", "this-groups-own-token"
ADDRESSES = "/api/v1/clusters/demo/addresses"
SEED = "http://127.0.0.1:8431"


def shown_to(group: FakeGroup, url: str) -> set[str | None]:
    """The tokens that came to one address."""
    mine = [one for one in group.requests if origin_of(str(one.url)) == origin_of(url)]
    return {one.headers.get("authorization") for one in mine}


async def waiting(kit: Kit, url: str) -> None:
    await kit.until(lambda: any(one.url == url for one in kit.console.addresses.of("demo").waiting.values()))


def test_an_address_that_a_member_names_gets_no_request_before_an_admin_approves_it(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group, node_token=CONSOLE_TOKEN) as kit:
            await waiting(kit, "http://127.0.0.1:8432")
            await kit.until(lambda: len(group.requests) > 20)
            assert shown_to(group, SEED) == {f"Bearer {CONSOLE_TOKEN}"}
            assert shown_to(group, "http://127.0.0.1:8432") == set(), "nothing at all was sent there"
            vic, ann = await kit.person("vic", "viewer"), await kit.person()
            page = await vic.get("/clusters/demo/addresses")
            assert "http://127.0.0.1:8432" in page.text and "Approve" not in page.text
            body = {"control_url": "http://127.0.0.1:8432"}
            assert (await vic.change("POST", ADDRESSES, json=body)).status_code == 403
            assert "Approve" in (await ann.get("/clusters/demo/addresses")).text
            sent = {"control_url": "http://127.0.0.1:8432", "csrf_token": ann.csrf}
            done = await ann.client.post("/clusters/demo/addresses", data=sent)
            assert done.status_code == 303
            await kit.until(lambda: shown_to(group, "http://127.0.0.1:8432"))
            assert shown_to(group, "http://127.0.0.1:8432") == {f"Bearer {CONSOLE_TOKEN}"}
            assert shown_to(group, "http://127.0.0.1:8433") == set()
            group.requests.clear()
        async with running(tmp_path, group, node_token=CONSOLE_TOKEN) as kit:
            await kit.until(lambda: shown_to(group, "http://127.0.0.1:8432"))
            assert shown_to(group, "http://127.0.0.1:8433") == set(), "a restart approves nothing"

    run(work())


def test_withdrawing_ends_it_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group, node_token=CONSOLE_TOKEN) as kit:
            ann = await kit.person()
            await waiting(kit, "http://127.0.0.1:8432")
            body = {"control_url": "http://127.0.0.1:8432"}
            assert (await ann.change("POST", ADDRESSES, json=body)).status_code == 200
            await kit.until(lambda: shown_to(group, "http://127.0.0.1:8432"))
            answer = await ann.change("DELETE", ADDRESSES, params=body)
            assert answer.status_code == 200, answer.text
            assert kit.console.addresses.token_for("http://127.0.0.1:8432") is None
            assert kit.console.watch_of("demo").pollers["n1"].sample.control_url is None
            assert (await ann.change("DELETE", ADDRESSES, params={"control_url": SEED})).status_code == 409
            assert (await ann.change("DELETE", ADDRESSES, params={"control_url": "http://h:9"})).status_code == 404

    run(work())


def test_each_group_has_a_token_of_its_own_and_the_database_does_not_show_it(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group, seeded=False, node_token=CONSOLE_TOKEN) as kit:
            ann = await kit.person()
            body = {"control_url": SEED, "node_token": OWN_TOKEN}
            made = await ann.change("POST", "/api/v1/clusters", json=body)
            assert made.status_code == 201 and OWN_TOKEN not in made.text
            await kit.until(lambda: len(group.requests) > 10)
            assert shown_to(group, SEED) == {f"Bearer {OWN_TOKEN}"}, "never the console's"
            assert (await ann.get(ADDRESSES)).json()["token"] == "own"
            group.requests.clear()
        stored = b"".join(one.read_bytes() for one in tmp_path.glob("console.db*"))
        assert OWN_TOKEN.encode() not in stored
        key = tmp_path / "console.db.key"
        assert key.stat().st_mode & 0o777 == 0o600
        async with running(tmp_path, group, seeded=False, node_token=CONSOLE_TOKEN) as kit:
            await kit.until(lambda: shown_to(group, SEED))
            assert shown_to(group, SEED) == {f"Bearer {OWN_TOKEN}"}
        key.unlink()
        group.requests.clear()
        async with running(tmp_path, group, seeded=False, node_token=CONSOLE_TOKEN) as kit:
            ann = await kit.person()
            assert (await ann.get(ADDRESSES)).json()["token"] == "unreadable"
            await kit.until(lambda: len(group.requests) > 4)
            assert shown_to(group, SEED) == {None}, "without its own it is shown none, not another group's"
            token, said = "/api/v1/clusters/demo/node-token", {"dry_run": True}
            assert (await ann.change("DELETE", token, json=said)).status_code == 422
            assert (await ann.change("DELETE", token, json={})).status_code == 204, "some clients always send one"
            assert (await ann.get(ADDRESSES)).json()["token"] == "console"

    run(work())


def test_without_any_token_the_first_address_is_used_until_there_is_one(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()
            await kit.until(lambda: shown_to(group, "http://127.0.0.1:8432"))
            states = {one["control_url"]: one["state"] for one in (await ann.get(ADDRESSES)).json()["items"]}
            assert states == {
                SEED: "approved",
                "http://127.0.0.1:8432": "first_use",
                "http://127.0.0.1:8433": "first_use",
            }
            put = await ann.change("PUT", "/api/v1/clusters/demo/node-token", json={"token": OWN_TOKEN})
            assert put.status_code == 204
            states = {one["control_url"]: one["state"] for one in (await ann.get(ADDRESSES)).json()["items"]}
            assert kit.console.watch_of("demo").pollers["n1"].sample.control_url is None
            assert set(states.values()) == {"approved", "waiting"}, "with a token they wait"
            await kit.until(lambda: f"Bearer {OWN_TOKEN}" in shown_to(group, SEED))
            assert f"Bearer {OWN_TOKEN}" not in shown_to(group, "http://127.0.0.1:8432")

    run(work())


def test_never_from_https_to_http(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        for one in group.nodes.values():
            one.url = one.url.replace("http:", "https:")
        async with running(tmp_path, group, seeds=(Seed("https://127.0.0.1:8431"),), node_token=CONSOLE_TOKEN) as kit:
            await kit.until(lambda: kit.console.watches)
            group.nodes["n1"].url = "http://127.0.0.1:8432"
            ann = await kit.person()
            await waiting(kit, "https://127.0.0.1:8433")
            refused = await ann.change("POST", ADDRESSES, json={"control_url": "http://127.0.0.1:8432"})
            assert refused.status_code == 409 and "https" in refused.json()["detail"]
            await kit.until(lambda: len(group.requests) > 20)
            assert all("http://" not in one["control_url"] for one in (await ann.get(ADDRESSES)).json()["items"])
            assert {str(one.url.scheme) for one in group.requests} == {"https"}

    run(work())


def test_a_flood_of_named_addresses_fills_no_memory(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, node_token=CONSOLE_TOKEN) as kit:
            await kit.until(lambda: kit.console.watches)
            addresses = kit.console.addresses
            for n in range(2000):
                addresses.named("demo", "n1", f"http://10.0.{n % 250}.1:{1024 + n}", by="n0", first=True)
            assert len(addresses.of("demo").waiting) <= 32

    run(work())


@pytest.mark.parametrize(
    "url", ["http://h:1/a", "http://h:1?q", "http://h:1#f", "http://u@h:1", "http://:p@h:1", "ftp://h"]
)
def test_an_address_is_scheme_host_and_port(url: str) -> None:
    with pytest.raises(Invalid):
        normal_control_url(url)


def test_an_address_is_the_same_with_its_scheme_s_own_port() -> None:
    assert origin_of("http://h") == origin_of("http://h:80") != origin_of("https://h:80")


# --- what a node answers is bounded while it is read ---


class Dripping(httpx2.AsyncBaseTransport):
    """A node that answers without an end; `pause_s` between pieces."""

    def __init__(self, piece: bytes, pause_s: float = 0.0, **headers: str) -> None:
        self.piece, self.pause_s, self.headers, self.given_bytes = piece, pause_s, headers, 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(self.pause_s)
                self.given_bytes += len(self.piece)
                yield self.piece

        return httpx2.Response(200, headers=self.headers, content=pieces(), request=request)


async def ask(transport: httpx2.AsyncBaseTransport) -> str:
    client = Nodes(ConsoleSettings(), transport)
    try:
        with pytest.raises(NodeUnreachable) as caught:
            await client.get("http://127.0.0.1:1", "state")
    finally:
        await client.close()
    return str(caught.value.code)


def test_however_much_people_read_at_once_members_are_asked_how_they_are() -> None:
    """Sixty-four reads, of one script say, took all places: what samples the members waited behind them, and called
    those silent that answered nobody's question because none was put to them."""

    async def work() -> None:
        begun, over = 0, asyncio.Event()

        async def answer(request: httpx2.Request) -> httpx2.Response:
            nonlocal begun
            if request.url.path.endswith("/state"):
                return httpx2.Response(200, json={"engine": "ok"})
            begun += 1
            await over.wait()
            return httpx2.Response(200, json={})

        nodes, url = Nodes(ConsoleSettings(), httpx2.MockTransport(answer)), "http://127.0.0.1:8431"
        reads = [asyncio.create_task(nodes.get(url, "entries")) for _ in range(nodes_module.IN_FLIGHT_MAX)]
        reads += [asyncio.create_task(nodes.content(url, "segments/data/0")) for _ in range(4)]
        await until(lambda: begun > 0)
        asked = asyncio.create_task(nodes.json("GET", url, "state"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert asked.done() and not any(one.done() for one in reads)
        over.set()
        await asyncio.gather(*reads)
        assert begun == len(reads)
        await nodes.close()

    run(work())


@pytest.mark.parametrize(("status", "code"), [(200, "not_json"), (409, None)])
def test_half_a_character_is_not_handed_on(status: int, code: str | None) -> None:
    """It has no bytes: whoever asked got 500, "the console failed at this", and so did who asked for all members'."""

    async def ask(said: bytes) -> Any:
        answers = httpx2.MockTransport(lambda _: httpx2.Response(status, content=said))
        nodes = Nodes(ConsoleSettings(), answers)
        try:
            return await nodes.get("http://127.0.0.1:8431", "dispatchers")
        except ConsoleError as error:
            json.dumps([error.detail, error.extra], ensure_ascii=False).encode()
            return error.code
        finally:
            await nodes.close()

    async def work() -> None:
        assert await ask(b'{"detail": "\\ud83d", "seen": "\\udC00"}') == code
        whole = await ask(b'{"detail": "\\uD83D\\uDE00", "code": "\\ud83d\\ude00"}')
        assert whole == ({"detail": "😀", "code": "😀"} if status == 200 else "😀")

    asyncio.run(work())


def test_an_answer_that_is_nested_by_the_hundreds_is_left() -> None:
    """It was read, and could not be handed on: the console's own error (500)."""

    def nested(depth: int) -> httpx2.MockTransport:
        content = f'{{"items": [{{"body": {"[" * depth}{"]" * depth}}}]}}'.encode()
        return httpx2.MockTransport(lambda _request: httpx2.Response(200, content=content))

    async def work() -> None:
        assert await ask(nested(300)) == await ask(nested(900)) == "not_json"
        refusal = httpx2.MockTransport(
            lambda _request: httpx2.Response(409, content=b'{"more":%s' % (b"[" * 300 + b"]" * 300 + b"}"))
        )
        client = Nodes(ConsoleSettings(), refusal)
        with pytest.raises(NodeRefused) as refused:
            await client.get("http://127.0.0.1:1", "entries")
        assert "more" not in refused.value.extra
        await client.close()
        client = Nodes(ConsoleSettings(), nested(64))
        assert (await client.get("http://127.0.0.1:1", "entries"))["items"]
        await client.close()

    run(work())


def test_an_answer_without_an_end_is_left_at_its_bound() -> None:
    async def work() -> None:
        endless = Dripping(b"x" * (1 << 16))
        assert await ask(endless) == "too_long"
        assert endless.given_bytes <= nodes_module.BYTES_MAX["state"] + (1 << 17)

    run(work())


def test_a_byte_now_and_then_is_left_at_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes_module, "TOTAL_S", 0.3)

    async def work() -> None:
        assert await ask(Dripping(b"x", 0.02)) == "timeout"

    run(work())


@pytest.mark.parametrize("within_s", [None, 15.0])
def test_who_takes_no_connection_is_given_up_soon_however_long_an_answer_may_take(within_s: float | None) -> None:
    """An operator's action waits for an engine that is late, and not as long for a machine that is not there."""
    asked: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.extensions["timeout"])
        return httpx2.Response(200, json={}, request=request)

    async def work() -> None:
        client = Nodes(ConsoleSettings(), httpx2.MockTransport(answer))
        await client.json("POST", "http://127.0.0.1:1", "scrub", json={}, timeout_s=within_s)
        await client.close()

    run(work())
    assert asked[0]["connect"] == nodes_module.CONNECT_TIMEOUT_S
    assert asked[0]["read"] == (nodes_module.TIMEOUT_S if within_s is None else within_s)


def test_nothing_is_unpacked_and_no_redirect_followed() -> None:
    async def work() -> None:
        assert await ask(Dripping(b"x", **{"content-encoding": "gzip"})) == "compressed"

        def away(request: httpx2.Request) -> httpx2.Response:
            assert request.url.port == 1, "followed"
            return httpx2.Response(302, headers={"location": "http://127.0.0.1:2/"}, request=request)

        assert await ask(httpx2.MockTransport(away)) == "redirect"

    run(work())


# --- the seal ---


@pytest.mark.parametrize("secret", ["a", "a token of some length", "ü" * 300])
def test_what_is_sealed_opens_for_its_purpose_only(tmp_path: Path, secret: str) -> None:
    seal = Seal(tmp_path / "deep" / "key")
    sealed = seal.seal(secret, "one")
    assert len(secret) < 8 or secret.encode() not in sealed
    assert seal.seal(secret, "one") != sealed
    assert Seal(tmp_path / "deep" / "key").open(sealed, "one") == secret
    with pytest.raises(SealError):
        seal.open(sealed, "two")
    for at in range(len(sealed)):
        with pytest.raises(SealError):
            seal.open(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], "one")
    for length in range(len(sealed)):
        with pytest.raises(SealError):
            seal.open(sealed[:length], "one")


@pytest.mark.parametrize("spoil", ["wide", "short", "missing", "link", "fifo", "directory"])
def test_a_key_file_that_is_not_as_it_should_be_is_refused(tmp_path: Path, spoil: str) -> None:
    path: Any = tmp_path / "key"
    sealed = Seal(path).seal("secret", "one")
    if spoil == "wide":
        path.chmod(0o640)
    elif spoil == "short":
        path.write_bytes(b"short")
    elif spoil != "link":  # a FIFO without a writer held up the whole console
        path.unlink()
        {"missing": int, "fifo": lambda: os.mkfifo(path, 0o600), "directory": path.mkdir}[spoil]()
    else:
        os.rename(path, tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SealError, match="key"):
        Seal(path).open(sealed, "one")
