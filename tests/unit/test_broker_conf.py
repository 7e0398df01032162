"""broker.conf as a member's configuration."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path

import pytest

from app.broker_conf import BrokerConfError, checked, read_properties, translate
from app.command_line import run
from node.broker.classic import process
from node.broker.java_conf import java_conf, keep_conf
from node.config import Settings, load
from node.logs import Log
from node.message_store.dispatch_mark import OURS
from node.message_store.errors import MessageStoreError
from node.message_store.kept_conf import delay_levels_of, read_conf
from node.rereading import Rereading
from tests.unit.classic_kit import classic_settings, pair_ports

CONF = """# as in RocketMQ's conf/dledger
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876;127.0.0.1:9877
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
## must be unique
dLegerSelfId=n0
sendMessageThreadPoolNums=16
mappedFileSizeCommitLog=268435456
deleteWhen=04;16
fileReservedTime=48
diskMaxUsedSpaceRatio=88
cleanFileForciblyEnable=false
flushDiskType=ASYNC_FLUSH
flushDiskTypo=x
"""


def test_the_properties_of_document_3_become_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(CONF)
    assert run(["migrate", "config", str(file)]) == 0
    out = capsys.readouterr()
    toml = tomllib.loads(out.out)
    assert toml == {
        "node": {"id": "n0", "group": "RaftNode00", "data": "/tmp/rmqstore/node00"},
        "store": {"mapped_file_size_for_entry_data_bytes": 268435456},
        "retention": {
            "enabled": True, "file_reserved_hours": 49, "delete_when": ["04", "16"], "enable_disk_force_clean": False,
            "disk_space_ratio_to_check_expired": 0.88, "disk_space_ratio_to_force_clean": 0.88,
        },
        "broker": {"address": "127.0.0.1:30911", "name_servers": "127.0.0.1:9876;127.0.0.1:9877"},
        "peers": {"n0": "127.0.0.1:40911", "n1": "127.0.0.1:40912", "n2": "127.0.0.1:40913"},
    }  # fmt: skip
    noted = {line.partition(":")[0] for line in out.err.splitlines()}
    assert noted == {
        "brokerClusterName", "brokerName", "storePathCommitLog", "sendMessageThreadPoolNums", "diskMaxUsedSpaceRatio",
        "flushDiskType", "flushDiskTypo",
    }  # fmt: skip
    translated = tmp_path / "member.toml"
    translated.write_text(out.out)
    settings = load({}, translated, {}).check_node()
    assert settings.broker.name_server_addresses == ("127.0.0.1:9876", "127.0.0.1:9877")
    assert run(["migrate", "config", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["node"]["group"] == "RaftNode00"


def test_members_on_several_machines_get_a_secret(tmp_path: Path) -> None:
    text = CONF.replace("127.0.0.1:409", "10.0.0.1:409")
    found = translate(read_properties(text.encode()))
    assert found.values["node.secret_file"] == "group.secret" and "secret" in found.notes["dLegerPeers"]
    assert found.values["broker.address"] == "10.0.0.1:30911"  # beside the member, but for brokerIP1
    named = translate(read_properties((text + "brokerIP1=broker-0.example\n").encode()))
    assert named.values["broker.address"] == "broker-0.example:30911"


def test_properties_are_read_as_java_reads_them() -> None:
    data = rb"""
      ! no value
    a=1
    a = 2
    b : x\
        y
    c\ d e\=f
    g=\u0041\t\\
    h
    """.replace(b"\n    ", b"\n")
    assert read_properties(data) == {"a": "2", "b": "xy", "c d": "e=f", "g": "A\t\\", "h": ""}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("enableDLegerCommitLog=true", ""), "not true"),
        (("dLegerSelfId=n0", "dLegerSelfId=n7"), "none of dLegerPeers"),
        (("dLegerGroup=RaftNode00", ""), "dLegerGroup: without it"),
        (("n1-127.0.0.1:40912", "n0-127.0.0.1:40912"), "named twice"),
        (("fileReservedTime=48", "fileReservedTime=two days"), "has to be a number"),
        (("deleteWhen=04;16", "deleteWhen=25"), "25"),
        (("listenPort=30911", "listenPort=99999"), "99999"),
        (("n0", "m0"), "m0"),
    ],
)
def test_what_could_not_start_is_refused_by_name(
    change: tuple[str, str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(CONF.replace(*change))
    assert run(["migrate", "config", str(file)]) == 64
    out = capsys.readouterr()
    assert why in out.err and out.out == ""


def test_a_file_that_is_too_long_is_not_read() -> None:
    with pytest.raises(BrokerConfError, match="at most"):
        read_properties(b"x" * (2 << 20))


# --- the other way: what a Java broker in this member's place would need ----------------------------------------------
def of_member(data: Path, **values: str) -> Settings:
    given = {
        "node.id": "n0", "node.group": "g", "node.data": str(data), "peers": "n0-127.0.0.1:40911",
        "broker.address": "127.0.0.1:30911",
    }  # fmt: skip
    return load(given | values, None, {})


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_what_is_kept_for_java_and_taken_over_again_is_the_same(tmp_path: Path, enabled: str) -> None:
    values = {
        "broker.delay_levels": "1s 7m 2d", "broker.name_servers": "127.0.0.1:9876;127.0.0.1:9877",
        "broker.transaction_timeout_ms": "1234", "broker.transaction_check_interval_ms": "2345",
        "broker.transaction_check_max": "7", "retention.enabled": enabled, "retention.file_reserved_hours": "49",
    }  # fmt: skip
    conf = java_conf(of_member(tmp_path, **values))
    if enabled == "false":
        assert int(conf["fileReservedTime"]) > 80_000, "Java would remove what nothing removes here"
    dledger = {"dLegerGroup": "g", "dLegerSelfId": "n0", "dLegerPeers": "n0-127.0.0.1:40911"}
    found = translate(conf | dledger | {"enableDLegerCommitLog": "true"})
    wanted = values if enabled == "true" else values | {"retention.enabled": "true"}
    wanted["retention.file_reserved_hours"] = "49" if enabled == "true" else str(int(conf["fileReservedTime"]) + 1)
    assert {name: str(found.values[name]).replace("True", "true") for name in wanted} == wanted
    assert found.values["broker.address"] == "127.0.0.1:30911"
    assert checked(found).retention.file_reserved_hours == int(wanted["retention.file_reserved_hours"])


def test_what_rocketmq_keeps_for_longer_than_ten_years_is_kept_for_ten() -> None:
    found = translate(read_properties(CONF.replace("fileReservedTime=48", "fileReservedTime=87840").encode()))
    assert checked(found).retention.file_reserved_hours == 87840 and "ten years" in found.notes["fileReservedTime"]


def test_a_broker_keeps_its_conf_and_says_when_delay_levels_moved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / OURS).mkdir()
    log = Log("broker", "info", "json")
    for levels, moves in (("1s 5s", False), ("1s 5s 10s", False), ("1s 7s 10s", True), ("1s 7s 10s", False)):
        keep_conf(of_member(tmp_path, **{"broker.delay_levels": levels}), log)
        assert ("delay_levels_changed" in "".join(capfd.readouterr())) is moves
        assert read_conf(tmp_path)["messageDelayLevel"] == levels
    (tmp_path / OURS / "broker.conf").write_text("messageDelayLevel=never\n")
    with pytest.raises(MessageStoreError, match="writes it anew"):
        read_conf(tmp_path)
    keep_conf(of_member(tmp_path, **{"broker.delay_levels": levels}), log)
    assert read_conf(tmp_path)["messageDelayLevel"] == levels


def test_one_in_classic_mode_keeps_it_too(tmp_path: Path) -> None:
    """`store verify` and `rebuild-queues` went by RocketMQ's own levels there."""
    settings = classic_settings(tmp_path, "m", "async_master", pair_ports("m", "s"), **{"broker.delay_levels": "1s 7m"})

    async def started_and_ended() -> None:
        stopping = asyncio.create_task(asyncio.sleep(0, True))
        await process.serve(settings, Log("broker", "info", "json"), stopping, Rereading())

    asyncio.run(started_and_ended())
    assert delay_levels_of(settings.node.data) == (1_000, 420_000)
