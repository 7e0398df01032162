"""Named tokens of a control plane: each call against each right, rotation without a restart, and the file's odd forms.

The calls come from the OpenAPI document, so that a new one is asked by itself.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.cli import run as run_cli
from node.access_rows import ALL, Right
from node.config import ConfigError, load
from node.control import guard
from node.control.app import create_app
from node.control.rights import needed
from node.control_tokens import ControlToken, TokensError, digest_of, issue, read_tokens, revoke, write_tokens
from tests.api.test_control_guard import BASE, run, token_file

Json = dict[str, Any]
METHODS = ("get", "post", "put", "patch", "delete")


def app_of(tmp_path: Path, **control: Any) -> Any:
    chosen = {"node.id": "n0", "node.data": str(tmp_path), "peers": "n0-127.0.0.1:1", **control}
    return create_app(load(chosen, environ={}))


def asking(app: Any, token: str = "") -> httpx2.AsyncClient:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE, headers=headers)


def calls(app: Any) -> list[tuple[str, str]]:
    found = [
        (method.upper(), re.sub(r"\{[^}]+\}", "0", path))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if method in METHODS
    ]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("right", [Right.APPEND, Right.READ, Right.OBSERVE, Right.OPERATE, Right.NOTHING], ids=str)
def test_a_token_calls_what_it_has_the_right_to_and_nothing_else(tmp_path: Path, right: Right) -> None:
    async def work() -> None:
        file = tmp_path / "tokens"
        _, token = issue(file, "ann", right, 1)
        app = app_of(tmp_path, **{"control.tokens_file": str(file)})
        served = 0
        async with asking(app, token) as ann, asking(app) as nobody:
            for method, path in calls(app):
                body: Json = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
                answer = await ann.request(method, path, **body)
                said = f"{method} {path}: {answer.status_code} {answer.text[:200]}"
                if needed(method, path) in right:
                    assert answer.status_code not in (401, 403), said
                    served += 1
                else:
                    detail = answer.json()["detail"]
                    assert answer.status_code == 403 and "the token ann has" in detail, said
                    assert "`quorumscope access issue NAME --file FILE --rights " in detail
                if path not in guard.OPEN_PATHS:
                    assert (await nobody.request(method, path, **body)).status_code == 401, said
        assert served > (3 if right else 0)

    run(work())


def test_rights_by_call() -> None:
    assert needed("POST", "/api/v1/entries") == Right.APPEND
    for path in (
        "entries",
        "entries/5",
        "truncations/3/entries",
        "segments/data/00000000000000000000",
        "digests",
        "ha/log/00000000000000000000",
    ):
        assert needed("GET", f"/api/v1/{path}") == Right.READ
        assert needed("HEAD", f"/api/v1/{path}") == Right.READ
    for path in (
        "state",
        "events",
        "segments",
        "ha",
        "ha/log",
        "truncations",
        "truncations/3",
        "operations/x",
        "anything",
    ):
        assert needed("GET", f"/api/v1/{path}") == Right.OBSERVE
    for method, path in (("POST", "scrub"), ("POST", "leadership-transfer"), ("DELETE", "operations/x"), ("PUT", "x")):
        assert needed(method, f"/api/v1/{path}") == Right.OPERATE
    assert needed("GET", "/metrics") == Right.OBSERVE and needed("GET", "/healthz") == Right.NOTHING


def test_tokens_are_replaced_while_the_control_plane_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "LOOK_EVERY_S", 0.0)

    async def work() -> None:
        file = tmp_path / "tokens"
        first, old = issue(file, "ann", Right.OBSERVE, 1)
        app = app_of(tmp_path, **{"control.tokens_file": str(file)})
        status = {}

        async def ask(name: str, token: str) -> int:
            async with asking(app, token) as one:
                status[name] = (await one.get("/api/v1/state")).status_code
            return status[name]

        assert await ask("old", old) == 200
        _, new = issue(file, "ann", Right.OBSERVE, 1)
        assert await ask("new", new) == 200 and await ask("old", old) == 200, "both, while one replaces the other"
        assert [one.id for one in revoke(file, first.id)] == [first.id]
        assert await ask("old", old) == 401 and await ask("new", new) == 200
        file.write_text("ann observe never the-token-itself\n")
        assert await ask("new", new) == 200, "what cannot be read leaves in force what was read before"
        assert "line 1" in (app.state.parts.rereading.text or "")
        write_tokens(file, [])
        assert await ask("new", new) == 401 and app.state.parts.rereading.text is None
        file.unlink()
        assert await ask("new", new) == 401 and "tokens" in (app.state.parts.rereading.text or "")

    run(work())


def test_a_token_ends(tmp_path: Path) -> None:
    async def work() -> None:
        file, ago = tmp_path / "tokens", datetime.now(UTC) - timedelta(seconds=1)
        write_tokens(file, [ControlToken("ann", ALL, ago, digest_of("qsn_ended")),
                            ControlToken("bea", ALL, None, digest_of("qsn_lives"))])  # fmt: skip
        app = app_of(tmp_path, **{"control.tokens_file": str(file)})
        async with asking(app, "qsn_ended") as ann, asking(app, "qsn_lives") as bea:
            refused = await ann.get("/api/v1/state")
            assert refused.status_code == 401 and "The token ann ended at" in refused.json()["detail"]
            assert (await bea.get("/api/v1/state")).status_code == 200

    run(work())


def test_the_one_token_of_token_file_goes_on_beside_them(tmp_path: Path) -> None:
    async def work() -> None:
        file = tmp_path / "tokens"
        _, token = issue(file, "ann", Right.OBSERVE, 1)
        files = {"control.tokens_file": str(file), "control.token_file": str(token_file(tmp_path))}
        app = app_of(tmp_path, **files)
        for shown, status in ((token, 403), (token_file(tmp_path).read_text(), 200)):
            async with asking(app, shown) as one:
                answer = await one.get("/api/v1/digests?from=0&to=0")
                assert (answer.status_code == 403) == (status == 403), answer.text

    run(work())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ann observe never", "a line is NAME RIGHTS END"),
        (f"ann root never {digest_of('x')}", "'root' is no right"),
        (f"ann observe tomorrow {digest_of('x')}", "no time such as"),
        (f"ann observe 2027-01-01T00:00:00 {digest_of('x')}", "no time zone"),
        (f"-ann observe never {digest_of('x')}", "is no name"),
        ("ann observe never qsn_plain", "not the token itself"),
        (f"a observe never {digest_of('x')}\nb operate never {digest_of('x')}", "two lines are about one token"),
        ("\xff", "decode"),
        ("#" * (65 << 10), "more than"),
        ("\n".join(f"a observe never {digest_of(str(n))}" for n in range(257)), "256 at most"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_before_anything_starts(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(text.encode("latin-1"))
    file.chmod(0o600)
    with pytest.raises(TokensError, match=said):
        read_tokens(file)
    with pytest.raises(ConfigError, match="tokens"):
        load({"node.id": "n0", "peers": "n0-127.0.0.1:1", "control.tokens_file": str(file)}, environ={}).check_node()


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    issue(file, "ann", Right.OBSERVE, 1)
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(TokensError, match="chmod o-rwx"):
        read_tokens(file)


def test_the_command_line_issues_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = ["--file", str(tmp_path / "tokens")]
    assert run_cli(["access", "issue", "ann", "--rights", "observe+operate", "--days", "5", *file]) == 0
    token = capsys.readouterr().out.strip()
    assert token.startswith("qsn_") and token not in (tmp_path / "tokens").read_text()
    assert run_cli(["access", "list", "--json", *file]) == 0
    (one,) = json.loads(capsys.readouterr().out)["items"]
    assert one["name"] == "ann" and one["rights"] == ["observe", "operate"] and not one["ended"]
    assert run_cli(["access", "issue", "bea", "--rights", "root", *file]) == 64
    assert run_cli(["access", "issue", "b b", *file]) == 1
    assert run_cli(["access", "revoke", "ann", *file]) == 0
    assert run_cli(["access", "revoke", "ann", *file]) == 1
    assert read_tokens(tmp_path / "tokens") == ()
