"""Both of our ends together: the handshake's cases, acknowledgements, puts that wait, and input that is refused."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path

import pytest

from node.ha import connection as ha_connection
from node.ha.client import Kept, State
from node.ha.connection import Phase
from node.ha.frames import encode_header, master_says, slave_says
from node.ha.handshake import Stand
from node.ha.lineage import PROMOTION, Lineage, lineage_path, parse_lineage, read_lineage, write_lineage
from node.ha.service import TROUBLE_MS
from node.ha.settings import BrokerRole, HaSettings
from node.message_store.errors import MessageStoreError
from node.message_store.local_log import LocalCommitLog
from node.message_store.put_result import PutStatus
from node.message_store.write_files import OsDisk
from node.protocol.entry import BytesLike
from tests.unit.ha_kit import FILE_BYTES, Pair, Slave, content, put

CUTS = HaSettings(cuts_back=True)


def same(slave: Slave) -> bool:
    return content(slave.log) == content(slave.pair.log) and slave.log.min_offset == slave.pair.log.min_offset


@pytest.mark.parametrize("seed", range(5))
def test_an_empty_slave_gets_everything_from_the_masters_begin(seed: int, tmp_path: Path) -> None:
    """Oddity 8: not only its last file. In pieces of any length, records larger than a batch among them."""
    rng = random.Random(seed)
    pair = Pair(tmp_path)
    pair.pieces = lambda: rng.randrange(1, 3000)
    put(pair.log, *range(100))
    slave = pair.slave().connect()
    slave.carry()
    assert slave.client.stand is Stand.EMPTY and same(slave)
    assert slave.connection is not None and slave.connection.slave_ack_offset == pair.log.max_offset
    put(pair.log, *range(100, 120))
    slave.carry()
    assert same(slave)
    assert slave.kept == [pair.service.lineage]


def test_a_batch_of_32_kib_ends_between_records(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.log = LocalCommitLog(tmp_path / "large", 1 << 20)
    pair.service.log = pair.log
    put(pair.log, *range(1000))
    put(pair.log, 1, body_bytes=100_000)
    connection = pair.service.accept("10.0.0.1:1", 0)
    assert connection is not None
    connection.receive(struct.pack(">q", 0), 0)
    sizes = []
    place = 0
    while data := connection.next_bytes(0):
        offset, size = struct.unpack_from(">qi", data)
        assert offset == place and pair.log.border_flaw(offset) == "" and len(data) == 12 + size
        sizes.append(size)
        place += size
    assert place == pair.log.max_offset and max(sizes) > 100_000
    assert all(32_768 - 300 < one <= 32_768 for one in sizes[:3])


@pytest.mark.parametrize("apart_bytes", [1, 1_000])
def test_a_long_frames_head_leaves_before_its_body(
    apart_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """The stream is the same, and nothing comes between the two."""
    rng = random.Random(7)
    pair = Pair(tmp_path)
    pair.pieces = lambda: rng.randrange(1, 3000)
    put(pair.log, *range(100))
    monkeypatch.setattr(ha_connection, "APART_BYTES", apart_bytes)
    slave = pair.slave().connect()
    slave.carry()
    put(pair.log, *range(100, 103))  # a new file is begun
    slave.carry()
    assert same(slave)
    put(pair.log, 103, body_bytes=2_000)
    assert slave.connection is not None
    head = bytes(slave.connection.next_bytes(pair.clock()))
    offset, size = struct.unpack_from(">qi", head)
    assert offset == slave.log.max_offset and len(head) == 12
    slave.connection.writing.say({"a": 1})
    body, said = slave.connection.next_bytes(pair.clock()), slave.connection.next_bytes(pair.clock())
    assert body == pair.log.read(offset, size) and said == master_says({"a": 1})
    slave.client.receive(head, pair.clock())
    slave.client.receive(bytes(body), pair.clock())
    assert slave.log.max_offset == offset + size


def test_a_slave_that_lacks_what_was_removed_is_not_kept_as_one_that_is_served(tmp_path: Path) -> None:
    """A full disk removed what it had not got: it was sent heartbeats for ever, and counted as connected."""
    pair = Pair(tmp_path)
    put(pair.log, *range(10))
    slave = pair.slave().connect()
    slave.carry()
    put(pair.log, *range(10, 200))
    pair.log.flush()
    assert pair.log.remove_below(pair.log.starts[2])
    slave.carry()
    assert slave.connection is not None and slave.connection.is_closed
    assert f"begins at {pair.log.min_offset} now" in slave.connection.closed_by
    slave.reconnect()
    assert slave.client.stand is Stand.REFUSED and "it needs an empty directory" in pair.service.troubles["s1"]


def test_in_step_and_behind(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, *range(10))
    slave = pair.slave().connect()
    slave.carry()
    slave.reconnect()
    assert slave.client.stand is Stand.IN_STEP and slave.connection and slave.connection.slave_ack_offset > 0
    slave.disconnect()
    put(pair.log, *range(10, 60))
    slave.connect()
    slave.carry()
    assert slave.client.stand is Stand.BEHIND and same(slave)


def test_oddity_9_the_first_report_leaves_at_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, 1, 2, 3)
    slave = pair.slave().connect()
    slave.carry()
    slave.reconnect()
    assert slave.connection is not None and slave.connection.slave_ack_offset == pair.log.max_offset
    assert pair.clock.ms == 1_000_000, "no time went by"


def test_ahead_is_refused_or_cut_back_with_a_copy(tmp_path: Path) -> None:
    """Oddity 7: a slave ahead of its master stays connected silently, until its log is spoiled."""
    pair = Pair(tmp_path)
    end = put(pair.log, *range(40))
    slave = pair.slave().connect()
    slave.carry()
    slave.disconnect()
    put(slave.log, *range(1000, 1007))
    before = content(slave.log)
    slave.connect()
    slave.carry()
    assert slave.client.state is State.CLOSED and slave.client.trouble.startswith("ahead: it ends at")
    assert content(slave.log) == before and "s1" in pair.service.troubles
    cuts = Slave(pair, "s1", "r1", log=slave.log, settings=CUTS, lineage=slave.kept[-1])
    pair.service.remove(slave.connection)  # type: ignore[arg-type]
    cuts.connect().carry()
    assert "cut back" in cuts.client.closed_by and cuts.log.max_offset == end
    kept = b"".join(one.read_bytes() for one in sorted((tmp_path / "s1/quorumscope/cut").iterdir()))
    assert kept == before[-len(kept) :] and len(kept) == len(before) - end
    cuts.reconnect()
    assert cuts.client.stand is Stand.IN_STEP and same(cuts) and pair.service.troubles == {}


def test_a_full_disk_hides_no_other_reason(tmp_path: Path) -> None:
    """A slave that held more than its master, or another pair's log, was said to lack room, and nothing else."""
    pair = Pair(tmp_path)
    put(pair.log, *range(40))
    slave = pair.slave().connect()
    slave.carry()
    slave.store.full = "the disk is full"
    slave.reconnect()
    assert (slave.client.trouble, slave.client.stand) == ("the disk is full", None)
    assert pair.service.troubles["s1"] == "it takes nothing now: the disk is full"
    put(slave.log, *range(1000, 1007))
    slave.reconnect()
    assert slave.client.trouble.startswith("ahead: it ends at") and slave.client.stand is Stand.AHEAD
    assert pair.service.troubles["s1"].startswith("it ends at")
    other = pair.slave("s2", lineage=Lineage("another pair", ((1, 0),)))
    put(other.log, *range(50, 60))
    other.store.full = "the disk is full"
    other.connect().carry()
    assert other.client.trouble.startswith("stranger")


