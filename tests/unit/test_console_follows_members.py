"""The console asks whom the leader's configuration names: new members by themselves, removed ones no longer than they
answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.console.live import LiveKey
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_control import FakeGroup

MEMBERS = {"n0", "n1", "n2"}


async def until_stored(kit: Kit, *node_ids: str) -> None:
    async with asyncio.timeout(60):
        while True:
            (row,) = await kit.console.clusters_kept.all()
            if [one.node_id for one in row.nodes] == list(node_ids):
                return
            await asyncio.sleep(0.02)


def test_a_member_that_was_added_is_watched_and_kept(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup(4)
        group.members = set(MEMBERS)
        async with running(tmp_path, group) as kit:
            view = await kit.watched()
            assert [one.id for one in view.members] == ["n0", "n1", "n2"] and view.quorum.size == 3
            group.members.add("n3")
            watch = kit.console.watches["demo"]
            await kit.until(lambda: watch.view.quorum.size == 4)
            await kit.until(lambda: all(one.reach == "ok" for one in watch.view.members))
            assert watch.view.quorum.needed == 3 and not watch.view.others
            await until_stored(kit, "n0", "n1", "n2", "n3")

    run(work())


def test_a_member_that_was_removed_is_said_to_run_and_forgotten_once_it_is_stopped(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup(4)
        async with running(tmp_path, group) as kit:
            await kit.watched()
            watch = kit.console.watches["demo"]
            group.members = {"n0", "n1", "n3"}
            group.nodes["n2"].alarms = [{"code": "removed", "severity": "warning", "text": "stop this member"}]
            expected = [("member_removed", "n2", "info")]  # until the leader is asked too, its own alarm alone
            await kit.until(lambda: [(one.code, one.node_id, one.severity) for one in watch.view.problems] == expected)
            assert "member_removed" in {one["code"] for one in kit.console.problems("demo")}
            assert [one.id for one in watch.view.members] == ["n0", "n1", "n3"] and watch.view.quorum.size == 3
            person = await kit.person()
            assert "n2 was removed from the group and still runs" in (await person.get("/clusters/demo")).text
            group.lead(None)  # without a leader the members are those of the last one
            await kit.until(lambda: watch.view.leader_id is None)
            assert [one.id for one in watch.view.members] == ["n0", "n1", "n3"]
            group.lead("n1")
            group.nodes["n2"].alive = False
            await kit.until(lambda: "n2" not in watch.pollers)
            await kit.until(lambda: not watch.view.problems)
            await until_stored(kit, "n0", "n1", "n3")

    run(work())


def test_a_new_members_address_waits_where_a_token_would_go_there(tmp_path: Path) -> None:
    async def work() -> None:
        group = FakeGroup(4)
        group.members = set(MEMBERS)
        async with running(tmp_path, group, node_token="secret") as kit:
            await kit.until(lambda: "demo" in kit.console.watches)
            watch = kit.console.watches["demo"]
            await kit.until(lambda: watch.view.leader_id == "n0")
            group.members.add("n3")
            await kit.until(lambda: "n3" in watch.pollers)
            await kit.until(lambda: watch.pollers["n3"].sample.waiting_url == group.nodes["n3"].url)
            assert not [one for one in group.requests if one.url.port == 8434]

    run(work())


def test_the_open_page_of_a_member_that_is_forgotten_ends(tmp_path: Path) -> None:
    """It asks again then, and shows that there is no such member; a stream that only beats would leave it stale."""

    async def work() -> None:
        group = FakeGroup(4)
        async with running(tmp_path, group) as kit:
            await kit.watched()

            async def alive() -> bool:
                return True

            stream = kit.app.state.hub.stream(LiveKey("node", "demo", "n3", "viewer"), alive)
            assert b"live-node" in await anext(stream)
            group.members = set(MEMBERS)
            group.nodes["n3"].alive = False
            async with asyncio.timeout(60):
                while await anext(stream, None) is not None:
                    pass
            person = await kit.person()
            for path in ("/clusters/demo/nodes/n3", "/live/node/snapshot?cluster=demo&node=n3"):
                assert (await person.get(path)).status_code == 404

    run(work())
