"""What a control plane refuses before it asks an engine: with the status that says whose fault it is, and why."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from node.config import load
from node.control.app import create_app
from node.control.engine_link import EngineAway, EngineSilent
from node.protocol.codes import RequestCode, ResponseCode
from node.protocol.entry import HEAD_BYTES, Entry, Magic, pack_record
from node.store.file_store import FileStore
from node.store.files.truncation_archive import TruncationArchive
from node.store.log_store import TruncationRecord
from node.store.reader import SegmentInfo, StoreReader
from node.transport.machine_frames import encode_question_answer
from node.transport.slab_frames import ReadAnswer, ReadMode, decode_read, encode_read_answer

Work = Callable[[httpx2.AsyncClient], Awaitable[Any]]


def with_plane(place: Path, work: Work, request: Any = None, **settings: str) -> Any:
    """Runs `work` with a client of a control plane without an engine; `request` answers in its place."""

    async def both() -> Any:
        chosen = {"node.id": "n0", "node.data": str(place), "peers": "n0-127.0.0.1:1", **settings}
        app = create_app(load(chosen, environ={}))
        if request is not None:
            app.state.parts.link.request = request
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1/api/v1") as client:
            return await work(client)

    return asyncio.run(both())


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("POST", "/members", {"id": "n9", "address": "x"}, '"x" is not host:port'),
        ("POST", "/members", {"id": "n9", "address": "127.0.0.1:0"}, "the port must be a number from 1 to 65535"),
        ("POST", "/members", {"id": "n9", "address": "::1:20911"}, "write an IPv6 address in brackets"),
        ("POST", "/members", {"id": "n 9", "address": "127.0.0.1:1"}, '"n 9" is no member id'),
        ("PUT", "/members/n0/address", {"address": "a b:1"}, '"a b" is no host name'),
    ],
)
def test_what_can_be_no_member_is_422(tmp_path: Path, method: str, path: str, body: dict[str, str], says: str) -> None:
    refused = with_plane(tmp_path, lambda client: client.request(method, path, json=body))
    assert refused.status_code == 422 and refused.headers["content-type"] == "application/problem+json"
    assert says in refused.json()["detail"] and "Value error" not in refused.json()["detail"]


@pytest.mark.parametrize(
    ("machine", "path", "says"),
    [
        ("", "snapshots", "no state to save a snapshot of"),
        ("", "kv/a", "it has no state machine"),
        ("", "machine/query", "it has no state machine"),
        ("kv", "nothing", "There is nothing at '/api/v1/nothing'"),
        ("", "nothing", "There is nothing at '/api/v1/nothing'"),
    ],
)
def test_a_404_says_what_kind_of_group_lacks_it(tmp_path: Path, machine: str, path: str, says: str) -> None:
    given = {"node.state_machine": machine} if machine else {}
    missing = with_plane(tmp_path, lambda client: client.post(f"/{path}", json={}), **given)
    assert missing.status_code == 404 and says in missing.json()["detail"]


def held(place: Path, count: int) -> None:
    """A stopped member's log, all of it committed."""
    store = FileStore.open(
        place / "dledger-n0", group="default", node_id="n0", data_file_size=65536, index_file_size=32 * 1024, init=True
    )
    store.append_as_leader([b"body %d" % number for number in range(count)], term=1)
    ticket = store.prepare_sync()
    assert ticket is not None
    ticket.run()
    store.finish_sync(ticket)
    store.note_progress(count - 1, count - 1)
    store.close()


