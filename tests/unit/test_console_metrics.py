"""The console's `/metrics` and `/readyz`: what it knows, nothing unknown as 0, and only to those who may see it."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from app.console.own_facts import DatabaseFacts
from tests.unit.console_kit import BASE, Kit, run, running

Key = tuple[tuple[str, str], ...]


def parsed(text: str) -> dict[str, dict[Key, float]]:
    return {
        one.name: {tuple(sorted(sample.labels.items())): sample.value for sample in one.samples}
        for one in text_string_to_metric_families(text)
    }


async def scraped(kit: Kit) -> dict[str, dict[Key, float]]:
    ann = await kit.person("ann", "viewer")
    made = await ann.change("POST", "/api/v1/tokens", json={"name": "prometheus", "role": "viewer"})
    client = kit.client(authorization=f"Bearer {made.json()['token']}")
    answer = await client.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(answer.text)


def key(**labels: str) -> Key:
    return tuple(sorted(labels.items()))


def test_a_scrape_says_what_the_console_knows(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await kit.until(lambda: kit.app.state.own_watch.facts.database.write_ms is not None)
            await kit.until(lambda: kit.app.state.notifier.loaded)
            found = await scraped(kit)
            assert found["quorumscope_console_clusters"] == {(): 1}
            (cluster,) = kit.console.watches
            problems = found["quorumscope_console_problems"]
            assert {dict(one)["cluster"] for one in problems} == {cluster, "_console"}
            assert found["quorumscope_console_group_has_leader"] == {key(cluster=cluster): 1}
            assert found["quorumscope_console_group_writes_stopped"] == {key(cluster=cluster): 0}
            reach = found["quorumscope_console_member_reach"]
            members = [one.id for one in kit.console.watches[cluster].view.members]
            for one in members:
                assert reach[key(cluster=cluster, member=one, reach="ok")] == 1
                assert reach[key(cluster=cluster, member=one, reach="stale")] == 0
                assert found["quorumscope_console_sample_age_seconds"][key(cluster=cluster, member=one)] >= 0
            assert found["quorumscope_console_live_readers"] == {(): 0}
            assert found["quorumscope_console_messages_waiting"] == {(): 0}
            assert found["quorumscope_console_database_writable"] == {(): 1}
            assert found["quorumscope_console_database_bytes"][()] > 10_000
            assert found["quorumscope_console_certificate_ends_timestamp_seconds"] == {}, "none is named"

    run(work())


def test_what_is_not_known_is_absent(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            kit.app.state.own_watch.background.get("watching this console").cancel()
            kit.app.state.own_watch.facts = kit.app.state.own_watch.facts.model_copy(
                update={"database": DatabaseFacts(), "disk": None}
            )
            found = await scraped(kit)
            assert found["quorumscope_console_clusters"] == {(): 0}
            assert found["quorumscope_console_group_has_leader"] == {}
            assert found["quorumscope_console_group_writes_stopped"] == {}
            assert found["quorumscope_console_database_writable"] == {}
            assert "quorumscope_console_database_write_seconds" not in found
            assert "quorumscope_console_disk_free_bytes" not in found

    run(work())


def test_ready_is_a_console_that_can_write_and_look(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            answer = await kit.client().get("/readyz")
            assert (answer.status_code, answer.json()) == (200, {"ok": True, "reasons": []})
            watch = kit.app.state.own_watch
            watch.background.get("watching this console").cancel()
            watch.facts = watch.facts.model_copy(update={"database": DatabaseFacts(error="locked")})
            answer = await kit.client().get("/readyz")
            assert answer.status_code == 503
            assert answer.json() == {"ok": False, "reasons": ["the database cannot be written"]}

    run(work())


def test_nobody_reads_them_without_the_right_to(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            assert (await kit.client().get("/metrics")).status_code == 401
            wrong = kit.client(authorization="Bearer nonsense-nonsense-nonsense")
            assert (await wrong.get("/metrics")).status_code == 401
            foreign = await kit.client(host="evil.example").get(f"{BASE}/readyz", headers={"host": "evil.example"})
            assert foreign.status_code in (400, 421), "names of others are refused before anything else"

    run(work())
