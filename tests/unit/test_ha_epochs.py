"""An epoch that a peer of a pair names is bounded as a member's term is: a lie, or a flipped bit, fences for ever."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.ha.asking import EpochTooFar, NoMaster, ask
from node.ha.frames import ASK, encode_report, slave_says
from node.ha.handshake import Hello, Stand, Verdict, hello_of
from node.ha.lineage import EPOCH_MAX, EPOCHS_AHEAD_MAX, PROMOTION, Lineage, parse_lineage
from node.ha.service import HAService
from node.ha.settings import BrokerRole, HaSettings
from node.ha.sockets import AcceptSocketService
from node.message_store.errors import MessageStoreError
from tests.unit.ha_kit import Pair, put

NEWEST = 3 * PROMOTION + 1
FAR = [NEWEST + EPOCHS_AHEAD_MAX + 1, 1 << 52, EPOCH_MAX]
NEVER = [EPOCH_MAX + 1, 1 << 62, 1 << 64, 10**400]


def _bits(epoch: int) -> str:
    return f"{epoch.bit_length()}-bits"


def lineage_of(pair: Pair, epoch: int, *, is_heard: bool) -> Lineage:
    own = pair.service.lineage
    return replace(own, heard=epoch) if is_heard else replace(own, epochs=(*own.epochs, (epoch, 0)))


def keeping(kept: list[int]) -> Callable[[int, Callable[[], None]], None]:
    def keep(epoch: int, then: Callable[[], None]) -> None:
        kept.append(epoch)
        then()

    return keep


def pair_of(root: Path, role: BrokerRole = BrokerRole.SYNC_MASTER) -> Pair:
    pair = Pair(root, role=role, lineage=Lineage("pair-1", ((1, 0), (NEWEST, 0))))
    put(pair.log, 1, 2)
    return pair


@pytest.mark.parametrize("epoch", NEVER, ids=_bits)
def test_a_number_that_is_no_epoch_is_not_read(epoch: int) -> None:
    for said in ({"pair": "p", "epochs": [[epoch, 0]]}, {"pair": "p", "epochs": [], "heard": epoch}):
        with pytest.raises(ValueError, match="no epoch"):
            parse_lineage(said)
    with pytest.raises(ValueError, match="no epoch"):
        parse_lineage({"pair": "p", "epochs": [[1, 1 << 63]]})


@pytest.mark.parametrize("role", list(BrokerRole))
@pytest.mark.parametrize("is_heard", [True, False])
@pytest.mark.parametrize("epoch", [*FAR, *NEVER], ids=_bits)
@pytest.mark.parametrize("slave", ["s1", ""])  # who connects, and who only asks
def test_an_epoch_too_far_above_is_neither_kept_nor_obeyed(
    tmp_path: Path, role: BrokerRole, is_heard: bool, epoch: int, slave: str
) -> None:
    pair = pair_of(tmp_path, role)
    kept: list[int] = []
    pair.service.on_heard = keeping(kept)
    before = pair.service.lineage
    connection = pair.service.accept("10.0.0.9:1", pair.clock())
    assert connection is not None
    said = hello_of(pair.log, lineage_of(pair, epoch, is_heard=is_heard), slave, "r").to_json()
    connection.receive(encode_report(ASK) + slave_says(said), pair.clock())
    assert not kept and not pair.fenced and not pair.service.fenced_by and pair.service.lineage == before
    assert not pair.service.acks()
    if epoch in FAR:
        assert str(EPOCHS_AHEAD_MAX) in connection.reason
        assert [one for one in pair.notes if one[:2] == ("ha_epoch_refused", "error")]


@pytest.mark.parametrize("ahead", [1, PROMOTION, EPOCHS_AHEAD_MAX])
def test_a_later_epoch_within_the_bound_fences_as_before(tmp_path: Path, ahead: int) -> None:
    pair = pair_of(tmp_path)
    slave = pair.slave(lineage=lineage_of(pair, NEWEST + ahead, is_heard=True)).connect()
    slave.carry()
    assert pair.fenced == [NEWEST + ahead]


@pytest.mark.parametrize("cuts_back", [True, False])
@pytest.mark.parametrize("epoch", FAR, ids=_bits)
def test_a_slave_follows_no_master_of_an_epoch_too_far_above(tmp_path: Path, epoch: int, cuts_back: bool) -> None:
    pair = Pair(tmp_path, replace(HaSettings(), cuts_back=cuts_back), lineage=Lineage("pair-1", ((epoch, 0),)))
    put(pair.log, 1, 2)
    for numbers in ((1,), (7, 8, 9)):  # one that is behind, one that forked
        slave = pair.slave(f"s{numbers[0]}", lineage=Lineage("pair-1", ((NEWEST, 0),)))
        end = put(slave.log, *numbers)
        slave.connect().carry()
        assert not slave.kept and slave.log.max_offset == end
        assert str(EPOCHS_AHEAD_MAX) in slave.client.trouble


@pytest.mark.parametrize("stand", [Stand.IN_STEP, Stand.BEHIND, Stand.FORKED])
def test_a_slave_with_messages_takes_over_no_epochs_of_another_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand: Stand
) -> None:
    """Of its own pair's epochs none is too far above those: two hellos moved it to the last one that there is."""
    pair = Pair(tmp_path, replace(HaSettings(), cuts_back=True), lineage=Lineage("pair-2", ((1, 0),)))
    end = put(pair.log, 1, 2)
    monkeypatch.setattr(pair.service, "judged", lambda _connection, _hello: Verdict(stand, "so", end))
    slave = pair.slave(lineage=Lineage("pair-1", ((NEWEST, 0),)))
    put(slave.log, 1, 2)
    slave.connect().carry()
    assert not slave.kept and slave.log.max_offset == end and slave.client.is_closed
    assert "pair-2" in slave.client.trouble and "pair-1" in slave.client.trouble


