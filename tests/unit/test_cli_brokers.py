"""`broker`, `consumer` and `topic` against control planes that answer as the documented examples do, or refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.cli import run
from app.commands import broker_calls
from app.commands.endings import Exit, Silence, Unheard
from app.commands.targets import Target
from node.control.openapi import examples
from tests.ports import free_ports

Json = dict[str, Any]


class Planes:
    """Two members' control planes in one server: n0 follows, n1 leads. `answers`: instead of the examples'; `token`:
    what they want to be shown, where they do."""

    def __init__(self) -> None:
        self.token: str | None = None
        self.answers: dict[tuple[str, str], tuple[int, Json]] = {}
        self.asked: list[tuple[str, str, Json | None]] = []
        planes = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                if planes.token is None or self.headers.get("authorization") == f"Bearer {planes.token}":
                    status, content = planes.answer(self.command, urlsplit(self.path).path, body)
                else:
                    status, content = 401, {"detail": "This control plane wants a token"}
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = do_DELETE = do

            def log_message(self, *_args: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method: str, path: str, body: Json | None) -> tuple[int, Json]:
        member, _, rest = path.removeprefix("/").partition("/api/v1/")
        self.asked.append((f"{method} {member}", rest, body))
        if (method, rest) in self.answers:
            return self.answers[method, rest]
        if method != "GET" and member == "n0" and not (body or {}).get("dry_run"):
            return 421, {"detail": "n1 leads", "leader_api_url": f"{self.base}/n1", "outcome": "not_appended"}
        words = rest.split("/")
        if words[0] == "consumer-groups" and len(words) > 1:
            words[1] = "{consumer_group}"
        if words[0] == "topics" and len(words) > 1:
            words[1] = "{topic}"
        found: Json = json.loads(json.dumps(examples()[f"{method.lower()} /api/v1/{'/'.join(words)}"]["response"]))
        if rest == "state":
            peers = [{**found["peers"][0], "id": one, "control_url": f"{self.base}/{one}"} for one in ("n0", "n1")]
            found |= {"peers": peers, "self_id": member}
        if rest == "broker":
            found |= {"self_id": member, "role": "MASTER" if member == "n1" else "SLAVE"}
        if rest.endswith("/reset"):
            found["dry_run"] = bool((body or {}).get("dry_run"))
        return 200, found


@pytest.fixture
def planes() -> Iterator[Planes]:
    made = Planes()
    yield made
    made.server.shutdown()
    made.server.server_close()


def asked_of(planes: Planes, *words: str) -> int:
    return run([*words, "--node", f"{planes.base}/n0"])


def test_groups_are_listed_and_described(planes: Planes, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_of(planes, "consumer", "list") == 0
    assert "boards" in capsys.readouterr().out
    assert asked_of(planes, "consumer", "describe", "boards") == 0
    said = capsys.readouterr().out
    assert "wants flights-JFK: AA || UA" in said and "COMMITTED" in said
    assert said.splitlines()[-1].endswith("vm@14e86610"), "whose the queue is"
    assert asked_of(planes, "consumer", "describe", "boards", "--json") == 0
    assert json.loads(capsys.readouterr().out)["group"] == "boards"


def test_offsets_are_reset_by_the_leader_after_a_confirmation(
    planes: Planes, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["consumer", "reset", "boards", "--topic", "flights-JFK", "--to", "offset", "--offset", "1"]
    assert asked_of(planes, *words) == 64
    assert "nothing was changed: give --yes" in capsys.readouterr().err
    assert all((body or {}).get("dry_run", True) for _who, _what, body in planes.asked)
    assert asked_of(planes, *words, "--yes") == 0
    assert "boards goes on in flights-JFK" in capsys.readouterr().out
    who, what, body = planes.asked[-1]
    assert (who, what) == ("POST n1", "consumer-groups/boards/reset")
    assert body == {"topic": "flights-JFK", "to": "offset", "offset": 1}
    assert asked_of(planes, *words[:-2]) == 64
    assert asked_of(planes, *words, "--dry-run", "--json") == 0


@pytest.mark.parametrize(
    ("status", "content", "code"),
    [
        (409, {"detail": "2 consumers run"}, 1), (404, {"detail": "there is no consumer group"}, 1),
        (412, {"detail": "The term moved"}, 1), (504, {"detail": "no answer", "outcome": "unknown"}, 75),
        (503, {"detail": "The broker does not answer"}, 69), (403, {"detail": "This needs the right"}, 77),
    ],
)  # fmt: skip
def test_each_refusal_has_its_exit_code(
    planes: Planes, capsys: pytest.CaptureFixture[str], status: int, content: Json, code: int
) -> None:
    planes.answers["POST", "consumer-groups/boards/reset"] = status, content
    assert asked_of(planes, "consumer", "reset", "boards", "--topic", "T", "--to", "latest", "--yes") == code
    said = capsys.readouterr()
    assert content["detail"] in said.err and said.out == ""


def test_topics_are_listed_described_made_and_deleted(planes: Planes, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_of(planes, "topic", "list") == 0
    assert "flights-JFK" in capsys.readouterr().out
    assert asked_of(planes, "topic", "describe", "flights-JFK") == 0
    assert "OLDEST" in capsys.readouterr().out
    assert asked_of(planes, "topic", "create", "new", "--queues", "2", "--perm", "r") == 0
    assert planes.asked[-1] == ("PUT n1", "topics/new", {"read_queues": 2, "write_queues": 2, "perm": 4})
    assert asked_of(planes, "topic", "create", "new", "--perm", "x") == 64
    assert asked_of(planes, "topic", "delete", "new") == 64
    assert asked_of(planes, "topic", "delete", "new", "--yes") == 0
    assert planes.asked[-1][:2] == ("DELETE n1", "topics/new")


@pytest.mark.parametrize("name", ["bad/name", "..", ""])
def test_what_is_no_name_is_not_said_to_be_a_group_without_brokers(
    planes: Planes, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    for words in (["topic", "create", name], ["topic", "describe", name], ["consumer", "describe", name]):
        assert asked_of(planes, *words) == 64, words
        assert "is no name" in capsys.readouterr().err


def test_brokers_are_well_or_not(planes: Planes, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked_of(planes, "broker", "list") == 0
    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()[1:]] == [
        ["n0", "SLAVE"],
        ["n1", "MASTER"],
    ]
    assert asked_of(planes, "broker", "describe", "n1") == 0
    assert "changeToMaster" in capsys.readouterr().out
    broker = examples()["get /api/v1/broker"]["response"]
    stopped = broker["dispatch"] | {"stopped_by": "entry 7: no record"}
    planes.answers["GET", "broker"] = 200, broker | {"dispatch": stopped}
    assert asked_of(planes, "broker", "list", "--json") == 1
    planes.answers["GET", "broker"] = 503, {"detail": "The engine is down"}
    assert asked_of(planes, "broker", "list") == 1
    assert "no broker is master" in capsys.readouterr().out
    planes.answers["GET", "broker"] = 404, {"title": "Not Found", "detail": "There is nothing at '/api/v1/broker'"}
    assert asked_of(planes, "broker", "list") == 1
    assert "this group has no brokers" in capsys.readouterr().err


def test_a_member_that_cannot_be_asked_is_not_denied_to_be_master(
    planes: Planes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took messages, its control plane stopped, and `broker list` said that no messages are taken."""
    planes.answers["GET", "broker"] = 200, examples()["get /api/v1/broker"]["response"] | {"role": "SLAVE"}
    works = broker_calls.control_answer

    def answer(method: str, url: str, *given: Any, **named: Any) -> Any:
        if url.endswith("/n1"):
            raise Unheard(Exit.UNREACHABLE, f"{url} says nothing", Silence.NO_WORD)
        return works(method, url, *given, **named)

    monkeypatch.setattr(broker_calls, "control_answer", answer)
    assert asked_of(planes, "broker", "list") != 0
    out = capsys.readouterr().out
    assert "no broker is master" not in out and "whether n1 has one is not known" in out


