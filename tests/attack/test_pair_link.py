"""Attacks on the link between a pair's brokers, drawn from a seed (ATTACK_SEED has others drawn).

The slave's only way to its master is a relay that lies: it forges, alters, replays and reflects. Strangers reach the
brokers' own ports, and some have the secret. Afterwards the relay is honest, the slave is served as before, and neither
broker has moved: role, pair, epochs.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from app.demo.relay import Relay
from node.ha.asking import NoMaster, ask
from node.ha.client import proved_hello
from node.ha.frames import ASK, SAY, FrameReader, encode_header, encode_report, master_says, slave_says
from node.ha.handshake import Hello
from node.ha.lineage import EPOCH_MAX, EPOCHS_AHEAD_MAX, Lineage
from node.ha.proof import Proof
from node.rocketmq.codes import Answer
from tests.attack.remoting_kit import SECRET, WITHIN_S, drawn
from tests.process.classic_brokers import PROMOTE, ClassicBrokers

pytestmark = pytest.mark.process
LIES: Final = 3  # connections of the slave that each lie is told to
Lie = Callable[["Liar", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Said = dict[str, Any]


def far(rng: random.Random, newest: int) -> int:
    """An epoch that nobody may believe, or that is none."""
    return rng.choice(
        [newest + EPOCHS_AHEAD_MAX + rng.randrange(1, 1 << 20), EPOCH_MAX, EPOCH_MAX + 1, 1 << 62, 1 << 64, 10**300]
    )


def an_epoch(rng: random.Random, newest: int) -> int:
    """Also one that would be believed: of who proves the secret."""
    return rng.choice([newest + 1, newest + EPOCHS_AHEAD_MAX, far(rng, newest)])


def with_epoch(said: Said, epoch: int) -> Said:
    lineage = dict(said["lineage"])
    lineage["epochs"] = [*lineage["epochs"], [epoch, said["end"]]]
    return said | {"lineage": lineage}


class Liar(Relay):
    """A relay that does with a connection what `lie` does; None: it is honest, and keeps what the master said."""

    lie: Lie | None = None
    told = 0

    def __init__(self, target: tuple[str, int], rng: random.Random) -> None:
        super().__init__(target)
        self.rng = rng
        self.slaves_port = 0  # its own HA port
        self.newest = 0
        self.kept = b""

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.lie is None:
            await super()._accepted(reader, writer)
            return
        with suppress(OSError, EOFError, TimeoutError):
            async with asyncio.timeout(2):
                await self.lie(self, reader, writer)
                while await reader.read(1 << 16):  # what it makes of it
                    pass
        self.told += 1
        writer.close()

    async def upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, FrameReader]:
        reader, writer = await asyncio.open_connection(*self.target)
        writer.write(encode_report(ASK))
        return reader, writer, FrameReader()


async def said_by(reader: asyncio.StreamReader, frames: FrameReader) -> Said:
    """The next object of a master."""
    while data := await reader.read(1 << 16):
        for frame in frames.feed(data):
            if frame.said is not None:
                return frame.said
    raise EOFError


async def said_by_slave(reader: asyncio.StreamReader) -> Said:
    """The object behind its ASK, or the next one."""
    while int.from_bytes(await reader.readexactly(8), "big", signed=True) != SAY:
        pass
    found: Said = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    return found


def a_log(liar: Liar, offset: int) -> bytes:
    body = liar.rng.randbytes(liar.rng.randrange(1, 4096))
    return encode_header(offset, len(body)) + body


async def forged(liar: Liar, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A master without the secret."""
    rng = liar.rng
    far_reader, far_writer, frames = await liar.upstream()
    hello = with_epoch(await said_by(far_reader, frames), an_epoch(rng, liar.newest))
    far_writer.close()
    hello |= {"nonce": rng.randbytes(32).hex()}
    writer.write(master_says(hello))
    theirs = await said_by_slave(reader)
    verdict: Said = {
        "verdict": rng.choice(["in_step", "behind", "empty", "forked"]),
        "reason": "",
        "start": theirs["end"],
    }
    verdict |= rng.choice([{}, {"mac": rng.randbytes(32).hex()}, {"mac": theirs["mac"]}, {"mac": 7}])
    writer.write(master_says(verdict) + a_log(liar, theirs["end"]))


