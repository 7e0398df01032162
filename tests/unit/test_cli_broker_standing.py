"""What `status` learns of brokers from control planes, and that it costs a group without brokers one request each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from app.commands.broker_standing import with_broker_alarms
from app.commands.standing import AskedMember, summary_of
from app.commands.targets import Target
from node.views.state import StateView
from tests.unit.test_cli_brokers import Planes

WITH_BROKER = {"as_of": "2026-11-23T00:00:00.000Z", "engine": "ok", "broker": "127.0.0.1:10911"}
ALARM = {"code": "broker_down", "severity": "warning", "text": "nothing listens there"}


@pytest.fixture
def planes() -> Iterator[Planes]:
    """Each says that it is the member's in whose name it is asked, unless an answer says something else."""
    made = Planes()
    usual = made.answer
    made.answer = lambda method, path, body: (  # type: ignore[method-assign]
        (found := usual(method, path, body))[0], {"self_id": path.split("/")[1]} | found[1]
    )  # fmt: skip
    yield made
    made.server.shutdown()
    made.server.server_close()


def asked(planes: Planes, **more: bool) -> list[AskedMember]:
    urls = {one: f"{planes.base}/{one}" for one in ("n0", "n1")}
    target = Target(dict.fromkeys(urls, "127.0.0.1:1"), "demo", control_urls=urls, **more)
    members = [
        AskedMember(id=one, address="127.0.0.1:1", reach="ok", state=StateView(engine="ok", self_id=one))
        for one in urls
    ]
    return asyncio.run(with_broker_alarms(members, target))


def by_peers(planes: Planes, alarms: list[dict[str, str]], **more: object) -> list[AskedMember]:
    """Members that were asked at their own ports, and name their control planes, whose alarms these are."""
    target = Target(dict.fromkeys(("n0", "n1"), "127.0.0.1:1"), "demo")
    members = [
        AskedMember(
            id=one, address="127.0.0.1:1", reach="ok", control_url=f"{planes.base}/{one}",
            state=StateView(engine="ok", self_id=one, role="LEADER" if one == "n1" else "FOLLOWER"),
        )
        for one in ("n0", "n1")
    ]  # fmt: skip
    planes.answers["GET", "state"] = 200, WITH_BROKER | {"alarms": alarms} | more
    return asyncio.run(with_broker_alarms(members, target))


def test_members_that_were_asked_at_their_own_ports_name_their_control_planes(planes: Planes) -> None:
    """By `--peers` and `--config`: a leader's broker was down, and all was said to be well."""
    assert codes(by_peers(planes, [ALARM])) == [["broker_down"], ["broker_down"]]


def test_every_control_plane_is_asked_for_what_its_engine_knows_nothing_of(planes: Planes) -> None:
    """Without brokers the leader's alone was: a follower's directory that cannot be written to was not shown."""
    alarms = [ALARM | {"code": one} for one in ("control_file_not_reread", "data_unwritable", "disk_low")]
    shown = ["control_file_not_reread", "data_unwritable"]
    assert codes(by_peers(planes, alarms, broker=None)) == [shown, shown]


def test_what_another_members_control_plane_says_is_not_taken_for_this_one_s(planes: Planes) -> None:
    """Members on several machines name their control planes as 127.0.0.1:8431, each its own."""
    found = by_peers(planes, [ALARM], self_id="n1")
    assert codes(found) == [[], ["broker_down"]]
    assert (found[0].broker_unknown or "").endswith("/n0 is n1's control plane")


def codes(members: list[AskedMember]) -> list[list[str | None]]:
    return [[alarm.code for alarm in (one.state and one.state.alarms) or ()] for one in members]


def test_alarms_about_brokers_are_taken_over_and_no_others(planes: Planes) -> None:
    planes.answers["GET", "state"] = 200, WITH_BROKER | {
        "alarms": [ALARM, {"code": "disk_low", "severity": "warning", "text": "3 %"}],
    }  # fmt: skip
    assert codes(asked(planes)) == [["broker_down"], ["broker_down"]]


def test_alarms_about_a_control_planes_own_files_are_taken_over(planes: Planes) -> None:
    """The console showed them, and `status` ended with 0."""
    planes.answers["GET", "state"] = 200, WITH_BROKER | {
        "broker": None, "alarms": [ALARM | {"code": "control_file_not_reread"}, ALARM | {"code": "disk_low"}],
    }  # fmt: skip
    found = asked(planes)
    assert codes(found) == [["control_file_not_reread"], ["control_file_not_reread"]]
    assert [one.broker_unknown for one in found] == [None, None]


def test_one_that_does_not_answer_hides_no_other_one_s_alarms(planes: Planes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one alone was asked whether the group has brokers, and as long as its broker hung that timed out: a
    group whose broker was down was said to be well."""
    usual = planes.answer

    def answer(method: str, path: str, body: dict[str, object] | None) -> tuple[int, dict[str, object]]:
        if path.startswith("/n0/"):
            planes.asked.append((f"{method} n0", path, body))
            return 503, {"detail": "not now"}
        return usual(method, path, body)

    monkeypatch.setattr(planes, "answer", answer)
    planes.answers["GET", "state"] = 200, WITH_BROKER | {"alarms": [ALARM]}
    found = asked(planes)
    assert codes(found) == [[], ["broker_down"]]
    said = [one.reason for one in summary_of("demo", found).unknown if one.field == "broker"]
    assert len(said) == 1 and "n0's broker is not known to be well: " in said[0] and said[0].endswith("503: not now")


def test_a_group_without_brokers_is_asked_once(planes: Planes) -> None:
    planes.answers["GET", "state"] = 200, WITH_BROKER | {"broker": None}
    assert codes(asked(planes)) == [[], []]
    assert sorted(f"{who} {what}" for who, what, _body in planes.asked) == ["GET n0 state", "GET n1 state"]
    planes.asked.clear()
    assert codes(asked(planes, demo=True)) == [[], []] and planes.asked == []
