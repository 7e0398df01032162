"""Where JSON may pass untyped between a member's introspection and a page; elsewhere it is a view (`node.views`).

A new `dict[str, Any]` on that way is refused: declare the field in a view instead. Each exception says why.
"""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ON_THE_WAY = (
    "node/views", "node/engine/introspect.py", "node/engine/link_health.py", "node/engine/members_view.py",
    "node/engine/replication_view.py", "node/control", "app/console", "app/health", "app/commands/standing.py",
    "app/commands/plain_members.py", "app/demo/table.py",
)  # fmt: skip
UNTYPED = re.compile(r"\b(?:dict|Dict|Mapping)\[str, Any\]")
ALLOWED = {
    "app/console/app.py": (3, "what templates are drawn with, and OpenAPI's own document"),
    "app/console/audit_pages.py": (3, "audits: another resource, from the database"),
    "app/console/configurations.py": (1, "the detail of an event about the members: another resource"),
    "app/console/entries_said.py": (1, "entries, read, as a template is drawn with them"),
    "app/console/message_bodies.py": (1, "entries of members: other resources"),
    "app/console/member_changes.py": (1, "operations and pre-flights: a node's own resources, and requests"),
    "app/console/console.py": (1, "history, events, operations, entries: other resources, given on as they are"),
    "app/console/demo.py": (1, "the answer of the demo's HTTP server"),
    "app/console/errors.py": (1, "the free members of a problem document"),
    "app/console/history.py": (1, "the answer of a history query: columns by name"),
    "app/console/login.py": (3, "a cookie's attributes, a login that waits for its code, a row of the trail"),
    "app/console/nodes.py": (1, "any resource's JSON before it is read, and requests"),
    "app/console/oidc_login.py": (3, "what a login carries in its cookie, and an ID token's claims: a provider's own"),
    "app/console/transfers.py": (1, "operations: another resource, kept in the database"),
    "app/console/recent.py": (1, "events: another resource, kept in the database"),
    "app/console/repair_pages.py": (1, "what a template is drawn with"),
    "app/console/second_factor_pages.py": (1, "what a template is drawn with"),
    "app/console/repairs.py": (1, "operations: a node's own resource"),
    "app/console/remote_operations.py": (1, "operations: a node's own resource"),
    "node/control/app.py": (1, "what this is: name and version"),
    "node/control/broker_link.py": (1, "lists for REST, which gives them through `node/views/message_answers.py`"),
    "node/control/common.py": (1, "what every router makes of operations, entries and keys: other resources"),
    "node/control/engine_link.py": (3, "requests to the engine, and any answer before a view reads it"),
    "node/control/ha.py": (1, "the fields with which a view is made"),
    "node/control/ha_log.py": (3, "the fields with which a view is made"),
    "node/control/kv.py": (1, "the fields of a command's condition"),
    "node/control/openapi.py": (3, "OpenAPI's own document, and its examples"),
    "node/control/operations.py": (1, "operations: another resource"),
    "node/control/trail.py": (1, "rows of the trail: another resource"),
    "node/views/answers.py": (2, "what operations end with, and what a repair is about: of many kinds"),
    "app/console/proxy.py": (1, "entries and truncations of members: other resources"),
}


def test_no_new_untyped_json_between_introspection_and_page() -> None:
    found = {}
    for place in ON_THE_WAY:
        path = REPOSITORY / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            count = len(UNTYPED.findall(file.read_text()))
            if count:
                found[file.relative_to(REPOSITORY).as_posix()] = count
    assert found == {name: count for name, (count, _) in ALLOWED.items()}
