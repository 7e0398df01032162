"""The console's REST API over a fake group: what a page shows, a program can ask for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.console.settings import Seed
from app.db.engine import Sessions
from app.db.models import ConsoleMeta
from app.db.repositories import meta
from app.times import parse_time, rfc3339, utc_now
from tests.unit.console_kit import run, running
from tests.unit.fake_control import FakeGroup, Json

pytestmark = pytest.mark.usefixtures("samples_stay_new")


def test_one_control_url_finds_the_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            made = await ann.change("POST", "/api/v1/clusters", json={"control_url": "127.0.0.1:8432"})
            assert made.status_code == 201, made.text
            assert [one["id"] for one in made.json()["members"]] == ["n0", "n1", "n2"]
            assert made.headers["location"] == "/api/v1/clusters/demo"
            await kit.watched()
            again = await ann.change("POST", "/api/v1/clusters", json={"control_url": "http://127.0.0.1:8433/"})
            assert again.json()["id"] == "demo"
            assert len((await ann.get("/api/v1/clusters")).json()["items"]) == 1

    run(work())


def test_seeds_of_one_group_make_one_cluster(tmp_path: Path) -> None:
    async def work() -> None:
        seeds = tuple(Seed(f"http://127.0.0.1:{8431 + n}") for n in range(3)) * 2
        async with running(tmp_path, seeds=seeds) as kit:
            await kit.watched()
            await kit.until(lambda: not any("attaching" in one.get_name() for one in kit.console.background.tasks))
            ann = await kit.person()
            assert [one["id"] for one in (await ann.get("/api/v1/clusters")).json()["items"]] == ["demo"]
            assert len(await kit.console.clusters_kept.all()) == 1

    run(work())


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("http://127.0.0.1:9", 502),
        ("ftp://x", 422),
        ("http://u:p@h:1", 422),
        ("http://h:1/path", 422),
        ("h:99999", 422),
        ("http://[::1", 422),
    ],
)
def test_a_wrong_control_url_is_refused_with_a_reason(tmp_path: Path, url: str, status: int) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            refused = await ann.change("POST", "/api/v1/clusters", json={"control_url": url})
            assert refused.status_code == status
            assert refused.headers["content-type"] == "application/problem+json"
            assert refused.json()["detail"]

    run(work())


def test_the_view_and_the_nodes_resources(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            view = (await ann.get("/api/v1/clusters/demo/view")).json()
            assert view["leader_id"] == "n0" and view["quorum_index"] == 1000
            assert view["quorum"] == {"size": 3, "needed": 2, "answering": 3, "standing": 3, "stands": True}
            assert view["sentence"]["headline"] == "All 3 replicas are in step."
            assert [one["dispatcher"] and one["dispatcher"]["state"] for one in view["members"]] == [
                None,
                "APPEND",
                "APPEND",
            ]
            states = (await ann.get("/api/v1/clusters/demo/state")).json()
            assert [one["id"] for one in states["items"]] == ["n0", "n1", "n2"]
            one = (await ann.get("/api/v1/clusters/demo/state?node=n2")).json()
            assert one["self_id"] == one["node_id"] == "n2"
            for what in ("watermarks", "dispatchers", "closures"):
                assert (await ann.get(f"/api/v1/clusters/demo/{what}")).json()["node_id"] == "n0"
            assert (await ann.get("/api/v1/clusters/none/view")).status_code == 404
            assert (await ann.get("/api/v1/clusters/demo/state?node=n9")).status_code == 404

    run(work())


def test_an_entry_side_by_side(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.nodes["n1"].bodies[7] = "something else"
        group.nodes["n2"].end = 5
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()
            entry = (await ann.get("/api/v1/clusters/demo/entries/7")).json()
            assert entry["agree"] is False and entry["compared"] == 2
            assert entry["replicas"][2]["entry"] is None and "ends at 5" in entry["replicas"][2]["problem"]
            assert (await ann.get("/api/v1/clusters/demo/entries/3")).json()["agree"] is True
            for odd in ({}, {"entry": "x"}, {"entry": {}}, {"index": 4, "body": "entry 3"}):  # no entry 3 of theirs
                group.nodes["n1"].odd["entries"] = group.nodes["n2"].odd["entries"] = odd
                said = (await ann.get("/api/v1/clusters/demo/entries/3")).json()
                assert said["agree"] is None and said["compared"] == 1, odd
                assert said["replicas"][1]["problem"] == "it answers something else than this entry"
            group.nodes["n1"].alive = group.nodes["n2"].alive = False
            alone = (await ann.get("/api/v1/clusters/demo/entries/3")).json()
            assert alone["agree"] is None, "one copy agrees with nobody"

    run(work())


def test_truncations_of_all_replicas_in_one_list(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.nodes["n1"].truncations = [{"id": 1, "at": "2026-01-01T00:00:00Z"}]
        group.nodes["n0"].truncations = [{"id": 4, "at": "2026-01-02T00:00:00Z"}]
        async with running(tmp_path, group) as kit:
            await kit.watched()
            group.nodes["n2"].alive = False
            ann = await kit.person()
            found = (await ann.get("/api/v1/clusters/demo/truncations")).json()
            assert [(one["node_id"], one["id"]) for one in found["items"]] == [("n0", 4), ("n1", 1)]
            assert found["unknown"][0]["field"] == "truncations of n2"

    run(work())


def test_events_of_a_member_whose_clock_is_ahead_lie_among_those_of_their_time(tmp_path: Path) -> None:
    """They stood above all others for as long as that clock was ahead."""

    async def work() -> None:
        group = FakeGroup()
        node, now = group.nodes["n1"], utc_now()
        node.clock_s, at = 3600.0, rfc3339(now + timedelta(seconds=3590))
        odd = {"id": "b-2", "at": "9999-12-31T23:59:59Z", "kind": "role", "severity": "info", "detail": {}}
        node.events = [{"id": "b-1", "at": at, "kind": "stalled", "severity": "warning", "detail": {}}, odd]
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()
            await kit.until(lambda: kit.console.watch_of("demo").pollers["n1"].sample.events_cursor)
            await kit.console.events_waiting.store_now()
            found = (await ann.get("/api/v1/clusters/demo/events?limit=50")).json()["items"]
            (one,) = [each for each in found if each["kind"] == "stalled"]
            assert abs(parse_time(one["at"]) - now) < timedelta(seconds=30)

    run(work())


def test_events_of_nodes_are_kept_once_and_paged(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        group.nodes["n0"].events = [
            {"id": f"boot-{n}", "at": "2026-01-01T00:00:00Z", "kind": "role", "severity": "info", "detail": {"to": n}}
            for n in range(5)
        ]
        async with running(tmp_path, group) as kit:
            await kit.watched()
            await kit.until(lambda: kit.console.watch_of("demo").pollers["n0"].sample.events_cursor)
        async with running(tmp_path, group, seeded=False) as kit:
            ann = await kit.person()
            await kit.until(lambda: kit.console.watch_of("demo").pollers["n0"].sample.events_cursor)
            seen, path = [], "/api/v1/clusters/demo/events?limit=3"
            page = (await ann.get(path)).json()
            while True:
                seen += [one["source_id"] for one in page["items"] if one["kind"] == "role"]
                if page["next"] is None:
                    break
                page = (await ann.get(f"{path}&cursor={page['next']}")).json()
            assert sorted(seen) == [f"boot-{n}" for n in range(5)]
            assert (await ann.get("/api/v1/events?cursor=x")).status_code == 422
            for path in ("/api/v1/events", "/api/v1/clusters/demo/events"):  # who reads a stream finds nothing in JSON
                refused = await ann.get(path, headers={"accept": "text/event-stream"})
                assert refused.status_code == 406 and "page by page" in refused.json()["action"]
                both = await ann.get(path, headers={"accept": "text/event-stream, application/json;q=0.5"})
                assert both.status_code == 200 and both.json()["items"]

    run(work())


def test_a_stop_cuts_off_no_transaction(tmp_path: Path) -> None:
    """A driver goes on with what a task asked for that was ended in the middle, and holds the file's lock meanwhile."""
    begun = asyncio.Event()

    async def slow_write(sessions: Sessions) -> None:
        async with sessions() as db, db.begin():
            begun.set()
            await asyncio.sleep(0.2)
            await db.merge(ConsoleMeta(key="written", value="whole"))

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            kit.console.background.run("a write", slow_write(kit.app.state.sessions))
            await begun.wait()
        async with running(tmp_path, seeded=False) as kit:
            assert await meta(kit.app.state.sessions, "written", "never") == "whole"

    run(work())


