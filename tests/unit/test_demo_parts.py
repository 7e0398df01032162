"""The demo's parts by themselves: messages, links that can be cut, the note, its HTTP server, the flipped bit."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import zipfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from app.cli import run
from app.commands.endings import Failure
from app.commands.targets import target_of
from app.demo import run as demo_run
from app.demo.breaks import Breaker
from app.demo.control import DemoControl
from app.demo.feeder import Feeder
from app.demo.messages import Flights, Lines
from app.demo.processes import Processes
from app.demo.relay import CHUNK_BYTES, LATE_S_MAX, Links, Pace, Relay
from app.demo.run import DemoOptions, until_it_listens
from app.demo.state import DemoMember, DemoState, process_start_ticks, running_demo, write_note
from node.children import apart
from node.client import AppendResult, OutcomeUnknown
from tests.ports import free_ports


def test_flights_come_in_time_order_with_null_for_what_was_not_recorded(tmp_path: Path) -> None:
    path = tmp_path / "flights.zip"
    head = "year,month,day,dep_time,sched_dep_time,carrier,arr_delay\n"
    rows = "2013,10,1,600,600,AA,1\n2013,2,9,NA,2359,B6,NA\n2013,2,9,5,5,UA,-3.5\n"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("flights.csv", head + rows)
    flights = Flights(path)
    messages = [json.loads(body) for body in flights]
    assert len(flights) == 3
    assert [message["carrier"] for message in messages] == ["UA", "B6", "AA"]
    assert messages[1] == {
        "year": 2013, "month": 2, "day": 9, "dep_time": None, "sched_dep_time": 2359, "carrier": "B6",
        "arr_delay": None,
    }  # fmt: skip
    assert messages[0]["arr_delay"] == -3.5
    assert list(flights) == list(flights), "round after round the same"


@pytest.mark.parametrize(
    ("options", "stay"),
    [(DemoOptions(), False), (DemoOptions(keep=True), True), (DemoOptions(directory=Path("here")), True)],
)
def test_it_says_whether_the_data_go(options: DemoOptions, stay: bool) -> None:
    assert options.removes_data is not stay
    assert options.ending == "Ctrl-C stops everything" + ("; the data stay." if stay else " and removes the data.")


def test_the_real_year_is_installed() -> None:
    flights = Flights()
    assert len(flights) == 336_776
    days = [(m["month"], m["day"]) for m in map(json.loads, itertools.islice(flights, 0, 3000))]
    assert days == sorted(days)


def test_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"a\r\n\nb")
    assert list(Lines(tmp_path / "in")) == [b"a", b"", b"b"]


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data.upper())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def test_a_cut_link_holds_what_is_on_its_way_and_lets_it_go_when_mended() -> None:
    async def story() -> None:
        async with echo() as port:
            relay = Relay(("127.0.0.1", port))
            await relay.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"one")
            assert await reader.readexactly(3) == b"ONE"
            relay.cut()
            writer.write(b"two")
            answer = asyncio.create_task(reader.readexactly(3))
            new_reader, new_writer = await asyncio.open_connection("127.0.0.1", relay.port)
            new_writer.write(b"new")
            new_answer = asyncio.create_task(new_reader.readexactly(3))
            done, _ = await asyncio.wait([answer, new_answer], timeout=0.2)
            assert not done, "nothing passes, and nothing is closed"
            relay.mend()
            assert await answer == b"TWO"
            assert await new_answer == b"NEW"
            writer.close()
            new_writer.close()
            await relay.stop()

    asyncio.run(story())


def test_one_way_of_a_link_can_be_cut_alone() -> None:
    async def story() -> None:
        async with echo() as port:
            relay = Relay(("127.0.0.1", port))
            await relay.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"one")
            assert await reader.readexactly(3) == b"ONE"
            relay.cut(forward=False)
            writer.write(b"two")
            answer = asyncio.create_task(reader.readexactly(3))
            done, _ = await asyncio.wait([answer], timeout=0.2)
            assert not done, "the answer is held, whether or not the question arrived"
            relay.mend()
            assert await answer == b"TWO"
            relay.cut(backward=False)
            assert not relay.passes
            writer.close()
            await relay.stop()

    asyncio.run(story())


@pytest.mark.parametrize("late_s", [0.0, 0.03, 0.4])
def test_a_slow_link_keeps_its_rate_on_a_machine_whose_timers_are_late(late_s: float) -> None:
    pace, now, passed = Pace(), 1000.0, 0
    while now < 1060.0:
        pause_s = pace.pause_s(CHUNK_BYTES, 5e6, now)
        passed += CHUNK_BYTES
        if pause_s:
            now += pause_s + late_s
            pace.woke(now)
    assert 0.98 <= passed / (5e6 * 60) <= 1.01


def test_a_slow_link_makes_up_neither_for_idle_time_nor_for_more_than_a_second() -> None:
    for idle_s, late_s, most_s in [(30.0, 0.0, 0.0), (0.0, 30.0, LATE_S_MAX), (30.0, 0.1, 0.1)]:
        pace, chunk_s = Pace(), CHUNK_BYTES / 5e6
        now = 1000.0 + pace.pause_s(CHUNK_BYTES, 5e6, 1000.0) + late_s
        pace.woke(now)
        now, at_once = now + idle_s, 0
        while not pace.pause_s(CHUNK_BYTES, 5e6, now):
            at_once += 1
        assert at_once <= most_s / chunk_s + 2


def test_a_reset_ends_connections_and_lets_new_ones_in() -> None:
    async def story() -> None:
        async with echo() as port:
            relay = Relay(("127.0.0.1", port))
            await relay.start()
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"one")
            assert await reader.readexactly(3) == b"ONE"
            relay.reset()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            relay.bytes_per_s = 100_000.0
            writer.write(b"two")
            assert await reader.readexactly(3) == b"TWO"
            writer.close()
            await relay.stop()

    asyncio.run(story())


def test_a_link_to_nobody_closes_as_a_dead_process_would() -> None:
    async def story() -> None:
        (port,) = free_ports(1)
        relay = Relay(("127.0.0.1", port))
        await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await reader.read() == b""
        writer.close()
        await relay.stop()

    asyncio.run(story())


def test_every_member_reaches_the_others_over_its_own_links() -> None:
    async def story() -> None:
        links = Links({"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2), "n2": ("127.0.0.1", 3)})
        await links.start()
        peers = links.peers_of("n1", "127.0.0.1:2")
        assert peers["n1"] == "127.0.0.1:2"
        assert peers["n0"] == f"127.0.0.1:{links.relays['n1', 'n0'].port}"
        assert len({*peers.values()}) == 3
        links.isolate("n1")
        open_links = {pair for pair, relay in links.relays.items() if relay.passes}
        assert open_links == {("n0", "n2"), ("n2", "n0")}
        links.mend("n1")
        assert all(relay.passes for relay in links.relays.values())
        await links.stop()

    asyncio.run(story())


def note(pid: int, ticks: int) -> DemoState:
    member = DemoMember("n0", "127.0.0.1:1", "http://127.0.0.1:2", "/d", 7)
    return DemoState(pid, ticks, "demo", "n0-127.0.0.1:1", (member,), "/d", None, "http://127.0.0.1:3/secret")


def test_only_a_living_demo_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert running_demo() is None
    ticks = process_start_ticks(os.getpid())
    assert ticks is not None
    path = write_note(note(os.getpid(), ticks))
    assert path.stat().st_mode & 0o777 == 0o600
    assert running_demo() == note(os.getpid(), ticks)
    write_note(note(os.getpid(), ticks + 1))
    assert running_demo() is None, "the process id went to another process"
    assert not path.exists(), "notes of the dead are swept away"


def test_a_member_of_a_demo_names_the_demos_own_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What its state names are links, which a break cuts: a member that was cut off called all others silent."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write_note(replace(note(os.getpid(), process_start_ticks(os.getpid()) or 0), group_id="g" * 32))
    for typed in ("http://127.0.0.1:2", "127.0.0.1:2/", "http://127.0.0.1:2/api/v1"):
        target = target_of(None, typed, None, None)
        assert (target.peers, target.group_id, target.demo) == ({"n0": "127.0.0.1:1"}, "g" * 32, True)
        assert target.asked == "n0"
    with pytest.raises(Failure, match="cannot be reached"):
        target_of(None, "http://127.0.0.1:2", "another", None)  # it is asked, and denies that group
    with pytest.raises(Failure, match="cannot be reached"):
        target_of(None, "http://127.0.0.1:4", None, None)


def test_a_command_takes_the_demo_of_its_folder_and_never_guesses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three processes stand for demos: two were started in `one`, the last one in `two`."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folders = [tmp_path / "one", tmp_path / "one", tmp_path / "two"]
    processes = []
    try:
        for folder in folders:
            folder.mkdir(exist_ok=True)
            processes.append(subprocess.Popen(["sleep", "3600"], preexec_fn=apart(signal.SIGKILL)))
            pid = processes[-1].pid
            write_note(replace(note(pid, process_start_ticks(pid) or 0), folder=str(folder)))
        pids = [process.pid for process in processes]
        monkeypatch.chdir(tmp_path / "two")
        found = running_demo()
        assert found is not None and found.pid == pids[2]
        assert run(["demo", "break", "kill"]) == 69, "nobody listens there"
        assert f"(pid {pids[2]}, started in {tmp_path / 'two'})" in capsys.readouterr().err
        for folder, said in (
            ("one", "2 demos were started in this folder"),
            (".", "3 demos run, none of them started"),
        ):
            monkeypatch.chdir(tmp_path / folder)
            for arguments in (["demo", "break", "kill"], ["status"], ["append"], ["transfer"], ["tail"]):
                assert run(arguments) == 64, arguments
                reported = capsys.readouterr()
                assert reported.out == "" and reported.err.count("\n") == 1
                assert said in reported.err
                assert all(f"pid {pid}" in reported.err for pid in (pids if folder == "." else pids[:2]))
        for process in processes[:2]:
            process.kill()
            process.wait()
        found = running_demo()
        assert found is not None and found.pid == pids[2], "the only one that is left"
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_notes_directory_that_others_may_write_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    theirs = tmp_path / f"quorumscope-{os.getuid()}"
    theirs.mkdir()
    theirs.chmod(0o777)
    assert running_demo() is None
    with pytest.raises(PermissionError):
        write_note(note(1, 1))


def test_the_demo_server_wants_the_secret_and_says_why_not() -> None:
    async def nobody() -> str | None:
        return None

    async def story() -> None:
        said: list[str] = []
        links = Links({"n0": ("127.0.0.1", 1), "n1": ("127.0.0.1", 2)})
        members = {one: DemoMember(one, "", "http://h", "/d", os.getpid()) for one in ("n0", "n1")}
        breaker = Breaker(members, links, nobody, said.append)
        control = DemoControl(breaker, lambda: {"feed": None})
        await control.start()
        async with httpx2.AsyncClient(trust_env=False) as client:
            guess = control.url.rpartition("/")[0] + "/guess"
            assert (await client.post(f"{guess}/break/partition")).status_code == 404
            assert (await client.get(f"{control.url}/state")).json() == {"feed": None}
            assert (await client.get(f"{control.url}/break/partition")).status_code == 405
            refused = await client.post(f"{control.url}/break/heart")
            assert (refused.status_code, "flip" in refused.json()["detail"]) == (409, True)
            refused = await client.post(f"{control.url}/break/kill?node=n9")
            assert "no member" in refused.json()["detail"]
            done = (await client.post(f"{control.url}/break/partition?node=n1")).json()
            assert (done["what"], done["node"], done["mends_in_s"]) == ("partition", "n1", 30.0)
            assert said == ["break partition: n1 is cut off from the other members"]
        await breaker.stop()
        await control.stop()

    asyncio.run(story())


class Ledger:
    """Appends to a list; the third append has an unknown outcome."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def append(self, body: bytes) -> AppendResult:
        self.bodies.append(body)
        if len(self.bodies) == 3:
            raise OutcomeUnknown("the connection closed")
        return AppendResult(first_index=len(self.bodies), last_index=len(self.bodies), term=1)


