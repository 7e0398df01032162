"""The command line's manners: exit codes, one-line errors, and help that lists only what works."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from app.cli import run
from app.command_line import one_line
from app.commands.control_calls import control_call
from app.commands.endings import Exit, Failure
from app.commands.services import NODE_FLAGS, SWITCHES, node_arguments
from node.changing_keys import NODE_TABLES, differences
from node.config import parse_node_arguments, read_again
from node.supervisor_log import value_of

PEERS = "n0-127.0.0.1:1"


@pytest.fixture(autouse=True)
def without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the arguments of an audit is said before its process, and Java, start."""

    def start_job(directory: Path, *, outlives: bool) -> None:
        raise AssertionError(f"a job was started in {directory}")

    monkeypatch.setattr("app.audit.command.start_job", start_job)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration and no demo of the machine that the tests run on."""
    for name in ("QUORUMSCOPE_PEERS", "QUORUMSCOPE_CONFIG", "QUORUMSCOPE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch"], "No such command"),
        (["--nosuch"], "No such option"),
        (["status"], "which group?"),
        (["status", "--pers", PEERS], "--peers"),
        (["status", "--peers", "n0"], "peers"),
        (["status", "--peers", PEERS, "--node", "http://127.0.0.1:1"], "not both"),
        (["status", "--node", "http://a..b:1"], '"a..b" is no host name'),
        (["tail", "--node", "."], '"." is no host name'),
        (["append", "--node", "http://" + "a" * 300], "is no host name"),
        (["get", "0", "--node", "http://127.0.0.1:99999"], "65535"),
        (["status", "--node", "ftp://127.0.0.1:1"], "http"),
        (["status", "--peers", PEERS, "--group", "a\udcff"], "'a\\udcff' is no text in UTF-8"),
        (["status", "--config", "nope.toml"], "nope.toml: there is no such file"),
        (["append", "/nope", "--peers", PEERS], "/nope"),
        (["append", "--split", "words"], "--split"),
        (["append", "--peers", PEERS, "--deadline-s", "inf"], "'--deadline-s'"),
        (["append", "--peers", PEERS, "--deadline-s", "1e18"], "1000000000"),
        (["produce", "T", "--name-server", "127.0.0.1:1", "--deadline", "inf"], "'--deadline'"),
        (["simulate", "--seeds", "2", "--jobs", "9" * 25], "'--jobs'"),
        (["append", "--batch", "0"], "--batch"),
        (["get"], "INDEX"),
        (["get", "x"], "valid integer"),
        (["get", "-1"], "-1"),
        (["get", str(2**63), "--peers", PEERS], "INDEX"),
        (["tail", "--from", str(2**63), "--peers", PEERS], "--from"),
        (["tail", "-n", str(2**63), "--peers", PEERS], "--lines"),
        (["append", "--expected-index", str(2**63), "--peers", PEERS], "--expected-index"),
        (["transfer", "n0", "--if-term", str(2**63), "--peers", PEERS], "--if-term"),
        (["members", "remove", "n0", "--if-term", str(2**63), "--peers", PEERS], "--if-term"),
        (["kv", "watch", "a", "--from", str(2**63), "--peers", PEERS], "--from"),
        (["kv", "range", "a", "b", "--limit", str(2**63), "--peers", PEERS], "--limit"),
        (["trim", "--through", str(2**63), "--node", "http://127.0.0.1:1"], "--through"),
        (["audit", "--store", "d", "--from", str(2**63)], "--from"),
        (["consumer", "reset", "g", "--topic", "t", "--queue", str(2**31)], "--queue"),
        (["tail", "--from", "-3"], "--from"),
        (["node"], "[peers] is empty"),
        (["node", "--id", "n1", "--peers", PEERS], '"n1" is not one of [peers]'),
        (["node", "--id", "n0", "--peers", "n0-10.0.0.1:1"], "secret_file"),
        (["node", "--id", "n0", "--peers", PEERS, "--make-secret"], "give init and secret_file"),
        (["node", "--id", "n0", "--peers", PEERS, "--set", "node.x=1"], "unknown key node.x"),
        (["console", "--listen", "nowhere"], "console.address"),
        (["console", "--listen", "0.0.0.0:8421"], "--behind-proxy"),
        (["audit"], "audit what?"),
        (["audit", "--cluster", "c", "--store", "d"], "not both"),
        (["audit", "--store", "d", "--depth", "deep"], "--depth"),
        (["audit", "--store", "d", "--from", "9", "--to", "3"], "above"),
        (["audit", "--store", "/nope"], "--store /nope: there is no such directory"),
        (["audit", "--store", __file__, "--store", "/"], "it is no directory"),
        (["audit", "--store", "/bin", "--store", "/usr"], "/usr holds no store"),
        (["audit", "--store", "/", "--store", "/"], "--store / is named twice"),
        (["audit", "--store", "a=/", "--store", "a=/usr"], "--store a is named twice"),
        (["audit", "--node", "http://a:1", "--node", "http://a:1/"], "--node http://a:1 is named twice"),
        (["audit", "--store", "/", "--out", __file__], "it is no directory"),
        (["audit", "--node", "http://127.0.0.1:1", "--ca", "/nope"], "--ca /nope: there is no such file"),
        (["members", "add", "n-9", "127.0.0.1:1", "--peers", PEERS], '"n-9" is no member id'),
        (["members", "add", "n9", "x", "--peers", PEERS], '"x" is not host:port'),
        (["members", "replace", "n0", "n 9", "127.0.0.1:1", "--peers", PEERS], '"n 9" is no member id'),
        (["members", "address", "n0", "127.0.0.1:0", "--peers", PEERS], "the port must be a number from 1 to 65535"),
        (["export"], "No such command"),
        (["sidecar"], "No such command"),
        (["migrate", "check", "d"], "No such command"),
        (["node", "--grpc", "127.0.0.1:1"], "No such option"),
        (["store", "verify", "/nope"], "no such directory"),
        (["store", "verify", __file__], "it is no directory"),
        (["store", "verify", "/"], "is no store"),
        (["config", "check", "--set", "node.x=1"], "unknown key node.x"),
        (["config", "check", "--for-node"], "[peers] is empty"),
        (["user", "link", "--role", "boss"], '"boss"'),
        (["bench", "append", "--against", "raft"], "pysyncobj"),
        (["bench", "append", "--flush", "never"], "sync or async"),
        (["simulate", "--nonsense"], "--nonsense"),
        (["simulate", "--seeds", "0"], "--seeds"),
        (["demo", "--file", "/nope"], "/nope"),
        (["demo", "--flush", "never"], "sync or async"),
        (["demo", "break", "heart"], "flip"),
    ],
)
def test_a_usage_error_is_one_line_and_64(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == Exit.USAGE == 64
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("quorumscope")
    assert says in said.err


EMPTY = "it is empty; a variable that is not set, perhaps"


@pytest.mark.parametrize(
    "arguments",
    [
        ["store", "inspect", ""],
        ["store", "verify", ""],
        ["store", "repair", ""],
        ["store", "repair", ".", "--from", ""],
        ["store", "adopt", ""],
        ["store", "recover-members", "", "--keep", "n0"],
        ["store", "rebuild-queues", ""],
        ["store", "hand-over", "", "--to", "java"],
        ["backup", ""],
        ["backup", "verify", ""],
        ["backup", "b", "--data", ""],
        ["backup", "b", "--db", ""],
        ["restore", "", "--into", "x", "--group", "g"],
        ["restore", "b", "--into", "", "--group", "g"],
        ["restore", "b", "--db", ""],
        ["pki", "demo", ""],
        ["migrate", "config", ""],
        ["append", "", "--peers", PEERS],
        ["audit", "--store", "", "--store", "n1=/"],
        ["audit", "--store", "/", "--out", ""],
        ["db", "upgrade", "--db", ""],
        ["user", "list", "--db="],
        ["access", "list", "--file", ""],
        ["config", "check", "--config", ""],
        ["status", "--node", ""],
        ["status", "--peers", ""],
        ["status", "--peers", PEERS, "--token-file", ""],
        ["node", "--data", ""],
        ["demo", "--data", ""],
    ],
)
def test_an_empty_word_is_no_place(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pathlib takes it for the current directory, which nobody named."""
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == Exit.USAGE
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and EMPTY in said.err
    assert list(tmp_path.iterdir()) == []


