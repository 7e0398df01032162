"""Engines that prove a shared secret to each other (SAFETY C7, C11), and strangers that try without it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.client import LedgerClient
from node.protocol.codes import RemotingCode, RequestCode, ResponseCode
from node.transport.remoting import FLAG_ONE_WAY, FLAG_RESPONSE, Frame, decode_frame, encode_frame
from node.transport.slab_frames import PUSH_ANSWER
from tests.process.group import START_WITHIN_S, Group, all_vote, append_surely
from tests.process.test_refusals import Wire, request

pytestmark = pytest.mark.process
FIRST, SECOND = "1a" * 32, "2b" * 32
TRIES = 5
UNEXPECTED = ResponseCode.UNEXPECTED_MEMBER


class SecretGroup(Group):
    """Each member has its own copy of the file; `secrets` says what is in it, None: it is not configured."""

    def __init__(self, directory: Path, secrets: str | None = FIRST) -> None:
        super().__init__(directory)
        self.secrets: dict[str, str | None] = dict.fromkeys(self.peers, secrets)
        self.modes = dict.fromkeys(self.peers, "required")

    def arguments(self, node_id: str, *more: str) -> list[str]:
        content = self.secrets[node_id]
        if content is None:
            return super().arguments(node_id, *more)
        path = self.directory / f"{node_id}.secret"
        path.touch(0o600)
        path.write_text(content)
        mode = f"node.secret={self.modes[node_id]}"
        return super().arguments(node_id, "--secret-file", str(path), "--set", mode, *more)


@pytest.fixture(scope="module")
def proving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretGroup]:
    """Three members that ask for the secret; a test leaves them running."""
    group = SecretGroup(tmp_path_factory.mktemp("secret"))
    try:
        group.start_all()

        async def ready(client: LedgerClient) -> None:
            index = await append_surely(client, b"first")
            await all_vote(client, group.peers)
            deadline = time.monotonic() + START_WITHIN_S
            while any([(await client.state(one))["log"]["committed_index"] < index for one in group.peers]):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)

        in_a_client(group, ready)
        yield group
    finally:
        group.close()


def in_a_client(group: Group, work: Any) -> Any:
    async def run() -> Any:
        client = group.client()
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def state_of(group: Group, member: str) -> dict[str, Any]:
    with Wire(group, member) as wire:
        state: dict[str, Any] = json.loads(wire.ask(request(RequestCode.INTROSPECT, {"what": "state"})).body)
    return state


def what_counts(group: Group, member: str) -> dict[str, Any]:
    """What a stranger must not change; the hard state is read from the disk."""
    state = state_of(group, member)
    hard = (group.directory / member / f"dledger-{member}" / "hardstate").read_bytes()
    log = {name: state["log"][name] for name in ("begin_index", "end_index", "committed_index")}
    return {name: state[name] for name in ("term", "leader_id", "alarms", "peers")} | {"hard": hard, "log": log}


def settled(group: Group, member: str) -> dict[str, Any]:
    """What counts once it stays: a group that has just begun connects, and learns of its members, for a while."""
    ends, found = time.monotonic() + START_WITHIN_S, what_counts(group, member)
    while True:
        time.sleep(0.3)
        now = what_counts(group, member)
        log = now["log"]
        if now == found and log["committed_index"] == log["end_index"] and all(
            one["connected"] for one in now["peers"] if one["id"] != member
        ):  # fmt: skip
            return now
        assert time.monotonic() < ends, (found, now)
        found = now


def changes_nothing(group: Group, attack: Callable[[], None]) -> None:
    """Of what counts at n0; where the group had an election of its own meanwhile, it is done again."""
    for _ in range(TRIES):
        before, ends = settled(group, "n0"), time.monotonic() + START_WITHIN_S
        attack()
        while (after := what_counts(group, "n0")) != before:  # a peer's connection may be new just now
            if (after["term"], after["leader_id"]) != (before["term"], before["leader_id"]):
                break
            assert time.monotonic() < ends, (before, after)
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"{TRIES} times something moved: {before}, {after}")


def hello_as(node_id: str, **more: Any) -> dict[str, Any]:
    """A whole HELLO, as somebody would write it who knows everything but the secret."""
    return {
        "code": 200, "group": "g", "localId": node_id, "node_id": node_id, "version_min": 1, "version_max": 2,
        "store_id": "stranger", "voter_state": "VOTER", "end_index": 5, "sealed_from": 0, "peers_hash": "x",
        "data_file_size": 4194304, "index_file_size": 1048576, "flush": "sync", "lease_reads": False, "term": 1,
        "life_ids": ["x"], "recorded": {},
    } | more  # fmt: skip


def forged(wire: Wire) -> list[int]:
    """The codes that a stranger gets for what only a member may say, from a term far above."""
    fields = {"group": "g", "leaderId": "n2", "localId": "n2", "remoteId": "n0", "term": 1000}
    answers = [
        wire.ask(request(RequestCode.HEART_BEAT, fields | {"commitIndex": 0})),
        wire.ask(request(RequestCode.VOTE, fields | {"ledgerEndIndex": 999, "ledgerEndTerm": 999})),
        wire.ask(request(RequestCode.READ_INDEX, fields)),
        wire.ask(request(RequestCode.SLAB_PUSH, bytes(200))),
    ]
    return [json.loads(answer.body)["code"] for answer in answers]


def test_a_stranger_that_says_hello_as_a_member_changes_nothing(proving: SecretGroup) -> None:
    def tries() -> None:
        with Wire(proving) as wire:
            answer = json.loads(wire.ask(request(RequestCode.HELLO, hello_as("n2"))).body)
            assert answer["code"] == UNEXPECTED and "store_id" not in answer
            assert wire.ended()
        with Wire(proving) as wire:
            assert forged(wire) == [UNEXPECTED] * 4

    changes_nothing(proving, tries)


def test_a_proof_is_asked_for_before_anything_is_told_and_what_is_no_proof_changes_nothing(
    proving: SecretGroup,
) -> None:
    def tries() -> None:
        with Wire(proving) as wire:
            answer = json.loads(wire.ask(request(RequestCode.HELLO, hello_as("n2", nonce="aa"))).body)
            assert answer["code"] == ResponseCode.SUCCESS and len(answer["mac"]) == 64
            assert not {"store_id", "end_index", "api_url", "life_ids", "term", "recorded"} & set(answer)
            assert forged(wire) == [UNEXPECTED] * 4  # a HELLO begun is none yet
            reflected = hello_as("n2", mac=answer["mac"])
            assert json.loads(wire.ask(request(RequestCode.PROOF, reflected)).body)["code"] == UNEXPECTED
            assert wire.ended()
        for nonsense in (b"", b"{", {"mac": 5}):
            with Wire(proving) as wire:
                wire.ask(request(RequestCode.HELLO, hello_as("n2", nonce="aa")))
                assert json.loads(wire.ask(request(RequestCode.PROOF, nonsense)).body)["code"] == UNEXPECTED
                assert wire.ended()
        with Wire(proving) as wire:  # a proof of nothing
            answer = json.loads(wire.ask(request(RequestCode.PROOF, hello_as("n2", mac="00"))).body)
            assert answer["code"] == UNEXPECTED

    changes_nothing(proving, tries)


def test_who_is_not_known_here_has_to_prove_the_secret_too(proving: SecretGroup) -> None:
    """It may be a member that this one's log does not know yet (SAFETY M3); without the proof it learns nothing."""

    def tries() -> None:
        with Wire(proving) as wire:
            answer = json.loads(wire.ask(request(RequestCode.HELLO, hello_as("n9", nonce="aa"))).body)
            assert answer["code"] == ResponseCode.SUCCESS and len(answer["mac"]) == 64
            assert not {"store_id", "end_index", "api_url", "life_ids", "term", "recorded"} & set(answer)
            assert forged(wire) == [UNEXPECTED] * 4
            reflected = hello_as("n9", mac=answer["mac"])
            assert json.loads(wire.ask(request(RequestCode.PROOF, reflected)).body)["code"] == UNEXPECTED
            assert wire.ended()

    changes_nothing(proving, tries)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group": "other"}, ResponseCode.UNKNOWN_GROUP),
        ({"node_id": "n0"}, ResponseCode.UNKNOWN_MEMBER),
        ({"nonce": 7}, ResponseCode.UNEXPECTED_ARGUMENT),
        ({"nonce": "a" * 1000}, ResponseCode.UNEXPECTED_ARGUMENT),
    ],
)
def test_who_cannot_be_a_member_gets_no_mac(proving: SecretGroup, changes: dict[str, Any], code: ResponseCode) -> None:
    with Wire(proving) as wire:
        answer = json.loads(wire.ask(request(RequestCode.HELLO, hello_as("n2", nonce="aa") | changes)).body)
        assert answer["code"] == code and "mac" not in answer and "peers" not in answer


