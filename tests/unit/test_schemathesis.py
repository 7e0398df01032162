"""schemathesis over both OpenAPI documents: whatever is asked, the answer is as the document says.

All its checks, in this process, with draws that are always the same; the long form draws anew. The control plane reads
a real store; no engine runs there. Two of its rules are not ours:
- `not_a_server_error` takes 502 to 504 for failures; they are documented answers, of a console whose nodes are away and
  of a node whose engine is. 500 stays one (`no_internal_error`).
- `positive_data_acceptance` is not asked of calls whose parameters depend on each other or on what there is (MUST_FIT).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import CHECKS, load_all_checks

from node.config import load
from node.control.app import create_app
from tests.bridge import Bridge, lived_in
from tests.unit.console_kit import running
from tests.unit.console_tour import DEMO_URL, Surroundings
from tests.unit.fake_control import TRUNCATION
from tests.unit.store_fixtures import fill, kill, open_store, record, sync

HOST = "127.0.0.1:8421"
SHORT, LONG = 2, 20
MUST_FIT = (
    "/history", "/watermarks", "/view", "/operations", "/entries", "/digests", "/addresses", "/users", "/alerts",
    "/audits", "/schedules", "/clusters", "/me/password", "/members", "/repair", "/segments", "/truncations",
    "/leadership-transfer", "/problems", "/dispatchers", "/restart",
)  # fmt: skip
Served = tuple[FastAPI, dict[str, str]]


@asynccontextmanager
async def console(place: Path) -> AsyncIterator[Served]:
    group = Surroundings()
    group.nodes["n1"].truncations = [TRUNCATION]
    async with running(place, group, demo=True, demo_control_url=DEMO_URL) as kit:
        await kit.watched()
        ann = await kit.person()
        made = await ann.change("POST", "/api/v1/tokens", json={"name": "fuzz", "role": "admin"})
        yield kit.app, {"Authorization": f"Bearer {made.json()['token']}"}


@asynccontextmanager
async def node(place: Path) -> AsyncIterator[Served]:
    token = place / "token"
    token.write_text("a-token-of-sixteen-or-more")
    token.chmod(0o600)
    given = {"node.id": "n0", "node.data": str(place / "data"), "peers": "n0-127.0.0.1:1"}
    chosen = load({**given, "control.token_file": str(token)}, environ={})
    store = open_store(chosen.store_directory)
    fill(store, 3, 20)
    store.note_progress(40, 40)
    sync(store)
    store.truncate(50, record(store, 50))
    sync(store)
    app = create_app(chosen)
    try:
        async with app.router.lifespan_context(app):
            yield app, {"Authorization": f"Bearer {token.read_text()}"}
    finally:
        kill(store)


def no_internal_error(_: Any, response: Any, __: Any) -> None:
    assert response.status_code != 500, f"500: {response.content[:500]!r}"


def check_of(operation: Any, headers: dict[str, str], excluded: list[Any]) -> Callable[[], None]:
    @given(case=operation.as_strategy())
    def one(case: Any) -> None:
        case.call_and_validate(headers=headers, excluded_checks=excluded, additional_checks=[no_internal_error])

    return one


def faults_of(served: Bridge, headers: dict[str, str], examples: int, *, fixed: bool) -> list[str]:
    """Each operation's worst, in words."""
    load_all_checks()
    schema = schemathesis.openapi.from_asgi("/api/v1/openapi.json", served, headers=headers)
    faults: list[str] = []
    for found in schema.get_all_operations():
        operation = found.ok()
        left_out = ["not_a_server_error"]
        left_out += ["positive_data_acceptance"] if any(part in operation.path for part in MUST_FIT) else []
        one = check_of(operation, headers, [CHECKS.get_one(name) for name in left_out])
        one = settings(
            max_examples=examples, derandomize=fixed, database=None, deadline=None,
            suppress_health_check=list(HealthCheck),
        )(one)  # fmt: skip
        try:
            one()
        except (Exception, BaseExceptionGroup) as error:
            causes = getattr(error, "exceptions", [error])
            faults.append(f"{operation.label}: " + " | ".join(str(cause) for cause in causes))
    return faults


def hold(serve: Callable[[], AbstractAsyncContextManager[Served]], examples: int, *, fixed: bool) -> None:
    with lived_in(serve) as ((app, headers), loop):
        faults = faults_of(Bridge(app, loop, HOST), headers, examples, fixed=fixed)
    assert faults == [], "\n\n".join(faults)


@pytest.mark.parametrize("serve", [console, node])
def test_whatever_is_asked_the_answer_is_documented(serve: Any, tmp_path: Path) -> None:
    hold(lambda: serve(tmp_path), SHORT, fixed=True)
