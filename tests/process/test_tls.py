"""Members and clients over TLS: certificates name members and say what a client may do; frames of every size pass."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from app.cli import run
from node.certificates import ends_of
from node.client import Denied, LedgerClient, ReadMode, Unreachable
from node.transport.tls import client_context
from tests.process.group import Group, all_vote, append_surely

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates"),
]
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
ROWS = "certificate client = append + read + observe, certificate writer = append, certificate reader = read"
LIMITED = ("writer", "reader", "nobody")
BODIES = [b"x", b"y" * 70_000, b"z" * 1_000_000]


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Makes certificates whose common name is what they are asked for."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.certificate, self._key = directory, directory / f"{name}.crt", directory / f"{name}.key"
        openssl("req", "-x509", *KEY, "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", str(self._key), "-out", str(self.certificate))  # fmt: skip

    def issue(self, name: str) -> tuple[Path, Path]:
        key, request, certificate = (self.directory / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        openssl("req", *KEY, "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request))
        openssl("x509", "-req", "-days", "2", "-in", str(request), "-CA", str(self.certificate), "-CAkey",
                str(self._key), "-CAcreateserial", "-out", str(certificate))  # fmt: skip
        return certificate, key


class TlsGroup(Group):
    """Engines that speak TLS, each with the certificate of its name, and rows about clients in [access]."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = Authority(directory, "authority")
        self.issued = {name: self.authority.issue(name) for name in (*self.peers, "client", *LIMITED)}
        self.token_file = directory / "token"  # rows ask for one
        self.token_file.touch(0o600)
        self.token_file.write_text("a-token-of-the-members-0123456789")

    def arguments(self, node_id: str, *more: str) -> list[str]:
        certificate, key = self.issued[node_id]
        given = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_file": self.authority.certificate}
        sets = [part for name, path in given.items() for part in ("--set", f"node.{name}={path}")]
        rows = ("--set", f"node.token_file={self.token_file}", "--set", f"access.rows={ROWS}")
        return super().arguments(node_id, *sets, *rows, *more)

    def tls_client(self, member: str | None = None, name: str = "client") -> LedgerClient:
        tls = client_context(*self.issued[name], self.authority.certificate)
        peers = self.peers if member is None else {member: self.peers[member]}
        return LedgerClient(peers, group=self.group, deadline_s=60, tls=tls, follow_redirects=member is None)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsGroup]:
    made = TlsGroup(tmp_path_factory.mktemp("tls"))
    try:
        made.start_all()
        yield made
    finally:
        made.close()


def test_frames_of_every_size_pass_between_members_and_to_clients(group: TlsGroup) -> None:
    async def work() -> None:
        client = group.tls_client()
        try:
            await append_surely(client, b"first")
            await all_vote(client, group.peers)
            batch = await client.append_many(BODIES)
            for member in group.peers:
                alone = group.tls_client(member)
                try:
                    read = await alone.read(batch.first_index, len(BODIES), mode=ReadMode.FOLLOWER)
                    assert [entry.body for entry in read] == BODIES
                finally:
                    await alone.close()
        finally:
            await client.close()

    asyncio.run(work())


def test_a_certificate_has_the_rights_of_its_row_and_no_other(group: TlsGroup) -> None:
    async def work() -> None:
        clients = {name: group.tls_client(name=name) for name in LIMITED}
        writer, reader, nobody = clients.values()
        try:
            index = await append_surely(writer, b"by its writer")
            assert [entry.body for entry in await reader.read(index, 1)] == [b"by its writer"]
            denied = [(writer, "read"), (reader, "append"), (nobody, "append"), (nobody, "read")]
            for client, what in denied:
                with pytest.raises(Denied):
                    await (client.append(b"denied") if what == "append" else client.read(index, 1))
            for client in clients.values():
                with pytest.raises(Denied):
                    await client.state("n0")
            end = await append_surely(writer, b"next")
            assert b"denied" not in [entry.body for entry in await reader.read(index, end - index + 1)]
        finally:
            for client in clients.values():
                await client.close()

    asyncio.run(work())


def test_a_member_says_until_when_its_port_s_certificates_and_its_clients_are_valid(group: TlsGroup) -> None:
    async def work() -> None:
        client = group.tls_client()
        try:
            found = [
                (one["what"], one.get("name"), one["ends_at"]) for one in (await client.state("n0"))["certificates"]
            ]
        finally:
            await client.close()
        assert [one[:2] for one in found[:2]] == [("member_port", None), ("authority", None)]
        assert "client" in [name for what, name, _ in found if what == "client"]
        assert not {name for _, name, _ in found} & set(group.peers), "members' own they say themselves"
        (ends,) = ends_of(group.issued["n0"][0])
        assert datetime.fromisoformat(found[0][2]) == ends

    asyncio.run(work())


def refused(client: LedgerClient) -> None:
    """Nobody answers this client."""

    async def work() -> None:
        try:
            with pytest.raises(Unreachable):
                await client.leader()
        finally:
            await client.close()

    asyncio.run(work())


def test_who_has_no_certificate_is_not_let_in(group: TlsGroup) -> None:
    refused(group.client(deadline_s=2))


def test_a_certificate_of_another_authority_is_not_let_in(group: TlsGroup, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    tls = client_context(*stranger.issue("client"), group.authority.certificate)
    refused(group.client(deadline_s=2, tls=tls))


def test_what_status_prints_runs_as_it_is_pasted(group: TlsGroup, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands had none of the options without which this group lets nobody in."""
    certificate, key = group.issued["client"]
    peers = ";".join(f"{one}-{address}" for one, address in group.peers.items())
    access = {
        "--ca": group.authority.certificate,
        "--cert": certificate,
        "--key": key,
        "--token-file": group.token_file,
    }
    words = ["status", "--peers", peers, "--group", group.group, "--json"]
    words += [word for option, value in access.items() for word in (option, str(value))]
    (silent,) = sorted(group.peers)[-1:]
    group.signal(silent, signal.SIGSTOP)
    try:
        assert run(words) == 1
        found = [one for one in json.loads(capsys.readouterr().out)["problems"] if one["member"] == silent]
        name, *printed = shlex.split(found[0]["command"])
        assert name == "quorumscope" and printed[0] == "status" and found[0]["command"] in found[0]["next_step"]
        assert run(printed) == 1
        assert "2 of 3 members answer" in capsys.readouterr().out
    finally:
        group.signal(silent, signal.SIGCONT)
