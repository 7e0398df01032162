"""The control plane speaks to its own engine only: another group's, or another member's, is none (SAFETY C9)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from node.config import Settings, load
from node.control import restart
from node.control.engine_link import EngineAway, EngineForeign, EngineLink, EngineSilent
from node.control.log_files import LogFiles
from node.control.snapshots import LATE_S, Snapshots
from node.engine.engine import Engine
from node.protocol.codes import RequestCode, VoterState
from node.protocol.group_id import group_id_of
from node.store.files.hard_state import save_hard_state
from node.store.log_store import HardState
from node.store.memory_store import MemoryStore
from node.transport.slab_frames import AppendRequest, decode_append_answer, encode_append
from node.views.replication import WatermarksView
from node.views.state import StateView
from tests.ports import free_ports
from tests.unit.engine_kit import until
from tests.unit.test_client_leader import ScriptedMember

OURS, THEIRS = group_id_of("ours", "g"), group_id_of("theirs", "g")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends run on one loop here: a busy machine must not look like an engine that is away."""
    monkeypatch.setattr("node.control.engine_link.CONNECT_TIMEOUT_S", 30)


Work = Callable[[EngineLink, Snapshots, MemoryStore], Awaitable[None]]


def settings_of(place: Path, port: int, node_id: str = "n0", group: str = "g", **more: str) -> Settings:
    peers = f"{node_id}-127.0.0.1:{port}"
    return load({"node.id": node_id, "peers": peers, "node.data": str(place), "node.group": group} | more, None, {})


def write_down(place: Path, group_id: str | None) -> None:
    """As an engine does in its directory before it listens."""
    directory = place / "dledger-n0"
    directory.mkdir(parents=True, exist_ok=True)
    save_hard_state(directory, HardState(voter_state=VoterState.VOTER, group_id=group_id))


def beside(
    place: Path, work: Work, *, has: str | None, node_id: str = "n0", group: str = "g",
    secured: dict[str, str] | None = None,
) -> None:  # fmt: skip
    """Runs `work` of n0's control plane of group g while an engine whose group has that id listens at its port."""

    async def both() -> None:
        (port,) = free_ports(1)
        store = MemoryStore(hard_state=HardState(voter_state=VoterState.VOTER, group_id=has))
        given = settings_of(place / "engine", port, node_id, group, **secured or {})
        engine, ready = Engine(given, store), asyncio.Event()
        running = asyncio.create_task(engine.run(lambda _port: ready.set()))
        await ready.wait()
        settings = settings_of(place, port, **secured or {})
        link = EngineLink(settings)
        try:
            await work(link, Snapshots(settings, link, LogFiles(settings)), store)
        finally:
            link.close()
            engine.stop()
            await running

    asyncio.run(both())


async def append(link: EngineLink) -> int:
    answer = await link.request(RequestCode.FAST_APPEND, encode_append(AppendRequest([b"x"], -1)), 5)
    return int(decode_append_answer(answer).code)


def test_its_own_engine_answers(tmp_path: Path) -> None:
    write_down(tmp_path, OURS)

    async def work(link: EngineLink, snapshots: Snapshots, _store: MemoryStore) -> None:
        assert (await snapshots.get(StateView)).engine == "ok"
        assert await append(link) == 200

    beside(tmp_path, work, has=OURS)


def test_an_engine_that_hangs_before_its_handshake_is_stale_and_not_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TLS: a control plane that was started beside it said that it does not run, and refused to end it (409)."""
    monkeypatch.setattr("node.control.engine_link.CONNECT_TIMEOUT_S", 0.2)

    async def both() -> None:
        hung = socket.create_server(("127.0.0.1", 0))  # the kernel takes connections for it
        link = EngineLink(settings_of(tmp_path, hung.getsockname()[1]))
        link.use_tls(ssl.create_default_context())
        try:
            with pytest.raises(EngineSilent, match="no connection in time") as silent:
                await append(link)
            assert not silent.value.sent
            state = await Snapshots(link.settings, link, LogFiles(link.settings)).get(StateView)
            assert state.engine == "stale"
            restart.check_engine(state, force=False)
        finally:
            link.close()
            hung.close()

    monkeypatch.setattr(restart, "is_supervised", lambda: True)
    asyncio.run(both())


@pytest.mark.parametrize("code", [500, 12345])
def test_what_refuses_to_say_whose_it_is_gets_nothing(tmp_path: Path, code: int) -> None:
    """Only the refusals of groups and members were none; any other was taken for our own engine's answer."""

    async def both() -> None:
        listening = await ScriptedMember("n0", code=code).listen()
        link = EngineLink(settings_of(tmp_path, int(listening.address.rpartition(":")[2])))
        try:
            with pytest.raises(EngineForeign, match=f"no engine of ours: it answers {code}"):
                await append(link)
            assert listening.appended == 0
        finally:
            link.close()
            await listening.close()

    asyncio.run(both())