def test_an_audit_is_told_where_each_store_lies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "--store", "n0=", "--store", "n1=/"]) == Exit.USAGE
    assert capsys.readouterr().err == "quorumscope: --store n0=: it names no directory\n"


def test_an_empty_word_may_be_a_key_or_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    """The range from the first key to the last one, and a key that holds nothing."""
    for arguments in (["kv", "range", "", ""], ["kv", "put", "k", ""], ["kv", "watch", ""]):
        assert run(arguments) == Exit.USAGE
        assert "which group?" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["demo"], ["simulate", "--steps", "1"]], ids=" ".join)
def test_a_current_directory_that_was_removed_is_named(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said "No such file or directory", of no file."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(arguments) == Exit.UNDETERMINED
    *_, last = capsys.readouterr().err.splitlines()
    assert last == "quorumscope: the current directory was removed: `cd` to one that exists, and run it again"


def test_a_file_may_have_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a\udcff"
    file.write_bytes(b"")
    assert run(["append", str(file), "--node", "http://127.0.0.1:1"]) == Exit.UNREACHABLE
    assert run(["backup", "verify", str(tmp_path / "b\udcff")]) == Exit.USAGE
    assert "is no text" not in capsys.readouterr().err


def test_an_unknown_variable_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUORUMSCOPE_NODE__FLUHS", "sync")
    assert run(["config", "check"]) == 64
    assert "did you mean QUORUMSCOPE_NODE__FLUSH?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--node", "http://127.0.0.1:1"],
        ["tail", "--node", "127.0.0.1:1"],
        ["demo", "break", "flip"],
        ["demo", "break", "kill", "--pid", "1"],
    ],
)
def test_what_is_not_there_is_69(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == Exit.UNREACHABLE == 69
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert "Errno" not in said.err
    if "127.0.0.1" in arguments[-1]:
        assert "http://127.0.0.1:1 cannot be reached: Connection refused: nothing listens there; start" in said.err


@pytest.mark.parametrize(
    ("status", "code"),
    [(409, Exit.FINDING), (412, Exit.FINDING), (422, Exit.FINDING), (503, Exit.UNREACHABLE)],
)
def test_a_refusal_is_no_unreachable_node(monkeypatch: pytest.MonkeyPatch, status: int, code: Exit) -> None:
    def answer(_method: str, url: str, *_rest: object, **_named: object) -> tuple[int, dict[str, str]]:
        return status, {"detail": f"what {url} says"}

    monkeypatch.setattr("app.commands.control_calls.control_answer", answer)
    with pytest.raises(Failure, match="answered") as refused:
        control_call("POST", "http://127.0.0.1:1", "restart", None, {})
    assert refused.value.code == code


@pytest.mark.parametrize(("words", "where"), [("status --node", "quorumscope status"), ("--nope", "quorumscope")])
def test_a_slip_is_said_of_the_command_that_it_was_made_in(
    words: str, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith(f"{where}: ") and f"(see {where} --help)" in said


def test_members_alone_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["members"], ["members", "--json"], ["members", "list"]):
        assert run(arguments) == Exit.USAGE
        assert "which group?" in capsys.readouterr().err, arguments
    assert run(["members", "--help"]) == 0
    assert "replace" in capsys.readouterr().out
    assert run(["members", "--nonsense"]) == Exit.USAGE


def test_an_address_of_the_other_scheme_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def answer() -> None:
            plain, _ = listener.accept()
            with plain:
                plain.recv(65536)
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            assert run(["status", "--node", f"https://127.0.0.1:{port}"]) == Exit.UNREACHABLE
        finally:
            answering.join()
    assert "cannot be reached: it speaks no TLS there: write http://" in capsys.readouterr().err


def test_help_lists_what_works_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    listed = {line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.startswith("  ")}
    built = {
        "node", "console", "status", "transfer", "append", "get", "tail", "audit", "demo", "store", "config", "db",
        "user", "token", "bench", "simulate", "members",
    }  # fmt: skip
    assert built <= listed
    assert not listed & {"export", "sidecar", "prove"}
    assert "..." not in text.partition("Commands:")[2], "every summary fits its line"
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    "command",
    [
        "node", "console", "status", "transfer", "append", "get", "tail", "audit", "demo", "demo break",
        "store inspect", "store verify", "store repair", "store adopt",
        "config check", "config show", "db upgrade", "user link", "token issue",
        "bench append",
        "bench failover",
        "simulate",
    ],
)  # fmt: skip
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: quorumscope {command} ")
    assert "range>" not in text.partition("Options:")[2], "every number says what it is"
    assert " The same" not in text, "whoever asks for this help has read no other one"


