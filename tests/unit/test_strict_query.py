"""What a query string or a path says of a whole number, and of a parameter that may be there once: to the letter."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.unit.console_kit import run, running
from tests.unit.test_control_refusals import with_plane

APPENDED = {"entries": ["x"]}
NO_NUMBERS = ("1.0", "1_0", "%201", "1%20", "%2B1", "+1", "1e1", "0x1", "%D9%A1", "")


def refused(answer: httpx2.Response, name: str) -> None:
    assert answer.status_code == 422, (name, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    assert name in answer.json()["detail"]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_control_plane_takes_whole_numbers_alone(tmp_path: Path, text: str) -> None:
    """They passed for 1 or 10, and what the caller meant nobody knows."""
    refused(with_plane(tmp_path, lambda client: client.get(f"/entries?from={text}")), "from")
    refused(with_plane(tmp_path, lambda client: client.get(f"/entries?limit={text}")), "limit")
    refused(with_plane(tmp_path, lambda client: client.get(f"/digests?from=0&to=1&block={text}")), "block")
    appends = with_plane(tmp_path, lambda client: client.post(f"/entries?expected_index={text}", json=APPENDED))
    refused(appends, "query.expected_index")
    assert appends.json()["outcome"] == "not_appended"
    if text:
        refused(with_plane(tmp_path, lambda client: client.get(f"/entries/{text}")), "index")


@pytest.mark.parametrize(
    ("path", "name"),
    [("entries?from=1&from=2", "from"), ("entries?as=hex&as=text", "as"), ("digests?from=0&to=1&to=1", "to")],
)
def test_of_a_parameter_that_is_there_twice_none_is_taken(tmp_path: Path, path: str, name: str) -> None:
    refused(with_plane(tmp_path, lambda client: client.get(f"/{path}")), name)


def test_what_is_a_whole_number_passes(tmp_path: Path) -> None:
    for path in ("entries?from=0&limit=10", "entries?from=007", "entries/0", "entries?unknown=1&unknown=2"):
        answer = with_plane(tmp_path, lambda client, path=path: client.get(f"/{path}"))
        assert answer.status_code != 422, (path, answer.text)
    refused(with_plane(tmp_path, lambda client: client.get("/entries?from=-1")), "from")


def test_the_console_is_as_strict(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as kit:
            await kit.watched()
            ann = await kit.person()
            for text in NO_NUMBERS:
                refused(await ann.get(f"/api/v1/clusters/demo/entries?from={text}"), "from")
            refused(await ann.get("/api/v1/clusters/demo/entries/1.0"), "index")
            refused(await ann.get("/api/v1/audits?limit=1&limit=2"), "limit")
            assert (await ann.get("/api/v1/audits?limit=1")).status_code == 200

    run(work())