def test_its_token_is_shown_on_each_connection(tmp_path: Path) -> None:
    """An engine that starts again has seen none: an append must not be refused for it."""
    token, other = tmp_path / "token", tmp_path / "other"
    for path in (token, other):
        path.touch(0o600)
        path.write_text(f"{path.name} 0123456789abcdef".replace(" ", "-"))
    secured = {"node.token_file": str(token), "access.rows": f"token {other} = read"}

    async def work(link: EngineLink, _snapshots: Snapshots, _store: MemoryStore) -> None:
        for _ in range(2):
            assert await append(link) == 200
            before = link.connection
            assert before is not None
            before.close()
            await until(lambda before=before: link.connection is not before)

    write_down(tmp_path, OURS)
    beside(tmp_path, work, has=OURS, secured=secured)


@pytest.mark.parametrize(("engine", "leads"), [("down", False), ("stale", True)])
def test_who_is_gone_has_no_role_and_who_is_silent_has_its_last(tmp_path: Path, engine: str, leads: bool) -> None:
    async def both() -> None:
        settings = settings_of(tmp_path, free_ports(1)[0])
        snapshots = Snapshots(settings, EngineLink(settings), LogFiles(settings))
        said = (await snapshots.state_from_files()).model_copy(
            update={"engine": "ok", "role": "LEADER", "leader_id": "n0", "term": 3}
        )
        snapshots.last["state"] = -1.0, said

        async def ask(*_: object, **__: object) -> StateView:
            raise EngineAway("refused") if engine == "down" else EngineSilent("no answer")

        snapshots.ask = ask  # type: ignore[method-assign, assignment]
        shown = await snapshots.get(StateView)
        assert (shown.engine, shown.term) == (engine, 3)
        assert (shown.role, shown.leader_id) == (("LEADER", "n0") if leads else (None, None))

    asyncio.run(both())


def test_however_many_ask_for_a_silent_engine_it_is_asked_once_for_all_who_wait(tmp_path: Path) -> None:
    """Each waited for those before it to find out the same: eleven who asked at once waited for 4.4 s, and a console,
    which waits for 2 s, called the control plane silent."""

    async def both() -> None:
        settings = settings_of(tmp_path, free_ports(1)[0])
        snapshots, asked, silent = Snapshots(settings, EngineLink(settings), LogFiles(settings)), 0, asyncio.Event()

        async def ask(*_: object, **__: object) -> StateView:
            nonlocal asked
            asked += 1
            await silent.wait()
            raise EngineSilent("no answer")

        snapshots.ask = ask  # type: ignore[method-assign, assignment]
        first = [asyncio.create_task(snapshots.get(StateView)) for _ in range(11)]
        await until(lambda: asked == 1)
        silent.set()
        assert {one.engine for one in await asyncio.gather(*first)} == {"stale"} and asked == 1
        assert (await snapshots.get(StateView)).engine == "stale" and asked == 2  # who comes later asks anew

    asyncio.run(both())


def test_however_many_wait_for_a_late_engine_it_is_asked_once(tmp_path: Path) -> None:
    async def both() -> None:
        settings = settings_of(tmp_path, free_ports(1)[0])
        snapshots, asked, late = Snapshots(settings, EngineLink(settings), LogFiles(settings)), 0, asyncio.Event()
        state = (await snapshots.state_from_files()).model_copy(update={"engine": "ok"})

        async def ask(*_: object, timeout_s: float) -> StateView:
            nonlocal asked
            if timeout_s < 1:
                raise EngineSilent("no answer within 0.4 s")
            asked += 1
            await late.wait()
            return state

        snapshots.ask = ask  # type: ignore[method-assign, assignment]
        waiting = [asyncio.create_task(snapshots.get_late(StateView, LATE_S)) for _ in range(8)]
        await until(lambda: asked == 1)
        waiting[0].cancel()  # whoever goes away leaves the answer to the others
        late.set()
        assert {one.engine for one in await asyncio.gather(*waiting[1:])} == {"ok"} and asked == 1

    asyncio.run(both())


