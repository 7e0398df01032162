"""The systemd units: `systemd-analyze` finds nothing wrong with them, and little that they could do but their work."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.command_line import run
from tests.prepare import find_systemd

UNITS = Path(__file__).parents[2] / "docs/deploy/systemd"
FILES = ("quorumscope-node@.service", "quorumscope-console.service")
BACKUP = "quorumscope-backup.service"
COMMAND = "/opt/quorumscope/bin/quorumscope"
EXPOSURE_MAX = 20  # of 100, as `systemd-analyze security` counts
needs_systemd = pytest.mark.skipif(find_systemd() is None, reason="NOT RUN: no systemd on this machine")


def analyze(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=120)


def test_the_document_shows_the_unit_that_is_shipped() -> None:
    """It showed another one, with an option and exit codes that no shipped unit has."""
    (shown,) = re.findall(r"```ini\n\[Service\]\n(.*?)```", (UNITS.parents[1] / "operations.md").read_text(), re.DOTALL)
    shipped = (UNITS / FILES[0]).read_text().splitlines()
    at = [shipped.index(line) for line in shown.splitlines()]
    assert at == sorted(at) and any(line.startswith("ExecStart=") for line in shown.splitlines())


@needs_systemd
@pytest.mark.parametrize("name", FILES)
def test_the_unit_is_clean(name: str, tmp_path: Path) -> None:
    """On a machine where the command is: here it is another one of that name."""
    program = tmp_path / "quorumscope"
    shutil.copy("/bin/true", program)
    unit = tmp_path / name.replace("@.", "@n0.")
    unit.write_text((UNITS / name).read_text().replace(COMMAND, str(program)))
    checked = analyze("verify", "--man=no", "--recursive-errors=no", str(unit))
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    unit.write_text(unit.read_text().replace("LimitNOFILE", "LimitNOFILES"))
    assert "LimitNOFILES" in analyze("verify", "--man=no", "--recursive-errors=no", str(unit)).stderr, "it would say so"


@needs_systemd
def test_the_back_up_and_its_timer_are_clean(tmp_path: Path) -> None:
    program, timer = tmp_path / "quorumscope", BACKUP.replace("service", "timer")
    shutil.copy("/bin/true", program)
    (tmp_path / BACKUP).write_text((UNITS / BACKUP).read_text().replace(COMMAND, str(program)))
    shutil.copy(UNITS / timer, tmp_path / timer)
    for name in (BACKUP, timer):
        checked = analyze("verify", "--man=no", "--recursive-errors=no", str(tmp_path / name))
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_the_back_up_runs_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    command, *words = next(
        line.partition("=")[2].split() for line in (UNITS / BACKUP).read_text().splitlines() if "ExecStart" in line
    )
    assert (command, words[0]) == (COMMAND, "backup")
    assert run(["backup", "--help"]) == 0
    options = capsys.readouterr().out
    assert all(word in options for word in words if word.startswith("--"))


@needs_systemd
@pytest.mark.parametrize("name", (*FILES, BACKUP))
def test_the_unit_is_hardened(name: str, tmp_path: Path) -> None:
    unit = tmp_path / name.replace("@.", "@n0.")
    shutil.copy(UNITS / name, unit)
    done = analyze("security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", FILES)
def test_what_it_runs_and_grants(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNITS / name)
    service = unit["Service"]
    wanted = {
        "ProtectSystem": "strict", "NoNewPrivileges": "yes", "User": "quorumscope", "LimitNOFILE": "65536",
        "ExecReload": "/bin/kill -HUP $MAINPID", "CapabilityBoundingSet": "",
    }  # fmt: skip
    assert {key: service[key] for key in wanted} == wanted
    assert service["WorkingDirectory"] == f"/var/lib/{service['StateDirectory']}"
    command, *words = service["ExecStart"].split()
    assert command == COMMAND
    assert run([words[0], "--help"]) == 0
    options = capsys.readouterr().out
    assert all(word in options for word in words if word.startswith("--"))
