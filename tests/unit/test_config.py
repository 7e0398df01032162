"""The configuration: four places, one order, nothing ignored, and errors that name file and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config import (
    ConfigError,
    format_peers,
    is_loopback,
    known_keys,
    load,
    parse_node_arguments,
    parse_peers,
    read_token,
    split_address,
)
from node.protocol.codes import FlushMode

PEERS = "n0-127.0.0.1:20911;n1-127.0.0.1:20912;n2-127.0.0.1:20913"

BEYOND = ("--peers", "n0-10.1.2.3:20911", "--id", "n0")


def write(directory: Path, text: str) -> Path:
    path = directory / "quorumscope.toml"
    path.write_text(text)
    return path


def test_defaults_are_dledgers_but_for_heartbeat_and_election() -> None:
    settings = load({}, None, {})
    assert settings.node.flush is FlushMode.SYNC
    assert settings.store.mapped_file_size_for_entry_data_bytes == 1024**3
    assert settings.store.mapped_file_size_for_entry_index_bytes == 32 * 5 * 1024 * 1024
    assert settings.node.max_pending_requests_num == 10_000
    assert settings.node.max_leadership_transfer_wait_index == 1000
    assert settings.node.peer_push_quota_bytes_per_s == 20 * 1024 * 1024
    assert settings.timing.max_push_time_out_ms == 1000
    assert settings.timing.leadership_transfer_wait_timeout_ms == 1000
    assert settings.timing.heart_beat_time_interval_ms == 100
    assert (settings.timing.election_timeout_min_ms, settings.timing.election_timeout_max_ms) == (500, 1000)
    assert set(settings.origin.values()) == {"default"}
    assert set(settings.origin) == {*known_keys(), "peers"}


def test_a_number_is_no_switch_and_fits_64_bits(tmp_path: Path) -> None:
    """`snapshot_entries = true` was 1, and 2^64 seconds of a session were taken until the first login added them."""
    defaults = load({}, None, {})
    numbers = 0
    for key in known_keys():
        table, _, name = key.partition(".")
        default = getattr(getattr(defaults, table), name)
        if isinstance(default, bool) or not isinstance(default, int | float):
            continue
        numbers += 1
        for said in ("true", str(2**64), "-1", '"many"'):
            path = write(tmp_path, f"[{table}]\n{name} = {said}\n")
            with pytest.raises(ConfigError, match=rf"file {path}: {key}: "):
                load({}, path, {})
        variable = f"QUORUMSCOPE_{table}__{name}".upper()
        with pytest.raises(ConfigError, match=f"variable {variable}: {key}: "):
            load({}, None, {variable: str(2**64)})
    assert numbers > 40


def test_flags_go_before_variables_before_the_file_before_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[node]\ngroup = 'file'\nflush = 'async'\nid = 'n2'\n[peers]\nn7 = '127.0.0.1:1'\n")
    environ = {"QUORUMSCOPE_NODE__GROUP": "environment", "QUORUMSCOPE_NODE_ID": "n1", "QUORUMSCOPE_PEERS": PEERS}
    settings = load({"node.group": "flag"}, path, environ)
    assert (settings.node.group, settings.origin["node.group"]) == ("flag", "flag --group")
    assert (settings.node.id, settings.origin["node.id"]) == ("n1", "variable QUORUMSCOPE_NODE_ID")
    assert (settings.node.flush, settings.origin["node.flush"]) == (FlushMode.ASYNC, f"file {path}")
    assert settings.origin["timing.max_push_time_out_ms"] == "default"
    assert list(settings.peers) == ["n0", "n1", "n2"], "the strongest place's peers are taken whole"
    assert settings.origin["peers"] == "variable QUORUMSCOPE_PEERS"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    path = write(tmp_path, "[node]\ngroup = 'g'\n")
    assert load({}, None, {"QUORUMSCOPE_CONFIG": str(path)}).node.group == "g"


@pytest.mark.parametrize("written", ["[peers]\nn0 = '127.0.0.1:1'\n", "peers = 'n0-127.0.0.1:1'\n"])
def test_peers_are_a_table_or_dledgers_string(tmp_path: Path, written: str) -> None:
    assert load({}, write(tmp_path, written), {}).peers == {"n0": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[node]\nidd = 'n0'\n", ["unknown key node.idd", "did you mean node.id?"]),
        ("[node]\npeers = 'n0-127.0.0.1:1'\n", ["unknown key node.peers", "did you mean the table [peers]?"]),
        ("[nodes]\nid = 'n0'\n", ["unknown table [nodes]", "did you mean [node]?"]),
        ("[timing]\nmax_push_time_out = 3\n", ["timing.max_push_time_out", "did you mean timing.max_push_time_out_ms"]),
        ("[timing]\nmax_push_time_out_ms = 'soon'\n", ["timing.max_push_time_out_ms", "soon"]),
        ("[timing]\nmax_push_time_out_ms = 0\n", ["timing.max_push_time_out_ms", "greater than or equal to 1"]),
        ("[timing]\nelection_timeout_min_ms = 2000\n", ["election_timeout_min_ms must be below"]),
        ("[timing]\nheart_beat_time_interval_ms = 400\n", ["at least twice heart_beat_time_interval_ms"]),
        ("[store]\nmapped_file_size_for_entry_index_bytes = 1025\n", ["1025 is not a multiple of 32"]),
        ("[node]\nflush = 'both'\n", ["node.flush", "'sync' or 'async'"]),
        ("[node]\nid = 'a-b'\n", ["node.id", '"a-b" is no member id']),
        ("[peers]\nn0 = '127.0.0.1'\n", ["peers", '"127.0.0.1" is not host:port']),
        ("[peers]\nn0 = 'h:70000'\n", ["peers", "from 1 to 65535"]),
        ("[peers]\nn0 = 'h:1'\nn1 = 'h:1'\n", ["peers", "two members have the same address"]),
        ("[control]\naddress = '::1:8431'\n", ["control.address", "in brackets"]),
        ("[audit]\ndepth = 'deep'\n", ["audit.depth"]),
        ("node = 3\n", ["node is a table"]),
        ("[node\n", ["line 1"]),
    ],
)
def test_an_error_is_one_line_that_names_file_and_key(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load({}, path, {})
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), *parts):
        assert part in message


def test_a_named_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.toml: there is no such file"):
        load({}, tmp_path / "nope.toml", {})


def test_an_unknown_variable_is_an_error_and_ours_that_are_no_settings_are_not() -> None:
    with pytest.raises(ConfigError, match="QUORUMSCOPE_NODE__FLUHS; did you mean QUORUMSCOPE_NODE__FLUSH"):
        load({}, None, {"QUORUMSCOPE_NODE__FLUHS": "sync"})
    assert load({}, None, {"QUORUMSCOPE_TOKEN": "x", "QUORUMSCOPE_WAIVE": "browser", "HOME": "/"}).node.id == ""


def test_a_bad_value_names_the_variable_or_the_flag_that_said_it() -> None:
    with pytest.raises(ConfigError, match="variable QUORUMSCOPE_TIMING__MAX_PUSH_TIME_OUT_MS"):
        load({}, None, {"QUORUMSCOPE_TIMING__MAX_PUSH_TIME_OUT_MS": "1.5"})
    with pytest.raises(ConfigError, match=r"flag --flush: node\.flush"):
        load({"node.flush": "both"}, None, {})


def test_lists_are_written_with_commas_outside_files() -> None:
    assert load({}, None, {"QUORUMSCOPE_NODE__PREFERRED_LEADERS": "n1, n2"}).node.preferred_leaders == ("n1", "n2")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "[peers] is empty"),
        (["--peers", PEERS], "id is missing"),
        (["--peers", PEERS, "--id", "n3"], '"n3" is not one of [peers] (n0, n1, n2)'),
        (["--peers", PEERS, "--id"], "--id needs a value"),
        (["--peers", PEERS, "--idd", "n0"], "unknown argument --idd; did you mean --id?"),
        (["--peers", PEERS, "--id", "n0", "extra"], "unknown argument extra"),
        (["--peers", PEERS, "--id", "n0", "--set", "node.flush"], "write TABLE.KEY=VALUE"),
        (["--peers", PEERS, "--id", "n0", "--set", "node.preferred_leaders=n9"], '"n9" is not one of [peers]'),
        ([*BEYOND], "give [node] secret_file, or tls_cert_file"),
        ([*BEYOND, "--set", "node.allow_plaintext=true"], "give [node] secret_file, or tls_cert_file"),
        ([*BEYOND, "--secret-file", __file__, "--set", "node.secret=optional"], "needs allow_plaintext = true as well"),
        ([*BEYOND, "--secret-file", "/nope"], "there is no such file"),
        ([*BEYOND, "--secret-file", "/nope", "--make-secret"], "give init and secret_file as well"),
        ([*BEYOND, "--init", "--make-secret"], "give init and secret_file as well"),
        ([*BEYOND, "--set", "node.secret=maybe"], "'required' or 'optional'"),
        (["--peers", PEERS, "--id", "n0", "--group-token", "short"], "is no group token"),
        (["--peers", PEERS, "--id", "n0", "--control", "0.0.0.0:8431"], "needs token_file, tls_cert_file"),
        (["--peers", PEERS, "--id", "n0", "--control", "127.0.0.1:20911"], "both mean port 20911 of 127.0.0.1: give"),
        (["--peers", PEERS, "--id", "n0", "--control", "localhost:20911"], "[peers] n0 and [control] address both"),
        (["--peers", PEERS, "--id", "n0", "--broker", "127.0.0.1:8431"], "[control] address and [broker] address both"),
        (
            ["--peers", PEERS, "--id", "n0", "--broker", "0.0.0.0:20913", "--set", "broker.vip=true"],
            "[broker] vip both",
        ),
        (["--peers", PEERS, "--id", "n0", "--set", "node.token_file=/nope"], "there is no such file"),
        (["--peers", PEERS, "--id", "n0", "--set", "node.tls_cert_file=/nope"], "together"),
    ],
)
def test_a_node_that_cannot_start_says_why(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_node_arguments(arguments, {})
    assert message in str(caught.value)


def test_a_node_command_line_becomes_settings(tmp_path: Path) -> None:
    arguments = ["--id=n1", "--group", "g", "--peers", PEERS, f"--data={tmp_path}", "--init", "--flush", "async"]
    arguments += ["--set", "timing.max_push_time_out_ms=7", "--exit-with-engine"]
    settings = parse_node_arguments(arguments, {})
    assert settings.store_directory == tmp_path / "dledger-n1"
    assert settings.self_address == "127.0.0.1:20912"
    assert (settings.node.init, settings.node.flush, settings.timing.max_push_time_out_ms) == (True, FlushMode.ASYNC, 7)
    assert settings.origin["timing.max_push_time_out_ms"] == "flag --set timing.max_push_time_out_ms"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--secret-file", __file__],
        ["--init", "--make-secret", "--secret-file", "/nope"],
        ["--secret-file", __file__, "--set", "node.secret=optional", "--set", "node.allow_plaintext=true"],
    ],
)
def test_a_secret_opens_a_port_beyond_loopback(arguments: list[str]) -> None:
    assert parse_node_arguments([*BEYOND, *arguments], {}).self_address == "10.1.2.3:20911"


def test_peers_and_addresses_read_and_write_as_dledger_does() -> None:
    assert format_peers(parse_peers(PEERS)) == PEERS
    assert parse_peers("n0-[::1]:1; n1-host-with-dash:2;") == {"n0": "[::1]:1", "n1": "host-with-dash:2"}
    assert split_address("[::1]:20911") == ("::1", 20911)
    for wrong in ("n0", "n0-h", "n0-h:1;n0-h:2", "-h:1", "n 0-h:1"):
        with pytest.raises(ValueError, match=r".+"):
            parse_peers(wrong)
    assert [is_loopback(host) for host in ("localhost", "127.9.9.9", "::1", "10.0.0.1", "example.org")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_token_file_is_private_and_holds_one_long_word(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    path.chmod(0o600)
    assert read_token(path) == "0123456789abcdef"
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="others may read it"):
        read_token(path)
    path.chmod(0o600)
    for wrong in ("", "short", "two words that are long"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match="one word of at least 16"):
            read_token(path)
    with pytest.raises(ConfigError, match="No such file"):
        read_token(tmp_path / "nope")
