"""`status`, `append`, `get`, `tail`, `transfer` against a group of the Java original: a fake, in recorded shapes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import run
from app.commands.targets import Target
from node.client import LedgerClient, LedgerClientSync, NotAppended, Refused, Unreachable
from node.protocol.codes import RequestCode
from node.transport.remoting import Frame, decode_frame
from tests.unit.fake_dledger import FakeDledger, running

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def group() -> Iterator[FakeDledger]:
    with running(FakeDledger()) as fake:
        yield fake


def on(group: FakeDledger) -> list[str]:
    return ["--peers", group.peers, "--group", group.group]


def append(group: FakeDledger, tmp_path: Path, *lines: bytes, more: tuple[str, ...] = ()) -> int:
    (tmp_path / "in").write_bytes(b"".join(line + b"\n" for line in lines))
    return run(["append", str(tmp_path / "in"), *on(group), "--json", *more])


# --- status -----------------------------------------------------------------------------------------------------
def test_status_says_who_leads_and_that_nothing_else_is_known(group: FakeDledger, capsys: Capture) -> None:
    assert run(["status", *on(group)]) == 2
    text = capsys.readouterr().out
    assert "n2 leads (term unknown); 3 of 3 members answer, whether a quorum stands is unknown" in text
    assert "plain DLedger: only METADATA is known" in text
    assert text.count("neither its term nor whom it hears") == 1
    assert "(down)" not in text and "NO QUORUM" not in text
    assert run(["status", *on(group), "--json"]) == 2
    reported = json.loads(capsys.readouterr().out)
    assert (reported["leader_id"], reported["term"], reported["problems"]) == ("n2", None, [])
    assert reported["quorum"] == {"size": 3, "needed": 2, "answering": 3, "standing": None, "stands": None}
    assert {one["field"] for one in reported["unknown"]} >= {
        "n0.state",
        "n1.state",
        "n2.state",
        "quorum.stands",
        "term",
    }
    assert [one["reach"] for one in reported["members"]] == ["plain"] * 3


def test_status_of_a_plain_group_names_who_does_not_answer(capsys: Capture) -> None:
    with running(FakeDledger(), down=("n0",)) as group:
        assert run(["status", *on(group)]) == 1
        text = capsys.readouterr().out
        assert "this shows it again once it answers:" in text and "ends with 0" not in text, "here it never does"
        assert run(["status", *on(group), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"], one["member"]) for one in reported["problems"]] == [
        ("member_unreachable", "attention", "n0")
    ]
    assert (reported["leader_id"], reported["quorum"]["answering"]) == ("n2", 2)


def test_status_of_a_plain_group_without_a_leader_is_critical(group: FakeDledger, capsys: Capture) -> None:
    group.leader_id = None
    assert run(["status", *on(group), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"]) for one in reported["problems"]] == [("no_leader", "critical")]


def test_a_plain_leader_that_is_out_of_sight_may_lead_a_quorum(capsys: Capture) -> None:
    with running(FakeDledger(), down=("n2",)) as group:
        assert run(["status", *on(group)]) == 1
        head, *lines = capsys.readouterr().out.splitlines()
        assert "the others follow n2, which does not answer" in head
        assert "whether a quorum stands is unknown" in head, "what n2 hears, nobody here can tell"
        assert any("The leader n2 does not answer, though n0 and n1 follow it" in line for line in lines)
        assert not any("no leader" in line or "no member leads" in line for line in lines)
        assert run(["status", *on(group), "--json"]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"]) for one in reported["problems"]] == [
        ("leader_out_of_sight", "attention"), ("member_unreachable", "attention"),
    ]  # fmt: skip
    assert (reported["quorum"]["standing"], reported["quorum"]["stands"], reported["leader_id"]) == (None, None, None)


def test_two_plain_leaders_are_named_in_all_lines_alike(group: FakeDledger, capsys: Capture) -> None:
    answer = group._metadata
    group._metadata = lambda member_id, request: {  # type: ignore[method-assign]
        **answer(member_id, request), **({"leaderId": member_id} if member_id in ("n1", "n2") else {}),
    }  # fmt: skip
    assert run(["status", *on(group)]) == 1
    text = capsys.readouterr().out
    assert "n1 and n2 each say that they lead; 3 of 3" in text.splitlines()[0] and "no member leads" not in text


def test_a_plain_member_that_comes_late_with_metadata_is_silent(
    group: FakeDledger, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def late(_client: LedgerClient, node_id: str) -> dict[str, object]:
        raise Unreachable(f"{node_id} at {group.addresses[node_id]}: no answer in time") from TimeoutError()

    monkeypatch.setattr(LedgerClient, "metadata", late)
    assert run(["status", *on(group), "--json"]) == 69
    reported = json.loads(capsys.readouterr().out)
    assert {one["reason"] for one in reported["members"]} == {
        "no answer within 2 s to METADATA, all that a plain DLedger tells"
    }
    assert "its process is gone, its machine" not in str(reported), "it had just refused our own request"


def test_members_and_their_changes_are_no_matter_of_a_plain_group(group: FakeDledger, capsys: Capture) -> None:
    for asked in ([], ["list"], ["remove", "n1"]):
        assert run(["members", *asked, *on(group)]) == 2, asked
        said = capsys.readouterr().err
        assert "the leader is a plain DLedger" in said and "its configuration" in said and "52001" not in said, said


def test_another_groups_name_is_denied_by_all_commands(group: FakeDledger, tmp_path: Path, capsys: Capture) -> None:
    group.group = "other"
    (tmp_path / "in").write_bytes(b"x\n")
    for command in (["status"], ["append", str(tmp_path / "in")], ["get", "0"], ["tail"], ["transfer", "n0"]):
        assert run([*command, "--peers", group.peers, "--group", "g0"]) == 77, command
        assert "say which group with --group" in capsys.readouterr().err


# --- the fake, and the client by itself -------------------------------------------------------------------------
RECORDED = {
    "00_METADATA_200": "n0", "03_APPEND_body_200": "n2", "04_APPEND_body_400": "n2", "05_APPEND_body_404": "n0",
    "08_APPEND_emptybody_200": "n2", "10_GET_200": "n2", "11_GET_404": "n0", "12_GET_410": "n2",
    "14_UNKNOWN_CODE_remoting3": "n2", "61_LEADERSHIP_TRANSFER_client-to-leader_200": "n2",
    "62_LEADERSHIP_TRANSFER_client-to-leader_401": "n2", "63_LEADERSHIP_TRANSFER_client-to-leader_407": "n2",
}  # fmt: skip


@pytest.mark.parametrize(("name", "member_id"), RECORDED.items())
def test_the_fake_answers_as_the_original_was_recorded(name: str, member_id: str, vectors: Path) -> None:
    class Said:
        """A connection that keeps what is answered."""

        code, body = 200, b""

        def answer(self, _frame: Frame, body: bytes) -> None:
            self.body = body

        def refuse(self, _frame: Frame, code: int, remark: str) -> None:
            self.code = code

    fake, said = FakeDledger(), Said()
    fake.term = 1
    fake.addresses = dict.fromkeys(fake.members, "127.0.0.1:1")
    if "GET" in name:
        fake.holds(b"hello")
    request, answer = (decode_frame((vectors / "rpc" / f"{name}.{way}.bin").read_bytes()) for way in ("req", "resp"))
    fake.answer(member_id, said, request)  # type: ignore[arg-type]
    assert said.code == answer.code
    if answer.code == 200:
        reported, recorded = json.loads(said.body), json.loads(bytes(answer.body))
        assert reported.keys() == recorded.keys()
        assert (reported["code"], reported["term"] if "APPEND" in name else 0) == (
            recorded["code"], recorded["term"] if "APPEND" in name else 0,
        )  # fmt: skip


def test_single_appends_of_one_moment_go_in_their_order_and_runs_do_not_go(group: FakeDledger) -> None:
    with LedgerClientSync(group.peers, group=group.group) as client:

        async def many() -> list[int]:
            answers = [client._client.submit(b"%d" % number) for number in range(20)]
            return [(await answer).first_index for answer in answers]

        assert client._wait(many()) == list(range(20))
        with pytest.raises(NotAppended, match="one entry a request"):
            client.append_many([b"a", b"b"])
        with pytest.raises(Refused):
            client.transfer("n0", if_term=4)
    assert [base64.b64decode(one["body"]) for one in group.entries] == [b"%d" % number for number in range(20)]


# --- append -----------------------------------------------------------------------------------------------------
def test_append_goes_one_entry_a_request_in_the_order_of_the_lines(
    group: FakeDledger, tmp_path: Path, capsys: Capture
) -> None:
    group.holds(b"before")
    assert append(group, tmp_path, b"one", b"", b"three") == 0
    said = capsys.readouterr()
    reported = json.loads(said.out)
    assert (reported["appended"], reported["unknown"], reported["ranges"]) == (3, 0, [[1, 3]])
    bodies = [body["body"] for _, code, body in group.received if code == RequestCode.APPEND]
    assert bodies == ["b25l", "", "dGhyZWU="]
    assert "one entry a request" in said.err


def test_what_others_append_in_between_is_not_counted(group: FakeDledger, tmp_path: Path, capsys: Capture) -> None:
    answer = group._append

    def with_another(member_id: str, request: dict[str, object]) -> dict[str, object]:
        reported = answer(member_id, request)
        group.holds(b"another's")
        return reported

    group._append = with_another  # type: ignore[method-assign]
    assert append(group, tmp_path, b"one", b"two") == 0
    assert json.loads(capsys.readouterr().out)["ranges"] == [[0, 0], [2, 2]]


@pytest.mark.parametrize(
    ("code", "index", "exit_code", "unknown"),
    [(502, 11, 75, 1), (415, -1, 1, 0), (415, 7, 75, 1), (414, -1, 75, 1), (501, -1, 75, 1)],
)
def test_an_append_that_fails_there_says_what_is_known(
    code: int, index: int, exit_code: int, unknown: int, group: FakeDledger, tmp_path: Path, capsys: Capture
) -> None:
    group.append_code, group.append_index = code, index
    assert append(group, tmp_path, b"x") == exit_code
    assert json.loads(capsys.readouterr().out)["unknown"] == unknown


@pytest.mark.parametrize(("code", "exit_code", "unknown"), [(3, 1, 0), (1, 75, 1), (2, 75, 1)])
def test_only_remoting_code_3_proves_that_nothing_was_appended(
    code: int, exit_code: int, unknown: int, group: FakeDledger, tmp_path: Path, capsys: Capture
) -> None:
    group.remoting_code = code
    assert append(group, tmp_path, b"x") == exit_code
    assert json.loads(capsys.readouterr().out)["unknown"] == unknown


def test_an_expected_index_cannot_be_asked_of_it(group: FakeDledger, tmp_path: Path, capsys: Capture) -> None:
    assert append(group, tmp_path, b"x", more=("--expected-index", "0")) == 1
    assert "expected index" in capsys.readouterr().err
    assert RequestCode.APPEND not in group.codes()


# --- get and tail -----------------------------------------------------------------------------------------------
def test_get_says_that_what_it_shows_may_not_be_committed(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero", b"one", b"two")
    group.holds(b"", magic=2)
    assert run(["get", "1", "-n", "9", *on(group), "--json"]) == 0
    said = capsys.readouterr()
    shown = [json.loads(line) for line in said.out.splitlines()]
    assert [(one["index"], one.get("text"), one["consistency"]) for one in shown] == [
        (1, "one", "unverified"), (2, "two", "unverified"), (3, "", "unverified"),
    ]  # fmt: skip
    assert shown[2]["magic"] == "NOOP"
    assert said.err.count("\n") == 1
    assert "consistency: unverified" in said.err and "may not be committed" in said.err


def test_get_of_what_is_not_there_or_not_any_more_ends_at_once(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero", b"one", b"two")
    group.begin_index = 2
    assert run(["get", "3", *on(group)]) == 1
    assert "index 3 is not in its leader's log" in capsys.readouterr().err
    asked = group.codes().count(RequestCode.GET)
    assert run(["get", "1", *on(group)]) == 2
    assert "index 1 is not kept any more" in capsys.readouterr().err
    assert group.codes().count(RequestCode.GET) == asked + 1, "a permanent refusal is not asked for again"


def test_a_get_that_fails_there_for_good_is_not_retried(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero")
    group.remoting_code = 1
    assert run(["get", "0", *on(group)]) == 2
    assert "answers 1: java.lang.NullPointerException" in capsys.readouterr().err
    assert group.codes().count(RequestCode.GET) == 1


@pytest.mark.parametrize(("held", "begin"), [(0, 0), (1, 0), (7, 0), (40, 33), (100, 0)])
def test_tail_finds_the_end_by_itself(held: int, begin: int, group: FakeDledger, capsys: Capture) -> None:
    group.holds(*(b"%d" % number for number in range(held)))
    group.begin_index = begin
    assert run(["tail", "-n", "3", *on(group)]) == 0
    said = capsys.readouterr()
    assert said.out.split() == [str(number) for number in range(max(held - 3, begin), held)]
    assert "consistency: unverified" in said.err
    assert group.codes().count(RequestCode.GET) < 30


def test_tail_from_beyond_the_end_of_a_plain_group_says_so(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero")
    assert run(["tail", "--from", "7", *on(group)]) == 2
    assert "the log ends at 0" in capsys.readouterr().err


# --- transfer ---------------------------------------------------------------------------------------------------
def transfers(group: FakeDledger) -> list[dict[str, object]]:
    return [body for _, code, body in group.received if code == RequestCode.LEADERSHIP_TRANSFER]


def test_a_transfer_is_refused_for_what_a_first_leadership_does(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero", b"one")
    assert run(["transfer", "n0", *on(group), "--if-term", "4"]) == 1
    text = capsys.readouterr().err
    assert (
        "unless n0 has led since its process started" in text
        and "wipes its followers" in text
        and "--accept-data-loss n0" in text
    )
    assert transfers(group) == [] and group.leader_id == "n2"


def test_accepting_the_loss_takes_the_name_typed_and_the_term(group: FakeDledger, capsys: Capture) -> None:
    group.holds(b"zero")
    assert run(["transfer", "n0", *on(group), "--if-term", "4", "--accept-data-loss", "n1"]) == 64
    assert "--accept-data-loss" in capsys.readouterr().err
    assert run(["transfer", "n0", *on(group), "--accept-data-loss", "n0"]) == 1
    text = capsys.readouterr().err
    assert "--if-term" in text and "newest entry is of term 4" in text
    assert run(["transfer", *on(group), "--if-term", "4"]) == 1
    assert "name the member" in capsys.readouterr().err
    assert transfers(group) == []


def test_a_transfer_that_was_accepted_sends_term_and_transfer_id(group: FakeDledger, capsys: Capture) -> None:
    command = ["transfer", "n0", *on(group), "--accept-data-loss", "n0", "--json"]
    assert run([*command, "--if-term", "3"]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == 407
    assert run([*command, "--if-term", "4"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert (reported["moved"], reported["code"], reported["leader_id"], reported["term"]) == (True, 200, "n0", 5)
    sent = transfers(group)[-1]
    assert (sent["term"], sent["transferId"], sent["transfereeId"], sent["takeLeadershipLedgerIndex"]) == (
        4, "n2", "n0", 0,
    )  # fmt: skip


def test_a_transfer_whose_answer_is_lost_may_have_moved_it(
    group: FakeDledger, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    group.holds(b"zero")
    monkeypatch.setattr(group, "_transfer", lambda *_: "no object")
    command = ["transfer", "n0", *on(group), "--accept-data-loss", "n0", "--if-term", "4"]
    assert run(command) == 75
    assert "outcome unknown" in capsys.readouterr().err


def test_one_cause_has_one_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Target.client

    def impatient(self: Target, deadline_s: float = 10.0, only: str | None = None) -> LedgerClient:
        return patient(self, min(deadline_s, 0.2), only)

    monkeypatch.setattr(Target, "client", impatient)
    with running(FakeDledger(), down=("n0", "n1", "n2")) as group:
        (tmp_path / "in").write_bytes(b"x\n")
        for command in (
            ["status"], ["append", str(tmp_path / "in")], ["get", "0"], ["tail"], ["transfer", "n0", "--if-term", "4"],
        ):  # fmt: skip
            assert run([*command, *on(group)]) == 69, command
