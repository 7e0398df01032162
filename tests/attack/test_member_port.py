"""Attacks on the member port (SAFETY C7, C10, C11, E10), drawn from a seed (ATTACK_SEED has others drawn).

Each leaves the group as it was: no term moved, nothing forged in the log, no engine ended, clients and members in.
Facts are waited for, never times: where a busy machine had an election of its own meanwhile, the attack is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import struct
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from node.access_rows import ALL, Right
from node.client import Denied, LedgerClient, LedgerError
from node.protocol.codes import RequestCode, ResponseCode
from tests.attack.leading import keeping_the_leader
from tests.attack.memory import Memory
from tests.process.group import Group, append_surely
from tests.process.test_refusals import Wire, request
from tests.process.test_secret import SecretGroup, forged, hello_as
from tests.process.undisturbed import TERM_STEP, WITHIN_S, begun, quietly, settled, standing, until

pytestmark = pytest.mark.process
SEED = int(os.environ.get("ATTACK_SEED", 12))  # `make prove` draws others
# Counted are 48 MiB; the rest is what a busy leader takes beside them.
UNFINISHED_MIB = 96
LEFT_MIB = 32
DESCRIPTORS = 300
Make = Callable[[random.Random], bytes]


def drawn(name: str) -> random.Random:
    print(f"ATTACK_SEED={SEED} ({name})")
    return random.Random(f"{SEED} {name}")


class FewDescriptors(SecretGroup):
    """Members that prove a secret, each with as many descriptors as a shell with `ulimit -n 300` gives."""

    def spawn(self, arguments: list[str], module: str | None = None) -> subprocess.Popen[str]:
        process = super().spawn(arguments, module)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        return process


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecretGroup]:
    with begun(FewDescriptors(tmp_path_factory.mktemp("attacked"))) as group:
        yield group


def connected(group: Group, member: str) -> socket.socket:
    host, _, port = group.peers[member].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=WITHIN_S)


# --- without the secret ---------------------------------------------------------------------------------------------


def test_no_stranger_becomes_a_member_moves_a_term_or_has_entries_taken(attacked: SecretGroup) -> None:
    rng = drawn("forged")

    async def attack(client: LedgerClient) -> None:
        begins = (await standing(attacked, client))["n0"][0]
        for _ in range(rng.randrange(4, 8)):
            victim, mask = rng.sample(list(attacked.peers), 2)
            term = begins + rng.choice([1, TERM_STEP - 1, TERM_STEP, 7 * TERM_STEP, (1 << 61)])
            with Wire(attacked, victim) as wire:
                nonce = {"nonce": rng.randbytes(32).hex()} if rng.random() < 0.5 else {}
                hello = hello_as(mask, term=term, end_index=rng.randrange(1 << 40)) | nonce
                answer = json.loads(wire.ask(request(RequestCode.HELLO, hello)).body)
                assert "store_id" not in answer and "term" not in answer
                if nonce:  # offered a proof; what a member may say is refused all the same
                    assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}
                    proof = hello | {"mac": rng.randbytes(32).hex()}
                    answer = json.loads(wire.ask(request(RequestCode.PROOF, proof)).body)
                    assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER
                assert wire.ended()
            with Wire(attacked, victim) as wire:
                heartbeat = {"group": "g", "leaderId": mask, "localId": mask, "remoteId": victim, "term": term}
                answer = json.loads(wire.ask(request(RequestCode.HEART_BEAT, heartbeat)).body)
                assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER
                assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}

    quietly(attacked, attack)


def test_a_reflected_or_replayed_proof_proves_no_member(attacked: SecretGroup) -> None:
    rng = drawn("proofs")

    async def attack(_client: LedgerClient) -> None:
        for _ in range(rng.randrange(2, 5)):
            victim, mask = rng.sample(list(attacked.peers), 2)
            hello = hello_as(mask) | {"nonce": rng.randbytes(32).hex()}
            with Wire(attacked, victim) as wire:
                offered = json.loads(wire.ask(request(RequestCode.HELLO, hello)).body)
                assert "mac" in offered and "store_id" not in offered and "end_index" not in offered
                reflected = hello | {"mac": offered["mac"]}  # the accepter's own proof, sent back
                answer = json.loads(wire.ask(request(RequestCode.PROOF, reflected)).body)
                assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER and wire.ended()
            with Wire(attacked, victim) as wire:  # the same words on another connection
                again = json.loads(wire.ask(request(RequestCode.HELLO, hello)).body)
                assert again["mac"] != offered["mac"]
                answer = json.loads(wire.ask(request(RequestCode.PROOF, reflected)).body)
                assert answer["code"] == ResponseCode.UNEXPECTED_MEMBER

    quietly(attacked, attack)


# --- floods ---------------------------------------------------------------------------------------------------------


def silence(_rng: random.Random) -> bytes:
    return b""


def half_a_head(rng: random.Random) -> bytes:
    return struct.pack(">iI", 1000, 100)[: rng.randrange(1, 8)]


def half_a_frame(rng: random.Random) -> bytes:
    return struct.pack(">iI", rng.randrange(1 << 16, 1 << 24), 100) + bytes(rng.randrange(1, 1 << 15))


def a_long_claim(rng: random.Random) -> bytes:
    """Enough of a long frame that memory is taken for all of it."""
    return struct.pack(">iI", 4 << 20, 100) + bytes(rng.randrange(1 << 17, 1 << 18))


def a_valid_request(_rng: random.Random) -> bytes:
    return request(RequestCode.METADATA, {"group": "g"})


KINDS: tuple[Make, ...] = (silence, half_a_head, half_a_frame, a_long_claim, a_valid_request)


def flood(group: Group, count: int, rng: random.Random, kinds: tuple[Make, ...]) -> None:
    """More connections than there are descriptors: clients and a restarted member get in all the same, and the leader
    and its term stay."""

    async def attack(client: LedgerClient) -> None:
        leader = await settled(group, client)
        follower = rng.choice([one for one in group.peers if one != leader])
        before = (await client.state(leader))["boot_id"]
        opened: list[socket.socket] = []
        try:
            for _ in range(count):
                one = connected(group, leader)
                opened.append(one)
                one.setblocking(False)
                with contextlib.suppress(OSError):  # its place went to another one already, or it is not read from
                    one.send(rng.choice(kinds)(rng))
            newcomer = group.client(deadline_s=WITHIN_S)
            try:
                await newcomer.append(b"in spite of it")
            finally:
                await newcomer.close()
            group.kill(follower)
            group.start(follower)  # not in a thread: it would end with that
            index = await append_surely(client, b"with a member that came back", WITHIN_S)

            async def caught_up() -> bool:
                return bool((await client.state(follower))["log"]["committed_index"] >= index)

            await until(caught_up)
            states: list[dict[str, Any]] = []

            async def seen() -> bool:
                states.append(await client.state(leader))
                return sum(states[-1]["connections"]["ended"].values()) >= count - DESCRIPTORS

            await until(seen)
            assert states[-1]["boot_id"] == before, "its engine ended"
            assert states[-1]["connections"]["limit"] < DESCRIPTORS
        finally:
            for one in opened:
                one.close()

        async def as_before() -> bool:
            return bool((await client.state(leader))["connections"]["unproven"] == 0)

        await until(as_before)

    keeping_the_leader(group, attack)


def test_more_connections_than_descriptors_leave_the_leader_and_let_others_in(attacked: SecretGroup) -> None:
    flood(attacked, 400, drawn("flood"), KINDS)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_two_thousand_of_each_kind_do_so_too(attacked: SecretGroup, kind: Make) -> None:
    flood(attacked, 2000, drawn(kind.__name__), (kind,))


def test_unfinished_frames_take_a_bounded_memory(attacked: SecretGroup) -> None:
    """Thirty frames of 4 to 16 MiB, all but their end, took 490 MB: now 35 to 47 MiB, all of it freed again; and the
    leader and its term stay."""
    rng = drawn("memory")

    async def attack(client: LedgerClient) -> None:
        leader = await settled(attacked, client)
        opened: list[socket.socket] = []
        with Memory(attacked.processes[leader].pid) as memory:
            await send_unfinished(client, leader, opened)

            async def freed() -> bool:
                return memory.now_mib() < LEFT_MIB

            await until(freed)
        print(f"{memory.most_mib:.0f} MiB more at most, {memory.now_mib():.0f} MiB after it")
        assert memory.most_mib < UNFINISHED_MIB

    async def send_unfinished(client: LedgerClient, leader: str, opened: list[socket.socket]) -> None:
        try:
            for _ in range(30):
                one = connected(attacked, leader)
                opened.append(one)
                with contextlib.suppress(OSError):  # it is not read from, or ended
                    if rng.random() < 0.5:  # with a client's place
                        one.sendall(a_valid_request(rng))
                        one.recv(1)
                    one.settimeout(0.2)
                    size = rng.randrange(4 << 20, 16 << 20)
                    one.sendall(struct.pack(">iI", size, 100) + bytes(size - 100))
            await append_surely(client, b"in spite of it", WITHIN_S)
        finally:
            for one in opened:
                one.close()

    keeping_the_leader(attacked, attack)


# --- small requests of much work ------------------------------------------------------------------------------------


def test_small_requests_of_much_work_are_refused_and_move_no_leader(attacked: SecretGroup) -> None:
    rng = drawn("work")

    async def attack(client: LedgerClient) -> None:
        leader = await client.leader()
        with Wire(attacked, leader) as wire:
            wire.socket.settimeout(WITHIN_S)
            for _ in range(3):
                count = rng.randrange(20_000, 400_000)
                in_json = b'{"group":"g","batchMsgs":[' + b'"",' * count + b'""]}'
                answer = json.loads(wire.ask(request(RequestCode.APPEND, in_json)).body)
                assert answer["code"] == ResponseCode.UNEXPECTED_ARGUMENT
                packed = struct.pack(">iqI", 0, -1, count) + bytes(4 * count)
                (code,) = struct.unpack_from(">i", wire.ask(request(RequestCode.FAST_APPEND, packed)).body)
                assert code == ResponseCode.UNEXPECTED_ARGUMENT
            asked = rng.randrange(100, 300)
            wire.socket.sendall(request(RequestCode.INTROSPECT, {"what": "state"}) * asked)
            for _ in range(asked):
                wire.answer()

    quietly(attacked, attack)


# --- rights ---------------------------------------------------------------------------------------------------------


CALLS: dict[Right, Callable[[LedgerClient], Awaitable[Any]]] = {
    Right.APPEND: lambda client: append_surely(client, b"mine", WITHIN_S),
    Right.READ: lambda client: client.read(0, 1),
    Right.OBSERVE: lambda client: client.state("n0"),
    Right.OPERATE: lambda client: client.transfer("n9"),  # nobody's name: who has the right is refused for that
}


def rights_in_words(rights: Right) -> str:
    return " + ".join(one.name.lower() for one in CALLS if one in rights and one.name) or "nothing"


@pytest.mark.long
def test_a_client_with_rights_is_no_member_and_one_without_is_nothing(tmp_path: Path) -> None:
    """Each row has rights that are drawn; who shows its token may do what they say and nothing else, in any order."""
    rng = drawn("rights")
    tokens = {name: f"{name}-{rng.randbytes(12).hex()}" for name in ("own", "app", "tool", "robot")}
    for name, token in tokens.items():
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(token)
    given = {name: Right(rng.randrange(int(ALL) + 1)) for name in ("app", "tool", "robot", "anonymous")}
    print({name: rights_in_words(rights) for name, rights in given.items()})
    rows = ",".join(
        f"{name if name == 'anonymous' else f'token {tmp_path / name}'} = {rights_in_words(rights)}"
        for name, rights in given.items()
    )

    class Rows(SecretGroup):
        def arguments(self, node_id: str, *more: str) -> list[str]:
            sets = ("--set", f"node.token_file={tmp_path / 'own'}", "--set", f"access.rows={rows}")
            return super().arguments(node_id, *sets, *more)

    group = Rows(tmp_path)

    async def attack() -> None:
        for _ in range(3):
            for name in rng.sample(sorted(given), len(given)):
                token = tokens.get(name, rng.choice(["", tokens["app"][:-1], tokens["own"].upper()]))
                may = given[name] | given["anonymous"]
                client = group.client(token=token)
                try:
                    for needed in rng.sample(list(CALLS), len(CALLS)):
                        said = f"{name} ({rights_in_words(may)}): {needed.name}"
                        try:
                            await CALLS[needed](client)
                        except Denied:
                            assert needed not in may, said
                        except LedgerError:
                            assert needed is Right.OPERATE and needed in may, said
                        else:
                            assert needed in may, said
                finally:
                    await client.close()

    try:
        group.start_all()

        async def begun() -> None:
            client = group.client(token=tokens["own"])
            await append_surely(client, b"the first", WITHIN_S)
            await client.close()

        asyncio.run(begun())
        asyncio.run(attack())
        for _ in range(3):
            with Wire(group, rng.choice(list(group.peers))) as wire:
                assert set(forged(wire)) == {ResponseCode.UNEXPECTED_MEMBER}
    finally:
        group.close()