@pytest.mark.parametrize("common", [1, 3, 40, 90, 200])
@pytest.mark.parametrize("more", [(1, 1), (3, 50), (50, 3), (120, 120)])
def test_forked_logs_are_cut_back_to_the_last_common_record(common: int, more: tuple[int, int], tmp_path: Path) -> None:
    pair = Pair(tmp_path, CUTS)
    end = put(pair.log, *range(common))
    slave = pair.slave().connect()
    slave.carry(2000)
    slave.disconnect()
    put(pair.log, *range(2000, 2000 + more[0]))
    put(slave.log, *range(3000, 3000 + more[1]))
    slave.connect()
    slave.carry(2000)
    blank = -end % FILE_BYTES  # the same in both where the file was full, and then common too
    assert "cut back" in slave.client.closed_by and slave.log.max_offset in (end, end + blank)
    slave.reconnect()
    slave.carry(2000)
    assert same(slave) and slave.client.stand in (Stand.BEHIND, Stand.EMPTY)


def test_a_large_log_that_forked_early_is_searched_in_a_few_rounds(tmp_path: Path) -> None:
    for name in ("master", "s1"):
        log = LocalCommitLog(tmp_path / name, 1 << 22)
        put(log, *range(500))
        end = log.max_offset
        put(log, *(range(10_000) if name == "master" else range(20_000, 30_000)), body_bytes=200)
    pair = Pair(tmp_path / "other", CUTS)
    pair.log = pair.service.log = LocalCommitLog(tmp_path / "master", 1 << 22)
    slave = Slave(pair, "s1", "r1", log=LocalCommitLog(tmp_path / "s1", 1 << 22)).connect()
    slave.carry(40)
    assert slave.log.max_offset == end and "cut back" in slave.client.closed_by