def test_members_that_want_no_token_are_looked_at_without_the_one_that_is_held(
    planes: Planes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the console's, say. What members only name gets no token, and is asked all the same."""
    monkeypatch.setenv("QUORUMSCOPE_TOKEN", "that-of-a-console-0123456789")
    assert asked_of(planes, "broker", "list") == 0
    assert "MASTER" in capsys.readouterr().out
    assert asked_of(planes, "topic", "list") == 0


def test_who_is_master_is_not_known_where_the_others_want_a_token_that_they_are_not_shown(
    planes: Planes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    planes.token = "an-operators-token-0123456789"
    monkeypatch.setenv("QUORUMSCOPE_TOKEN", planes.token)
    assert asked_of(planes, "broker", "list") == Exit.UNDETERMINED
    out = capsys.readouterr().out
    assert "no broker is master" not in out and "whether n1 has one is not known" in out
    assert f"only members name {planes.base}/n1: no token is shown there before --node names it" in out
    assert asked_of(planes, "topic", "list") == 0
    assert asked_of(planes, "topic", "create", "T") == Exit.FINDING, "n1 leads"
    assert f"only members name {planes.base}/n1" in capsys.readouterr().err
    assert not [who for who, _what, _body in planes.asked if who.endswith(" n1")], "none of them was answered"


def test_why_nobody_knows_whether_a_change_was_made_is_said_in_bounds(
    planes: Planes, capsys: pytest.CaptureFixture[str]
) -> None:
    planes.answers["PUT", "topics/T"] = 500, {"detail": "x" * 500_000}
    assert asked_of(planes, "topic", "create", "T") == Exit.UNKNOWN_OUTCOME
    assert len(capsys.readouterr().err) < 4000


def test_what_the_leader_has_is_shown_and_not_what_one_that_is_cut_off_has(planes: Planes) -> None:
    state = planes.answer("GET", "/n0/api/v1/state", None)[1]
    works = planes.answer

    def answer(method: str, path: str, body: Json | None) -> tuple[int, Json]:
        if path.endswith("/state"):
            planes.asked.append((f"{method} {path[1:3]}", "state", body))
            return 200, state | {"role": "LEADER" if path.startswith("/n1") else "CANDIDATE"}
        return works(method, path, body)

    planes.answer = answer  # type: ignore[method-assign]
    assert asked_of(planes, "consumer", "list") == 0
    assert [who for who, what, _ in planes.asked if what == "consumer-groups"] == ["GET n1"]


def test_a_change_goes_by_whichever_member_is_reached(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is asked first may be the one that is down; who may have done it is asked nothing twice."""
    [port] = free_ports(1)
    target = Target({}, "g", control_urls={"n9": f"http://127.0.0.1:{port}", "n0": f"{planes.base}/n0"})
    assert broker_calls.change(target, "DELETE", "topics/T")["deleted"]
    assert [who for who, _what, _body in planes.asked] == ["DELETE n0", "DELETE n1"]
    asked: list[str] = []

    def unheard(_method: str, url: str, *_: object, **__: object) -> tuple[int, Json]:
        asked.append(url)
        raise Unheard(Exit.UNKNOWN_OUTCOME, "no answer", Silence.NO_WORD)

    monkeypatch.setattr(broker_calls, "control_answer", unheard)
    with pytest.raises(Unheard):
        broker_calls.change(target, "DELETE", "topics/T")
    assert len(asked) == 1


def test_which_group_and_what_to_look_at_has_to_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", "--store", "nowhere"]) == 64
    assert run(["consumer", "list", "--peers", "n0-127.0.0.1:1"]) == 64
    assert "--node" in capsys.readouterr().err
