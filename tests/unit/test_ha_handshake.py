"""What a slave says of its log, read strictly, and how that log stands to a master's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.ha.frames import HaError
from node.ha.handshake import Hello, Stand, hello_of, judge, parse_hello, parse_verdict
from node.ha.lineage import OFFSET_MAX, Lineage
from node.message_store.framing import MESSAGE_BYTES_MAX
from node.message_store.local_log import LocalCommitLog
from tests.unit.ha_kit import FILE_BYTES, put

Json = dict[str, Any]
LINEAGE = Lineage("a-pair", ((1, 0),))


def log_at(root: Path, *numbers: int) -> LocalCommitLog:
    log = LocalCommitLog(root, FILE_BYTES)
    put(log, *numbers)
    return log


@pytest.fixture
def said(tmp_path: Path) -> Json:
    """A slave's hello as it is sent; it is read as it was meant."""
    hello = hello_of(log_at(tmp_path, *range(5)), LINEAGE, "s1", "r1")
    assert parse_hello(hello.to_json()) == hello
    return hello.to_json()


def last(change: Callable[[list[Any]], Any]) -> Callable[[Json], Any]:
    return lambda said: change(said["last"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: said.update(version=2), "version 2 of the handshake"),
        (lambda said: said.update(lineage=[]), "epochs cannot be read"),
        (lambda said: said.update(begin=-1), "-1 for begin"),
        (lambda said: said.update(end=True), "True for end"),
        (lambda said: said.update(end=OFFSET_MAX + 1), "for end"),
        (lambda said: said.pop("file_bytes"), "None for file_bytes"),
        (lambda said: said.update(slave=7), "name cannot be read"),
        (lambda said: said.update(unable=["full"]), "name cannot be read"),
        (lambda said: said.update(broker="x" * 129), "name cannot be read"),
        (lambda said: said.update(last={}), "log cannot be read"),
        (lambda said: said.update(begin=said["end"] + 1), "log cannot be read"),
        (last(lambda found: found.extend([found[-1]] * 9)), "log cannot be read"),
        (last(lambda found: found[0].append(1)), "last records cannot be read"),
        (last(lambda found: found.__setitem__(0, [0, 10, "crc"])), "last records cannot be read"),
        (last(lambda found: found.reverse()), "do not lie in its log"),
        (last(lambda found: found[-1].__setitem__(1, 10_000)), "do not lie in its log"),
        (last(lambda found: found[0].__setitem__(1, 0)), "do not lie in its log"),
        (lambda said: said.update(end=1 << 40, last=[[0, 1 << 40, 7]]), "has 1099511627776 bytes"),
    ],
)  # fmt: skip
def test_a_hello_that_cannot_be_is_refused(change: Callable[[Json], Any], says: str, said: Json) -> None:
    change(said)
    with pytest.raises(HaError, match=says):
        parse_hello(said)


def test_of_records_that_are_read_for_a_hello_the_newest_count(said: Json) -> None:
    """The master compares them before it judges: a hello of eight numbers made it read its whole log."""
    size = MESSAGE_BYTES_MAX // 2
    said |= {"end": 8 * size, "last": [[number * size, size, 7] for number in range(8)]}
    assert [one.offset for one in parse_hello(said).last] == [6 * size, 7 * size]


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"verdict": "fine", "reason": "", "start": 0}, "verdict is 'fine'"),
        ({"verdict": "behind", "start": 0}, "no reason"),
        ({"verdict": "behind", "reason": "", "start": True}, "no reason"),
    ],
)
def test_a_verdict_that_cannot_be_is_refused(said: Json, says: str) -> None:
    with pytest.raises(HaError, match=says):
        parse_verdict(said)


def other(**changes: Any) -> Callable[[Hello], Hello]:
    return lambda hello: dataclasses.replace(hello, **changes)


def of(*epochs: tuple[int, int], pair: str = "a-pair", heard: int = 0) -> Lineage:
    return Lineage(pair, epochs, heard)


