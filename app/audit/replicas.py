"""The two ways to a replica: a node's HTTP control plane, or a store directory (ours or the Java node's).

A `ReplicaSpec` is one replica as the user named it; it travels to the workers, so the token is in it and it never
appears in a result. Reading is raw ranges of segment files in few large requests; entries as JSON are never asked for.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from app.answer_time import AnswerTime
from app.audit.blocks import Party, files_digest
from app.audit.fence import ReplicaFence
from app.audit.segments import Kind, LogChanged, ReadFailed, SegmentGone
from app.refusals import reason_in

REQUEST_BYTES_MAX = 8 * 1024 * 1024
ANSWER_BYTES_MAX = 32 * 1024 * 1024  # a thousand digests and the widest range are far below
TIMEOUT_S = 20.0  # for the next bytes
ANSWER_S = 120.0  # for all of an answer
FENCE_TIMEOUT_S = 5.0
# After a time-out this process asks a replica no more for so long: a paused node must not cost every block one.
SILENT_S = 15.0
_silent_until_s: dict[str, float] = {}


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """`kind` is "http" (location: the control plane's URL) or "directory" (location: a path)."""

    kind: str
    location: str
    id: str | None = None
    token: str | None = None
    ca_file: str | None = None
    group: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ReplicaSpec:
        return cls(**data)

    @property
    def public(self) -> str:
        """The location as results may show it: without user names and passwords in a URL."""
        if self.kind != "http":
            return self.location
        if not self.location:
            return ""
        parts = urlsplit(self.location)
        host = parts.hostname or ""
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}" + (f":{parts.port}" if parts.port else "")


