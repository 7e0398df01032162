"""Audits of real nodes over HTTP: consistent first, then one flipped byte of a follower's disk is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.audit import command
from app.audit.blocks import digest_block
from app.audit.command import AuditArgs
from app.audit.fencing import fix_fence, open_holders
from app.audit.replicas import ReplicaSpec
from app.audit.tasks import plan_pieces
from node.store.reader import StoreReader
from tests.audit.nodes import Nodes, nodes

pytestmark = [pytest.mark.process, pytest.mark.spark]
ENTRIES = 3000
BLOCK = 512


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("nodes")) as made:
        made.fill(ENTRIES, 256)
        yield made


def audit(group: Nodes, capsys: pytest.CaptureFixture[str], depth: str, **more: Any) -> tuple[int, dict[str, Any]]:
    code = command.run(AuditArgs(nodes=group.urls, depth=depth, as_json=True, **more))
    captured = capsys.readouterr()
    assert captured.out, captured.err
    return code, json.loads(captured.out)


def flip(store: Path, index: int) -> None:
    """One bit in the middle of an entry's body, on the disk, behind the node's back."""
    entry = StoreReader(store).entry(index)
    assert entry is not None
    path = next(one for one in sorted((store / "data").glob("[0-9]*"), reverse=True) if int(one.name) <= entry.pos)
    with path.open("r+b") as file:
        file.seek(entry.pos - int(path.name) + 48 + 100)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.long  # what is sound counts as sound in the next one, too
def test_sound_nodes_are_consistent(group: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    code, result = audit(group, capsys, "bytes")
    assert (code, result["verdict"]) == (0, "consistent"), result
    assert result["rows"] >= 3 * ENTRIES
    assert result["unaudited"] == []
    assert result["fence"]["committed_index"] >= group.last_index


@pytest.mark.long
def test_the_flipped_byte_is_named(group: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    bad = group.last_index // 2
    flip(group.stores[1], bad)
    code, result = audit(group, capsys, "bytes")
    assert (code, result["verdict"], result["first_divergence"]) == (1, "divergent", bad)
    (found,) = [one for one in result["findings"] if one["severity"] == "critical"]
    assert (found["class"], found["replicas"], found["good"]) == ("crc_invalid", ["n1"], ["n0", "n2"])
    assert (found["from_index"], found["to_index"]) == (bad, bad)

    # The nodes' own digests lead to the same block; the stored chain cannot know, and says so.
    assert drilled_blocks(group) == [bad - bad % BLOCK]
    code, result = audit(group, capsys, "chain")
    assert (code, result["verdict"]) == (0, "consistent")
    assert "does not prove what the disks hold now" in result["proves"]


def drilled_blocks(group: Nodes) -> list[int]:
    """The blocks whose digests by the nodes' own word do not settle them."""
    specs = [ReplicaSpec("http", url) for url in group.urls]
    fence = fix_fence(specs)
    parties = open_holders(specs, fence)
    pieces = plan_pieces(fence, BLOCK)
    return [one.from_index for one in pieces if digest_block(parties, one.from_index, one.to_index, BLOCK).drilled]


def test_the_same_nodes_directories_say_the_same(group: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    code = command.run(
        AuditArgs(stores=tuple(f"d{n}={path}" for n, path in enumerate(group.stores)), depth="chain", as_json=True)
    )
    result = json.loads(capsys.readouterr().out)
    assert (code, result["verdict"]) == (0, "consistent")
    assert [one["id"] for one in result["replicas"]] == ["d0", "d1", "d2"]
    assert all(one["committed_index"] is not None and not one["java"] for one in result["replicas"])
