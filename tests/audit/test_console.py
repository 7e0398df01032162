"""Audits in the console: API and pages over a real job process, across a restart, and the entry opened to the byte."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from app.audit.entries import hex_rows
from app.audit.launch import start_job
from app.audit.runner import AuditRunner
from app.db.audits import FINAL
from tests.audit.builder import Store, entries
from tests.audit.plane import Plane, serve
from tests.unit.console_kit import Kit, Person, run, running
from tests.unit.fake_control import FakeGroup

COUNT = 200


@asynccontextmanager
async def console(tmp_path: Path, flip: int | None = None) -> AsyncIterator[tuple[Kit, list[Plane]]]:
    """A console over a fake group whose segments are really there: one plane a node."""
    with ExitStack() as stack:
        stores = [
            Store(tmp_path / f"n{number}", file_bytes=1 << 16, index_file_bytes=1 << 15).write(entries(COUNT))
            for number in range(3)
        ]
        if flip is not None:
            stores[1].flip(flip, 60)
        planes = [
            stack.enter_context(serve(Plane(store.root, f"n{number}", 0, COUNT - 1, COUNT - 1, group="demo")))
            for number, store in enumerate(stores)
        ]
        async with running(tmp_path, FakeGroup()) as kit:
            view = await kit.watched()
            members = [
                member.model_copy(update={"control_url": plane.url})
                for member, plane in zip(view.members, planes, strict=True)
            ]
            view = view.model_copy(update={"members": tuple(members)})
            # The watch rebuilds its view all the time; these audits read from the planes instead.
            kit.console.group_view = lambda cluster_id: view if cluster_id == "demo" else missing(cluster_id)  # type: ignore[method-assign]
            kit.console.clusters = lambda _sight=None: [view]  # type: ignore[method-assign]
            yield kit, planes


def missing(cluster_id: str) -> Any:
    from app.console.errors import UnknownCluster

    raise UnknownCluster(f"No group is called {cluster_id!r} here.")


async def ended(person: Person, audit_id: str) -> dict[str, Any]:
    async with asyncio.timeout(240):
        while True:
            audit: dict[str, Any] = (await person.get(f"/api/v1/audits/{audit_id}")).json()
            if audit["state"] in FINAL:
                return audit
            await asyncio.sleep(0.05)


async def start(person: Person, **body: Any) -> dict[str, Any]:
    answer = await person.change("POST", "/api/v1/audits", json={"cluster": "demo", "depth": "chain", **body})
    assert answer.status_code == 202, answer.text
    started: dict[str, Any] = answer.json()
    return started


def test_the_api_starts_follows_and_lists_audits(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(tmp_path) as (kit, _):
            ann = await kit.person("ann", "operator")
            started = await start(ann)
            assert started["state"] in ("queued", "running")
            assert started["progress"]["steps"][0]["name"] == "starting_jvm"
            audit = await ended(ann, started["id"])
            assert (audit["state"], audit["verdict"], audit["requested_by"]) == ("done", "consistent", "ann")
            assert "findings" not in audit["result"]
            assert not (tmp_path / "audits" / started["id"] / "spec.json").exists()
            keyed = {"json": {"cluster": "demo", "depth": "chain"}, "headers": {"idempotency-key": "k1"}}
            second, again = [(await ann.change("POST", "/api/v1/audits", **keyed)).json() for _ in range(2)]
            assert again["id"] == second["id"], "the same key starts one audit"
            await ended(ann, second["id"])
            page = (await ann.get("/api/v1/audits?limit=1")).json()
            assert [one["id"] for one in page["items"]] == [second["id"]]
            rest = (await ann.get(f"/api/v1/audits?limit=1&cursor={page['next']}")).json()
            assert [one["id"] for one in rest["items"]] == [started["id"]]
            assert rest["next"] is None
            async with asyncio.timeout(60):
                while not (rail := (await ann.get("/api/v1/events?cluster=demo")).json()["items"]):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.02)
            assert (rail[0]["kind"], rail[0]["detail"]["audit_id"]) == ("audit", second["id"])

    run(work())


def test_what_the_api_refuses(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(tmp_path) as (kit, _):
            viewer, ann = await kit.person("vic", "viewer"), await kit.person("ann", "operator")
            post = {"json": {"cluster": "demo", "depth": "chain"}}
            assert (await viewer.change("POST", "/api/v1/audits", **post)).status_code == 403
            for body, status in (
                ({"cluster": "other"}, 404),
                ({"cluster": "demo", "depth": "deep"}, 422),
                ({"cluster": "demo", "from_index": 9, "to_index": 1}, 422),
                ({"cluster": "demo", "from_index": 2**70}, 422),
                ({"cluster": "demo", "master": "spark://elsewhere"}, 422),
            ):
                assert (await ann.change("POST", "/api/v1/audits", json=body)).status_code == status, body
            assert (await ann.get("/api/v1/audits/none")).status_code == 404
            assert (await ann.get("/api/v1/audits/none/findings")).status_code == 404
            assert (await ann.change("POST", "/api/v1/audits/none/cancel")).status_code == 404
            dry = await ann.change("POST", "/api/v1/audits", json={"cluster": "demo", "dry_run": True})
            assert (dry.status_code, [one["id"] for one in dry.json()["replicas"]]) == (200, ["n0", "n1", "n2"])
            assert (await ann.get("/api/v1/audits")).json()["items"] == []

    run(work())


def test_pages_start_show_and_open_the_flipped_byte(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(tmp_path, flip=150) as (kit, _):
            ann = await kit.person("ann", "operator")
            empty = await ann.get("/clusters/demo/audits")
            assert empty.status_code == 200
            assert "never been audited" in empty.text
            form = {"depth": "bytes", "from_index": "100", "to_index": "", "csrf_token": ann.csrf}
            wrong = await ann.change("POST", "/clusters/demo/audits", data={**form, "from_index": "ten"})
            assert wrong.status_code == 422
            assert "is no index" in wrong.text
            answer = await ann.change("POST", "/clusters/demo/audits", data=form)
            assert answer.status_code == 303
            path = answer.headers["location"]
            # Steps are there at once, before the job has said a word.
            page = (await ann.get(path)).text
            for text in ("Starting the JVM", "Fixing the fence", "Reading", "Comparing", "Cancel"):
                assert text in page
            audit = await ended(ann, path.rsplit("/", 1)[1])
            assert (audit["verdict"], audit["result"]["first_divergence"]) == ("divergent", 150)
            page = (await ann.get(path)).text
            for text in ("What it proves", "What was not audited", "crc_invalid", "n1", "It trusts no node"):
                assert text in page
            assert "Cancel</button>" not in page
            entry = re.search(r'href="(/clusters/demo/entries/150/replicas[^"]*)"', page)
            assert entry is not None
            opened = (await ann.get(entry.group(1).replace("&amp;", "&"))).text
            assert "does not match" in opened or "crc: stored" in opened
            assert opened.count("<mark>") == 6, "one byte differs: hex and text, in each of three columns"
            vic = await kit.person("vic", "viewer")
            assert (await vic.get(entry.group(1).replace("&amp;", "&"))).status_code == 403
            items = (await vic.get(f"/api/v1/audits/{audit['id']}/findings")).json()["items"]
            assert [one["class"] for one in items] == ["crc_invalid"]
            assert "crc_invalid" not in (await vic.get("/audits")).text
            assert "The replicas diverge" in (await vic.get("/audits")).text

    run(work())


def test_the_live_fragment_names_nobody_and_a_cancel_from_the_page_ends_the_job(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(tmp_path) as (kit, _):
            ann = await kit.person("ann-the-operator", "operator")
            started = await start(ann, depth="bytes")
            live = await ann.get(f"/live/audit/snapshot?cluster=demo&node={started['id']}")
            assert live.status_code == 200
            assert 'id="audit-status"' in live.text
            assert "ann-the-operator" not in live.text
            assert ann.csrf not in live.text
            other = await ann.get("/live/audit/snapshot?cluster=demo&node=none")
            assert other.status_code == 404
            page = f"/clusters/demo/audits/{started['id']}"
            answer = await ann.change("POST", f"{page}/cancel", data={"csrf_token": ann.csrf})
            assert answer.status_code == 303
            assert (await ended(ann, started["id"]))["state"] == "cancelled"
            assert "Cancelled" in (await ann.get(page)).text

    run(work())


def test_a_console_that_restarts_finds_its_audits_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with console(tmp_path) as (kit, _):
            ann = await kit.person("ann", "operator")
            runner: AuditRunner = kit.app.state.audit_runner
            await runner.stop()
            # As a console that died left them: one whose job goes on, one that never started, one whose job is gone.
            rows = []
            for name in ("runs", "queued", "gone"):
                row, _ = await runner.kept.create(
                    cluster_id="demo", cluster_name="demo", depth="chain", from_index=None, to_index=None,
                    directory=str(tmp_path / "audits"), requested_by=name,
                )  # fmt: skip
                rows.append(row)
            from app.api.audits import replicas_of
            from app.audit.launch import write_spec

            replicas = replicas_of(kit.console, kit.console.group_view("demo"))
            for row in rows[:2]:
                write_spec(Path(row.directory), replicas, depth="chain")
            job = start_job(Path(rows[0].directory), outlives=True)
            await runner.kept.running(rows[0].id, job.pid)
            await runner.kept.running(rows[2].id, 2**22 + 7)
            again = kit.app.state.audit_runner = AuditRunner(kit.app.state.sessions, tmp_path / "audits")
            await again.start()
            states = [(await ended(ann, row.id))["state"] for row in rows]
            assert states == ["done", "done", "failed"], [(await ended(ann, row.id))["problem"] for row in rows]
            gone = (await ann.get(f"/api/v1/audits/{rows[2].id}")).json()
            assert gone["problem"]["code"] == "process_ended"
            await again.stop()
            job.wait()

    run(work())


def test_hex_rows_mark_what_differs_and_what_only_one_has() -> None:
    from app.audit.entries import HeldEntry

    def held(name: str, raw: bytes | None) -> HeldEntry:
        return HeldEntry(name, raw, {}, 0, (), None)

    rows = hex_rows([held("a", b"0123456789abcdefXY"), held("b", b"0123456789abcdeFX"), held("c", None)])
    assert [row["offset"] for row in rows] == [0, 16]
    assert [cell["differs"] for cell in rows[0]["columns"][0]] == [False, True]
    assert rows[0]["columns"][1][1] == {"hex": "46", "text": "F", "differs": True}
    assert [cell["text"] for cell in rows[1]["columns"][0]] == ["X", "Y"]
    assert len(rows[1]["columns"]) == 2
