"""Where a control plane says that it is reached: what is of use on another machine."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from node.config import load
from node.control.guard import Guard
from node.control.problems import Problem
from node.control_url import control_url


@pytest.mark.parametrize(
    ("listens", "peer", "url"),
    [
        ("10.0.0.7:8431", "db0.example:20911", "http://10.0.0.7:8431"),
        ("0.0.0.0:8431", "db0.example:20911", "http://db0.example:8431"),
        ("[::]:8431", "[fd00::7]:20911", "http://[fd00::7]:8431"),
    ],
)
def test_one_that_listens_everywhere_says_where_its_member_is_known(listens: str, peer: str, url: str) -> None:
    settings = load({"control.address": listens, "node.id": "n0", "peers": f"n0-{peer}"}, None, {})
    assert control_url(settings) == url
    guard = Guard(None, settings, None, None)  # type: ignore[arg-type]
    guard.check_host({}, Headers({"host": url.removeprefix("http://")}))
    with pytest.raises(Problem, match="is not a name of this node"):
        guard.check_host({}, Headers({"host": "rebound.example:8431"}))


@pytest.mark.parametrize(
    ("ha", "broker", "url"),
    [
        ("mq0.example:10912", "0.0.0.0:10911", "http://mq0.example:8431"),
        ("0.0.0.0:10912", "mq0.example:10911", "http://mq0.example:8431"),
        ("0.0.0.0:10912", "0.0.0.0:10911", "http://0.0.0.0:8431"),
    ],
)
def test_a_classic_broker_is_known_by_its_replication_s_host_or_its_clients(ha: str, broker: str, url: str) -> None:
    said = {"control.address": "0.0.0.0:8431", "ha.role": "sync_master", "ha.address": ha, "broker.address": broker}
    assert control_url(load(said, None, {})) == url
