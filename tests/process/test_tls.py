"""Members and clients over TLS: certificates name the members, and frames of every size pass."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.client import LedgerClient, ReadMode, Unreachable
from node.transport.tls import client_context
from tests.process.group import Group, all_vote, append_surely

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates"),
]
BODIES = [b"x", b"y" * 70_000, b"z" * 1_000_000]


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


class Authority:
    """Makes certificates whose common name is what they are asked for."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory, self.certificate, self._key = directory, directory / f"{name}.crt", directory / f"{name}.key"
        openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                "-keyout", str(self._key), "-out", str(self.certificate))  # fmt: skip

    def issue(self, name: str) -> tuple[Path, Path]:
        key, request, certificate = (self.directory / f"{name}.{kind}" for kind in ("key", "csr", "crt"))
        openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(request)
        )
        openssl("x509", "-req", "-days", "2", "-in", str(request), "-CA", str(self.certificate), "-CAkey",
                str(self._key), "-CAcreateserial", "-out", str(certificate))  # fmt: skip
        return certificate, key


class TlsGroup(Group):
    """Engines that speak TLS, each with the certificate of its name."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority = Authority(directory, "authority")
        self.issued = {name: self.authority.issue(name) for name in (*self.peers, "client")}

    def arguments(self, node_id: str, *more: str) -> list[str]:
        certificate, key = self.issued[node_id]
        given = {"tls_cert_file": certificate, "tls_key_file": key, "tls_ca_file": self.authority.certificate}
        sets = [part for name, path in given.items() for part in ("--set", f"node.{name}={path}")]
        return super().arguments(node_id, *sets, *more)

    def tls_client(self, member: str | None = None) -> LedgerClient:
        tls = client_context(*self.issued["client"], self.authority.certificate)
        peers = self.peers if member is None else {member: self.peers[member]}
        return LedgerClient(peers, group=self.group, deadline_s=15, tls=tls, follow_redirects=member is None)


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
