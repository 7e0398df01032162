"""What pages offer to do, and to whom: a member's own page, the page of an audit, a topic that takes no messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser.states import cut_off, held_entries, result_of
from tests.unit.console_kit import Kit, run, running
from tests.unit.fake_brokers import BrokerGroup, example

GROUP = "/clusters/demo"
pytestmark = pytest.mark.usefixtures("samples_stay_new")
FAULT = {"first_index": 7, "last_index": 7, "kind": "crc_invalid", "detail": "the stored CRC does not fit the record"}
FULL = {"code": "disk_full", "severity": "critical", "text": "no space"}


def test_a_members_page_lists_all_its_problems_with_what_to_do(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            kit.group.nodes["n1"].alarms, kit.group.nodes["n1"].faults = [FULL], [FAULT]
            await kit.until(lambda: len(kit.console.watches["demo"].view.problems) == 2)
            texts = [re.split("[,:]", one.text)[0] for one in kit.console.watches["demo"].view.problems]
            repair = f'href="{GROUP}/nodes/n1/repair?from=7&amp;to=7"'
            for role, offered in (("operator", True), ("viewer", False)):
                page = (await (await kit.person(role, role)).get(f"{GROUP}/nodes/n1")).text
                assert all(text.replace("'", "&#39;") in page for text in texts), texts
                assert page.count("<dt>What to do</dt>") == 2 and (repair in page) is offered

    run(work())


def test_a_member_that_is_silent_is_not_said_to_be_well(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            for one in kit.group.nodes.values():
                one.alive = False
            await kit.until(lambda: [one.code for one in kit.console.watches["demo"].view.problems] == ["all_silent"])
            page = (await (await kit.person()).get(f"{GROUP}/nodes/n1")).text
            assert "Last seen" in page and "What follows is what it said last." in page
            assert "<dt>engine</dt><dd>unknown</dd>" in page
            assert "It raises no alarm." not in page and "It raised no alarm when it answered last." in page

    run(work())


def test_a_leaders_page_says_once_that_it_leads_and_what_the_others_problem_is(tmp_path: Path) -> None:
    """It read "n0 leads term 4. n0 leads term 4 for 3 s.", and of the problems of others only "1 more problem"."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            person = await kit.person()
            await kit.until(lambda: kit.console.watches["demo"].view.severity == "ok")
            page = (await person.get(f"{GROUP}/nodes/n0")).text
            assert page.count("n0 leads term") == 1 and "All 3 replicas are in step." in page
            kit.group.nodes["n1"].alarms, kit.group.nodes["n1"].faults = [FULL], [FAULT]
            await kit.until(lambda: len(kit.console.watches["demo"].view.problems) > 1)
            page = (await person.get(f"{GROUP}/nodes/n0")).text
            first = kit.console.watches["demo"].view.sentence.headline.partition("'")[2]
            assert first.startswith("s disk is full") and f"n1&#39;{first}" in page and page.count("n0 leads term") == 1

    run(work())


