"""The live stream: rendered once for all, only what changed, newest only for slow readers, an end for dead sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from app.console import live as live_module
from app.console.errors import NodeUnreachable, NotFound
from app.console.live import Fragment, Hub, LiveKey, encode
from tests.unit.console_kit import run, running

KEY = LiveKey("cluster", "demo", None, "viewer")


class Renders:
    """A renderer that counts, and shows what it is told."""

    def __init__(self) -> None:
        self.shown = {"a": "1", "b": "1"}
        self.count = 0
        self.broken = False

    def __call__(self, key: LiveKey) -> Sequence[Fragment]:
        self.count += 1
        if self.broken:
            raise RuntimeError("a template error")
        return [Fragment(name, text) for name, text in self.shown.items()]


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "RENDER_INTERVAL_S", 0.02)
    monkeypatch.setattr(live_module, "BEAT_S", 0.02)
    monkeypatch.setattr(live_module, "LOOK_EVERY_S", 0.02)


async def until(stream: AsyncIterator[bytes], wanted: bytes) -> bytes:
    """Reads on until `wanted` has come."""
    seen = b""
    async with asyncio.timeout(5):
        async for chunk in stream:
            seen += chunk
            if wanted in seen:
                return seen
    raise AssertionError(f"{wanted!r} never came: {seen!r}")


def test_lines_of_a_fragment_each_get_a_field() -> None:
    assert encode("a", "<p>\r\nx</p>") == b"event: a\ndata: <p>\ndata: x</p>\n\n"
    assert encode("", "") == b"data: \n\n"


@pytest.mark.usefixtures("fast")
def test_everything_at_first_then_only_what_changed() -> None:
    async def work() -> None:
        renders = Renders()
        hub = Hub(renders)
        stream = hub.stream(KEY, yes)
        first = await anext(stream)
        assert first.startswith(b"event: beat\n") and b"event: a\n" in first and b"event: b\n" in first
        renders.shown["a"] = "2"
        seen = await until(stream, b"event: a\ndata: 2")
        assert b"event: b\n" not in seen
        await stream.aclose()
        await hub.close()

    run(work())


@pytest.mark.usefixtures("fast")
def test_many_pages_cost_one_rendering_and_none_once_closed() -> None:
    async def work() -> None:
        renders = Renders()
        hub = Hub(renders)
        streams = [hub.stream(KEY, yes) for _ in range(50)]
        for stream in streams:
            await anext(stream)
        assert renders.count == 1 and hub.count == 50 and len(hub.topics) == 1
        other = hub.stream(LiveKey("cluster", "demo", None, "admin"), yes)
        await anext(other)
        assert renders.count >= 2 and len(hub.topics) == 2, "another role, another rendering"
        for stream in [*streams, other]:
            await stream.aclose()
        assert hub.count == 0 and hub.topics == {}
        await hub.close()

    run(work())


@pytest.mark.usefixtures("fast")
def test_a_slow_reader_gets_the_newest_and_holds_one_copy() -> None:
    async def work() -> None:
        renders = Renders()
        hub = Hub(renders)
        slow, quick = hub.stream(KEY, yes), hub.stream(KEY, yes)
        await anext(slow)
        await anext(quick)
        for n in range(2, 7):
            renders.shown["a"] = str(n)
            await until(quick, f"data: {n}\n".encode())
        missed = await anext(slow)
        assert missed.count(b"event: a\n") == 1 and b"data: 6\n" in missed
        await slow.aclose()
        await quick.aclose()
        await hub.close()

    run(work())


@pytest.mark.usefixtures("fast")
def test_beats_go_on_while_nothing_changes_and_a_dead_session_expires() -> None:
    async def work() -> None:
        hub = Hub(Renders())
        calm = hub.stream(KEY, yes)
        await anext(calm)
        for _ in range(3):
            assert (await anext(calm)).startswith(b"event: beat\n")
        await calm.aclose()
        dead = hub.stream(KEY, no)
        seen = b"".join([chunk async for chunk in dead])
        assert seen.endswith(b"event: expired\ndata: \n\n")
        await hub.close()

    run(work())


@pytest.mark.usefixtures("fast")
def test_what_cannot_be_rendered_ends_instead_of_looking_alive() -> None:
    async def work() -> None:
        renders = Renders()
        hub = Hub(renders)
        stream = hub.stream(KEY, yes)
        await anext(stream)
        renders.broken = True
        async with asyncio.timeout(5):
            assert all([b"event: a" not in chunk async for chunk in stream])
        assert hub.topics == {}
        with pytest.raises(RuntimeError, match="a template error"):
            await anext(hub.stream(KEY, yes))
        await hub.close()

    run(work())


@pytest.mark.usefixtures("fast")
def test_what_is_over_before_its_stream_begins_ends_it_without_a_word_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An audit may end between its page and the page's stream, or while it streams."""

    async def work() -> None:
        over = False

        def render(key: LiveKey) -> Sequence[Fragment]:
            if over:
                raise NotFound("This audit is not running; its page shows how it ended.", title="Not live")
            return [Fragment("a", "1")]

        hub = Hub(render)
        stream = hub.stream(KEY, yes)
        await anext(stream)
        over = True
        async with asyncio.timeout(60):
            assert all([b"event: a" not in chunk async for chunk in stream])
            assert [chunk async for chunk in hub.stream(KEY, yes)] == []
        with pytest.raises(NotFound):
            await hub.check(KEY)
        assert hub.topics == {} and hub.count == 0
        await hub.close()

    run(work())
    assert caplog.text == ""


