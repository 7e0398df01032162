"""`--node URL --group NAME` where the node belongs to another group, or to none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from app.commands.control_calls import control_state
from app.commands.endings import ClassicBroker, Exit, Failure

OTHER = {"status": 404, "title": "Unknown group", "detail": "This node is in the group 'g', not 'a b&c'.", "code": 400}
ABSENT = {"status": 404, "title": "Not Found", "detail": "There is nothing at '/api/v1/state'."}


class Plane:
    """Answers as control planes do, which send a caller of `/api/v1/` elsewhere."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.state, self.about = ABSENT, {"kind": "node"}
        plane = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                plane.asked.append(self.path)
                at_root = self.path == "/api/v1"
                self.send_response(200 if at_root else 307 if self.path == "/api/v1/" else 404)
                content = plane.about if at_root else plane.state
                data = b"" if self.path == "/api/v1/" else json.dumps(content).encode()
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_args: object) -> None:
                """Nobody reads it."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def plane() -> Iterator[Plane]:
    made = Plane()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_node_of_another_group_denies_and_says_which_one_it_is_of(plane: Plane) -> None:
    """As members do; it ended as unreachable, with "without JSON: that is no control plane"."""
    plane.state = OTHER
    with pytest.raises(Failure, match="This node is in the group 'g'") as refused:
        control_state(plane.base, "a b&c", None)
    assert refused.value.code == Exit.DENIED
    assert plane.asked == ["/api/v1/state?group=a+b%26c"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_node_without_a_group_is_told_by_its_kind(plane: Plane, group: str | None) -> None:
    with pytest.raises(Failure, match="answered 404: There is nothing at") as refused:
        control_state(plane.base, group, None)
    assert refused.value.code == Exit.UNREACHABLE
    plane.about = {"kind": "classic"}
    with pytest.raises(ClassicBroker):
        control_state(plane.base, group, None)
