"""What the console keeps of its members beyond their last answer: how they were started, and their certificates."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import ssl
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from app.console import starts as starts_module
from app.console.errors import NodeUnreachable
from app.console.nodes import Nodes
from app.console.settings import ConsoleSettings
from app.times import utc_now
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup
from tests.unit.group_story import Story

STARTED = "quorumscope node --config /etc/quorumscope/n2.toml"


def next_command(kit: Kit) -> str:
    """What the console would have somebody run for n2, which does not answer."""
    found = [one.command for one in kit.console.group_view("demo").problems if one.node_id == "n2"]
    return found[0] or "" if found else ""


def test_a_console_that_began_anew_still_knows_how_a_dead_member_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts_module, "KEEP_EVERY_S", 0.05)

    async def work() -> None:
        group = FakeGroup()
        n1, n2 = group.nodes["n1"], group.nodes["n2"]
        n2.odd["state"] = {**n2.state(), "started_with": STARTED, "data_dir": "/data/dledger-n2"}
        n1.odd["state"] = {**n1.state(), "data_dir": "/data/dledger-n1", "started_with": "x" * 5000}
        async with running(tmp_path, group) as kit:
            await kit.watched()
            await kit.until(lambda: STARTED in kit.console.starts.stored)
            assert "xxx" not in kit.console.starts.stored, "too long to be kept"
        n2.alive, n2.ack_ms = False, 60_000  # nor does its leader hear it
        async with running(tmp_path, group) as kit:
            await kit.until(lambda: next_command(kit))
            assert (member := kit.console.group_view("demo").member("n2")) is not None and member.state is None
            assert next_command(kit) == STARTED
            await kit.console.remove_cluster("demo")
            await kit.until(lambda: STARTED not in kit.console.starts.stored)

    run(work())


def test_a_group_that_could_not_be_removed_can_be_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was watched no more, and asked for it the console knew none of that name, until its next start."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            remove, left = kit.console.clusters_kept.remove, [OperationalError("DELETE", None, OSError("locked"))]

            async def first_fails(cluster_id: str) -> None:
                if left:
                    raise left.pop()
                await remove(cluster_id)

            monkeypatch.setattr(kit.console.clusters_kept, "remove", first_fails)
            with pytest.raises(OperationalError):
                await kit.console.remove_cluster("demo")
            assert kit.console.group_view("demo").cluster.id == "demo"
            await kit.console.remove_cluster("demo")
            assert not kit.console.watches and not await kit.console.clusters_kept.all()

    run(work())


def test_what_was_kept_and_cannot_be_read_is_learned_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            kit.console.starts.stored = "[1]"
            await starts_module.set_meta(kit.console.starts.sessions, starts_module.META_KEY, "[1]")
        n2 = group.nodes["n2"]
        n2.odd["state"] = {**n2.state(), "started_with": STARTED}
        async with running(tmp_path, group) as kit:
            await kit.until(lambda: STARTED in kit.console.starts.stored)

    run(work())
    assert "learned anew" in caplog.text


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificate")
def test_the_certificate_of_a_control_plane_is_seen_on_its_connection(tmp_path: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "12", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", tmp_path / "key", "-out", tmp_path / "crt"],
        check=True, capture_output=True,
    )  # fmt: skip

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async def work() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = ConsoleSettings(db_url=f"sqlite:///{tmp_path}/c.db", node_ca_file=tmp_path / "crt")
        trusting, strange = Nodes(settings), Nodes(dataclasses.replace(settings, node_ca_file=None))
        try:
            assert await trusting.get(url, "state") == {}
            left = trusting.certificate_ends[url] - utc_now()
            assert timedelta(days=11) < left <= timedelta(days=12)
            with pytest.raises(NodeUnreachable):
                await strange.get(url, "state")
            assert not strange.certificate_ends, "of no value: it was not verified"
        finally:
            await trusting.close()
            await strange.close()
            server.close()
            await server.wait_closed()

    run(work())


def test_who_is_no_member_any_more_is_not_remembered() -> None:
    """A leader that names ever new members filled the console's memory."""
    story = Story()
    story.look(3)
    kept = (story.recall.lags, story.recall.resends, story.recall.applying)
    assert all(set(one) == {"n0", "n1", "n2"} for one in kept) and set(story.recall.led) == {"n0"}
    story.group.members = {"n1", "n2"}
    story.group.lead("n1")
    story.look(3)
    assert all(set(one) == {"n1", "n2"} for one in kept) and set(story.recall.led) == {"n1"}
