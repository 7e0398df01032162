"""What RocketMQ's own store wrote is read here field by field as its manifests say, and comes back to the byte."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.message_store.batch import decode_batch, encode_batch
from node.message_store.bodies import opened_body
from node.message_store.delay_levels import parse_delay_levels
from node.message_store.index_file import IndexFile, IndexHead, slots_shown_by
from node.message_store.queue_units import unit_tags_code
from node.message_store.record import decode_record, encode_record, parse_message_id
from node.message_store.store_files import abort_pid, decode_checkpoint, encode_checkpoint, parse_config
from node.protocol.entry import HEAD_BYTES, unpack_record
from tests.interop.rocketmq import commit_log_bytes, index_rows, manifest_of


@pytest.fixture(params=["store/data", "dledger-commitlog/single", "dledger-commitlog/upgraded"])
def store(vectors: Path, request: pytest.FixtureRequest) -> Path:
    return vectors / "rocketmq" / request.param


def messages_of(store: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Each message of the manifest, and the bytes from its place on."""
    data, begin = commit_log_bytes(store)
    for one in manifest_of(store)["messages"]:
        at = one["physicalOffset"] - begin
        yield one, data[at : at + one["size"]]


def test_every_record_has_the_fields_of_the_manifest(store: Path) -> None:
    levels = parse_delay_levels(manifest_of(store)["params"]["messageDelayLevel"])
    seen = 0
    for one, data in messages_of(store):
        found = decode_record(data)
        assert encode_record(found) == data
        assert f"{found.magic & 0xFFFFFFFF:08x}" == one["magic"]
        assert (found.physical_offset, found.total_size) == (one["physicalOffset"], one["size"])
        assert (found.body_crc, found.is_body_sound, found.flag) == (one["bodyCRC"], True, one["flag"])
        assert (found.topic, found.queue_id, found.queue_offset) == (one["topic"], one["queueId"], one["queueOffset"])
        assert (found.sys_flag, found.reconsume_times) == (one["sysFlag"], one["reconsumeTimes"])
        assert found.prepared_transaction_offset == one["preparedTransactionOffset"]
        assert (found.born_timestamp_ms, found.store_timestamp_ms) == (one["bornTimestamp"], one["storeTimestamp"])
        for host, text in ((found.born_host, one["bornHost"]), (found.store_host, one["storeHost"])):
            assert java_host(host.ip, host.port) == text
        assert (len(found.body), hashlib.sha256(found.body).hexdigest()) == (one["bodyLength"], one["bodySha256"])
        assert (found.properties, found.tags) == (one["properties"], one.get("tags"))
        assert found.properties.get("KEYS") == one.get("keys")
        assert found.properties.get("UNIQ_KEY") == one.get("uniqKey")
        assert unit_tags_code(found, levels) == one["dispatchTagsCode"]
        assert found.message_id == one["offsetMsgId"]
        assert parse_message_id(found.message_id) == (found.store_host, found.physical_offset)
        opened_body(found)
        seen += 1
    assert seen == len(manifest_of(store)["messages"]) > 100


def java_host(ip: bytes, port: int) -> str:
    if len(ip) == 4:
        return ".".join(map(str, ip)) + f"|{port}"
    return ":".join(f"{ip[at] << 8 | ip[at + 1]:x}" for at in range(0, 16, 2)) + f"|{port}"


def test_index_files_have_the_entries_of_the_manifest(store: Path) -> None:
    manifest = manifest_of(store)
    for one in manifest["indexFiles"]:
        data = (store / "index" / one["file"]).read_bytes()
        slots = slots_shown_by(data)
        assert slots == manifest["params"]["maxHashSlotNum"]
        file = IndexFile(data, slots)
        assert file.capacity == manifest["params"]["maxIndexNum"]
        assert file.head == IndexHead(
            one["beginTimestamp"], one["endTimestamp"], one["beginPhyOffset"], one["endPhyOffset"],
            one["hashSlotCount"], one["indexCount"],
        )  # fmt: skip
        assert index_rows(file) == one["entries_no_keyHash_physOffset_timeDiffSec_prev"]


def test_the_checkpoint_says_what_the_manifest_says(store: Path) -> None:
    expected = manifest_of(store)["checkpoint"]
    data = (store / "checkpoint").read_bytes()
    found = decode_checkpoint(data)
    assert encode_checkpoint(found) == data
    assert len(data) == expected["fileSize"]
    assert found.physic_msg_timestamp_ms == expected["physicMsgTimestamp"]
    assert found.logics_msg_timestamp_ms == expected["logicsMsgTimestamp"]
    assert found.index_msg_timestamp_ms == expected["indexMsgTimestamp"]
    assert found.master_flushed_offset == expected["masterFlushedOffset"]
    assert found.confirm_offset == expected["confirmPhyOffset"]


def test_an_entry_of_the_replicated_log_holds_a_record_behind_its_head(vectors: Path) -> None:
    for name in ("single", "upgraded"):
        store = vectors / "rocketmq" / "dledger-commitlog" / name
        data, begin = commit_log_bytes(store)
        placed = [one for one in manifest_of(store)["messages"] if one.get("dledgerEntryPos") is not None]
        assert len(placed) >= 50
        for one in placed:
            entry = unpack_record(data, one["dledgerEntryPos"] - begin)
            assert one["physicalOffset"] == one["dledgerEntryPos"] + HEAD_BYTES == entry.pos + HEAD_BYTES
            assert decode_record(entry.body).physical_offset == one["physicalOffset"]


def test_configuration_of_a_real_broker_is_read(vectors: Path) -> None:
    folder = vectors / "rocketmq" / "broker-config"
    files = [path for role in ("master", "slave") for path in (folder / role).iterdir()]
    assert len(files) > 10
    found = {f"{path.parent.name}/{path.name}": parse_config(path.read_bytes()) for path in files}
    offsets = found["master/consumerOffset.json"]["offsetTable"]
    assert offsets["BrkTopic@cg1"] == {"0": 16, "1": 16, "2": 16, "3": 19}
    for role in ("master", "slave"):
        assert found[f"{role}/delayOffset.json"]["offsetTable"] == {"1": 2, "2": 2, "3": 3}
        assert "BrkTopic" in found[f"{role}/topics.json"]["topicConfigTable"]


def test_abort_of_a_running_broker_names_its_process(vectors: Path) -> None:
    data = (vectors / "rocketmq" / "store" / "abort.running").read_bytes()
    assert abort_pid(data) == int(data)


def test_a_batch_as_the_java_client_sends_it(vectors: Path) -> None:
    frames = json.loads((vectors / "rocketmq" / "rpc" / "producer.json").read_bytes())["frames"]
    batches = [body for one in frames for body in batch_bodies(bytes.fromhex(one["hex"]))]
    assert batches
    for body in batches:
        found = decode_batch(body)
        assert len(found) > 1
        assert all((one.magic, one.body_crc) == (0, 0) for one in found)
        assert encode_batch(found) == body


def batch_bodies(frame: bytes) -> Iterator[bytes]:
    """The body of a SEND_BATCH_MESSAGE (320) with a JSON header."""
    header_bytes = int.from_bytes(frame[5:8], "big")
    header = json.loads(frame[8 : 8 + header_bytes]) if frame[4] == 0 else {}
    if header.get("code") == 320:
        yield frame[8 + header_bytes :]