@pytest.mark.parametrize("token", ["ü", "\udcff", "two\nlines"])
@pytest.mark.parametrize("arguments", [["status"], ["audit", "--store", "/tmp"], ["trim", "--through", "3"]])
def test_a_token_that_no_header_carries_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], token: str
) -> None:
    """It ended in a traceback; a variable's bytes that are no UTF-8 come as halves of surrogate pairs."""
    monkeypatch.setenv("QUORUMSCOPE_TOKEN", token)
    assert run([*arguments, "--node", "http://127.0.0.1:1"]) == Exit.USAGE
    assert "characters that no token has" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"), [(["nosuch"], Exit.USAGE), (["append", "--node", "http://127.0.0.1:1"], Exit.UNREACHABLE)]
)
def test_remarks_that_nobody_takes_change_no_exit_code(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: Exit
) -> None:
    """`2>/dev/full` made a finding (1) of a slip, and a reader of remarks that had gone made it fine (0)."""
    reader, writer = os.pipe()
    os.close(reader)
    for errors in (os.open("/dev/full", os.O_WRONLY), writer):
        with open(errors, "w", closefd=False) as nobody:
            with monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", nobody)
                assert run(arguments) == code
            os.dup2(os.open(os.devnull, os.O_WRONLY), errors)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("quorumscope 0.")