@pytest.mark.usefixtures("fast")
def test_what_is_asked_for_is_asked_once_for_all_and_ends_when_no_answer_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages are asked of control planes; while the first answer is awaited, others may open the same page."""
    monkeypatch.setattr(live_module, "ASKED_INTERVAL_S", 0.02)

    async def work() -> None:
        answers, answered = [0], asyncio.Event()

        async def render(key: LiveKey) -> Sequence[Fragment]:
            await answered.wait()
            if answers[0] < 0:
                raise NodeUnreachable("n0 did not answer in time")
            answers[0] += 1
            return [Fragment("a", str(answers[0]))]

        hub = Hub(render)
        streams = [hub.stream(KEY, yes) for _ in range(3)]
        opened = [asyncio.create_task(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        assert hub.count == 3, "who waits for the first answer counts"
        answered.set()
        assert all(b"event: a\ndata: " in one for one in await asyncio.gather(*opened))
        assert len(hub.topics) == 1
        before = answers[0]
        await until(streams[0], f"data: {before + 2}\n".encode())
        assert answers[0] <= before + 3, "one question for three pages"
        answers[0] = -1
        for stream in streams:
            async with asyncio.timeout(60):
                assert [chunk async for chunk in stream][-1:] != [b""]
        with pytest.raises(NodeUnreachable):
            await hub.check(KEY)
        assert hub.topics == {} and hub.count == 0 and not hub.readers
        await hub.close()

    run(work())
    assert caplog.text == "", "an answer that does not come is no fault of the console's"


def test_stopping_ends_a_stream_whose_first_answer_never_comes() -> None:
    async def work() -> None:
        answered = asyncio.Event()

        async def render(key: LiveKey) -> Sequence[Fragment]:
            await answered.wait()
            return [Fragment("a", "1")]

        hub = Hub(render)
        opened = asyncio.create_task(anext(hub.stream(KEY, yes), b"over"))
        await asyncio.sleep(0)
        hub.stop()
        answered.set()
        assert await opened == b"over" and hub.count == 0 and hub.topics == {}
        await hub.close()

    run(work())


def test_stopping_ends_every_stream_at_once() -> None:
    async def work() -> None:
        hub = Hub(Renders())
        streams = [hub.stream(LiveKey("p", str(n), None, "viewer"), yes) for n in range(5)]
        for stream in streams:
            await anext(stream)
        hub.stop()
        async with asyncio.timeout(1):
            for stream in streams:
                assert [chunk async for chunk in stream] == []
        await hub.close()

    run(work())


def test_the_routes(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            kit.app.state.live_pages |= {
                "probe": lambda console, key: [Fragment("x", console.group_view(key.cluster_id).leader_id + key.role)]
            }
            vic = await kit.person("vic", "viewer")
            snapshot = await vic.get("/live/probe/snapshot?cluster=demo")
            assert snapshot.status_code == 200 and snapshot.text == "n0viewer"
            assert (await vic.get("/live/nothing?cluster=demo")).status_code == 404
            assert (await vic.get("/live/probe?cluster=none")).status_code == 404
            ended = await vic.get("/live/audit?cluster=demo&node=ended")
            assert ended.status_code == 404 and ended.json()["title"] == "Not live"
            asyncio.get_running_loop().call_later(0.2, kit.app.state.hub.stop)
            stream = await vic.get("/live/probe?cluster=demo")
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.headers["cache-control"] == "no-store" and stream.headers["x-accel-buffering"] == "no"
            assert "event: x\ndata: n0viewer\n" in stream.text

    run(work())