def test_one_entry_is_read_linearizably_or_says_that_it_may_be_stale(tmp_path: Path) -> None:
    """`consistency` was ignored here: a member without a quorum answered 200 from its files."""
    held(tmp_path, 3)
    asked = []

    async def request(code: RequestCode, pieces: list[bytes], _timeout_s: float) -> bytes:
        if code != RequestCode.FAST_READ:
            raise EngineAway("no engine")
        asked.append(decode_read(b"".join(pieces)))
        if asked[-1].from_index == 2:
            raise EngineAway("no engine")
        records, success = pack_record(Entry(Magic.NORMAL, 1, 1, 0, b"one")), int(ResponseCode.SUCCESS)
        if asked[-1].from_index == 9:
            return b"".join(encode_read_answer(ReadAnswer(success, 1, 9, 1, 0)))
        return b"".join(encode_read_answer(ReadAnswer(success, 1, 1, 1, 1, records)))

    async def work(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        queries = ("1?consistency=linearizable", "2?consistency=linearizable", "9?consistency=linearizable")
        return [
            await client.get(f"/entries/{one}")
            for one in (
                *queries,
                "1?consistency=linearizable&view=raw",
                "1?consistency=sometimes",
                "1",
                "1?consistency=stale",
            )
        ]

    confirmed, away, beyond, raw, odd, stale, named_so = with_plane(tmp_path, work, request)
    assert confirmed.status_code == 200, confirmed.text
    assert (confirmed.json()["consistency"], confirmed.json()["body"]) == ("linearizable", "one")
    assert away.status_code == 503 and away.headers["retry-after"] == "1"
    assert beyond.status_code == 404 and beyond.json()["committed_index"] == 1
    assert raw.status_code == odd.status_code == 422
    assert stale.status_code == 200 and stale.json()["consistency"].startswith("stale")
    assert (named_so.status_code, named_so.json()["body"]) == (200, stale.json()["body"])
    assert named_so.json()["consistency"] == stale.json()["consistency"]
    assert [one.mode for one in asked] == [ReadMode.LINEARIZABLE] * 3


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        (ResponseCode.DISK_ERROR, 500, "Entry 2 is damaged on this member's disk"),
        (ResponseCode.TIMEOUT, 503, "this member has not caught up with what is committed (here that is entry 7)"),
        (ResponseCode.NOT_LEADER, 503, "The quorum could not confirm the read"),
    ],
)
def test_a_confirmed_read_that_fails_says_whose_doing_it_is(
    tmp_path: Path, code: ResponseCode, status: int, says: str
) -> None:
    """All of them said that the quorum had not confirmed it: a damaged entry, and a member whose disk is full."""

    async def request(_code: RequestCode, _pieces: list[bytes], _timeout_s: float) -> bytes:
        return b"".join(encode_read_answer(ReadAnswer(int(code), 7, 2, 9, 0)))

    path = "/entries/2?consistency=linearizable"
    answer = with_plane(tmp_path, lambda client: client.get(path), request)
    assert answer.status_code == status and says in answer.json()["detail"], answer.text
    assert answer.json()["code"] == int(code)
    assert ("quorum" in answer.text) == (code is not ResponseCode.DISK_ERROR)


