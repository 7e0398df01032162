"""The broker's process: when a supervisor starts one, one at a time on a store, exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.__main__ import may_have_broker
from node.broker.__main__ import EXIT_USAGE, LockHeld, main, take_lock


@pytest.mark.parametrize(
    ("arguments", "environ", "expected"),
    [
        (["--id", "n0"], {}, False),
        (["--broker", "127.0.0.1:10911"], {}, True),
        (["--set", "broker.address=127.0.0.1:10911"], {}, True),
        ([], {"QUORUMSCOPE_BROKER__ADDRESS": "127.0.0.1:10911"}, True),
        (["--config", "{with}"], {}, True),
        (["--config={with}"], {}, True),
        (["--config", "{without}"], {}, False),
        (["--config", "{absent}"], {}, False),
        ([], {"QUORUMSCOPE_CONFIG": "{with}"}, True),
    ],
)  # fmt: skip
def test_a_supervisor_starts_one_where_the_configuration_speaks_of_it(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], expected: bool
) -> None:
    (tmp_path / "with").write_text('[broker]\naddress = "127.0.0.1:10911"\n')
    (tmp_path / "without").write_text('[node]\nid = "n0"\n')
    names = {name: str(tmp_path / name) for name in ("with", "without", "absent")}
    given = {name: value.format(**names) for name, value in environ.items()}
    assert may_have_broker([one.format(**names) for one in arguments], given) is expected


def test_one_broker_at_a_time_writes_derived_files(tmp_path: Path) -> None:
    first = take_lock(tmp_path)
    with pytest.raises(LockHeld, match="another broker"):
        take_lock(tmp_path)
    os.close(first)
    os.close(take_lock(tmp_path))


def test_without_a_broker_in_the_configuration_it_has_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--id", "n0", "--peers", "n0-127.0.0.1:20911", "--data", str(tmp_path)]
    assert main(given) == 0
    assert main([*given, "--broker", "nonsense"]) == EXIT_USAGE
    assert "broker.address" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