class ControlError(ReadFailed):
    """A control plane answered with an error status."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ControlPlane:
    """One kept-alive connection to a control plane. Not shared between threads."""

    def __init__(self, spec: ReplicaSpec, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        parts = urlsplit(spec.location)
        if not spec.location:
            raise ReadFailed("the address of its control plane is unknown")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ReadFailed(f"{spec.location!r} is no http(s) URL of a control plane")
        self._spec = spec
        self._host, self._port, self._tls = parts.hostname, parts.port, parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None

    def get_json(self, path: str, **params: object) -> Any:
        _, _, body = self.get(path, params)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ReadFailed(f"{self._spec.public}{path} did not answer JSON: {error}") from None

    def get(
        self, path: str, params: Mapping[str, object] | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """One GET; retried once where a kept-alive connection was closed meanwhile. Raises ControlError, ReadFailed."""
        query = {k: v for k, v in (params or {}).items() if v is not None}
        if self._spec.group is not None:
            query["group"] = self._spec.group
        target = f"{self._prefix}/api/v1{path}" + (f"?{urlencode(query)}" if query else "")
        sent = dict(headers or {})
        if self._spec.token:
            sent["Authorization"] = f"Bearer {self._spec.token}"
        if time.monotonic() < _silent_until_s.get(self._spec.location, 0.0):
            raise ReadFailed(f"{self._spec.public} is unreachable: it did not answer in time")
        for attempt in (1, 2):
            reused = self._connection is not None
            try:
                return self._once(target, sent)
            except TimeoutError:
                self.close()
                _silent_until_s[self._spec.location] = time.monotonic() + SILENT_S
                raise ReadFailed(f"{self._spec.public} is unreachable: no answer in {self._timeout_s:.0f} s") from None
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if not reused or attempt == 2:
                    raise ReadFailed(f"{self._spec.public} is unreachable: {_reason(error)}") from None
        raise AssertionError("unreachable")

    def change(self, method: str, path: str, body: Mapping[str, object] | None = None) -> None:
        """One call that changes something, never tried again. Raises ControlError, ReadFailed."""
        query = "" if self._spec.group is None else f"?{urlencode({'group': self._spec.group})}"
        sent = {"Authorization": f"Bearer {self._spec.token}"} if self._spec.token else {}
        raw = None
        if body is not None:
            raw, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        try:
            self._once(f"{self._prefix}/api/v1{path}{query}", sent, method, raw)
        except (OSError, http.client.HTTPException) as error:
            raise ReadFailed(f"{self._spec.public} is unreachable: {_reason(error)}") from None

    def _once(
        self, target: str, headers: Mapping[str, str], method: str = "GET", sent: bytes | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        if self._connection is None:
            self._connection = self._connect()
        try:
            with AnswerTime(ANSWER_S) as time_left:
                self._connection.request(method, target, body=sent, headers=dict(headers))
                time_left.socket = self._connection.sock
                response = self._connection.getresponse()
                body = self._read(response)
        except TimeoutError:
            self.close()
            raise
        if response.status >= 400:
            raise ControlError(response.status, f"{self._spec.public} answered {_problem(response.status, body)}")
        return response.status, {k.lower(): v for k, v in response.getheaders()}, body

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        """No more than an answer may be. Raises ReadFailed, HTTPException."""
        body = bytearray()
        while piece := response.read1(1 << 20):
            body += piece
            if len(body) > ANSWER_BYTES_MAX:
                self.close()
                raise ReadFailed(f"{self._spec.public} answered more than {ANSWER_BYTES_MAX} bytes")
        if response.length:  # it said that there was more
            raise http.client.IncompleteRead(bytes(body), response.length)
        response.close()  # of this answer, not of the connection
        return bytes(body)

    def _connect(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = ssl.create_default_context(cafile=self._spec.ca_file)
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _problem(status: int, body: bytes) -> str:
    try:
        return f"{status}: {reason_in(json.loads(body), status)}"
    except (ValueError, RecursionError, AttributeError):
        return str(status)


class HttpSegments:
    """Ranges of a node's segment files over HTTP, pinned to the log that the fence saw."""

    def __init__(self, spec: ReplicaSpec, fence: ReplicaFence) -> None:
        self._plane = ControlPlane(spec)
        self._fence = fence
        self._etag = fence.etag
        self.changed = False

    def read(self, kind: Kind, name: str, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length > 0:
            take = min(length, REQUEST_BYTES_MAX)
            piece = self._range(kind, name, offset, take)
            parts.append(piece)
            if len(piece) < take:
                break
            offset += take
            length -= take
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _range(self, kind: Kind, name: str, offset: int, length: int) -> bytes:
        path = f"/segments/{kind}/{quote(name)}"
        for _ in range(3):
            headers = {"Range": f"bytes={offset}-{offset + length - 1}"}
            if self._etag:
                headers["If-Match"] = self._etag
            try:
                status, answer, body = self._plane.get(path, headers=headers)
            except ControlError as error:
                if error.status == 412:
                    self.changed, self._etag = True, None
                    continue
                if error.status == 416:
                    return b""
                if error.status in (404, 410):
                    raise SegmentGone(str(error)) from None
                raise
            self._etag = self._etag or answer.get("etag")
            return body if status == 206 else body[offset : offset + length]
        raise LogChanged(f"{self._fence.id} was truncated again and again while the audit read it")

    def digest(self, first_index: int, last_index: int, block: int) -> str | None:
        answer = self._plane.get_json("/digests", **{"from": first_index, "to": last_index, "block": block})
        items = answer.get("items") if isinstance(answer, dict) else None
        one = items[0] if isinstance(items, list) and len(items) == 1 else None
        if not isinstance(one, dict):
            return None
        asked = {"from_index": first_index, "to_index": last_index, "count": last_index - first_index + 1}
        if any(one.get(name) != value for name, value in asked.items()):
            return None
        digest = one.get("digest")
        return digest if isinstance(digest, str) and digest else None


class DirectorySegments:
    """Ranges of a directory's segment files."""

    changed = False

    def __init__(self, fence: ReplicaFence) -> None:
        self._fence = fence
        self._root = Path(fence.source)
        self._open: dict[tuple[Kind, str], int] = {}

    def read(self, kind: Kind, name: str, offset: int, length: int) -> bytes:
        descriptor = self._open.get((kind, name))
        try:
            if descriptor is None:
                if len(self._open) >= 16:
                    self.close()
                descriptor = os.open(self._root / kind / name, os.O_RDONLY)
                self._open[kind, name] = descriptor
            return os.pread(descriptor, length, offset)
        except FileNotFoundError:
            raise SegmentGone(f"{kind}/{name} is missing in {self._root}") from None
        except OSError as error:
            raise ReadFailed(f"{kind}/{name} in {self._root}: {_reason(error)}") from None

    def digest(self, first_index: int, last_index: int, block: int) -> str | None:
        return files_digest(Party(self._fence, self).files, first_index, last_index)

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def __del__(self) -> None:
        self.close()


def open_replica(spec: ReplicaSpec, fence: ReplicaFence) -> Party:
    """The replica ready to be read; nothing is asked of it before the first read."""
    return Party(fence, HttpSegments(spec, fence) if spec.kind == "http" else DirectorySegments(fence))
