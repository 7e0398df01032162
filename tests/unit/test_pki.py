"""`quorumscope pki demo`: its certificates are what TLS between members, clients and browsers asks for."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from app.command_line import run as quorumscope
from app.pki import PkiError, make, wanted_for
from node.certificates import ends_of
from node.tls_files import tls_trouble
from node.transport.tls import client_context, server_context


def made(tmp_path: Path, *more: str, name: str = "pki") -> Path:
    folder = tmp_path / name
    assert quorumscope(["pki", "demo", str(folder), *more]) == 0
    return folder


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> tuple[str, str]:
    """(the name that the client sees, the one that the server sees)."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=host)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    left = [ours, theirs]
    for _ in range(10):
        for side in list(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not left
    return name_of(ours), name_of(theirs)


def name_of(side: ssl.SSLObject) -> str:
    certificate = side.getpeercert()
    if not certificate:
        return ""
    return str(dict(pair for part in certificate["subject"] for pair in part)["commonName"])


def of(folder: Path, name: str) -> tuple[Path, Path, Path]:
    return folder / f"{name}.crt", folder / f"{name}.key", folder / "ca.crt"


def test_members_clients_and_browsers_trust_each_other(tmp_path: Path) -> None:
    folder = made(tmp_path, "--client", "billing", "--host", "log.example.org")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in ("ca", "n0", "n1", "n2", "billing", "console") for kind in ("crt", "key")
    )
    server = server_context(*of(folder, "n0"))
    assert shake_hands(server, client_context(*of(folder, "n1")), "10.0.0.7") == ("n0", "n1")
    assert shake_hands(server, client_context(*of(folder, "billing")), "10.0.0.7") == ("n0", "billing")
    console = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    console.load_cert_chain(*of(folder, "console")[:2])
    for host in ("localhost", "127.0.0.1", "::1", "log.example.org"):
        browser = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        browser.verify_flags |= ssl.VERIFY_X509_STRICT
        assert shake_hands(console, browser, host) == ("console", "")


def test_a_members_certificate_names_its_own_host(tmp_path: Path) -> None:
    folder = made(tmp_path, "--peers", "a-10.0.0.1:20911;b-logs.example.org:20911")
    for name, host in (("a", "10.0.0.1"), ("b", "logs.example.org")):
        found = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert host in [str(one.value) for one in names]


def test_keys_are_their_owners_and_files_can_be_used(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    for name in ("n0", "client", "console"):
        assert tls_trouble(*of(folder, name)) is None
        assert len(ends_of(folder / f"{name}.crt")) == 1


def test_what_is_there_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = made(tmp_path)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert quorumscope(["pki", "demo", str(folder)]) == 64
    assert "nothing in it is overwritten: name a new folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    file = tmp_path / "file"
    file.write_text("mine")
    assert quorumscope(["pki", "demo", str(file)]) == 64
    assert file.read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "pki"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--client", "n1"], "two certificates would be named 'n1'"),
        (["--client", "ca"], "two certificates would be named 'ca'"),
        (["--client", "../up"], "is no name"),
        (["--host", "a b"], "a b"),
        (["--peers", "nonsense"], "nonsense"),
        (["--days", "0"], "--days"),
    ],
)
def test_bad_words_make_nothing(more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quorumscope(["pki", "demo", str(tmp_path / "pki"), *more]) == 64
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_new_certificates_of_the_same_authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = made(tmp_path)
    capsys.readouterr()
    assert quorumscope(["pki", "demo", str(tmp_path / "next"), "--authority", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["days"] == 30
    renewed = tmp_path / "next"
    assert not (renewed / "ca.key").exists()
    assert (renewed / "ca.crt").read_bytes() == (first / "ca.crt").read_bytes()
    assert (renewed / "n0.crt").read_bytes() != (first / "n0.crt").read_bytes()
    server = server_context(*of(renewed, "n0"))
    assert shake_hands(server, client_context(*of(first, "n1")), "n0") == ("n0", "n1")
    (first / "ca.key").write_bytes((first / "n0.key").read_bytes())
    assert quorumscope(["pki", "demo", str(tmp_path / "third"), "--authority", str(first)]) == 64
    assert "holds no authority" in capsys.readouterr().err
    assert not (tmp_path / "third").exists()


def test_no_name_is_no_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PkiError, match="no new folder: name one"):
        make(Path(), wanted_for({"n0": []}, ["client"], "console", ()), 1)
    assert not list(tmp_path.iterdir())
