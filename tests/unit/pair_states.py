"""What may be wrong with a classic pair, each as a change of `FakePair`."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.fake_pair import END, FakePair, connection

Change = Callable[[FakePair], None]


def slave_silent(pair: FakePair) -> None:
    pair.alive["s1"] = False
    pair.ha["m"]["connections"].pop(0)


def master_silent(pair: FakePair) -> None:
    pair.alive["m"] = False
    for name in ("s1", "s2"):
        pair.ha[name]["following"] |= {"state": "ready", "reason": "connection refused"}


def all_silent(pair: FakePair) -> None:
    pair.alive = dict.fromkeys(pair.alive, False)


def broker_down(pair: FakePair) -> None:
    pair.ha["s2"] = {key: pair.ha["s2"][key] for key in ("as_of", "name", "self_id", "address", "ha_address")} | {
        "broker": "down", "reason": "nothing answers", "started_with": "quorumscope node --id s2",
    }  # fmt: skip
    pair.ha["m"]["connections"].pop(1)


def slave_gone(pair: FakePair) -> None:
    pair.leave("s1", reason="Connection refused")


def ahead(pair: FakePair) -> None:
    pair.leave("s1", "ahead", "it ends at 90000, this master at 81920")
    pair.ha["s1"]["end_offset"] = 90_000


def forked(pair: FakePair) -> None:
    pair.leave("s1", "forked", "its record at 51200 is not this master's")


def stranger(pair: FakePair) -> None:
    pair.leave("s1", "stranger", "its log is of pair pair-2, this master's of pair-1")


def refused(pair: FakePair) -> None:
    pair.leave("s1", "refused", "its files have 4096 bytes, this master's 65536 (mappedFileSizeCommitLog)")


def unknown_slave_refused(pair: FakePair) -> None:
    pair.ha["m"]["problems"].append({"code": "slave_not_served", "about": "s9", "text": "its log is of pair x"})


def same_id(pair: FakePair) -> None:
    why = "a slave with the id s1 is connected from 10.0.0.49:40070"
    pair.ha["m"]["problems"].append({"code": "slave_not_served", "about": "s1", "text": why})


def two_masters(pair: FakePair) -> None:
    pair.ha["s2"] |= {"role": "ASYNC_MASTER", "is_master": True, "epoch": 1, "following": None}
    pair.ha["m"]["connections"].pop(1)


def fenced(pair: FakePair) -> None:
    pair.ha["m"] |= {"is_master": False, "fenced_by_epoch": 1_048_576, "connections": []}
    pair.ha["s1"] |= {"role": "SYNC_MASTER", "is_master": True, "epoch": 1_048_576, "following": None,
                      "connections": [connection("s2")]}  # fmt: skip


def too_few(pair: FakePair) -> None:
    pair.ha["m"]["problems"] = [{"code": "too_few_slaves", "about": "", "text": "no slave is connected"}]
    for name in ("s1", "s2"):
        pair.leave(name, reason="timed out")


def no_slave(pair: FakePair) -> None:
    pair.ha["m"]["role"] = "ASYNC_MASTER"
    pair.ha["m"]["problems"] = [{"code": "no_slave", "about": "", "text": "no slave is connected"}]
    for name in ("s1", "s2"):
        pair.leave(name, reason="timed out")


def behind(pair: FakePair) -> None:
    pair.link("s1").update(acked_offset=10_000, lag_bytes=END - 10_000, lag_ms=9_000)


def too_far_behind(pair: FakePair) -> None:
    pair.link("s1").update(lag_bytes=300 << 20, lag_ms=900)


def sends_wait(pair: FakePair) -> None:
    pair.ha["m"] |= {"waiting_count": 3, "waiting": [
        {"offset": END, "waits_for": ["s1", "s2"], "slaves_needed": 1, "age_ms": 2_100}
    ]}  # fmt: skip


def log_broken(pair: FakePair) -> None:
    pair.ha["m"]["broken_by"] = "no space left on device"


def _full(pair: FakePair, name: str) -> None:
    text = "the disk is full: less than 268435456 bytes are free"
    pair.ha[name]["problems"] = [*pair.ha[name]["problems"], {"code": "disk_full", "about": "", "text": text}]


def config_not_saved(pair: FakePair) -> None:
    problem = {"code": "config_not_saved", "about": "", "text": "/data/m/config: No space left on device"}
    pair.ha["m"]["problems"] = [*pair.ha["m"]["problems"], problem]


def master_full(pair: FakePair) -> None:
    _full(pair, "m")


def slave_full(pair: FakePair) -> None:
    _full(pair, "s1")
    pair.ha["s1"]["following"] |= {"state": "closed", "stand": None, "reason": "the disk is full"}
    refused = {"code": "slave_not_served", "about": "s1", "text": "it takes nothing now: the disk is full"}
    pair.ha["m"]["problems"] = [*pair.ha["m"]["problems"], refused]


def log_damaged(pair: FakePair) -> None:
    why = "the body of the record at 4096 is not the one that was sent: its CRC is another"
    pair.ha["s1"]["scrub"] = {
        "offset": 9_000, "passes": 3, "last_pass_ended_ms": 60_000,
        "damaged": [{"from_offset": 4_096, "to_offset": 4_300, "why": why}],
    }  # fmt: skip


def rocketmq_slave(pair: FakePair) -> None:
    pair.ha["m"]["connections"].append(connection("10.0.0.9", kind="rocketmq", address="10.0.0.9:40111"))