def test_a_member_of_which_something_is_not_known_is_not_said_to_be_well(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            late = kit.group.nodes["n1"]
            late.dispatcher, late.dispatcher_since = "COMPARE", "2999-01-01T00:00:00.000Z"
            await kit.until(lambda: kit.console.watches["demo"].view.unproven)
            page = (await (await kit.person()).get(f"{GROUP}/nodes/n1")).text
            assert (
                "Whether n1 is in step is not known: n1 is in COMPARE." in page and 'class="sentence unknown"' in page
            )
            kit.group.lead(None)
            await kit.until(lambda: kit.console.watches["demo"].view.leader_id is None)
            page = (await (await kit.person("bob")).get(f"{GROUP}/nodes/n2")).text
            assert "n2 answers, and no leader is known." in page and "entries behind" not in page

    run(work())


def test_only_who_could_take_it_is_offered_leadership(tmp_path: Path) -> None:
    """It was offered for a candidate that nobody hears; the page behind it refused."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            olga = await kit.person("olga", "operator")
            assert {"n1", "n2"} == set(re.findall(r">Make (\w+) leader<", (await olga.get(GROUP)).text))
            cut_off(kit.group)
            await kit.until(lambda: [one.code for one in kit.console.watches["demo"].view.problems] == ["cut_off"])
            assert re.findall(r">Make (\w+) leader<", (await olga.get(GROUP)).text) == ["n1"]

    run(work())


def test_a_members_page_gives_each_number_once_with_its_unit(tmp_path: Path) -> None:
    """The leader's word of another instant stood among the member's own: vouched for beyond its end."""

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            kit.group.nodes["n2"].end -= 3
            await kit.until(lambda: kit.console.watches["demo"].view.members[2].mark.lag_entries == 3)
            person = await kit.person()
            page = (await person.get(f"{GROUP}/nodes/n2")).text
            assert "<dt>behind</dt><dd>3 entries</dd>" in page and "vouched for" not in page
            assert f'href="{GROUP}#closures-title">Which writes wait for the quorum' in page
            leads = (await person.get(f"{GROUP}/nodes/n0")).text
            assert "<dt>end index</dt>" in leads and not re.search("<dt>(behind|last ack)</dt>", leads)
            assert ">3 entries" in (await person.get(f"{GROUP}/members")).text

    run(work())


async def audited(kit: Kit) -> str:
    kept = kit.app.state.audit_runner.kept
    row, _ = await kept.create(
        cluster_id="demo", cluster_name="demo", depth="bytes", from_index=None, to_index=None, directory="/nowhere",
        requested_by="ann",
    )  # fmt: skip
    await kept.running(row.id, 1)
    result = result_of("divergent")
    (finding,) = result["findings"]
    others = [{"severity": "info", "replicas": ["n2"]}, {"replicas": ["n0", "n2"]}, {"replicas": ["gone"]}]
    result["findings"] += [finding | {"from_index": 9, "to_index": 9}, *(finding | one for one in others)]
    await kept.finish(row.id, {"event": "result", "result": result})
    return f"{GROUP}/audits/{row.id}"


def test_a_finding_offers_scrub_and_repair_of_the_replica_that_it_blames(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            path = await audited(kit)
            page = (await (await kit.person("olga", "operator")).get(path)).text
            assert page.count("Scrub and repair") == 1
            assert f'href="{GROUP}/nodes/n1/repair?from=9&amp;to=77084">Scrub and repair n1' in page
            assert f'href="{GROUP}/entries/77084/replicas' in page
            seen = (await (await kit.person("vic", "viewer")).get(path)).text
            assert "77,084" in seen and "Scrub and repair" not in seen and "/replicas" not in seen, (
                "bodies are not read"
            )

    run(work())


def test_a_topic_that_is_only_to_be_read_offers_no_test_message(tmp_path: Path) -> None:
    group, name = BrokerGroup(), example("get /api/v1/topics")["items"][0]["topic"]

    async def work() -> None:
        async with running(tmp_path, group) as kit:
            await kit.watched()
            person = await kit.person()
            for perm, offered in ((6, True), (2, True), (4, False)):
                group.changed = {f"topics/{name}": {"perm": perm}}
                page = (await person.get(f"{GROUP}/messages/topics/{name}")).text
                assert ("Send a test message" in page) is offered, perm

    run(work())


def test_only_who_may_watch_another_group_is_given_the_form(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            for role, offered in (("admin", True), ("operator", False), ("viewer", False)):
                page = (await (await kit.person(role, role)).get("/clusters/new")).text
                assert ('action="/clusters"' in page) is offered
                assert ("needs the role admin" in page) is not offered

    run(work())


def test_bytes_that_all_replicas_hold_alike_are_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times 24 rows of them hid the one that differs: 8,279 px on a telephone."""
    monkeypatch.setattr("app.console.audit_pages.entry_on_all", held_entries)

    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            page = (await (await kit.person("olga", "operator")).get(f"{GROUP}/entries/77084/replicas")).text
            rows = page.partition("<h2>Bytes</h2>")[2].split("<tr>")[2:]
            once = [row for row in rows if "the same on all" in row]
            (differs,) = [row for row in rows if row not in once]
            assert len(rows) == 24 and all(row.count('class="hex"') == 1 for row in once)
            assert differs.count('class="hex"') == 3 and differs.count("<mark>") == 6

    run(work())