def test_numbers_out_of_range_are_refused_not_crashed_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            huge = 1 << 70
            for path in (
                f"/api/v1/clusters/demo/entries/{huge}",
                f"/api/v1/clusters/demo/entries?from={huge}",
                f"/api/v1/sessions/{huge}",
                f"/api/v1/admin-trail?cursor={huge}",
                f"/api/v1/events?cursor={huge}",
                "/api/v1/clusters/demo/history?since=yesterday",
                "/api/v1/clusters/demo/history?since=2026-01-01T00:00:00",
                "/api/v1/operations?limit=0",
            ):
                method = "DELETE" if "sessions" in path else "GET"
                answer = await ann.change(method, path)
                assert answer.status_code == 422, (path, answer.text)

    run(work())


def test_a_time_at_the_edge_of_the_years_is_one_of_which_nothing_is_known(tmp_path: Path) -> None:
    """An hour before the first one, and a fraction behind the last one, were an error of the console."""
    first, last = "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"
    demo, asked = "/clusters/demo", [(f"at={first}", 404), (f"at={last}", 404)]

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            history = f"/api/v1{demo}/history"
            paths = [(f"{one}?{query}", status) for one in (demo, f"/api/v1{demo}/view") for query, status in asked]
            paths += [(f"{history}?until={first}", 422), (f"{history}?since={first}", 200)]
            paths += [(f"{history}?until={last}", 200), (f"{history}?since={first}&until={last}", 200)]
            got = [(path, (await ann.get(path)).status_code) for path, _ in paths]
            assert got == paths

    run(work())


