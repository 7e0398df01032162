"""TLS files that are missing or no good: said in one line and with 64, before anything listens or is written."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from app.cli import run
from node.tls_files import tls_trouble

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("tls")
    found = {name: place / name for name in ("cert", "key", "other_cert", "other_key", "nonsense", "missing")}
    for name in ("", "other_"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=n0",
             "-keyout", str(found[f"{name}key"]), "-out", str(found[f"{name}cert"])],
            check=True, capture_output=True,
        )  # fmt: skip
    found["nonsense"].write_text("nothing of that kind")
    return found


def test_good_files_are_no_trouble(files: dict[str, Path]) -> None:
    assert tls_trouble(files["cert"], files["key"], files["cert"]) is None
    assert tls_trouble(None, None, None) is None


@pytest.mark.parametrize(
    ("certificate", "key", "says"),
    [
        ("missing", "key", "missing: there is no such file"),
        ("cert", "missing", "missing: there is no such file"),
        ("cert", "other_key", "are no certificate and its key (key values mismatch)"),
        ("nonsense", "key", "are no certificate and its key"),
    ],
)
def test_a_console_that_could_not_serve_says_so_first(
    certificate: str, key: str, says: str, files: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    database = tmp_path / "console.db"
    arguments = ["console", "--db", str(database)]
    assert run([*arguments, "--tls-cert", str(files[certificate]), "--tls-key", str(files[key])]) == 64
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    assert says in said.err
    assert not database.exists()


@pytest.mark.parametrize("authority", ["missing", "nonsense"])
def test_the_authority_of_the_nodes_is_looked_at_too(
    authority: str, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["console", "--db", str(tmp_path / "console.db"), "--node-ca-file", str(files[authority])]
    assert run(arguments) == 64
    assert str(files[authority]) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "certificate", "key", "authority", "says"),
    [
        ("node", "cert", "key", "missing", "there is no such file"),
        ("node", "cert", "other_key", "cert", "are no certificate and its key"),
        ("node", "cert", "key", "nonsense", "holds no certificate of an authority"),
        ("control", "missing", "key", None, "there is no such file"),
        ("control", "nonsense", "key", None, "are no certificate and its key"),
    ],
)
def test_a_node_that_could_not_serve_says_so_first(
    table: str, certificate: str, key: str, authority: str | None, says: str, files: dict[str, Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = ["node", "--id", "n0", "--peers", "n0-127.0.0.1:1", "--data", str(tmp_path / "d"), "--init"]
    named = {"cert": certificate, "key": key} | ({"ca": authority} if authority else {})
    for kind, name in named.items():
        arguments += ["--set", f"{table}.tls_{kind}_file={files[name]}"]
    assert run(arguments) == 64
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert says in said.err
    assert not (tmp_path / "d").exists()