def test_a_mistake_of_ours_is_no_finding(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("app.commands.settings.settings_of", broken)
    assert run(["config", "check"]) == Exit.UNDETERMINED == 2
    assert "ZeroDivisionError: ours" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [("config show >&-", 0), ("config show --node nothing >&- 2>&-", 64), ("config show <&- >&- 2>&-", 0)],
)
def test_a_shell_may_close_what_a_command_prints_to(arguments: str, code: int) -> None:
    said = subprocess.run(
        ["sh", "-c", f'exec "$0" -m app.cli {arguments}', sys.executable], capture_output=True, text=True, timeout=60
    )
    assert (said.returncode, said.stdout, said.stderr) == (code, "", "")


def test_what_was_closed_is_no_other_file(tmp_path: Path) -> None:
    """Else what is printed, or what a child process prints, would go into the next file that is opened."""
    script = (
        "import os, sys; from app.cli import open_what_is_closed; open_what_is_closed();"
        f"kept = open({str(tmp_path / 'kept')!r}, 'w'); print('printed'); sys.stdout.flush(); os.system('echo child');"
        "sys.exit(kept.fileno() < 3)"
    )
    said = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" >&- 2>&-', sys.executable, script], timeout=60)
    assert said.returncode == 0 and (tmp_path / "kept").read_text() == ""