def test_a_stranger_is_refused_and_keeps_its_log(tmp_path: Path) -> None:
    pair = Pair(tmp_path, CUTS)
    put(pair.log, *range(10))
    slave = pair.slave(lineage=Lineage("another pair", ((1, 0),)))
    put(slave.log, *range(50, 60))
    before = content(slave.log)
    slave.connect().carry()
    assert slave.client.trouble.startswith("stranger") and content(slave.log) == before
    other = pair.slave("s2")  # one without a pair, none of whose records is the master's
    put(other.log, *range(70, 75))
    other.connect().carry()
    assert "nothing in this log agrees" in other.client.trouble and other.log.max_offset > 0


def test_a_slave_of_other_files_or_too_far_behind_is_refused(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, *range(200))
    other = LocalCommitLog(tmp_path / "other", FILE_BYTES * 2)
    put(other, *range(3))
    assert "files have 8192" in _trouble(pair.slave("other", log=other))
    late = pair.slave("late")
    put(late.log, *range(3))
    pair.log.save()
    pair.log.remove_below(pair.log.starts[2])
    assert "needs an empty directory" in _trouble(late)
    assert set(pair.service.troubles) == {"other", "late"}


def _trouble(slave: Slave) -> str:
    slave.connect().carry()
    assert slave.client.state is State.CLOSED
    return slave.client.trouble


def test_oddity_17_acknowledgements_count_per_slave_not_per_connection(tmp_path: Path) -> None:
    pair = Pair(tmp_path, HaSettings(in_sync_replicas=3))
    first, again = pair.slave("s1"), None
    first.connect("10.0.0.2:1").carry()
    again = Slave(pair, "s1", "r1", log=first.log)
    again.connect("10.0.0.2:2").carry()
    second_process = pair.slave("s1", "another run", log=first.log)
    second_process.connect("10.0.0.3:1").carry()
    assert "is connected from" in second_process.client.trouble
    java = [pair.service.accept(f"10.0.0.7:{port}", pair.clock()) for port in (1, 2)]
    for one in java:
        assert one is not None
        one.receive(struct.pack(">q", 0), pair.clock())
    assert set(pair.service.acks()) == {"s1", "java:10.0.0.7"}
    assert first.connection is not None and first.connection.phase is Phase.CLOSED


def test_a_disk_that_gets_room_while_its_slave_is_judged_is_no_other_trouble(tmp_path: Path) -> None:
    """It was said once more, as if its master had refused it for a reason of its own."""
    pair = Pair(tmp_path)
    put(pair.log, *range(5))
    slave = pair.slave()
    slave.store.full = "the disk is full"
    slave.connect().carry()
    slave.connect()
    assert slave.connection is not None
    for _ in range(2):  # up to its hello, and not the verdict
        slave.connection.receive(slave.client.next_bytes(pair.clock()), pair.clock())
        if slave.client.state is State.ASKED:
            slave.client.receive(bytes(slave.connection.next_bytes(pair.clock())), pair.clock())
    assert slave.client.state is State.SAID
    slave.store.full = ""
    slave.carry()
    slave.connect().carry()
    assert slave.client.state is State.TRANSFER and same(slave)
    assert [kind for kind, _severity, _text in pair.notes if kind.startswith("ha_not") or kind == "ha_served"] == [
        "ha_not_served", "ha_served",
    ]  # fmt: skip


