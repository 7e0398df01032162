"""The commands that problems print run as they are printed, also where little is known: nothing stands in for a gap."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from app.commands.group import startable
from app.commands.standing import AskedMember
from app.commands.targets import Target, target_of
from app.health.facts import ATTENTION, Finding
from app.health.group_view import GroupView
from app.health.next_steps import next_step
from node.views.reading import read
from tests.unit.group_story import Story
from tests.unit.test_cli_status import FRESH, gone, look, member, silent, with_peers
from tests.unit.test_problems import TABLE

CODES = ("replica_silent", "member_unreachable", "engine_down", "never_reached", "log_damaged", "audit_divergent",
         "diverged", "cut_off", "slow_link", "term_flapping", "alarm_disk_full")  # fmt: skip
GAP = re.compile(r"\b[A-Z][A-Z_]+\b|\{|--\w+ *$|--\w+ +-|//api|None")


def without_urls(view: GroupView) -> GroupView:
    """As `status --peers` sees a group of which nobody tells where control planes are."""
    members = tuple(one.model_copy(update={"control_url": None, "start": None}) for one in view.members)
    return view.model_copy(update={"members": members})


@pytest.mark.parametrize("seen", [lambda view: view, without_urls], ids=["known", "unknown"])
def test_no_command_has_a_gap_whatever_is_known(seen: Callable[[GroupView], GroupView]) -> None:
    lines = set()
    for happened, *_ in TABLE:
        story = Story()
        happened(story)
        for code in CODES:
            for node in ("n0", "n2", None):
                step = next_step(Finding(code, ATTENTION, "", node), seen(story.view))
                assert step.command and step.step, (code, node)
                lines |= {step.command, step.curl or ""}
    found = [one for one in lines if GAP.search(one.replace("curl -X POST", "").replace("$QUORUMSCOPE_TOKEN", ""))]
    assert found == [] and len(lines) > 1


@pytest.mark.parametrize("shows_token", [False, True])
def test_a_printed_call_shows_the_token_where_this_console_shows_one(shows_token: bool) -> None:
    """Control planes on this machine may ask for it as well as those beyond it."""
    story = Story()
    view = story.look()
    view = view.model_copy(update={"cluster": view.cluster.model_copy(update={"shows_token": shows_token})})
    curl = next_step(Finding("slow_link", ATTENTION, "", "n1"), view).curl or ""
    assert curl.startswith('curl -H "Authorization: Bearer $QUORUMSCOPE_TOKEN" ') == shows_token


def test_a_member_of_which_nothing_answers_is_started_where_it_was_and_the_command_shows_when_it_is_well() -> None:
    refused = gone("n2")
    (left,) = look([member("n0", acks=FRESH | {"n2": 9_000}), member("n1"), refused]).problems
    assert (left.code, left.member, left.curl) == ("member_unreachable", "n2", None)
    assert left.step.startswith("start n2 on its machine (n2:1) as it was started before, by its service or")
    assert left.command == "quorumscope status --peers 'n0-n0:1;n1-n1:1;n2-n2:1' --group g"


@pytest.mark.parametrize("store_id", [None, "s3"])
def test_a_member_that_was_added_and_never_started_is_told_its_first_start(store_id: str | None) -> None:
    """A later start, which needs no --join, is refused there."""
    leader = with_peers(member("n0", acks=FRESH), "n0", "n1", "n2", "n3", learners=("n3",))
    leader["state"]["peers"][3] |= {"connected": False, "store_id": store_id}
    refused = gone("n3")
    (left,) = look([leader, member("n1"), member("n2"), refused]).problems
    assert (left.code, left.member) == ("member_unreachable", "n3")
    said = "quorumscope node --join --id n3 --group g --peers 'n0-n0:1;n1-n1:1;n2-n2:1;n3-n3:1'"
    assert (f"{said} --data DIR" in left.step) is (store_id is None), gone.step
    assert left.command == "quorumscope status --peers 'n0-n0:1;n1-n1:1;n2-n2:1;n3-n3:1' --group g"
    for field, value, flag in (("broker", "n0:9", "--broker HOST:PORT"), ("applier", {}, "--state-machine NAME")):
        leader["state"][field] = value
        (left,) = look([leader, member("n1"), member("n2"), refused]).problems
        assert (f"{said} {flag} --data DIR" in left.step) is (store_id is None), "refused as of another kind"
        del leader["state"][field]


def test_what_this_machine_knows_of_a_start_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "n2.toml"
    file.write_text('peers = "n0-127.0.0.1:1;n1-127.0.0.1:2;n2-127.0.0.1:3"\n[node]\nid = "n2"\n')
    target = target_of(None, None, None, file)
    known = [startable(read(AskedMember, one), target) for one in (silent("n1"), silent("n2"))]
    assert known[0].start is None, "the file of another member says nothing of this one"
    line = shlex.join(["quorumscope", "node", "--config", str(file)])
    assert known[1].start is not None and known[1].start.started_with == line
    asked = read(AskedMember, member("n2"))
    assert startable(asked, Target({"n2": "n2:1"}, "g", starts={"n2": line})) is asked, "it answers"


def test_a_scrub_is_not_printed_for_another_member_than_the_damaged_one() -> None:
    story = Story()
    story.look()
    story.node("n2").alive = False
    view = story.look(8)
    step = next_step(Finding("log_damaged", ATTENTION, "", "n2"), view)
    assert step.step.startswith("bring n2 back first") and "scrub" not in (step.command or "") and step.curl is None
    of_several = next_step(Finding("audit_divergent", ATTENTION, "", None), view)
    assert (of_several.command or "").startswith("quorumscope audit --node ") and of_several.curl is None


def test_leadership_is_offered_to_be_moved_away_from_who_has_it_only() -> None:
    """Of a slow follower the page offered to move leadership: away from a member that is well."""
    story = Story()
    story.look()
    for code in ("slow_link", "engine_late", "alarm_broker_down", "alarm_applier_behind"):
        offered = {node: next_step(Finding(code, ATTENTION, "", node), story.view).actions for node in ("n0", "n2")}
        assert offered == {"n0": ("transfer",), "n2": ()}, code


def test_a_button_that_asks_the_member_itself_is_offered_while_it_answers() -> None:
    """A page said "bring n2 back first", and below it stood the button "Scrub and repair n2"."""
    story = Story()
    story.look()
    offered = {"log_damaged": ("scrub",), "audit_divergent": ("scrub", "audit"), "not_applying": ("restart_machine",)}
    for code, actions in offered.items():
        assert next_step(Finding(code, ATTENTION, "", "n2"), story.view).actions == actions
    story.node("n2").alive = False
    view = story.look(8)
    for code in offered:
        left = next_step(Finding(code, ATTENTION, "", "n2"), view).actions
        assert left == (("audit",) if code == "audit_divergent" else ()), code