def test_one_line() -> None:
    assert one_line("a\n  b.\n") == "a b"


def test_the_supervisor_finds_what_its_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads no configuration: with id and group in a file its lines had neither."""
    file = tmp_path / "node.toml"
    file.write_text('peers = "n0-127.0.0.1:1"\n[node]\nid = "n0"\nlog_format = "json"\nlog_level = "warning"\n')
    arguments = node_arguments(dict.fromkeys(NODE_FLAGS.values()), file, [])
    said = {name: value_of(arguments, name) for name in ("id", "group", "log_level", "log_format")}
    assert said == {"id": "n0", "group": None, "log_level": "warning", "log_format": "json"}
    monkeypatch.setenv("QUORUMSCOPE_NODE_LOG_LEVEL", "error")
    assert value_of(arguments, "log_level") == "error"
    for broken in ("[node", "node = 3", "[node]\nid = 3"):
        file.write_text(broken)
        assert value_of(arguments, "id") is None


def test_what_stands_in_the_file_alone_is_read_again_from_there(tmp_path: Path) -> None:
    """Id, group, data and level of logging were handed on as flags, before which no file counts: a changed level had
    no effect with SIGHUP, and another id was not even said."""
    file = tmp_path / "node.toml"
    file.write_text('peers = "n0-127.0.0.1:1;n1-127.0.0.1:2"\n[node]\nid = "n0"\nlog_level = "info"\ndata = "a"\n')
    arguments = node_arguments(dict.fromkeys(NODE_FLAGS.values()) | {"node.group": "g"}, file, [])
    before = parse_node_arguments(arguments, {})
    file.write_text('peers = "n0-127.0.0.1:1;n1-127.0.0.1:2"\n[node]\nid = "n1"\nlog_level = "error"\ndata = "b"\n')
    again = read_again(arguments, {})
    assert differences(before, again, NODE_TABLES) == ["node.id", "node.data", "node.log_level"]
    assert again.node.group == "g"


def test_the_node_command_has_every_flag_of_a_node_and_hands_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the table of flags had and the command had not ended every `quorumscope node` with a traceback."""
    given = {flag: "kv" if flag == "--state-machine" else "sync" if flag == "--flush" else "n0" for flag in NODE_FLAGS}
    given |= {"--peers": PEERS, "--control": "127.0.0.1:2", "--log-level": "info", "--log-format": "json"}
    for flag in ("--broker", "--role", "--ha", "--ha-peers"):  # exclude a state machine
        del given[flag]
    given["--group-token"] = "a-token-of-sixteen-or-more"
    started: list[list[str]] = []
    held: list[set[int]] = []  # for the process that would follow
    monkeypatch.setattr("signal.pthread_sigmask", lambda _how, signals: held.append(signals))
    monkeypatch.setattr(os, "execve", lambda _program, words, _variables: started.append(words))
    switches = [flag for flag in SWITCHES if flag != "--join"]
    run(["node", *switches, *(word for flag, value in given.items() if flag not in SWITCHES for word in (flag, value))])
    run(["node", "--join", "--id", "n0", "--peers", PEERS])
    run(["node", "--broker", "127.0.0.1:3", "--id", "n0", "--peers", PEERS])
    pair = ["--role", "sync_master", "--ha", "127.0.0.1:4", "--ha-peers", "127.0.0.1:5"]
    run(["node", "--broker", "127.0.0.1:3", "--id", "n0", "--group", "pair", *pair])
    assert len(started) == 4 and set(NODE_FLAGS) <= {word for words in started for word in words}
    assert held == [{signal.SIGINT, signal.SIGHUP}] * 4, "one that comes before the supervisor listens kills it"