async def altered(liar: Liar, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The master's own words but for one, of the slave's or of the master's."""
    rng, where = liar.rng, liar.rng.choice(["hello", "slave", "verdict"])
    far_reader, far_writer, frames = await liar.upstream()
    hello = await said_by(far_reader, frames)
    if where == "hello":
        hello = rng.choice([with_epoch(hello, an_epoch(rng, liar.newest)), hello | {"end": hello["end"] + 1}])
    writer.write(master_says(hello))
    theirs = await said_by_slave(reader)
    if where == "slave":
        theirs = rng.choice(
            [with_epoch(theirs, an_epoch(rng, liar.newest)), theirs | {"slave": "c"}, theirs | {"run": "r"}]
        )
    far_writer.write(slave_says(theirs))
    try:
        verdict = await said_by(far_reader, frames)
        if where == "verdict":
            verdict |= rng.choice([{"start": 0}, {"verdict": "forked"}, {"reason": "another one"}])
        writer.write(master_says(verdict) + a_log(liar, verdict["start"]))
    finally:
        far_writer.close()


async def replayed(liar: Liar, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What was said, with its proof, to an earlier connection; and the slave's own words to the master again."""
    far_reader, far_writer, frames = await liar.upstream()
    writer.write(master_says(await said_by(far_reader, frames)))
    theirs = slave_says(await said_by_slave(reader))
    far_writer.write(theirs)
    verdict = master_says(await said_by(far_reader, frames))  # of a connection that is true so far
    far_writer.close()
    again_reader, again_writer, again = await liar.upstream()
    await said_by(again_reader, again)
    again_writer.write(theirs)
    with pytest.raises(EOFError):  # another nonce: no verdict
        await said_by(again_reader, again)
    again_writer.close()
    before, liar.kept = liar.kept, verdict
    writer.write((before or verdict[:-2]) + a_log(liar, 0))


async def reflected(liar: Liar, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The slave is given itself for its master, under a master's name."""
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", liar.slaves_port)
    frames = FrameReader()
    far_writer.write(encode_report(ASK))
    try:
        hello = await said_by(far_reader, frames)
        writer.write(master_says(hello | {"role": liar.rng.choice(["ASYNC_MASTER", "SYNC_MASTER"])}))
        far_writer.write(slave_says(await said_by_slave(reader)))
        writer.write(master_says(await said_by(far_reader, frames)))
    finally:
        far_writer.close()


class Pair(ClassicBrokers):
    """Master a, slave b; b reaches a through `liar` only."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        secret = directory / "secret"
        secret.write_bytes(SECRET + b"\n")
        secret.chmod(0o600)
        super().__init__(directory, "a", "b", **{"node.secret_file": str(secret), "ha.reconnect_ms": "50"})
        self.rng = rng
        self.liar = Liar(("127.0.0.1", self.ha["a"]), rng)
        self.links.relays["b", "a"] = self.liar
        self.liar.slaves_port = self.ha["b"]
        self.sent = 0

    async def begin(self) -> None:
        await self.start("a", "async_master")
        await self.start("b", "slave")
        await self.unharmed()
        self.before = await self.standing()
        self.liar.newest = self.before["a"][3]

    async def unharmed(self) -> None:
        """Messages are taken, and reach the slave."""
        assert await self.send("a", b"%d" % self.sent) == Answer.SUCCESS
        self.sent += 1
        await self.served("a", "b")
        await self.in_step("a")
        assert self.log_of("a") == self.log_of("b")

    async def standing(self) -> dict[str, Any]:
        """What nobody may move."""
        found: dict[str, Any] = {}
        for name in self.names:
            said = await self.view(name)
            kept = (self.directory / name / "quorumscope" / "ha").read_bytes()
            found[name] = said["role"], said["fenced_by_epoch"], said["pair"], said["epoch"], kept
        return found

    async def asked(self, name: str, epoch: int, secret: bytes) -> None:
        """As a broker that only asks, and names this epoch."""
        own = Hello(Lineage(self.before["a"][2], ((1, 0), (epoch, 0))), 0, 0, 1 << 18)
        with suppress(NoMaster):
            await ask(("127.0.0.1", self.ha[name]), own, Proof([secret]), WITHIN_S)


def story(tmp_path: Path, name: str, work: Callable[[Pair], Awaitable[None]]) -> None:
    async def run() -> None:
        pair = Pair(tmp_path, drawn(name))
        async with pair:
            await pair.begin()
            await work(pair)
            await pair.unharmed()
            assert await pair.standing() == pair.before

    asyncio.run(run())


def test_a_relay_that_lies_moves_neither_end(tmp_path: Path) -> None:
    async def work(pair: Pair) -> None:
        for lie in pair.rng.sample([forged, altered, replayed, reflected], 4):
            pair.liar.told, pair.liar.lie = 0, lie
            pair.liar.reset()
            async with asyncio.timeout(WITHIN_S):
                while pair.liar.told < LIES:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert (await pair.view("b"))["following"]["state"] != "transfer", lie.__name__
            assert await pair.send("a", b"while it lies") == Answer.SUCCESS
            pair.liar.lie = None
            await pair.unharmed()
            assert await pair.standing() == pair.before, lie.__name__

    story(tmp_path, "relay", work)


def test_strangers_at_both_ends_move_neither(tmp_path: Path) -> None:
    """Epochs that are drawn, promotions without the key, and the slave's place, wanted by another with the secret."""

    async def taken(pair: Pair) -> None:
        """The slave's id from another process that has the secret."""
        view = (await pair.view("a"))["connections"]
        reader, writer = await asyncio.open_connection("127.0.0.1", pair.ha["a"])
        writer.write(encode_report(ASK))
        frames = FrameReader()
        hello = await said_by(reader, frames)
        own = replace(Hello(Lineage(), 0, 0, 1 << 18), slave="b", run=pair.rng.randbytes(8).hex())
        writer.write(slave_says(dict(proved_hello(Proof([SECRET]), hello, own.to_json())[1])))
        verdict = await said_by(reader, frames)
        writer.close()
        assert verdict["verdict"] == "refused" and "is connected from" in verdict["reason"]
        still = {one["address"] for one in (await pair.view("a"))["connections"] if one["peer_id"] == "b"}
        assert {one["address"] for one in view if one["peer_id"] == "b"} <= still

    async def promoted(pair: Pair) -> None:
        rng = pair.rng
        asked: Any = {
            "key": rng.choice([None, 7, "", rng.randbytes(32).hex(), ["k"], "\ud800"]), "by": "\x1b[31m\n" * 99,
            "accept": ["lacks_bytes", "master_is_there", "no_pair"], "role": rng.choice([None, "SYNC_MASTER", "SLAVE"]),
            "dry_run": rng.choice([True, False]),
        }  # fmt: skip
        body = rng.choice([json.dumps(asked).encode(), rng.randbytes(100), b"[" * 16_384, b"", b"{}"])
        for name in pair.names:
            answer = await pair.ask(name, PROMOTE, {}, body)
            assert answer.code in (Answer.NO_PERMISSION, Answer.SYSTEM_ERROR)

    async def work(pair: Pair) -> None:
        newest = pair.liar.newest
        for _ in range(8):
            await promoted(pair)
            await taken(pair)
            for name in pair.names:
                await pair.asked(name, an_epoch(pair.rng, newest), pair.rng.randbytes(32))
                await pair.asked(name, far(pair.rng, newest), SECRET)
        for step in range(1, 9):  # as far as is believed each time, by one without the secret
            await pair.asked("a", newest + step * EPOCHS_AHEAD_MAX, pair.rng.randbytes(32))

    story(tmp_path, "strangers", work)