def test_a_slave_that_lost_power_behind_a_half_open_link_comes_back_with_what_is_left(tmp_path: Path) -> None:
    """Its master still knows what it had: nothing new is answered for that, and it is served from where it ends now."""
    pair = Pair(tmp_path)
    put(pair.log, *range(20))
    slave = pair.slave().connect()
    slave.carry()
    had = slave.log.max_offset
    slave.log.cut(slave.log.last_records(5)[0].offset)  # nobody says so to its master: its machine is gone
    again = pair.slave("s1", "a later run", log=slave.log).connect("10.0.0.2:6000")
    again.carry()
    assert "is connected from" in again.client.trouble and again.log.max_offset < had
    statuses: list[PutStatus] = []
    waiting(pair, 20, statuses)
    again.connect("10.0.0.2:6001").carry()
    assert statuses == [] and pair.service.acks() == {"s1": had}
    pair.clock.ms += 2 * pair.settings.heartbeat_ms
    pair.service.tick(pair.clock.ms)
    assert statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    again.connect("10.0.0.2:6001").carry()
    assert "is connected from" in again.client.trouble, "a second broker with that id: the first one reports each 5 s"
    pair.clock.ms += 1  # two reports are missing, and the housekeeping comes in 10 s
    pair.service.tick(pair.clock.ms)
    again.connect("10.0.0.2:6002").carry()
    assert again.client.stand is Stand.BEHIND and again.client.trouble == "" and same(again)
    assert pair.service.acks() == {"s1": pair.log.max_offset} and pair.service.troubles == {}


def waiting(pair: Pair, number: int, statuses: list[PutStatus]) -> None:
    pair.service.handle_ha(put(pair.log, number), pair.clock(), statuses.append)