def test_a_node_that_moved_is_found_again_once_an_admin_approves_the_address(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            group.nodes["n2"].url = "http://127.0.0.1:9999"
            watch = kit.console.watch_of("demo")
            sample = watch.pollers["n2"].sample
            await kit.until(lambda: "waits for an admin's approval" in (sample.problem or ""))
            assert sample.control_url == "http://127.0.0.1:8433", "it was not asked there"
            ann = await kit.person()
            listed = (await ann.get("/api/v1/clusters/demo/addresses")).json()["items"]
            (waiting,) = [one for one in listed if one["state"] == "waiting"]
            assert (waiting["control_url"], waiting["node_id"]) == ("http://127.0.0.1:9999", "n2")
            body = {"control_url": waiting["control_url"]}
            assert (await ann.change("POST", "/api/v1/clusters/demo/addresses", json=body)).status_code == 200
            await kit.until(lambda: sample.control_url == "http://127.0.0.1:9999")
            await kit.until(lambda: watch.view.members[2].reach == "ok" and not watch.view.problems)
        async with running(tmp_path, group, seeded=False) as kit:
            urls = [one.control_url for one in kit.console.watch_of("demo").samples]
            assert "http://127.0.0.1:9999" in urls, "what was approved survives a restart"

    run(work())


def test_openapi_describes_the_api_and_no_page(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            paths = (await ann.get("/api/v1/openapi.json")).json()["paths"]
            refused = paths["/api/v1/clusters"]["post"]["responses"]
            assert set(refused["422"]["content"]) == set(refused["409"]["content"]) == {"application/problem+json"}
            assert all(path.startswith("/api/v1") for path in paths)
            assert {"/api/v1/clusters", "/api/v1/me", "/api/v1/admin-trail", "/api/v1/problems"} <= set(paths)

    run(work())


def test_an_append_that_may_have_happened_says_so(tmp_path: Path) -> None:
    """Who does not hear so sends it again, and has it twice (SAFETY C2)."""

    async def work() -> None:
        group = FakeGroup()
        async with running(tmp_path, group) as kit:
            await kit.watched()
            ann = await kit.person()

            async def appended(where: str = "demo", **body: Any) -> tuple[int, Json]:
                answer = await ann.change("POST", f"/api/v1/clusters/{where}/entries", json=body)
                return answer.status_code, answer.json()

            for failure in (httpx2.ReadTimeout("no answer"), httpx2.RemoteProtocolError("closed")):
                group.fails_appends = failure
                status, said = await appended(entries=["x"])
                assert (status, said["outcome"], said["safe_to_retry"]) == (504, "unknown", False)
            group.fails_appends = httpx2.ConnectError("refused")
            group.fails_appends.__cause__ = ConnectionRefusedError(111, "refused")
            status, said = await appended(entries=["x"])
            assert (status, said["outcome"]) == (502, "not_appended")
            for wrong in ({"entries": []}, {"entries": ["x"], "expected": 3}, {"entries": ["x"], "expected_index": -1}):
                status, said = await appended(**wrong)
                assert (status, said["outcome"]) == (422, "not_appended")
            status, said = await appended("other", entries=["x"])
            assert (status, said["outcome"]) == (404, "not_appended")

    run(work())
