"""Every route against people and tokens that have no right, or less, on a group.

The API's routes come from the OpenAPI document and the pages' from the app, so that a new route is attacked by itself.
A group that somebody does not see is answered like one that does not exist, its name is in no answer, and nothing of it
changes, whatever is called.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.console.settings import Seed
from app.db.models import EventRow
from app.times import rfc3339, utc_now
from tests.attack.remoting_kit import drawn
from tests.unit.console_kit import BASE, Kit, Person, run, running
from tests.unit.fake_control import FakeGroup

RNG = drawn("rights on groups")
NUMBER = RNG.randrange(1000)
HIDDEN, OTHER, ABSENT = f"vault-{NUMBER}", "orders", "no-such-group"
# Where pages lie; API routers know themselves without their prefix, and have no page's module.
PAGES = (
    "/clusters/", "/account", "/users", "/admin-trail", "/audits", "/operations", "/notifications", "/live/", "/demo",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# They end the attacker's own session; the demo's is about no group that is named.
NOT_ASKED = {"/logout", "/account/sessions/{session_id}/end", "/api/v1/sessions/{session_id}", "/demo/break"}
# Calls that change only what is the caller's own.
OWN = frozenset(
    {
        "/account/password", "/api/v1/me/password", "/account/tokens", "/api/v1/tokens", "/api/v1/me/second-factor",
        "/account/second-factor",
    }
)  # fmt: skip
Json = dict[str, Any]


@dataclass
class Place:
    """A console with a group whose name is a secret, and another one."""

    kit: Kit
    boss: Person
    ids: dict[str, str]
    drawn: dict[str, str]

    def fill(self, path: str, group: str) -> str:
        known = {"cluster_id": group, "scope": group, "page": "group-entries", "kind": self.drawn["kind"]}
        known |= {"problem_id": "replica_silent:n2", **self.drawn, **self.ids}

        def value(found: re.Match[str]) -> str:
            return known.get(found[1].partition(":")[0], "0" * 20)

        return re.sub(r"\{([^}]+)\}", value, path)

    def body(self, path: str, group: str) -> Json:
        until = rfc3339(utc_now() + timedelta(days=1))
        bodies: dict[str, Json] = {
            "/api/v1/audits": {"cluster": group},
            "/api/v1/schedules": {"cluster": group, "every_s": 86_400},
            "/api/v1/alerts/windows": {"group": group, "until": until},
            "/api/v1/alerts/problems/{scope}/{problem_id}/mute": {"until": until},
        }
        return bodies.get(path, {})

    async def state(self) -> Json:
        """What no attack may change."""
        api = "/api/v1"
        operation = (await self.boss.get(f"{api}/operations/{self.ids['operation_id']}")).json()
        audit = await self.kit.app.state.audit_runner.kept.get(self.ids["audit_id"])
        return {
            "clusters": [one["name"] for one in (await self.boss.get(f"{api}/clusters")).json()["items"]],
            "operation": operation["state"],
            "audit": audit.state,
            "windows": (await self.boss.get(f"{api}/alerts/windows")).json()["items"],
            "schedules": (await self.boss.get(f"{api}/schedules")).json()["items"],
            "users": (await self.boss.get(f"{api}/users")).json()["items"],
            "changes": [one.method for one in self.kit.group.requests if one.method != "GET"],
        }


@asynccontextmanager
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    seeds = (Seed("http://127.0.0.1:8431", f"Vault {NUMBER}"),)
    async with running(tmp_path, FakeGroup(name=HIDDEN), seeds=seeds) as kit:
        await kit.watched(HIDDEN)
        row = await kit.console.clusters_kept.save("Orders", OTHER, [("o0", "127.0.0.1:9", "http://127.0.0.1:9")])
        kit.console.watch(row)
        boss = await kit.person("boss", "admin")
        operation, _ = await kit.console.operations_kept.open(
            HIDDEN, "leadership_transfer", "boss", node_id="n0", key=None, progress={"detail": f"of {HIDDEN}"}
        )
        audit, _ = await kit.app.state.audit_runner.kept.create(
            cluster_id=HIDDEN, cluster_name=f"Vault {NUMBER}", depth="bytes", from_index=None, to_index=None,
            directory=str(tmp_path), requested_by="boss",
        )  # fmt: skip
        async with kit.app.state.sessions() as db, db.begin():
            db.add(EventRow(cluster_id=HIDDEN, at=utc_now(), kind="x", severity="info", text=f"of {HIDDEN}"))
        body = {"group": HIDDEN, "until": rfc3339(utc_now() + timedelta(days=1))}
        window = await boss.change("POST", "/api/v1/alerts/windows", json=body)
        assert window.status_code == 201, window.text
        daily = {"cluster": HIDDEN, "every_s": 86_400}
        schedule = await boss.change("POST", "/api/v1/schedules", json=daily)
        assert schedule.status_code == 201, schedule.text
        ids = {
            "schedule_id": str(schedule.json()["id"]),
            "operation_id": operation["id"],
            "audit_id": audit.id,
            "window_id": str(window.json()["id"]),
        }
        places = {name: str(RNG.choice([0, 1, 5, 1 << 40])) for name in ("index", "seq", "from_index")}
        places |= {"node_id": RNG.choice(["n0", "n1", "n2"]), "kind": RNG.choice(["data", "index"])}
        print(places)
        yield Place(kit, boss, ids, places)


def api_routes(kit: Kit) -> list[tuple[str, str]]:
    paths = kit.app.openapi()["paths"]
    return [(method.upper(), path) for path, calls in paths.items() for method in calls if method.upper() in METHODS]


def page_routes(kit: Kit) -> list[tuple[str, str]]:
    def walk(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
        for one in routes:
            if (inner := getattr(one, "original_router", None)) is not None:
                yield from walk(inner.routes)
            elif getattr(one, "endpoint", None) is not None and one.endpoint.__module__.startswith("app.console"):
                yield from ((method, one.path) for method in sorted(one.methods or ()) if method in METHODS)

    pages = {found for found in walk(kit.app.routes) if found[1].startswith(PAGES)}
    assert ("GET", "/clusters/{cluster_id}/log") in pages and ("GET", "/live/{page}") in pages
    return sorted(pages)


async def ask(place: Place, person: Person | None, robot: httpx2.AsyncClient | None, method: str, path: str,
              group: str) -> httpx2.Response:  # fmt: skip
    filled = place.fill(path, group)
    query = f"?cluster={group}" if path.startswith("/live/") else ""
    api = path.startswith("/api/")
    body: Json = {} if method == "GET" else {"json": place.body(path, group)} if api else {"data": {"group": group}}
    if robot is not None:
        return await robot.request(method, filled + query, headers={"origin": BASE}, **body)
    assert person is not None
    if not api and method != "GET":
        return await person.change(method, filled, **body)
    return await person.change(method, filled + query, **body)


GRANTS: list[Any] = [
    ("session", "viewer", {HIDDEN: "none"}),
    ("token", "none", {OTHER: "operator"}),
    *(
        pytest.param(via, role, on, marks=pytest.mark.long)
        for via, role, on in (
            ("session", "none", {}),
            ("token", "none", {}),
            ("session", "none", {OTHER: "operator"}),
            ("token", "viewer", {HIDDEN: "none"}),
            ("session", "operator", {HIDDEN: "none"}),
            ("token", "operator", {HIDDEN: "none"}),
        )
    ),
]


@pytest.mark.parametrize(("via", "role", "on"), GRANTS, ids=str)
def test_a_group_without_a_right_is_as_if_it_were_not_there(
    tmp_path: Path, via: str, role: str, on: dict[str, str]
) -> None:
    async def work() -> None:
        async with place(tmp_path) as here:
            person, robot = await attacker(here, via, role, on)
            before = await here.state()
            routes = [*api_routes(here.kit), *page_routes(here.kit)]
            assert len(routes) > 100
            for method, path in RNG.sample(routes, len(routes)):
                if path in NOT_ASKED:
                    continue
                answer = await ask(here, person, robot, method, path, HIDDEN)
                said = f"{method} {path}: {answer.status_code} {answer.text[:300]}"
                plain = answer.text.replace(here.fill(path, HIDDEN), "").replace(f"{HIDDEN!r} here", "")
                if "{cluster_id}" in path or path.startswith("/live/"):
                    assert answer.status_code == 404, said
                    absent = await ask(here, person, robot, method, path, ABSENT)
                    assert absent.text.replace(ABSENT, HIDDEN) == answer.text, said
                elif re.search(r"\{(operation_id|audit_id|scope)\}", path) or method != "GET":
                    assert answer.status_code >= 400 or path in OWN, said
                    plain = plain.replace(f"{HIDDEN!r}", "").replace(f"/problems/{HIDDEN}", "")
                assert answer.status_code < 500 or answer.status_code == 503, said
                assert "vault" not in plain.lower(), said
            assert await here.state() == before

    run(work())


async def attacker(
    here: Place, via: str, role: str, on: dict[str, str]
) -> tuple[Person | None, httpx2.AsyncClient | None]:
    """Somebody with these grants; a token's owner is an operator everywhere."""
    if via == "session":
        eve = await here.kit.person("eve", role)
        given = await here.boss.change("PATCH", "/api/v1/users/eve", json={"cluster_roles": on})
        assert given.status_code == 200, given.text
        return eve, None
    olga = await here.kit.person("olga", "operator")
    body = {"name": "ci", "role": role, "cluster_roles": on}
    made = await olga.change("POST", "/api/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    return None, here.kit.client(authorization=f"Bearer {made.json()['token']}")


@pytest.mark.parametrize("via", ["session", pytest.param("token", marks=pytest.mark.long)])
def test_who_may_look_at_one_group_changes_nothing_of_it(tmp_path: Path, via: str) -> None:
    async def work() -> None:
        async with place(tmp_path) as here:
            person, robot = await attacker(here, via, "none", {HIDDEN: "viewer"})
            before, looked = await here.state(), 0
            for method, path in [*api_routes(here.kit), *page_routes(here.kit)]:
                if "{cluster_id}" not in path:
                    continue
                answer = await ask(here, person, robot, method, path, HIDDEN)
                said = f"{method} {path}: {answer.status_code} {answer.text[:300]}"
                bodies = re.search(r"/(entries|log|segments/|messages/find)", path) is not None
                if method != "GET" or bodies:
                    assert answer.status_code == 403, said
                else:
                    assert answer.status_code not in (401, 403), said
                    looked += answer.status_code == 200
                elsewhere = await ask(here, person, robot, method, path, OTHER)
                assert elsewhere.status_code == 404, f"{method} {path} of the other group: {elsewhere.status_code}"
            assert looked > 15 and await here.state() == before
            client = robot or (person.client if person is not None else None)
            assert client is not None
            listed = (await client.get("/api/v1/clusters")).json()["items"]
            assert [one["id"] for one in listed] == [HIDDEN]
            assert (await client.get("/api/v1/console")).status_code == 403
            operation = await client.get(f"/api/v1/operations/{here.ids['operation_id']}")
            assert operation.status_code == 200

    run(work())