def test_oddity_10_a_sync_master_waits_for_a_slave_by_default(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    statuses: list[PutStatus] = []
    waiting(pair, 0, statuses)
    assert statuses == [PutStatus.SLAVE_NOT_AVAILABLE]
    slave = pair.slave().connect()
    slave.carry()
    waiting(pair, 1, statuses)
    waiting(pair, 2, statuses)
    assert len(statuses) == 1 and pair.service.transfers.next_deadline_ms == pair.clock.ms + 3000
    slave.carry()
    assert statuses[1:] == [PutStatus.PUT_OK] * 2 and pair.service.push2_slave_max_offset == pair.log.max_offset
    waiting(pair, 3, statuses)
    pair.clock.ms += 3000
    pair.service.tick(pair.clock.ms)
    assert statuses[3:] == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    slave.carry()
    assert same(slave), "the message stays, and the slave gets it"


@pytest.mark.parametrize(
    ("role", "in_sync", "status"),
    [
        (BrokerRole.ASYNC_MASTER, 2, [PutStatus.PUT_OK]),
        (BrokerRole.SYNC_MASTER, 1, [PutStatus.PUT_OK]),
        (BrokerRole.SYNC_MASTER, 2, []),
        (BrokerRole.SYNC_MASTER, 3, [PutStatus.SLAVE_NOT_AVAILABLE]),
    ],
)
def test_whom_a_put_waits_for(role: BrokerRole, in_sync: int, status: list[PutStatus], tmp_path: Path) -> None:
    pair = Pair(tmp_path, HaSettings(in_sync_replicas=in_sync), role)
    pair.slave().connect().carry()
    statuses: list[PutStatus] = []
    waiting(pair, 1, statuses)
    assert statuses == status


def test_a_slave_that_is_too_far_behind_is_not_waited_for(tmp_path: Path) -> None:
    pair = Pair(tmp_path, HaSettings(slave_fall_behind_max_bytes=1000))
    slave = pair.slave().connect()
    slave.carry()
    put(pair.log, *range(20))
    statuses: list[PutStatus] = []
    waiting(pair, 99, statuses)
    assert statuses == [PutStatus.SLAVE_NOT_AVAILABLE]
    slave.carry()
    waiting(pair, 100, statuses)
    slave.carry()
    assert statuses[1:] == [PutStatus.PUT_OK]


def test_a_report_is_what_is_on_disk_where_the_mode_promises_that(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    slave = pair.slave(is_sync=True).connect()
    slave.carry()
    statuses: list[PutStatus] = []
    waiting(pair, 1, statuses)
    slave.carry()
    assert same(slave) and slave.client.wants_flush and statuses == []
    slave.log.flush()
    slave.carry()
    assert statuses == [PutStatus.PUT_OK] and not slave.client.wants_flush


def test_heartbeats_and_housekeeping_at_both_ends(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    slave = pair.slave().connect()
    slave.carry()
    for _ in range(10):
        pair.clock.ms += 5001
        slave.carry()
    assert slave.client.state is State.TRANSFER
    pair.clock.ms += 20_001
    assert slave.client.next_bytes(pair.clock.ms) == b"" and "nothing was heard" in slave.client.closed_by
    assert slave.connection is not None and slave.connection.next_bytes(pair.clock.ms) == b""
    assert "nothing was heard" in slave.connection.closed_by


def test_flow_control_sends_no_more_than_it_may(tmp_path: Path) -> None:
    pair = Pair(tmp_path, HaSettings(flow_control_bytes_s=4096))
    put(pair.log, *range(200))
    slave = pair.slave().connect()
    slave.carry()
    assert slave.connection is not None
    for _ in range(5):
        before = slave.log.max_offset
        assert 0 < slave.connection.writing.data_wait_ms(pair.clock.ms) <= 1000
        pair.clock.ms += 1000
        slave.carry()
        assert 0 < slave.log.max_offset - before <= 4096 + FILE_BYTES


def test_an_old_master_that_returns_is_fenced_and_acknowledges_nothing(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    slave = pair.slave().connect()
    slave.carry()
    statuses: list[PutStatus] = []
    waiting(pair, 1, statuses)
    promoted = slave.kept[-1].begun("", slave.log.max_offset, is_promoted=True)
    restarted = pair.service.lineage.begun("", pair.log.max_offset).begun("", pair.log.max_offset)
    assert promoted.epoch > restarted.epoch
    pair.service.remove(slave.connection)  # type: ignore[arg-type]
    third = pair.slave("s2", lineage=promoted)
    third.connect()
    third.carry()
    assert "another one was promoted" in third.client.trouble
    assert pair.fenced == [promoted.epoch] and statuses == [PutStatus.FLUSH_SLAVE_TIMEOUT]
    waiting(pair, 2, statuses)
    late = pair.slave("s3").connect("10.0.0.6:1")
    late.carry()
    assert statuses[1:] == [PutStatus.SLAVE_NOT_AVAILABLE] and "no master" in late.client.trouble


def test_two_masters_of_one_epoch_are_noticed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, 1)
    slave = pair.slave(lineage=Lineage("pair-1", ((1, 400),)))
    put(slave.log, 1, 2)
    slave.connect().carry()
    assert "two masters" in slave.client.trouble


@pytest.mark.parametrize("later", ["master", "slave"])
def test_of_two_masters_of_one_epoch_one_is_cut_back_and_follows(later: str, tmp_path: Path) -> None:
    """It kept the epoch with a beginning of its own, was forked again, and was cut back to where it ended, for ever."""
    pair = Pair(tmp_path, CUTS)
    slave = pair.slave()
    put(pair.log, 1, 2)
    put(slave.log, 1, 2)
    put(pair.log if later == "master" else slave.log, 3)
    before, after = (Lineage("pair-1", ((1, 0), (PROMOTION, log.max_offset))) for log in (slave.log, pair.log))
    slave.client.lineage, pair.service.lineage = before, after
    put(pair.log, 4)
    put(slave.log, 5, 6)
    slave.connect().carry()
    assert slave.client.closed_by.startswith("its log was cut back")
    assert slave.client.lineage.newest == PROMOTION  # no older master is followed
    slave.reconnect()
    assert same(slave) and slave.client.lineage == after


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack(">q", 1 << 62), "this master at"),
        (struct.pack(">q", 7), "where no record begins"),
        (struct.pack(">q", -77), "a report of -77"),
        (struct.pack(">qi", -2, -5), "an object of -5 bytes"),
        (struct.pack(">qi", -2, 1 << 30), "an object of"),
        (slave_says({"version": 1}), "was not asked for"),
        (struct.pack(">q", -1) + slave_says({"version": 9}), "version 9"),
        (struct.pack(">q", -1) + slave_says({"version": 1}), "epochs cannot be read"),
        (struct.pack(">q", -1) + struct.pack(">qi", -2, 3) + b"[1]", "no JSON object"),
        (struct.pack(">q", -1) + struct.pack(">qi", -2, 3) + b"\xff{{", "no JSON"),
        (struct.pack(">q", -1) + struct.pack(">q", 0), "has not said what it has"),
        (struct.pack(">qq", 0, 1 << 40), "all that was sent"),
    ],
)  # fmt: skip
def test_bad_input_of_a_slaves_is_refused_with_a_reason(sent: bytes, says: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, *range(30))
    before = content(pair.log)
    for size in (1, 3, len(sent)):
        connection = pair.service.accept("10.0.0.2:1", 0)
        assert connection is not None
        for at in range(0, len(sent), size):
            connection.receive(sent[at : at + size], 0)
        assert says in connection.closed_by and says in "".join(pair.service.troubles.values())
        pair.service.remove(connection)
    assert content(pair.log) == before and not pair.fenced
    slave = pair.slave().connect()
    slave.carry()
    assert same(slave) and pair.service.troubles in ({}, {"java:10.0.0.2": pair.service.troubles.get("java:10.0.0.2")})