def test_a_slave_of_no_pair_yet_takes_its_first_master_as_it_is(tmp_path: Path) -> None:
    pair = Pair(tmp_path, lineage=Lineage("pair-1", ((FAR[1], 0),)))
    put(pair.log, 1, 2)
    slave = pair.slave().connect()
    slave.carry()
    assert slave.log.max_offset == pair.log.max_offset and slave.kept == [pair.service.lineage]


def test_an_epoch_that_begins_behind_its_masters_log_is_refused(tmp_path: Path) -> None:
    """A slave that kept it would be held to lack what no log has: no promotion without force."""
    pair = Pair(tmp_path, lineage=Lineage("pair-1", ((1, 0), (2, 1 << 62))))
    slave = pair.slave().connect()
    slave.carry()
    assert not slave.kept and "begins at" in slave.client.trouble


def test_whoever_is_asked_and_says_such_an_epoch_is_not_believed(tmp_path: Path) -> None:
    """Nothing is promoted above it, and no master starts, or goes on, as a slave for it."""

    async def story() -> None:
        liar = Pair(tmp_path, role=BrokerRole.SLAVE, lineage=Lineage("pair-1", ((1, 0),), heard=FAR[0]))
        accept = AcceptSocketService(liar.service)
        port = await accept.begin_accept("127.0.0.1", 0)
        own = Hello(Lineage("pair-1", ((NEWEST, 0),)), 0, 0, 4096)
        with pytest.raises(EpochTooFar, match=str(EPOCHS_AHEAD_MAX)):
            await ask(("127.0.0.1", port), own, None)
        await accept.close()

    asyncio.run(story())


def test_who_says_hello_and_is_gone_is_no_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed socket's write raised through whoever asked: a broker that starts, or is promoted."""

    class Gone(asyncio.StreamWriter):
        def is_closing(self) -> bool:
            return len(written) > 0

        def write(self, data: Any) -> None:
            if self.is_closing():
                raise RuntimeError("unable to perform operation on <TCPTransport>; the handler is closed")
            written.append(data)

    written: list[bytes] = []

    async def story() -> None:
        other = Pair(tmp_path, lineage=Lineage("pair-1", ((1, 0),)))
        connection = other.service.accept("10.0.0.9:1", other.clock())
        connection.receive(encode_report(ASK), other.clock())
        reader = asyncio.StreamReader()
        reader.feed_data(b"".join(iter(lambda: bytes(connection.next_bytes(other.clock())), b"")))
        reader.feed_eof()
        transport: Any = SimpleNamespace(close=lambda: None, is_closing=lambda: True)
        writer = Gone(transport, asyncio.Protocol(), None, asyncio.get_running_loop())  # type: ignore[arg-type]

        async def opened(*_: object, **__: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return reader, writer

        monkeypatch.setattr("node.ha.asking.open_streams", opened)
        with pytest.raises(NoMaster, match="closes the connection"):
            await ask(("127.0.0.1", 1), Hello(Lineage("pair-1", ((1, 0),)), 0, 0, 4096), None)

    asyncio.run(story())


def test_the_last_epoch_is_named_before_it_is_passed() -> None:
    last = Lineage("p", ((EPOCH_MAX - 1, 0),))
    assert last.begun("p", 0).epoch == EPOCH_MAX
    for is_promoted in (True, False):
        with pytest.raises(MessageStoreError, match="no epoch above"):
            replace(last, heard=EPOCH_MAX).begun("p", 0, is_promoted=is_promoted, above=EPOCH_MAX)


def test_drawn_epochs_move_a_broker_by_the_bound_at_most(tmp_path: Path) -> None:
    """Whatever is said, one hello brings a broker no further than the bound."""
    rng = random.Random(12)
    for number in range(300):
        pair = pair_of(tmp_path / str(number), rng.choice(list(BrokerRole)))
        service: HAService = pair.service
        kept: list[int] = []
        service.on_heard = keeping(kept)
        connection = service.accept("10.0.0.9:1", pair.clock())
        assert connection is not None
        epoch = max(1, (1 << rng.randrange(70)) + rng.randrange(-2, 3))
        said = hello_of(
            pair.log, lineage_of(pair, epoch, is_heard=rng.random() < 0.5), rng.choice(["", "s"]), "r"
        ).to_json()
        connection.receive(encode_report(ASK) + slave_says(said), pair.clock())
        for moved in (*kept, *pair.fenced):
            assert NEWEST < moved <= NEWEST + EPOCHS_AHEAD_MAX
