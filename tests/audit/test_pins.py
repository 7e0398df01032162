"""An audit keeps what it reads: a pin on each node from the fence on, renewed, released; and it goes on without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.audit.fencing import fix_fence
from app.audit.pins import PIN_S, AuditPins
from app.audit.replicas import ReplicaSpec
from tests.audit.plane import Plane, serve


def plane_of(folder: Path, node_id: str, begin: int, end: int) -> Plane:
    for kind in ("data", "index"):
        (folder / kind).mkdir(parents=True)
    return Plane(folder, node_id, begin, end, end)


def test_each_node_is_asked_for_what_the_audit_needs_there(tmp_path: Path) -> None:
    with (
        serve(plane_of(tmp_path / "n0", "n0", 0, 99)) as whole,
        serve(plane_of(tmp_path / "n1", "n1", 40, 99)) as trimmed,
    ):
        specs = [ReplicaSpec("http", one.url) for one in (whole, trimmed)]
        pins = AuditPins(specs, 20)
        pins.take(fix_fence(specs))
        path = f"/pins/{pins.owner}"
        assert whole.changes == [("PUT", path, {"from_index": 20, "for_s": PIN_S})]
        assert trimmed.changes == [("PUT", path, {"from_index": 40, "for_s": PIN_S})]
        pins.renew()
        pins.release()
        pins.release()
        assert [method for method, _, _ in whole.changes] == ["PUT", "PUT", "DELETE"]


@pytest.mark.parametrize("status", [403, 404, 410, 503])
def test_an_audit_goes_on_without_a_pin_and_says_so(
    tmp_path: Path, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    plane = plane_of(tmp_path / "n0", "n0", 0, 9)
    plane.change_status = status
    with serve(plane):
        specs = [ReplicaSpec("http", plane.url)]
        pins = AuditPins(specs, None)
        pins.take(fix_fence(specs))
        assert f"no pin on {plane.url}" in capsys.readouterr().err
        pins.renew()
        pins.release()
        assert len(plane.changes) == 1, "who refuses is not asked again"
