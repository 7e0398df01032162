"""The console tells two groups of one name apart by their ids (SAFETY C9)."""

from __future__ import annotations

from pathlib import Path

from tests.unit.console_kit import run, running


def test_a_member_of_another_group_of_this_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            watch = kit.console.watches["demo"]
            assert watch.view.cluster.group_id == "1d" * 16
            (row,) = await kit.console.clusters_kept.all()
            assert row.group_id == "1d" * 16
            stranger = kit.group.nodes["n2"]
            stranger.group_id, stranger.end = "2e" * 16, 999_999

            def noticed() -> bool:
                sample = watch.pollers["n2"].sample
                return sample.reach == "stale" and "another group" in str(sample.problem)

            await kit.until(noticed)
            reported = watch.pollers["n2"].sample.state
            assert reported is not None and reported.marks.end_index != 999_999
            stranger.group_id = "1d" * 16
            await kit.until(lambda: watch.pollers["n2"].sample.reach == "ok")

    run(work())


def test_a_member_of_a_group_of_another_name_is_not_taken_for_ours(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            watch, stranger = kit.console.watches["demo"], kit.group.nodes["n2"]
            stranger.group_name, stranger.end = "billing", 999_999
            await kit.until(lambda: watch.pollers["n2"].sample.reach == "stale")
            sample = watch.pollers["n2"].sample
            assert sample.problem == f"{stranger.url} belongs to the group 'billing'"
            assert sample.state is not None and sample.state.marks.end_index != 999_999
            await kit.until(lambda: any(one.node_id == "n2" for one in watch.view.problems))
            (problem,) = [one for one in watch.view.problems if one.node_id == "n2"]
            assert problem.step.startswith("see on its machine (127.0.0.1:20913) as which group it was started")
            stranger.group_name = None
            await kit.until(lambda: watch.pollers["n2"].sample.reach == "ok")

    run(work())


def test_another_group_of_this_name_gets_a_row_of_its_own(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            for node in kit.group.nodes.values():
                node.group_id = "2e" * 16
            view = await kit.console.add_cluster(kit.group.nodes["n0"].url, by="ann")
            assert view.cluster.id == "demo-2"
            assert {one.cluster.id for one in kit.console.clusters()} == {"demo", "demo-2"}

    run(work())
