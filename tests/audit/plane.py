"""A control plane's reading half over a built store, in a thread: what the audit asks of one, and nothing else."""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass
class Plane:
    """What it serves; tests change it while it runs. `requests` remembers paths and ranges."""

    root: Path
    node_id: str
    begin_index: int
    end_index: int
    committed_index: int | None
    group: str = "g"
    etag: str = '"boot-0"'
    token: str | None = None
    lie_digest: str | None = None
    odd_digests: Any = None  # what it answers in their place
    next_page: str | None = None
    truncations: list[dict[str, Any]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    clusters: list[dict[str, Any]] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    changes: list[tuple[str, str, Any]] = field(default_factory=list)  # method, path, body of what was to be changed
    change_status: int = 200
    url: str = ""

    def segments(self) -> list[dict[str, Any]]:
        return [
            {"kind": kind, "name": path.name, "start": int(path.name), "size_bytes": path.stat().st_size}
            for kind in ("data", "index")
            for path in sorted((self.root / kind).iterdir())
        ]

    def state(self) -> dict[str, Any]:
        log = {
            "begin_index": self.begin_index,
            "durable_index": self.end_index,
            "committed_index": self.committed_index,
        }
        return {"engine": "ok", "group": self.group, "self_id": self.node_id, "log": log}

    def digests(self, low: int, high: int) -> list[dict[str, Any]]:
        """Straight from the bytes, by the index file; one item for the asked range."""
        data = b"".join(path.read_bytes() for path in sorted((self.root / "data").glob("[0-9]*")))
        index = b"".join(path.read_bytes() for path in sorted((self.root / "index").glob("[0-9]*")))
        base = int(sorted((self.root / "data").glob("[0-9]*"))[0].name)
        sha = hashlib.sha256()
        for number in range(low, high + 1):
            _, pos, size, _, _ = struct.unpack_from(">iqiqq", index, number * 32)
            magic, _, entry, term, _, _, _, _, length = struct.unpack_from(">iiqqqiIIi", data, pos - base)
            sha.update(struct.pack(">iqqi", magic, entry, term, length) + data[pos - base + 48 : pos - base + size])
        digest = self.lie_digest or sha.hexdigest()
        return [{"from_index": low, "to_index": high, "count": high - low + 1, "digest": digest, "read_at": ""}]


def read_range(file: Path, offset: int, length: int) -> bytes:
    with file.open("rb") as source:
        source.seek(offset)
        return source.read(length)


def _handler(plane: Plane) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 20  # head and body in one packet

        def log_message(self, *_: object) -> None:
            return

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            path = parts.path.removeprefix("/api/v1")
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            plane.requests.append(f"{path} {self.headers.get('Range', '')}".strip())
            plane.tokens.add(self.headers.get("Authorization"))
            if plane.token is not None and self.headers.get("Authorization") != f"Bearer {plane.token}":
                self.answer(401, b'{"title": "a token is needed"}')
            elif path == "/state":
                self.json(plane.state())
            elif path == "/segments":
                self.json({"items": plane.segments(), "next": plane.next_page})
            elif path == "/clusters":
                self.json({"items": plane.clusters, "next": None})
            elif path == "/truncations":
                self.json({"items": plane.truncations, "next": None})
            elif path == "/digests":
                digests = {"items": plane.digests(int(query["from"]), int(query["to"]))}
                self.json(digests if plane.odd_digests is None else plane.odd_digests)
            elif path.startswith("/segments/"):
                self.segment(path)
            else:
                self.answer(404, b"{}")

        def do_PUT(self) -> None:
            self._change(self.rfile.read(int(self.headers["Content-Length"])))

        def do_DELETE(self) -> None:
            self._change(b"")

        def _change(self, body: bytes) -> None:
            plane.changes.append((self.command, self.path.removeprefix("/api/v1"), json.loads(body or b"null")))
            self.answer(plane.change_status, b"{}")

        def json(self, data: object) -> None:
            self.answer(200, json.dumps(data).encode())

        def segment(self, path: str) -> None:
            file = plane.root / path.removeprefix("/segments/")
            match = self.headers.get("If-Match")
            if match is not None and match != plane.etag:
                self.answer(412, b"{}")
            elif not file.exists():
                self.answer(410, b"{}")
            else:
                first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
                self.answer(206, read_range(file, first, last - first + 1), ETag=plane.etag)

    return Handler


@contextmanager
def serve(plane: Plane) -> Iterator[Plane]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(plane))
    server.daemon_threads = True
    plane.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield plane
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