def pretend_to_be_a_member(listener: socket.socket, said: list[int]) -> None:
    """Answers every HELLO as a member would that has no secret, and acknowledges whatever was not asked."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError, AssertionError):
            connection.settimeout(5)
            prefix = connection.recv(4, socket.MSG_WAITALL)
            asked = decode_frame(prefix + connection.recv(int.from_bytes(prefix, "big"), socket.MSG_WAITALL))
            said.append(len(set(json.loads(bytes(asked.body))) & {"store_id", "end_index", "api_url", "life_ids"}))
            durable = PUSH_ANSWER.pack(200, 1, 1, 10**6, 10**6, 10**6, -1, -1)
            ack = Frame(RequestCode.SLAB_PUSH, -1, durable, FLAG_RESPONSE | FLAG_ONE_WAY)
            body = json.dumps(hello_as("n2", nonce="bb", mac="0" * 64)).encode()
            hello = Frame(RemotingCode.SUCCESS, asked.opaque, body, FLAG_RESPONSE)
            connection.sendall(encode_frame(ack) + encode_frame(hello) + encode_frame(ack))
            connection.recv(1)


def test_what_answers_at_a_members_address_without_the_secret_is_told_nothing_and_counts_for_nothing(
    tmp_path: Path,
) -> None:
    group = SecretGroup(tmp_path)
    try:
        group.start("n0", "n1")
        in_a_client(group, lambda client: append_surely(client, b"x"))
        host, _, port = group.peers["n2"].rpartition(":")
        reported: list[int] = []
        with socket.create_server((host, int(port))) as listener:
            threading.Thread(target=pretend_to_be_a_member, args=(listener, reported), daemon=True).start()
            until_alarms(group, "n0", ["unproven_member"])
            peer = next(one for one in state_of(group, "n0")["peers"] if one["id"] == "n2")
            assert (peer["connected"], peer["store_id"]) == (False, None)
            group.kill("n1")  # what is left is no quorum, whatever the stranger acknowledges
            deadline = time.monotonic() + START_WITHIN_S
            while state_of(group, "n0")["leader_id"] is not None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            listener.shutdown(socket.SHUT_RDWR)
        assert reported and not any(reported)
        group.start("n1")
        until_alarms(group, "n0", [])
    finally:
        group.close()


def until_alarms(group: Group, member: str, expected: list[str]) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while (found := [one["code"] for one in state_of(group, member)["alarms"]]) != expected:
        assert time.monotonic() < deadline, f"{member} says {found}, not {expected}"
        time.sleep(0.05)


def restart(group: SecretGroup, member: str) -> None:
    group.kill(member)
    group.start(member)


INTRODUCED = [("optional", f"{FIRST}\n{SECOND}")]
CHANGED = [("required", f"{SECOND}\n{FIRST}"), ("required", SECOND)]


@pytest.mark.parametrize("steps", [INTRODUCED, pytest.param(INTRODUCED + CHANGED, marks=pytest.mark.long)])
def test_a_group_gets_a_secret_and_changes_it_while_it_runs(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    """Member by member: the first secret is introduced and the second taken; that is proved; the first is dropped."""
    group = SecretGroup(tmp_path, None)
    try:
        group.start_all()

        async def work(client: LedgerClient) -> None:
            await append_surely(client, b"before")
            await all_vote(client, group.peers)
            for mode, content in steps:
                for member in group.peers:
                    group.modes[member], group.secrets[member] = mode, content
                    await asyncio.to_thread(restart, group, member)
                    await append_surely(client, f"{mode} {member}".encode())
                    await all_connected(client, group)
                    if (mode, member) == ("optional", "n1"):
                        await asyncio.to_thread(until_alarms, group, "n0", ["unproven_member"])
                        (alarm,) = (await client.state("n0"))["alarms"]
                        assert alarm["peer_id"] == "n2", "the one that has no secret yet"
                for member in group.peers:
                    await asyncio.to_thread(until_alarms, group, member, [])

        in_a_client(group, work)
    finally:
        group.close()


async def all_connected(client: LedgerClient, group: Group) -> None:
    """Every member has a connection to every other."""
    deadline = time.monotonic() + START_WITHIN_S
    waiting = list(group.peers)
    while waiting:
        peers = (await client.state(waiting[-1]))["peers"]
        if all(peer["connected"] for peer in peers):
            waiting.pop()
            continue
        assert time.monotonic() < deadline, f"{waiting[-1]} is not connected with all: {peers}"
        await asyncio.sleep(0.05)


def test_a_member_with_another_secret_is_kept_out(tmp_path: Path) -> None:
    group = SecretGroup(tmp_path)
    group.secrets["n2"] = SECOND
    try:
        group.start_all()
        in_a_client(group, lambda client: append_surely(client, b"x"))
        for member, peers in (("n0", ["n2"]), ("n2", ["n0", "n1"])):
            until_alarms(group, member, ["unproven_member"] * len(peers))
        assert state_of(group, "n2")["voter_state"] == "FORMING"
        assert state_of(group, "n2")["log"]["end_index"] == -1
    finally:
        group.close()


@pytest.mark.parametrize("how", ["missing", "readable", "short"])
def test_a_bad_secret_file_is_one_line(tmp_path: Path, how: str) -> None:
    group = SecretGroup(tmp_path)
    arguments = group.arguments("n0")
    path = tmp_path / "n0.secret"
    if how == "missing":
        path.unlink()
    elif how == "readable":
        path.chmod(0o644)
    else:
        path.write_text("short")
    process = group.spawn(arguments)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode in (3, 64)
    assert len(stderr.strip().splitlines()) == 1 and "secret" in stderr
    assert not (tmp_path / "n0" / "dledger-n0" / "data").exists()


def test_init_makes_the_secret_when_it_is_asked_to(tmp_path: Path) -> None:
    group = Group(tmp_path)
    path = tmp_path / "secret"
    process = group.processes["n0"] = group.spawn(group.arguments("n0", "--secret-file", str(path), "--make-secret"))
    try:
        assert process.stdout is not None and json.loads(process.stdout.readline())["event"] == "ready"
        assert path.stat().st_mode & 0o777 == 0o600 and len(path.read_text().strip()) == 64
    finally:
        group.close()