def test_the_alarm_about_a_peer_that_is_refused_ends_when_it_does_not_come_again(tmp_path: Path) -> None:
    """It stood until the broker was started anew: a stranger's one connection, or a slave that was taken away."""
    pair = Pair(tmp_path)
    put(pair.log, *range(3))

    def refused() -> None:
        connection = pair.service.accept("10.0.0.9:1", pair.clock())
        assert connection is not None
        connection.receive(struct.pack(">q", -7), pair.clock())
        pair.service.remove(connection)

    for _ in range(3):  # as long as it comes again
        refused()
        pair.clock.ms += TROUBLE_MS
        pair.service.tick(pair.clock())
        assert pair.service.troubles == {"10.0.0.9": "a report of -7 from the slave"}
    assert [kind for kind, _severity, _text in pair.notes].count("ha_refused") == 1
    pair.clock.ms += 1
    pair.service.tick(pair.clock())
    assert pair.service.troubles == {}
    refused()
    assert [kind for kind, _severity, _text in pair.notes].count("ha_refused") == 2


def test_a_report_that_goes_back_ends_the_connection(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, *range(30))
    connection = pair.service.accept("10.0.0.2:1", 0)
    assert connection is not None
    second = pair.log.last_records(30)[1].offset
    connection.receive(struct.pack(">q", second), 0)
    while connection.next_bytes(0):
        pass
    connection.receive(struct.pack(">qq", pair.log.max_offset, second), 0)
    assert "its log went back" in connection.closed_by


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (struct.pack(">qi", 100, 0), "was not asked for"),
        (struct.pack(">qi", -9, 0), "a frame at offset -9"),
        (struct.pack(">qi", 0, -1), "a frame of -1 bytes"),
        (struct.pack(">qi", 0, 1 << 30), "a frame of"),
        (master_says({"version": 1, "lineage": {"pair": 7}}), "epochs cannot be read"),
        (master_says({"version": 1, "lineage": {"pair": "", "epochs": [[2, 5], [1, 9]]}}), "epochs cannot be read"),
    ],
)  # fmt: skip
def test_bad_input_of_a_masters_is_refused_and_nothing_is_written(sent: bytes, says: str, tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    slave = pair.slave()
    put(slave.log, 1, 2)
    before = content(slave.log)
    slave.client.connected(0)
    slave.client.receive(sent, 0)
    assert says in slave.client.trouble and slave.client.state is State.CLOSED
    assert content(slave.log) == before


@pytest.mark.parametrize("seed", range(60))
def test_garbage_in_either_direction_changes_no_log(seed: int, tmp_path: Path) -> None:
    """A byte of a real exchange is another one, or bytes are missing: refused, or it was not in what counts."""
    rng = random.Random(seed)
    pair = Pair(tmp_path)
    put(pair.log, *range(30))
    slave = pair.slave()
    slave.connect()
    at, moved = rng.randrange(1, 4000), 0
    for _ in range(40):
        now = pair.clock()
        assert slave.connection is not None
        for data, receive in (
            (slave.client.next_bytes(now), slave.connection.receive),
            (slave.connection.next_bytes(now), slave.client.receive),
        ):
            if moved <= at < moved + len(data):
                spoiled = bytearray(data)
                if seed % 2:
                    spoiled[at - moved] ^= 1 << rng.randrange(8)
                else:
                    del spoiled[at - moved]
                receive(bytes(spoiled), now)
            else:
                receive(data, now)
            moved += len(data)
    master = content(pair.log)
    whole = len(content(slave.log))
    properties_differ = sum(a != b for a, b in zip(content(slave.log), master, strict=False))
    assert properties_differ <= 1, "no CRC covers properties: the one byte that was turned over there"
    assert whole <= len(master)


def test_a_lineage_is_kept_and_a_broken_one_is_named(tmp_path: Path) -> None:
    lineage = Lineage().begun("p", 0).begun("p", 500).begun("p", 900, is_promoted=True)
    assert [one for one, _start in lineage.epochs] == [1, 2, 1 << 20] and read_lineage(tmp_path) == Lineage()
    write_lineage(tmp_path, lineage, OsDisk())
    assert read_lineage(tmp_path) == lineage
    assert lineage.below(600).epochs == ((1, 0), (2, 500), (1 << 20, 600))
    lineage_path(tmp_path).write_bytes(b"1234 {}")
    with pytest.raises(MessageStoreError, match="cannot be read"):
        read_lineage(tmp_path)
    for said in ([], {"pair": "p"}, {"pair": "p", "epochs": [[1]]}, {"pair": "p", "epochs": [[1, -1]]}):
        with pytest.raises(ValueError):
            parse_lineage(json.loads(json.dumps(said)))


def test_nothing_is_taken_before_the_epochs_are_kept(tmp_path: Path) -> None:
    """They are written in a thread meanwhile."""
    pair = Pair(tmp_path)
    end = put(pair.log, 1, 2, 3)
    waiting: list[Kept] = []
    slave = pair.slave()
    slave.client._keep = lambda _lineage, then: waiting.append(then)
    slave.connect().carry()
    assert slave.client.is_keeping and slave.log.is_empty and slave.client.lineage == Lineage()
    waiting.pop()("")
    assert slave.log.max_offset == end and slave.client.lineage == pair.service.lineage
    slave.carry()
    assert pair.service.acks() == {"s1": end}
    pair.service.lineage = pair.service.lineage.begun("", end)
    slave.reconnect()
    waiting.pop()("no room")
    assert slave.client.is_closed and "no room" in slave.client.trouble
    slave.reconnect()
    slave.disconnect()
    waiting.pop()("")  # of a connection that is gone
    assert slave.client.is_closed and slave.client.lineage.epoch == 2


def test_a_promotion_that_was_heard_of_ends_what_an_older_master_sends(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    put(pair.log, 1)
    slave = pair.slave()
    slave.connect().carry()
    slave.client.hear(PROMOTION)
    assert slave.client.is_closed
    put(pair.log, 2)
    slave.reconnect()
    assert slave.client.is_closed and pair.fenced == [PROMOTION]


def test_a_record_in_many_frames_is_looked_at_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """128,000 frames of one byte of a record of 4 MB held a slave's loop for 5 s: each copied all that had come."""
    pair = Pair(tmp_path)
    put(pair.log, 1)
    slave = pair.slave().connect()
    slave.carry()
    begin = slave.log.max_offset
    end = put(pair.log, 2, 3, body_bytes=1000)
    sent = pair.log.read(begin, end - begin)
    looked: list[int] = []
    append = slave.store.append_data

    def counting(offset: int, data: BytesLike) -> int:
        looked.append(len(data))
        return append(offset, data)

    monkeypatch.setattr(slave.store, "append_data", counting)
    frames = b"".join(encode_header(begin + at, 1) + sent[at : at + 1] for at in range(len(sent)))
    slave.client.receive(frames, pair.clock())
    assert slave.log.max_offset == end and content(slave.log) == content(pair.log) and not slave.client.trouble
    assert len(looked) == 2 * 3, "its first byte, its head, all of it"