def feed(source: Sequence[bytes], body_bytes_max: int) -> tuple[Ledger, Feeder, list[str]]:
    ledger, said = Ledger(), []  # type: ignore[var-annotated]
    client: Any = ledger
    feeder = Feeder(client, source, 1000.0, body_bytes_max, said.append)

    async def story() -> None:
        await asyncio.wait_for(feeder.run(), 30)
        await asyncio.sleep(0)

    asyncio.run(story())
    return ledger, feeder, said


def test_the_feeder_repeats_its_source_but_never_a_message_and_stops_at_the_cap() -> None:
    ledger, feeder, said = feed([b"aaaa", b"bbbb"], 22)
    assert ledger.bodies == [b"aaaa", b"bbbb", b"aaaa", b"bbbb", b"aaaa"]
    assert (feeder.fed.unknown, feeder.fed.capped, feeder.fed.rounds) == (1, True, 2)
    assert [text for text in said if "start over" in text] == [said[0]], "said once, however short the source is"
    assert "the cap of" in said[-1]


def test_an_empty_source_is_said() -> None:
    _, feeder, said = feed([], 100)
    assert (feeder.fed.appended, said) == (0, ["there is nothing to feed"])


def test_what_does_not_listen_in_time_is_named_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine that was too busy a start ended with `quorumscope: ` and nothing behind it."""
    (tmp_path / "console.log").write_text("still reading its database\n")
    waiting, ended = SimpleNamespace(returncode=None), SimpleNamespace(returncode=3)
    processes = Processes(tmp_path)
    (port,) = free_ports(1)
    monkeypatch.setattr("app.demo.run.START_WITHIN_S", 0.0)
    for process, said in ((waiting, "console does not listen within 0 s"), (ended, "console ended: still reading")):
        processes.running["console"] = process  # type: ignore[assignment]
        with pytest.raises(Failure, match=said) as raised:
            asyncio.run(until_it_listens(processes, "console", port))
        assert "still reading its database" in str(raised.value)


def test_an_error_without_words_is_named_by_its_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def too_late(*_: object) -> int:
        raise TimeoutError

    monkeypatch.setattr("app.demo.run.run_demo", too_late)
    assert run(["demo", "--headless"]) == 2
    assert capsys.readouterr().err.endswith("quorumscope: TimeoutError\n")


def test_a_demo_that_does_not_come_up_leaves_the_logs_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(self: demo_run.Demo) -> None:
        await self.links.start()
        raise Failure(69, f"no leader; see {self.processes.logs}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_run.Demo, "start", start)
    with pytest.raises(Failure, match="no leader"):
        asyncio.run(demo_run.run_demo(DemoOptions(console=False), lambda _: None, lambda _: None))
    assert [one.name for one in (tmp_path / ".quorumscope").glob("demo-*/*")] == ["logs"]


def test_a_demo_says_which_of_its_processes_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its console was killed, and the terminal said nothing: a page that does not load has no words of its own."""
    monkeypatch.setattr(demo_run, "WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(demo_run, "pressing_of", lambda _summary: [])
    said: list[str] = []

    async def work() -> None:
        processes = Processes(tmp_path)
        sleeps = ["-c", "import time; time.sleep(600)"]
        killed, _lives = [await processes.start(name, sleeps) for name in ("console", "n0")]

        heard = asyncio.Event()

        async def leader() -> None:
            return None

        def remark(text: str) -> None:
            said.append(text)
            heard.set()

        summary = SimpleNamespace(leader_id="n0", term=1)
        fake = SimpleNamespace(processes=processes, remark=remark, leader=leader, summary=summary)
        watching = asyncio.create_task(demo_run.Demo._watch(fake))  # type: ignore[arg-type]
        try:
            killed.kill()
            await heard.wait()
        finally:
            watching.cancel()
            await processes.stop()

    asyncio.run(work())
    assert said == [f"console was killed by signal 9 (SIGKILL); its output is in {tmp_path / 'console.log'}"]