def test_a_question_without_an_answer_does_not_accuse_the_engine_alone(tmp_path: Path) -> None:
    """The engine answers at once, and the state machine beside it hangs."""

    async def request(_code: RequestCode, _pieces: list[bytes], timeout_s: float) -> bytes:
        raise EngineSilent(f"no answer within {timeout_s:.0f} s")

    async def asked(client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.post("/machine/query", json={"question": "ann"})

    answer = with_plane(tmp_path, asked, request, **{"node.state_machine": "kv"})
    assert (answer.status_code, answer.json()["title"]) == (503, "No answer in time")
    assert "state machine" in answer.json()["detail"] and answer.headers["retry-after"] == "1"


def test_a_state_machine_without_an_answer_yet_is_no_quorum_that_is_missing(tmp_path: Path) -> None:
    async def request(_code: RequestCode, _pieces: list[bytes], _timeout_s: float) -> bytes:
        return b"".join(encode_question_answer([(ResponseCode.TIMEOUT, -1, b"")]))

    async def asked(client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.post("/machine/query", json={"question": "ann"})

    answer = with_plane(tmp_path, asked, request, **{"node.state_machine": "kv"})
    assert answer.status_code == 503 and "quorum" not in answer.text and "`wait_ms`" in answer.json()["detail"]


def test_a_range_of_another_logs_file_begins_again(tmp_path: Path) -> None:
    held(tmp_path, 3)
    path = f"/segments/data/{0:020d}"

    async def work(client: httpx2.AsyncClient) -> None:
        whole = await client.get(path)
        tag = whole.headers["etag"]
        same = await client.get(path, headers={"range": "bytes=5-9", "if-range": tag})
        assert (same.status_code, same.content) == (206, whole.content[5:10])
        other = await client.get(path, headers={"range": "bytes=5-9", "if-range": '"another-0"'})
        assert (other.status_code, other.content) == (200, whole.content)

    with_plane(tmp_path, work)


def cut(place: Path) -> None:
    """What is there, durably, before a cut begins."""
    record = TruncationRecord("n0", "n1", 2, 2, 2, "a test", 1)
    TruncationArchive(place / "dledger-n0").add(record, [b"the last record"])


def test_bytes_read_across_a_truncation_never_have_the_etag_from_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ETag was taken before the bytes were read: those read after a cut could be glued to those before it."""
    held(tmp_path, 3)
    path, read = f"/segments/data/{0:020d}", StoreReader.read_segment
    cuts = [cut, cut]

    def cut_before_reading(reader: StoreReader, kind: str, name: str, offset: int, length: int) -> bytes:
        if cuts:
            cuts.pop()(tmp_path)
        return read(reader, kind, name, offset, length)

    async def work(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        before = await client.get("/segments")
        with monkeypatch.context() as patched:
            patched.setattr(StoreReader, "read_segment", cut_before_reading)
            pinned = await client.get(path, headers={"if-match": before.json()["etag"]})
            free = await client.get(path)
        return [before, pinned, free, await client.get("/segments")]

    before, pinned, free, after = with_plane(tmp_path, work)
    assert pinned.status_code == 412 and pinned.json()["etag"] != before.json()["etag"]
    assert free.status_code == 200 and free.headers["etag"] == after.json()["etag"] != pinned.json()["etag"]


def test_files_that_go_between_two_pages_hide_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page began behind so many files: where retention had removed two, an audit and a back-up never heard of two."""
    files = [
        SegmentInfo(kind, f"{at:020d}", at, 100, None, None)
        for kind, starts in (("data", range(0, 500, 100)), ("index", range(0, 96, 32)))
        for at in starts
    ]
    held(tmp_path, 3)
    monkeypatch.setattr(StoreReader, "segments", lambda _: list(files))

    async def work(client: httpx2.AsyncClient) -> list[str]:
        shown, cursor = [], ""
        while cursor is not None:
            page = (await client.get(f"/segments?limit=2{cursor}")).json()
            shown += [f"{one['kind']} {one['start']}" for one in page["items"]]
            if len(shown) == 2:
                del files[:2]
            cursor = None if page["next"] is None else f"&cursor={page['next']}"
        return shown

    numbers = [f"data {at}" for at in range(0, 500, 100)] + [f"index {at}" for at in range(0, 96, 32)]
    assert with_plane(tmp_path, work) == numbers


def test_digests_of_a_range_that_cannot_be_say_so(tmp_path: Path) -> None:
    """A range that ends before it begins was answered with 200 and nothing, as if there were nothing to compare."""
    held(tmp_path, 3)

    async def work(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.get(f"/digests?{one}") for one in ("from=2&to=1", "from=1&to=9", "from=7", "from=1&to=1")]

    reversed_, beyond, later, one = with_plane(tmp_path, work)
    assert reversed_.status_code == 422 and "ends at 1, before it begins at 2" in reversed_.json()["detail"]
    assert (beyond.json()["end_index"], [each["count"] for each in beyond.json()["items"]]) == (2, [2])
    assert (later.status_code, later.json()["items"], later.json()["end_index"]) == (200, [], 2)
    assert [each["count"] for each in one.json()["items"]] == [1]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "entries"), ("POST", "messages"), ("POST", "machine/command"), ("PUT", "kv/key"),
        ("DELETE", "kv/key"),
    ],
)  # fmt: skip
def test_an_idempotency_key_that_nobody_keeps_is_refused(tmp_path: Path, method: str, path: str) -> None:
    """It was overlooked: a retry under the same key appended a second time."""
    body = {} if method == "DELETE" else {"json": {"entries": ["x"]}}
    given = {"idempotency-key": "once"}
    refused = with_plane(tmp_path, lambda client: client.request(method, f"/{path}", headers=given, **body))
    assert (refused.status_code, refused.json()["outcome"]) == (422, "not_appended")
    assert "expected_index" in refused.json()["detail"]


def test_a_body_in_chunks_says_what_it_is(tmp_path: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"entries": ["x"]}'

    refused = with_plane(tmp_path, lambda client: client.post("/entries", content=chunks()))
    assert (refused.status_code, refused.json()["outcome"]) == (415, "not_appended")


@pytest.mark.parametrize(
    ("query", "body"), [("expected_index=5", 6), ("expected_index=5&expected_index=6", None)]
)  # fmt: skip
def test_two_expected_indexes_are_no_condition(tmp_path: Path, query: str, body: int | None) -> None:
    """The one in the body counted, and the other one was overlooked."""
    sent = {"entries": ["x"]} | ({} if body is None else {"expected_index": body})
    refused = with_plane(tmp_path, lambda client: client.post(f"/entries?{query}", json=sent))
    assert (refused.status_code, refused.json()["outcome"]) == (422, "not_appended")
    assert "name it once" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("status", "path", "headers", "content"),
    [
        (404, "/entries?group=another", {}, b"x"),
        (413, "/entries", {}, b"x" * ((16 << 20) + 1)),
        (415, "/entries", {"content-type": "text/plain"}, b"x"),
        (415, "/entries", {"content-encoding": "gzip"}, gzip.compress(b"x", mtime=0)),
        (403, "/entries", {"origin": "http://elsewhere"}, b"x"),
        (421, "/entries", {"host": "elsewhere"}, b"x"),
        (422, "/entries?expected_index=zz", {}, b"x"),
        (400, "/entries?group=%ff", {}, b"x"),
        (503, "/entries", {}, b"x"),
        (503, "/entries", {"content-type": "Application/Octet-Stream"}, b"x"),
    ],
)
def test_a_refused_append_says_that_nothing_was_appended(
    tmp_path: Path, status: int, path: str, headers: dict[str, str], content: bytes
) -> None:
    sent = {"content-type": "application/octet-stream", **headers}
    refused = with_plane(tmp_path, lambda client: client.post(path, headers=sent, content=content))
    assert refused.status_code == status, refused.text
    assert refused.json()["outcome"] == "not_appended"


