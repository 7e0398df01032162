"""A log that lost its front, as everybody sees it: REST, metrics, segments, shell, and the store after a new start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.command_line import run
from tests.api.group import Group, running_group

pytestmark = pytest.mark.process
SETTINGS = (
    "store.mapped_file_size_for_entry_data_bytes=4096", "store.mapped_file_size_for_entry_index_bytes=1024",
    "store.scrub_bytes_per_s=0",
)  # fmt: skip
BODY = "x" * 300


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with running_group(tmp_path_factory.mktemp("group"), 1, SETTINGS) as running:
        yield running


def operation(group: Group, body: dict[str, Any]) -> dict[str, Any]:
    """A trim, followed to its end."""
    begun = group.post("n0", "/api/v1/trim", json=body)
    assert begun.status_code == 202, begun.text
    path = begun.headers["location"]

    def ended() -> Any:
        found = group.get("n0", path).json()
        return None if found["state"] == "running" else found

    done: dict[str, Any] = group.until(ended)
    return done


def test_what_was_removed_is_gone_for_everybody_and_everybody_says_where_the_log_begins(
    group: Group, capsys: pytest.CaptureFixture[str]
) -> None:
    last = group.post("n0", "/api/v1/entries", json={"entries": [BODY] * 100}).json()["last_index"]
    group.until(lambda: group.state("n0")["log"]["durable_index"] >= last)
    plan = group.post("n0", "/api/v1/trim", json={"through_index": last, "dry_run": True})
    assert plan.status_code == 200
    assert plan.json()["trim"]["files"] > 3 and group.state("n0")["log"]["begin_index"] == 0

    pin = group.client.put(f"{group.urls['n0']}/api/v1/pins/reader-1", json={"from_index": 40, "for_s": 600})
    assert pin.status_code == 200, pin.text
    (held,) = group.get("n0", "/api/v1/pins").json()["items"]
    assert (held["owner"], held["from_index"]) == ("reader-1", 40) and held["expires_in_s"] > 0
    done = operation(group, {"through_index": last})
    begin = done["outcome"]["begin_index"]
    assert done["state"] == "done" and 0 < begin <= 40
    assert [need["owner"] for need in done["outcome"]["kept_by"]] == ["reader-1"]
    url = group.urls["n0"]
    assert run(["pins", "list", "--node", url]) == 0
    assert "n0: reader-1 keeps entries from 40 on, for " in capsys.readouterr().out
    assert run(["pins", "release", "reader-2", "--node", url]) == 1
    assert "n0 has no pin of 'reader-2' (it has: reader-1)" in capsys.readouterr().err
    assert run(["pins", "release", "reader-1", "--node", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["released"]["from_index"] == 40
    assert run(["pins", "list", "--node", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "n0", "items": []}
    assert group.client.delete(f"{url}/api/v1/pins/reader-1").status_code == 204, "one without a pin is fine"

    for path in (
        f"/api/v1/entries/{begin - 1}", "/api/v1/entries?from=0", "/api/v1/entries?from=0&consistency=linearizable",
        "/api/v1/digests?from=0", f"/api/v1/digests?from={begin - 1}&to={last}", "/api/v1/digests?to=0",
    ):  # fmt: skip
        gone = group.get("n0", path)
        assert (gone.status_code, gone.json()["begin_index"]) == (410, begin), path
    late = group.client.put(f"{url}/api/v1/pins/late", json={"from_index": 0, "for_s": 5})
    assert (late.status_code, late.json()["begin_index"]) == (410, begin)
    assert group.get("n0", "/api/v1/segments/data/" + "0" * 20).status_code == 410
    digests = group.get("n0", "/api/v1/digests").json()
    assert digests["items"][0]["from_index"] == digests["begin_index"] == begin
    assert group.get("n0", f"/api/v1/entries/{begin}").json()["index"] == begin
    assert f"quorumscope_log_begin_index {float(begin)}" in group.get("n0", "/metrics").text
    events = [one for one in group.get("n0", "/api/v1/events").json()["items"] if one["kind"] == "prefix_removed"]
    assert events[-1]["detail"]["begin_index"] == begin and events[-1]["detail"]["by"] == "an operator"

    assert run(["get", "0", "--node", url]) != 0
    assert f"the log of n0 begins at {begin}" in capsys.readouterr().err
    assert run(["tail", "-n", "1000", "--node", url, "--json"]) == 0
    printed = [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()]
    assert printed[0] >= begin and last in printed
    assert run(["trim", "--node", url, "--through", str(last), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["begin_index"] > 40 and said["state"] == "done"
    store = group.place / "n0" / "dledger-n0"
    assert run(["store", "verify", str(store), "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["begin_index"], verified["problems"]) == (said["begin_index"], [])
    assert verified["end_index"] >= last, "the entry that names the group may follow"