@pytest.mark.parametrize(
    ("change", "stand", "says"),
    [
        (other(), Stand.IN_STEP, "both end at"),
        (other(lineage=of((1, 0), pair="another")), Stand.STRANGER, "empty directory"),
        (other(lineage=of((1, 0), heard=3)), Stand.REFUSED, "it heard of epoch 3"),
        (other(lineage=of((1, 0), (2, 9))), Stand.FORKED, "two masters"),
        (other(file_bytes=2 * FILE_BYTES), Stand.REFUSED, "mappedFileSizeCommitLog"),
        (other(last=()), Stand.FORKED, "nothing that could be compared"),
    ],
)
def test_how_a_log_of_the_same_records_stands(
    change: Callable[[Hello], Hello], stand: Stand, says: str, tmp_path: Path
) -> None:
    log = log_at(tmp_path, *range(5))
    verdict = judge(log, of((1, 0), (2, 0)), change(hello_of(log, LINEAGE, "s1", "r1")))
    assert verdict.stand is stand and says in verdict.reason
    assert (verdict.start == log.max_offset) is (stand is Stand.IN_STEP)


@pytest.mark.parametrize(
    ("numbers", "stand"),
    [
        ((0, 1, 2), Stand.BEHIND), ((), Stand.EMPTY), ((0, 1, 2, 3, 4, 5), Stand.AHEAD),
        ((0, 1, 2, 3, 9), Stand.FORKED), ((9, 1, 2, 3, 4), Stand.FORKED), ((0, 1, 2, 9, 9, 9), Stand.FORKED),
    ],
)  # fmt: skip
def test_how_a_slaves_records_stand(numbers: tuple[int, ...], stand: Stand, tmp_path: Path) -> None:
    master, slave = log_at(tmp_path / "master", *range(5)), log_at(tmp_path / "slave", *numbers)
    verdict = judge(master, LINEAGE, hello_of(slave, LINEAGE, "s1", "r1"))
    assert verdict.stand is stand
    assert verdict.start == (slave.max_offset if stand in (Stand.BEHIND, Stand.EMPTY) else -1)


def test_an_end_within_a_record_is_no_place_to_go_on_from(tmp_path: Path) -> None:
    log = log_at(tmp_path, *range(5))
    hello = hello_of(log, LINEAGE, "s1", "r1")
    within = dataclasses.replace(hello, end=hello.last[-1].offset + 5, last=hello.last[:-1])
    verdict = judge(log, LINEAGE, within)
    assert verdict.stand is Stand.FORKED and "no border" in verdict.reason


@pytest.mark.parametrize(
    ("own", "theirs", "stand"),
    [
        (of((1, 0)), of((1, 0)), Stand.BEHIND),
        (of((1, 0), (7, FILE_BYTES)), of((1, 0)), Stand.BEHIND),
        (of((1, 0), (7, 1000)), of((1, 0)), Stand.FORKED),  # its master was replaced at 1000, and it went on
        (of((1, 0)), of((3, 0)), Stand.REFUSED),
        (of((1, 0), (7, FILE_BYTES)), of((3, 0)), Stand.FORKED),
        (of((1, 0)), Lineage(), Stand.FORKED),
    ],
)
def test_where_all_that_could_be_compared_has_expired_the_epochs_decide(
    own: Lineage, theirs: Lineage, stand: Stand, tmp_path: Path
) -> None:
    """A slave that ends where its master begins was taken to be behind, whatever it held."""
    master, slave = log_at(tmp_path / "master", *range(100)), log_at(tmp_path / "slave", *range(500, 503))
    master.save()
    master.remove_below(master.starts[1])
    slave.make_room(FILE_BYTES - 8)  # its first file is full
    assert slave.max_offset == master.min_offset == FILE_BYTES
    assert judge(master, own, hello_of(slave, theirs, "s1", "r1")).stand is stand
