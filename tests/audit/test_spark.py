"""The data source and the distributed comparison on a real Spark session, over directories and over HTTP."""

from __future__ import annotations

import hashlib
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from app.audit.message_audit import audit_messages, opened
from app.audit.replicas import ReplicaSpec
from app.audit.session import start_session
from tests.audit.builder import Store, Written, entries
from tests.audit.plane import Plane, serve
from tests.unit.message_broker import filled
from tests.unit.message_faults import missing_tail, planted

pytestmark = [pytest.mark.spark, pytest.mark.long]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from app.audit.data_source import DledgerDataSource

    session = start_session("local[2]", "quorumscope tests", tmp_path_factory.mktemp("spark"))
    session.dataSource.register(DledgerDataSource)
    yield session
    session.stop()


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Plane]]:
    root = tmp_path_factory.mktemp("stores")
    log = [*entries(900), Written(b"", term=2), *(Written(f"t{i}".encode(), term=3) for i in range(99))]
    with ExitStack() as stack:
        planes = []
        for number in range(3):
            store = Store(root / f"n{number}", file_bytes=1 << 16, index_file_bytes=1 << 15).write(log)
            if number == 2:
                store.flip(500, 60)
                store.put_record(501, bytes(148))
            planes.append(stack.enter_context(serve(Plane(store.root, f"n{number}", 0, 999, 999))))
        yield planes


def read(spark: Any, replicas: str, **options: object) -> Any:
    reader = spark.read.format("dledger").option("replicas", replicas)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_rows_are_the_log_and_faults_are_said(spark: Any, planes: list[Plane]) -> None:
    frame = read(spark, ";".join(plane.url for plane in planes), block_entries=128)
    rows = frame.orderBy("replica", "index").collect()
    assert len(rows) == 3000
    first = [row for row in rows if row["replica"] == "n0"]
    assert [row["index"] for row in first] == list(range(1000))
    assert first[7]["body"] == b"000007".ljust(100, b".")
    assert first[0]["body"] == b""
    assert [row["term"] for row in first[899:902]] == [1, 2, 3]
    assert all(row["sealed"] and row["fault"] is None for row in first)
    odd = [(row["replica"], row["index"], row["fault"]) for row in rows if row["fault"] is not None]
    assert odd == [("n2", 500, "crc"), ("n2", 501, "record")]


def test_whoever_does_not_know_the_sessions_secret_has_nothing_read(spark: Any) -> None:
    """A driver's port reads addresses and then an object of Java's from a request, of whichever local user it is."""
    port = int(spark.sparkContext.getConf().get("spark.driver.port"))
    request = struct.pack(">bqi", 3, 7, 4) + b"\x01\x00\x01a"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as stranger:
        stranger.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = stranger.recv(4096)
    assert b"Expected SaslMessage" in answer
    assert b"RequestMessage" not in answer


def test_a_range_is_read_and_filters_stay_above_the_source(spark: Any, planes: list[Plane]) -> None:
    frame = read(spark, f"a={planes[0].url};b={planes[1].url}", from_index=100, to_index=299)
    assert frame.count() == 400
    # One frame filtered two ways in one query: pushed filters would mix these up.
    left = frame.filter("replica = 'a'").select("index", "body")
    right = frame.filter("replica = 'b'").select("index", "body")
    assert left.join(right, ["index", "body"]).count() == 200
    assert frame.filter("index = 150").count() == 2


def test_an_unreadable_replica_is_an_error_of_the_read(spark: Any, planes: list[Plane]) -> None:
    with pytest.raises(Exception, match="cannot read n9"):
        read(spark, "n9=http://127.0.0.1:9").count()


def test_the_java_vectors_read_back_as_the_manifest_says(spark: Any, vectors: Path) -> None:
    import json

    manifest = json.loads((vectors / "store" / "manifest.json").read_text())["cases"]["main-n0"]["entries"]
    rows = read(spark, f"n0={vectors / 'store' / 'main-n0'}").orderBy("index").collect()
    assert [(r["index"], r["term"], r["magic"], r["position"]) for r in rows] == [
        (e["index"], e["term"], e["magic"], e["pos"]) for e in manifest
    ]
    assert [hashlib.sha256(r["body"]).hexdigest() for r in rows] == [e["body_sha256"] for e in manifest]
    assert not any(r["sealed"] for r in rows)


def test_message_stores_are_compared_by_the_workers(spark: Any, tmp_path: Path) -> None:
    roots = [filled(tmp_path / "n0", ledger=True).write()]
    _, expected = planted(tmp_path / "n1", missing_tail, 1, ledger=True)
    replicas = opened([ReplicaSpec("directory", str(root)) for root in (*roots, tmp_path / "n1")])
    counted: list[Any] = []
    findings, dropped = audit_messages(spark, replicas, lambda *counters: counted.extend(counters), counted.append)
    assert [(one["class"], one["replicas"], one["offset"], one["count"]) for one in findings] == [
        (expected.fault, ["n1"], expected.offset, expected.count)
    ]
    ranges, done, rows = counted[0], counted[1].value, counted[2].value
    assert (done, rows, dropped) == (ranges, 130, 0)
    assert [one.messages for one in replicas] == [60, 70]