@pytest.mark.parametrize(
    ("written", "has", "node_id", "group", "said"),
    [
        (OURS, THEIRS, "n0", "g", f"its id is {THEIRS}"),
        (None, THEIRS, "n0", "g", f"its id is {THEIRS}"),
        ("nothing", THEIRS, "n0", "g", f"its id is {THEIRS}"),
        (OURS, OURS, "n1", "g", "not n0's engine"),
        (OURS, OURS, "n0", "h", "no engine of the group 'g'"),
    ],
)
def test_another_engine_at_its_port_is_down_with_the_reason(
    tmp_path: Path, written: str | None, has: str, node_id: str, group: str, said: str
) -> None:
    if written != "nothing":
        write_down(tmp_path, written)

    async def work(link: EngineLink, snapshots: Snapshots, store: MemoryStore) -> None:
        before = store.end_index
        for what in (StateView, WatermarksView):
            reported = await snapshots.get(what)
            assert reported.engine == "down" and reported.engine_reason is not None and said in reported.engine_reason
            assert reported.boot_id is None and said in reported.unknown[0].reason
        state = await snapshots.get(StateView)
        assert (state.role, state.term) == (None, None)
        assert state.marks.end_index in (None, -1)  # our own files', which hold nothing
        assert said in ((await snapshots.events(None)).engine_reason or "")
        with pytest.raises(EngineForeign):
            await append(link)
        assert before == store.end_index or store.get(store.end_index).body != b"x"  # type: ignore[union-attr]

    beside(tmp_path, work, has=has, node_id=node_id, group=group)


def test_an_engine_that_was_named_a_moment_ago_is_its_own(tmp_path: Path) -> None:
    write_down(tmp_path, None)

    async def work(link: EngineLink, snapshots: Snapshots, _store: MemoryStore) -> None:
        asking = asyncio.create_task(snapshots.get(StateView))
        looked = link.stored_group_id

        def written_meanwhile() -> str | None:
            found = looked()
            write_down(tmp_path, OURS)
            return found

        link.stored_group_id = written_meanwhile  # type: ignore[method-assign]
        assert (await asking).engine == "ok"

    beside(tmp_path, work, has=OURS)


def test_a_group_without_an_id_is_told_by_its_name(tmp_path: Path) -> None:
    write_down(tmp_path, OURS)

    async def work(_link: EngineLink, snapshots: Snapshots, _store: MemoryStore) -> None:
        assert (await snapshots.get(StateView)).engine == "ok"

    beside(tmp_path, work, has=None)


@pytest.mark.parametrize(("address", "host"), [("[::]:7", "::1"), ("0.0.0.0:7", "127.0.0.1"), ("[::1]:7", "::1")])
def test_an_engine_that_listens_everywhere_is_reached_on_its_own_loopback(
    tmp_path: Path, address: str, host: str
) -> None:
    """On [::] it listens for IPv6 alone; it was looked for on 127.0.0.1, and so said to be down."""
    settings = load({"node.id": "n0", "peers": f"n0-{address}", "node.data": str(tmp_path)}, None, {})
    assert EngineLink(settings).host == host


def test_what_says_nothing_was_not_sent_the_request(tmp_path: Path) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(60), "127.0.0.1", 0)
        link = EngineLink(settings_of(tmp_path, server.sockets[0].getsockname()[1]))
        with pytest.raises(EngineSilent) as caught:
            await append(link)
        assert not caught.value.sent
        link.close()
        server.close()

    asyncio.run(work())


def test_what_an_engine_does_not_take_is_bounded_and_was_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped engine reads nothing, and each append that was tried again meanwhile stayed in memory, up to 16 MiB."""
    monkeypatch.setattr("node.control.engine_link.UNTAKEN_BYTES_MAX", 1 << 20)

    async def both() -> None:
        listening = await ScriptedMember("n0").listen()
        link = EngineLink(settings_of(tmp_path, int(listening.address.rpartition(":")[2])))
        body = encode_append(AppendRequest([bytes(1 << 20)], -1))
        try:
            assert await append(link) == 200
            listening.connections[0].stop_reading("it is stopped")
            sent = []
            for _ in range(32):
                with pytest.raises(EngineSilent) as silent:
                    await link.request(RequestCode.FAST_APPEND, body, 0.001)
                sent.append(silent.value.sent)
            assert sent[0] and not sent[-1]
            assert link.connection is not None and link.connection.backlog_bytes < 3 << 20
        finally:
            link.close()
            await listening.close()

    asyncio.run(both())


def test_an_engine_that_goes_while_its_group_is_looked_up_was_asked_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection is lost after the engine said whose it is, while our own directory is read."""
    write_down(tmp_path, OURS)

    async def work(link: EngineLink, _snapshots: Snapshots, store: MemoryStore) -> None:
        look_up, before = link.group_ids, store.end_index

        async def and_goes() -> list[str | None]:
            connection = link.connection
            assert connection is not None
            connection.close()
            link.on_closed(connection)
            return await look_up()

        with monkeypatch.context() as patch:
            patch.setattr(link, "group_ids", and_goes)
            with pytest.raises(EngineSilent) as silent:
                await append(link)
            assert not silent.value.sent
        assert store.end_index == before or store.get(store.end_index).body != b"x"  # type: ignore[union-attr]
        assert await append(link) == 200

    beside(tmp_path, work, has=OURS)
