"""A back-up over a control plane: what is asked of it, in which order, and what it answers where it cannot."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from app.audit.replicas import ControlError, ControlPlane, ReplicaSpec
from app.backup.run import What, back_up
from app.backup.source import SourceError
from app.backup.taking import BackupRefused
from node.snapshots.directory import SnapshotMeta, SnapshotWriter
from node.store.backup.manifest import read_manifest
from node.store.backup.trial import try_restore
from tests.unit.test_kv_rest import run

Answer = tuple[int, Mapping[str, str], bytes]


class Asked:
    """Takes what a control plane's connection would send to the app itself; remembers it."""

    def __init__(self, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self.http, self.loop = http, asyncio.get_running_loop()
        self.calls: list[str] = []
        self.refused: dict[str, int] = {}  # part of a path -> status
        asked = self

        def once(
            _plane: ControlPlane, target: str, headers: dict[str, str], method: str = "GET", sent: bytes | None = None
        ) -> Answer:
            return asked.ask(target, headers, method, sent)

        monkeypatch.setattr(ControlPlane, "_once", once)

    def ask(self, target: str, headers: dict[str, str], method: str, sent: bytes | None) -> Answer:
        path = target.removeprefix("/api/v1")
        self.calls.append(f"{method} {path}")
        for part, status in self.refused.items():
            if part in path:
                raise ControlError(status, f"refused with {status}")
        call = self.http.request(method, path, headers=headers, content=sent)
        answer = asyncio.run_coroutine_threadsafe(call, self.loop).result(60)
        if answer.status_code >= 400:
            raise ControlError(answer.status_code, answer.text)
        return answer.status_code, {name.lower(): value for name, value in answer.headers.items()}, answer.content

    def first(self, start: str) -> int:
        return next(place for place, call in enumerate(self.calls) if call.startswith(start))


def test_a_run_over_a_control_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    what = What((ReplicaSpec("http", "http://127.0.0.1:1"),))

    def taken(asked: Asked) -> None:
        made = back_up(what, tmp_path / "b", lambda _entries, _bytes: None)
        assert made["snapshot_index"] == 3 and made["kind"] == "kv" and made["end_index"] >= 9 and not made["notes"]
        pinned = asked.first("PUT /pins/backup-")
        reading = [place for place, call in enumerate(asked.calls) if "/segments/data/" in call][1:]  # 0: the ETag
        assert asked.first("GET /snapshots") < asked.first("GET /state") < pinned < reading[0]
        assert asked.calls[-1].startswith("DELETE /pins/backup-")
        manifest = read_manifest(tmp_path / "b")
        assert manifest is not None and manifest.log is not None and manifest.log.peers.keys() == {"n0"}
        assert try_restore(tmp_path / "b", manifest, tmp_path / "b") is not None
        again = back_up(what, tmp_path / "b", lambda _entries, _bytes: None)
        assert again["new_entries"] == 0 and again["snapshot_index"] == 3
        asked.refused = {"/pins/": 403}
        without = back_up(what, tmp_path / "b", lambda _entries, _bytes: None)
        assert "no pin on n0" in without["notes"][0]
        asked.refused = {"/snapshots/3": 410}
        other = back_up(what, tmp_path / "other", lambda _entries, _bytes: None)
        assert other["snapshot_index"] is None and "up to entry 3 is not in the back-up" in other["notes"][0]
        for status, is_denied in ((403, True), (410, False)):
            asked.refused = {"/segments/": status}
            with pytest.raises(SourceError) as refused:
                back_up(what, tmp_path / "third", lambda _entries, _bytes: None)
            assert (refused.value.is_denied, refused.value.is_away) == (is_denied, False)
        asked.refused = {}
        with pytest.raises(BackupRefused, match="data directory"):
            back_up(what, tmp_path / "n0" / "b", lambda _entries, _bytes: None)

    async def work(http: httpx.AsyncClient) -> None:
        for number in range(8):
            assert (await http.put(f"/kv/k{number}", json={"value": str(number)})).status_code == 200
        while True:  # what is asked for below is what stands then
            log = (await http.get("/state")).json()["log"]
            if log["committed_index"] == log["durable_index"] == log["end_index"] >= 9:
                break
        store = next(iter(tmp_path.rglob("quorumscope.json"))).parent
        writer = SnapshotWriter(store)
        writer.write(b"state of 3")
        writer.commit(SnapshotMeta(3, 1))
        listed = (await http.get("/snapshots")).json()["items"]
        assert [(one["index"], one["is_sealed"], len(one["files"])) for one in listed] == [(3, True, 3)]
        assert (listed[0]["data_bytes"], listed[0]["data_crc"]) == (10, zlib.crc32(b"state of 3"))
        part = await http.get("/snapshots/3/data", headers={"range": "bytes=6-"})
        assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"of 3", "bytes 6-9/10")
        assert (await http.get("/snapshots/3/data")).content == b"state of 3"
        assert (await http.get("/snapshots/4/data")).status_code == 410
        assert (await http.get("/snapshots/3/data", headers={"range": "bytes=10-"})).status_code == 416
        assert (await http.get("/snapshots/3/hardstate")).status_code == 422
        await asyncio.to_thread(taken, Asked(http, monkeypatch))
        assert (await http.get("/pins")).json()["items"] == []

    run(tmp_path, work)
