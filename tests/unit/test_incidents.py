"""What is over and what it cost: one incident for what belongs together, measured, and kept over a restart."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from app.console.app import templates
from app.console.fragments import render_fragments
from app.health.group_view import Incident
from app.health.incidents import Incidents, event_of_incident, with_cuts
from app.times import rfc3339, utc_now
from node.views.events import EventView
from tests.unit import views
from tests.unit.console_kit import run, running
from tests.unit.group_story import T0, Story


class Watched(Story):
    """A story of which somebody keeps the incidents."""

    def __init__(self) -> None:
        super().__init__()
        self.incidents = Incidents()
        self.over: list[Incident] = []

    def goes_on(self, times: int = 1) -> None:
        for _ in range(times):
            view = self.look()
            ended = self.incidents.observe(view, T0 + timedelta(seconds=(self.looked - 1) * 0.5), self.recall.began)
            if ended is not None:
                self.over.append(ended)


def test_nothing_that_happens_is_no_incident() -> None:
    story = Watched()
    story.goes_on(30)
    assert story.over == []


def test_a_follower_that_was_cut_off_cost_no_pause() -> None:
    story = Watched()
    story.goes_on(4)
    story.node("n2").ack_ms = 9_000
    story.goes_on(8)
    story.node("n2").ack_ms = 20
    story.goes_on(4)
    assert story.over == [], "it may come back"
    story.goes_on(6)
    (one,) = story.over
    assert (one.code, one.node_id, one.pause_ms, one.writes_unknown) == ("cut_off", "n2", 0, 0)
    story.goes_on(20)
    assert len(story.over) == 1


def test_what_began_before_the_console_did_is_kept_and_what_nobody_saw_of_it_is_unknown() -> None:
    story, fell = Watched(), T0 - timedelta(minutes=3)
    story.recall.began["quorum_lost:"] = fell
    lost = [story.node(one) for one in ("n1", "n2")]
    for one in lost:
        one.alive, one.ack_ms = False, 9_000
    story.goes_on(12)
    for one in lost:
        one.alive, one.ack_ms = True, 2
    story.goes_on(12)
    (over,) = story.over
    assert (over.code, over.since, over.pause_ms, over.writes_unknown) == ("quorum_lost", rfc3339(fell), None, None)


def test_a_group_that_never_was_well_has_lost_nothing() -> None:
    story = Watched()
    for node_id in ("n1", "n2"):
        story.node(node_id).alive, story.node(node_id).ack_ms = False, 9_000
    story.goes_on(12)
    for node_id in ("n1", "n2"):
        story.node(node_id).alive, story.node(node_id).ack_ms = True, 2
    story.goes_on(12)
    assert story.over == []


def test_writes_pause_from_the_last_that_got_through_until_somebody_leads_again() -> None:
    story = Watched()
    story.group.closures |= {"pending": 7, "oldest_age_ms": 3}
    story.goes_on(4)
    story.node("n0").alive = False
    story.goes_on(8)
    story.group.closures |= {"pending": 0, "oldest_age_ms": None}
    story.group.lead("n1")
    story.goes_on(2)
    story.node("n0").alive = True
    story.node("n0").role = "FOLLOWER"
    story.goes_on(20)
    (one,) = story.over
    assert one.pause_ms is not None and 4_000 <= one.pause_ms <= 5_000, "eight looks, half a second each"
    assert one.leaders == ("n0", "n1")
    assert one.writes_unknown == 7, "those that waited on n0"
    assert one.since < one.until


def test_a_leader_that_hands_over_is_an_incident_of_its_own() -> None:
    story = Watched()
    story.goes_on(4)
    story.group.lead("n2")
    story.goes_on(12)
    (one,) = story.over
    assert one.code == "leader_changed" and one.text == "Leadership moved: n0 and then n2."


def test_what_was_cut_counts_where_it_was_cut_while_it_lasted_or_right_after() -> None:
    one = Incident(code="cut_off", text="…", since=rfc3339(T0), until=rfc3339(T0 + timedelta(seconds=9)),
                   writes_unknown=2)  # fmt: skip
    late, next_day = T0 + timedelta(seconds=20), T0 + timedelta(days=1)
    cuts = [(rfc3339(late), "n1", 77_084, 77_234), (rfc3339(next_day), "n1", 1, 5)]
    found = with_cuts(one, cuts)
    assert (found.entries_cut, found.writes_unknown) == (151, 151)
    assert found.cuts == ("entries 77,084 to 77,234 on n1",)
    assert with_cuts(one, []).entries_cut == 0


def test_it_is_kept_for_an_hour_also_over_a_restart(tmp_path: Path) -> None:
    def incident(ago_s: float) -> Incident:
        at = utc_now() - timedelta(seconds=ago_s)
        return Incident(code="cut_off", node_id="n1", text="n1 was cut off.", since=rfc3339(at - timedelta(seconds=9)),
                        until=rfc3339(at), pause_ms=1240, writes_unknown=0)  # fmt: skip

    async def first() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            kit.console.take_events("demo", None, [event_of_incident(incident(60)), event_of_incident(incident(4000))])
            cut = EventView(id="b-1", at=rfc3339(utc_now() - timedelta(seconds=58)), kind="truncation",
                            detail={"from_index": 5, "to_index": 7})  # fmt: skip
            kit.console.take_events("demo", "n1", [cut])
            await kit.until(lambda: kit.console.group_view("demo").recent)

    async def again() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            await kit.until(lambda: kit.console.group_view("demo").recent)
            (one,) = kit.console.group_view("demo").recent
            assert (one.pause_ms, one.entries_cut, one.writes_unknown) == (1240, 3, 3)
            html = render_fragments(kit.console.group_view("demo"), "viewer")["recent"]
            assert "n1 was cut off." in html and "1,240 ms" in html and "entries 5 to 7 on n1" in html
            ann = await kit.person()
            assert "Recently" in (await ann.get("/clusters/demo")).text
            events = (await ann.get("/clusters/demo/events")).text
            assert "Over after 9 s, writes paused for 1,240 ms: n1 was cut off." in events, "not as if it began now"

    run(first())
    run(again())


def test_the_newest_stand_open() -> None:
    over = tuple(
        Incident(code="cut_off", node_id="n1", text=f"n{n} was cut off.", since="2026-01-01T00:00:00.000Z",
                 until="2026-01-01T00:00:09.000Z")
        for n in range(5)
    )  # fmt: skip
    view = views.healthy().model_copy(update={"recent": over})
    html = templates().env.get_template("group/_recent.html").render(view=view, cluster=view.cluster)
    shown, _, folded = html.partition("<summary>2 earlier</summary>")
    assert [text in shown for text in ("n0 was", "n1 was", "n2 was", "n3 was")] == [True, True, True, False]
    assert "n3 was" in folded and "n4 was" in folded
