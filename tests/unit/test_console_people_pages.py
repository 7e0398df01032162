"""The pages about people work without JavaScript: every form posts, every secret is shown once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.security import trail as trail_rows
from app.security.links import at_the_console
from tests.unit.console_kit import Person, run, running

INLINE = re.compile(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=", re.IGNORECASE)


async def post(person: Person, path: str, **fields: str) -> tuple[int, str]:
    """A plain form: the token travels in the hidden field."""
    answer = await person.client.post(path, data={"csrf_token": person.csrf, **fields})
    return answer.status_code, answer.text


@pytest.mark.parametrize("path", ["/account", "/users", "/admin-trail", "/login"])
def test_pages_carry_nothing_inline(tmp_path: Path, path: str) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            client = kit.client() if path == "/login" else ann.client
            page = await client.get(path, headers={"accept": "text/html"})
            assert page.status_code == 200 and INLINE.search(page.text) is None

    run(work())


def test_an_account_makes_and_revokes_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            status, text = await post(ann, "/account/tokens", name="ci <b>", role="viewer", days="5")
            token = re.search(r"qsc_[\w-]+", text)
            assert status == 201 and token is not None and "ci &lt;b&gt;" in text
            robot = kit.client(authorization=f"Bearer {token[0]}")
            assert (await robot.get("/api/v1/me")).json()["role"] == "viewer"
            shown = (await ann.get("/account")).text
            assert token[0] not in shown and "/account/tokens/1/revoke" in shown
            assert (await post(ann, "/account/tokens/1/revoke"))[0] == 303
            assert (await robot.get("/api/v1/me")).status_code == 401
            assert (await post(ann, "/account/password", password="short"))[0] == 422
            assert (await post(ann, "/account/password", password="long enough"))[0] == 303

    run(work())


def test_admins_manage_people(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            ann = await kit.person()
            alone = (await ann.get("/users")).text
            assert "/users/ann/disable" not in alone and "/users/ann/role" not in alone, "refused of the last admin"
            status, text = await post(ann, "/users", name="bea", role="viewer")
            link = re.search(r"/login/link/[\w-]+", text)
            assert status == 201 and link is not None
            assert link[0] not in (await ann.get("/users")).text
            entered = await kit.client().post(link[0], headers={"origin": kit.base})
            assert entered.status_code == 303
            assert (await post(ann, "/users/bea/role", role="operator"))[0] == 303
            assert (await post(ann, "/users/bea/disable"))[0] == 303
            assert "disabled" in (await ann.get("/users")).text
            assert (await post(ann, "/users/bea/enable"))[0] == 303
            assert (await post(ann, "/users/bea/link"))[0] == 201
            assert (await post(ann, "/users/ann/disable"))[0] == 409
            trail = (await ann.get("/admin-trail?limit=2")).text
            assert "POST /users/ann/disable" in trail and "409" in trail and "cursor=" in trail
            async with kit.app.state.sessions() as db, db.begin():
                await trail_rows.add(db, trail_rows.row_of(at_the_console(), action="token revoke"), 0)
            page = (await ann.get("/admin-trail?limit=1")).text
            assert 'class="num">exit 0</td>' in page, "what a command ended with is no answer of HTTP's"

    run(work())


def test_others_see_neither_users_nor_trail(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, seeded=False) as kit:
            olga = await kit.person("olga", "operator")
            for path in ("/users", "/admin-trail"):
                refused = await olga.get(path, headers={"accept": "text/html"})
                assert refused.status_code == 403 and "needs the right" in refused.text
            assert (await post(olga, "/users", name="eve", role="admin"))[0] == 403

    run(work())
