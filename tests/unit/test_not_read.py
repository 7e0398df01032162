"""Stores of RocketMQ's with queues in another form than files of units: refused by name, with a way out."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from app.cli import run
from app.commands.endings import Exit
from node.hand_over.adopt import adopt_broker
from node.hand_over.report import Refused
from node.message_store.local_store import LocalMessageStore, LocalSettings
from node.message_store.message_store import MessageStore
from node.message_store.not_read import NotRead
from tests.unit.java_rocketmq.broker import LEDGER_INDEX_BYTES

# As RocketMQ has them: what is made in a directory that is sound, what the refusal names, and what it says to do.
ROCKSDB = ("CURRENT", "MANIFEST-000004", "000008.sst", "OPTIONS-000006", "IDENTITY", "LOCK")
FORMS = {
    "batch queues": (
        ["batchconsumequeue/Batches/0/00000000000000000000"], "batch queues (batchconsumequeue/)", "BatchCQ",
    ),
    "extended units": (
        ["consumequeue_ext/TopicTest/0/00000000000000000000"], "extended consume queue units (consumequeue_ext/)",
        "enableConsumeQueueExt=false",
    ),
    "rocksdb to 5.4": (
        [f"consumequeue/{one}" for one in ROCKSDB], "consume queues in RocksDB (consumequeue/CURRENT)",
        "storeType=default",
    ),
    "rocksdb of 5.5": (
        [f"consumequeue_rocksdb/{one}" for one in ROCKSDB], "consume queues in RocksDB (consumequeue_rocksdb/)",
        "storeType=default",
    ),
    "index": ([f"rocksdbstore/{one}" for one in ROCKSDB], "in RocksDB (rocksdbstore/)", "indexRocksDBEnable"),
}  # fmt: skip


@pytest.fixture
def recorded(vectors: Path, tmp_path: Path) -> Path:
    """The directory of a real broker in DLedger mode."""
    root = Path(shutil.copytree(vectors / "rocketmq/dledger-commitlog/single", tmp_path / "data"))
    os.truncate(root / "dledger-n0/index" / f"{0:020d}", LEDGER_INDEX_BYTES)
    shutil.copytree(vectors / "rocketmq/broker-config/master", root / "config")
    return root


def made(root: Path, names: list[str]) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"MANIFEST-000004\n" if name.endswith("CURRENT") else bytes(460))


def files_in(root: Path) -> dict[str, tuple[int, int]]:
    """Length and time of the last change of each; without the lock, which an attempt takes and lets go of."""
    found = [(one, one.stat()) for one in sorted(root.rglob("*")) if one.is_file() and one.name != "lock"]
    return {str(one.relative_to(root)): (said.st_size, said.st_mtime_ns) for one, said in found}


def is_refused(root: Path, named: str, way_out: str) -> None:
    """An adoption, also a dry run, names it, says what to do, and changes nothing."""
    before = files_in(root)
    for dry_run in (True, False):
        with pytest.raises((Refused, NotRead)) as refused:
            adopt_broker(root, "g", dry_run=dry_run)
        assert named in str(refused.value) and way_out in str(refused.value)
        assert files_in(root) == before


@pytest.mark.parametrize("form", FORMS)
def test_an_adoption_refuses_queues_of_another_form(recorded: Path, form: str) -> None:
    names, named, way_out = FORMS[form]
    made(recorded, names)
    is_refused(recorded, named, way_out)
    with pytest.raises(NotRead):
        MessageStore(recorded)


@pytest.mark.parametrize("form", FORMS)
def test_a_classic_broker_leaves_queues_of_another_form_alone(vectors: Path, tmp_path: Path, form: str) -> None:
    """It would write the queues anew, and remove what is in their place."""
    names, named, way_out = FORMS[form]
    root = Path(shutil.copytree(vectors / "rocketmq/store/data", tmp_path / "data"))
    made(root, names)
    before = files_in(root)
    with pytest.raises(NotRead) as refused:
        LocalMessageStore(root, LocalSettings(65536), lambda: 1)
    assert named in str(refused.value) and way_out in str(refused.value)
    assert files_in(root) == before


@pytest.mark.parametrize("folder", ["topics", "subscriptionGroups", "consumerOffsets", "metadata", "rdb"])
def test_an_adoption_refuses_tables_that_are_in_rocksdb(recorded: Path, folder: str) -> None:
    """`config/*.json` may be there as well, of the time before."""
    made(recorded, [f"config/{folder}/{one}" for one in ROCKSDB])
    is_refused(recorded, f"topics, groups or offsets in RocksDB (config/{folder}/)", "mqadmin rocksDBConfigToJson")
    assert MessageStore(recorded).topics()["TopicTest"] == [0, 1, 2, 3], "for reading its messages nothing is missing"


@pytest.mark.parametrize(
    ("attributes", "named", "way_out"),
    [
        ({"queue.type": "BatchCQ"}, "queue.type is BatchCQ of topics Other, TopicTest", "delete these topics"),
        ({"cleanup.policy": "COMPACTION"}, "cleanup.policy is COMPACTION of topics Other, TopicTest", "compaction/"),
    ],
)
def test_an_adoption_refuses_topics_whose_messages_count_otherwise(
    recorded: Path, attributes: dict[str, str], named: str, way_out: str
) -> None:
    """Their queues need not be there: they may be new, or gone."""
    path = recorded / "config/topics.json"
    said = json.loads(path.read_text())
    for name in ("TopicTest", "Other"):
        said["topicConfigTable"].setdefault(name, {"topicName": name})["attributes"] = attributes
    path.write_text(json.dumps(said))
    is_refused(recorded, named, way_out)
    for name in ("TopicTest", "Other"):
        said["topicConfigTable"][name]["attributes"] = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
    path.write_text(json.dumps(said))
    assert adopt_broker(recorded, "g", dry_run=True).messages == 367


def test_what_only_looks_like_it_is_taken(recorded: Path) -> None:
    """Folders that are empty, a topic of that name, and a backup of the configuration."""
    for name in ("batchconsumequeue", "consumequeue_ext", "rocksdbstore", "config/topics"):
        (recorded / name).mkdir()
    made(recorded, ["config/rocketmq/README"])
    unit = (48).to_bytes(8, "big") + (203).to_bytes(4, "big") + bytes(8)
    (recorded / "consumequeue/CURRENT/0").mkdir(parents=True)
    (recorded / "consumequeue/CURRENT/0" / f"{0:020d}").write_bytes(unit.ljust(320, b"\0"))
    assert adopt_broker(recorded, "g", dry_run=True).messages == 367


def test_the_command_says_so(recorded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(recorded, FORMS["rocksdb to 5.4"][0])
    assert run(["store", "adopt", str(recorded), "--broker", "--group", "g"]) == Exit.FINDING
    said = capsys.readouterr().err
    assert "consume queues in RocksDB" in said and "storeType=default" in said and "Traceback" not in said
