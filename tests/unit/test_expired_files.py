"""Which files of queues and index go with the log's."""

from __future__ import annotations

from pathlib import Path

from node.message_store.expired_files import expired_files
from node.message_store.message_store import MessageStore
from tests.unit.message_broker import UNITS_A_FILE, Broker


def written(root: Path, count: int = 60) -> Broker:
    broker = Broker(root, ledger=True)
    for number in range(count):
        broker.put(queue_id=number % 2, keys=f"k{number}", body=b"x" * 100)
    broker.write()
    return broker


def names(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in expired_files(MessageStore(root))]


def test_nothing_goes_while_the_log_has_all(tmp_path: Path) -> None:
    written(tmp_path)
    assert names(tmp_path) == []


def test_whole_files_below_the_logs_beginning_go_but_never_a_queues_last(tmp_path: Path) -> None:
    broker = written(tmp_path, 120)
    for name in ("20261121032455668", "20261121032455670"):  # of the same entries
        broker.write_index(name)
    data = sorted((tmp_path / "dledger-n0/data").iterdir())
    upto = broker.units["TopicTest", 0][2 * UNITS_A_FILE - 1][0]  # the last of the second file of queue 0
    while int(data[1].name) <= upto:
        data.pop(0).unlink()
    begin = int(data[0].name)
    data.pop(0).unlink()
    begin = int(data[0].name)
    wanted = [
        f"consumequeue/TopicTest/{queue}/{at * UNITS_A_FILE * 20:020d}"
        for queue in (0, 1)
        for at in range(len(broker.units["TopicTest", queue]) // UNITS_A_FILE)
        if broker.units["TopicTest", queue][(at + 1) * UNITS_A_FILE - 1][0] < begin
    ]
    assert names(tmp_path) == wanted and len(wanted) >= 4
    for path in data[:-1]:
        path.unlink()
    last = names(tmp_path)
    kept = sorted((tmp_path / "consumequeue/TopicTest/0").iterdir())[-1]
    assert len(last) > len(wanted) and str(kept.relative_to(tmp_path)) not in last


def test_index_files_go_by_their_last_entry_and_the_newest_stays(tmp_path: Path) -> None:
    broker = written(tmp_path)
    broker.write_index("20261121032455670")
    broker.keys = broker.keys[:10]
    broker.write_index("20261121032455600")
    data = sorted((tmp_path / "dledger-n0/data").iterdir())
    while int(data[0].name) <= broker.keys[-1][1]:
        data.pop(0).unlink()
    assert [name for name in names(tmp_path) if name.startswith("index")] == ["index/20261121032455600"]
