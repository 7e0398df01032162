"""Members over REST: what `GET members` says, and changes as operations with a pre-flight and a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.group import Group

pytestmark = [pytest.mark.process, pytest.mark.long]
PATH = "/api/v1/members"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    place: Path = tmp_path_factory.mktemp("members")
    made = Group(place)
    try:
        yield made
    finally:
        made.close()


def ended(group: Group, leader: str, answer: Any) -> Any:
    def over() -> Any:
        reported = group.get(leader, f"/api/v1/operations/{answer.json()['id']}").json()
        return reported if reported["state"] != "running" else None

    return group.until(over)


def test_members_are_listed_preflighted_changed_and_refused(group: Group) -> None:
    leader = group.leader()
    group.until(lambda: group.get(leader, "/api/v1/state").json()["group_id"])  # before it nothing can be changed
    other = next(one for one in group.ids if one != leader)
    listed = group.get(leader, PATH).json()
    assert [(one["id"], one["kind"], one["joined_index"]) for one in listed["items"]] == [
        (one, "voter", -1) for one in sorted(group.ids)
    ]
    assert (listed["index"], listed["needed"], listed["pending"]) == (-1, 2, None)

    new = {"id": "n7", "address": "127.0.0.1:9"}
    dry = group.post(leader, PATH, json={**new, "dry_run": True})
    assert dry.status_code == 200 and dry.json()["would"] == "add n7 at 127.0.0.1:9"
    known = dry.json()["members"]
    assert known["refused"] is None and known["before"]["needed"] == 2 and known["after"]["needed"] == 3
    assert group.get(leader, PATH).json()["index"] == -1, "a dry run changes nothing"

    assert group.post(other, PATH, json=new).status_code == 421
    term = group.state(leader)["term"]
    assert group.post(leader, PATH, json={**new, "if_term": term + 5}).status_code == 412
    assert group.post(leader, PATH, json={"id": other, "address": "127.0.0.1:9"}).status_code == 409
    assert group.post(leader, f"{PATH}/n7/promotion", json={}).status_code == 409
    assert group.post(leader, PATH, json={**new, "learner": True, "replaces": other}).status_code == 422

    key = {"idempotency-key": "once"}
    asked = group.post(leader, PATH, json={**new, "learner": True}, headers=key)
    assert asked.status_code == 202, asked.text
    done = ended(group, leader, asked)
    assert done["state"] == "done" and done["outcome"]["index"] >= 0, done
    again = group.post(leader, PATH, json={**new, "learner": True}, headers=key)
    assert again.json()["id"] == asked.json()["id"]
    assert again.headers["location"] == asked.headers["location"]
    (learner,) = [one for one in group.get(leader, PATH).json()["items"] if one["kind"] == "learner"]
    assert (learner["id"], learner["joined_index"], learner["connected"]) == ("n7", done["outcome"]["index"], False)
    assert group.state(leader)["role"] == "LEADER", "a learner that is not there keeps nobody from anything"