LONGEST = 4 * 1024 * 1024 - HEAD_BYTES
JSON_BODIES: list[tuple[str, str, int, str]] = [
    ("/entries", '{"entries": ["a"], "as": "text", "entries": ["b"]}', 422, "'entries' is there more than once"),
    ("/machine/command", '{"commands": ["a"], "commands": ["b"]}', 422, "'commands' is there more than once"),
    ("/scrub", '{"dry_run": true, "dry_run": false}', 422, "'dry_run' is there more than once"),
    ("/entries", '{"entries": ["YQ==", "YQ", "YQ=="], "as": "base64"}', 422, "entries.1: Incorrect padding"),
    ("/entries", '{"entries": ["a", "\\ud800"]}', 422, "entries.1: "),
    ("/entries", "[" * 100_000, 422, "body: "),
    ("/entries", '{"entries": ["a", "' + "b" * (LONGEST + 1) + '"]}', 413, f"entries.1: {LONGEST + 1} bytes; up to"),
    ("/machine/command", '{"commands": ["' + "b" * (3 << 20) + '"]}', 413, "commands.0: 3145728 bytes; up to 1048576"),
    ("/kv/a", '{"value": "' + "b" * (3 << 20) + '"}', 413, "value: 3145728 bytes; up to "),
]


@pytest.mark.parametrize(("path", "body", "status", "says"), JSON_BODIES, ids=range(len(JSON_BODIES)))
def test_a_json_body_is_refused_by_the_place_that_is_wrong(
    tmp_path: Path, path: str, body: str, status: int, says: str
) -> None:
    """Of a key that was there twice the last one counted; what was too large was 413 here and 422 there."""
    method = "PUT" if path.startswith("/kv") else "POST"
    sent = {"content-type": "application/json"}
    asked = partial(httpx2.AsyncClient.request, method=method, url=path, content=body, headers=sent)
    refused = with_plane(tmp_path, asked, **{"node.state_machine": "kv"})
    assert (refused.status_code, says in refused.json()["detail"]) == (status, True), refused.text[:500]


def test_one_body_is_as_long_as_the_engine_takes_it(tmp_path: Path) -> None:
    """An octet-stream of a few bytes more was refused by the engine, with 422."""

    async def work(client: httpx2.AsyncClient) -> list[int]:
        headers = {"content-type": "application/octet-stream"}
        bodies = (b"x" * (LONGEST + more) for more in (0, 1))
        return [(await client.post("/entries", headers=headers, content=one)).status_code for one in bodies]

    assert with_plane(tmp_path, work) == [503, 413]


def test_a_range_may_end_anywhere_behind_the_file(tmp_path: Path) -> None:
    """RFC 9110, 14.1.2: what ends behind the end means all that there is; from 19 digits on it was 416."""
    held(tmp_path, 3)

    async def work(client: httpx2.AsyncClient) -> list[tuple[int, int]]:
        path, many = f"/segments/data/{0:020d}", "9" * 40
        whole = len((await client.get(path)).content)
        ranges = (f"1-{many}", f"-{many}", f"{many}-", f"{many}-{many}")
        got = [await client.get(path, headers={"range": f"bytes={one}"}) for one in ranges]
        return [(one.status_code, len(one.content) - whole if one.is_success else 0) for one in got]

    assert with_plane(tmp_path, work) == [(206, -1), (206, 0), (416, 0), (416, 0)]


def test_a_page_of_entries_may_be_asked_for_stale_by_name(tmp_path: Path) -> None:
    """As every other read: it is what is given without a word."""
    held(tmp_path, 3)
    queries = ("", "&consistency=stale", "&consistency=stale&view=raw")

    async def work(client: httpx2.AsyncClient) -> list[httpx2.Response]:
        return [await client.get(f"/entries?from=0{one}") for one in queries]

    pages = with_plane(tmp_path, work)
    assert [one.status_code for one in pages] == [200] * 3
    assert [len(one.json()["items"]) for one in pages] == [3] * 3
    assert [one.json()["consistency"].split(":")[0] for one in pages] == ["stale", "stale", "local"]
