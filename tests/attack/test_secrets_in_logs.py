"""What people entrust to a console, or are given by it, looked for in its log: every change is tried on a database that
refuses it, for what nobody expected is logged with its traceback.

The statements' parameters stood there: hashes of passwords, a webhook's address (whose path may be a key), and the
path of a login link, which had not been used up by then.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import text

from app.db.base import Base
from tests.attack.remoting_kit import drawn
from tests.databases import opened
from tests.unit.console_kit import Kit, Person, run, running

RNG: Final = drawn("secrets")
SECRET: Final = f"hush-{RNG.randbytes(RNG.randrange(4, 20)).hex()}"
PASSWORD: Final = f"{SECRET} is a long password"
TRAIL: Final = ("admin_trail", "trail_chain")
CHANGES: Final = [
    ("POST", "/api/v1/alerts/routes", {"name": "a", "webhook": {"url": f"https://127.0.0.1:1/{SECRET}"}}),
    ("POST", "/api/v1/alerts/routes", {"name": "b", "secret": PASSWORD, "mail": {
        "host": "127.0.0.1", "port": 1, "security": "tls", "user": "u", "sender": "q@example.org",
        "recipients": ["ops@example.org"],
    }}),
    ("PUT", "/api/v1/clusters/demo/node-token", {"token": f"{SECRET}-of-sixteen-or-more"}),
    ("PUT", "/api/v1/me/password", {"password": PASSWORD, "current": f"{PASSWORD} of before"}),
    ("POST", "/api/v1/tokens", {"name": "ci", "role": "viewer"}),
    ("POST", "/api/v1/users", {"name": "bea", "role": "viewer"}),
    ("POST", "/api/v1/users/ann/login-link", None),
]  # fmt: skip


def refuse_all(path: Path, *, also_the_trail: bool) -> None:
    """As a full or damaged database does."""
    engine = opened(path)
    with engine.begin() as db:
        for table in Base.metadata.tables:
            if table not in TRAIL or also_the_trail:
                for what in ("INSERT", "UPDATE", "DELETE"):
                    name = f"no_{what}_{table}".lower()
                    how = RNG.choice(["FAIL", "ABORT", "ROLLBACK"])
                    said = f"CREATE TRIGGER {name} BEFORE {what} ON {table} BEGIN SELECT RAISE({how}, 'refused'); END"
                    db.execute(text(said))
    engine.dispose()


async def try_all(kit: Kit, ann: Person, link: str) -> int:
    """How many failed."""
    answers = [await ann.change(method, path, json=body) for method, path, body in RNG.sample(CHANGES, len(CHANGES))]
    stranger = kit.client(origin=kit.base)
    answers.append(await stranger.post(link))
    answers.append(await stranger.post("/login", data={"name": "ann", "password": PASSWORD}))
    return sum(one.status_code == 503 for one in answers)


@pytest.mark.sqlite
@pytest.mark.parametrize("also_the_trail", [False, True])
def test_no_secret_is_in_the_log_of_what_failed(
    tmp_path: Path, also_the_trail: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(tmp_path, node_token=f"{SECRET}-of-the-console") as kit:
            ann = await kit.person()
            set_first = await ann.change("PUT", "/api/v1/me/password", json={"password": f"{PASSWORD} of before"})
            assert set_first.status_code < 300, set_first.text
            link = await kit.link("ann")
            refuse_all(tmp_path / "console.db", also_the_trail=also_the_trail)
            caplog.set_level(logging.WARNING)
            caplog.clear()
            failed = await try_all(kit, ann, link)
            assert failed >= 6 and caplog.text.count("failed, reference") == failed
            cookie = ann.client.cookies[kit.app.state.cookie_name()]
            words = [SECRET, link.rpartition("/")[2], "$argon2", cookie, ann.csrf]
            assert [one for one in words if one in caplog.text] == [], json.dumps(caplog.text)

    run(work())
