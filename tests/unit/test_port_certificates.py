"""Certificates of member ports: what members report of their own, authorities' and clients', and what is said."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from app.pki import Wanted, make
from app.times import rfc3339
from node.certificates import ends_of
from node.engine.certificates import CLIENTS_MAX, PortCertificates
from node.transport.connection import Connection
from node.views.state import CertificateView
from tests.unit.group_story import T0, Story

DAY_S = 86_400.0
NOW_S = T0.timestamp()


class Shown:
    """A connection whose other side has shown a certificate."""

    def __init__(self, name: str | None, ends_s: float | None) -> None:
        self.certificate_name, self.certificate_ends_s = name, ends_s


def noted(certificates: PortCertificates, name: str | None, ends_s: float | None) -> None:
    certificates.note(cast(Connection, Shown(name, ends_s)))


def names(certificates: PortCertificates) -> list[str | None]:
    return [one.name for one in certificates.view({"n0", "n1"})]


def test_clients_that_end_soon_are_reported_with_the_newest_that_they_showed() -> None:
    port = PortCertificates(lambda: NOW_S)
    noted(port, None, None)
    noted(port, "n1", NOW_S + DAY_S)
    noted(port, "late", NOW_S + 40 * DAY_S)
    noted(port, "app", NOW_S + 9 * DAY_S)
    noted(port, "feed", NOW_S + 5 * DAY_S)
    assert names(port) == ["feed", "app"]
    noted(port, "feed", NOW_S + 300 * DAY_S)
    noted(port, "feed", NOW_S + 5 * DAY_S)  # one of its processes has not been started anew yet
    assert names(port) == ["app"]


def test_however_many_clients_come_few_are_kept() -> None:
    port = PortCertificates(lambda: NOW_S)
    for number in range(3 * CLIENTS_MAX):
        noted(port, f"c{number}", NOW_S + number)
    assert len(port._clients) == CLIENTS_MAX and f"c{3 * CLIENTS_MAX - 1}" in port._clients
    assert len(names(port)) < CLIENTS_MAX


def test_a_port_reports_its_own_certificate_and_its_authority_from_the_files(tmp_path: Path) -> None:
    authority, own = make(tmp_path / "pki", [Wanted("n0", ("127.0.0.1",), serves=True)], 7)
    port = PortCertificates()
    port.read(own, own.with_suffix(".key"), authority)
    found = {one.what: datetime.fromisoformat(one.ends_at) for one in port.view(())}
    assert found == {"member_port": ends_of(own)[0], "authority": ends_of(authority)[0]}
    assert found["member_port"] - datetime.now(UTC) < timedelta(days=8)
    port.read(tmp_path / "gone", tmp_path / "gone", authority)
    assert [one.what for one in port.view(())] == ["authority"], "what cannot be read is not reported"


def certificate(what: str, days: float, name: str | None = None) -> dict[str, Any]:
    return {"what": what, "name": name, "ends_at": rfc3339(T0 + timedelta(days=days, minutes=1))}


def said(story: Story) -> dict[str, str]:
    return {one.code: one.text for one in story.look(3).problems}


@pytest.mark.parametrize(("days", "severity"), [(12, "attention"), (2, "critical"), (-1, "critical")])
def test_a_member_port_s_certificate_that_ends_is_a_problem_of_that_member(days: int, severity: str) -> None:
    story = Story()
    story.node("n2").certificates = [certificate("member_port", days), certificate("authority", 400)]
    (one,) = story.look(3).problems
    assert (one.code, one.member, one.severity) == ("member_certificate_ends", "n2", severity)
    ends = f"ends in {days} d" if days > 0 else "ended 23 h 5"
    assert one.text.startswith(f"The certificate of n2's member port {ends}"), one.text
    assert one.command and one.command.startswith("openssl s_client -connect 127.0.0.1:20913 ")


def test_one_certificate_for_both_ports_is_said_once() -> None:
    story = Story()
    story.certificate_ends = {"n1": T0 + timedelta(days=9, minutes=1)}
    story.node("n1").certificates = [certificate("member_port", 9)]
    text = "The certificate of n1's control plane and its member port ends in 9 d."
    assert said(story) == {"node_certificate_ends": text}


def test_the_authority_and_clients_are_watched_too() -> None:
    story = Story()
    story.node("n0").certificates = [certificate("authority", 5), certificate("client", 6, "app")]
    story.node("n1").certificates = [certificate("client", 6, "app"), certificate("client", 25, "feed")]
    assert said(story) == {
        "member_authority_ends": "The authority that n0's member port trusts ends in 5 d.",
        "client_certificate_ends": "Certificates of clients end: app's ends in 6 d.",
    }
    story.node("n1").certificates = [certificate("client", 300, "app")]
    assert "client_certificate_ends" not in said(story), "it has shown a newer one since"


def test_what_an_older_member_does_not_report_is_no_problem() -> None:
    story = Story()
    story.node("n1").certificates = [CertificateView(what="member_port", ends_at="soon").to_json()]
    assert said(story) == {}
