"""The console's REST API, one router per resource; `router` is all of them, to be mounted at /api/v1.

Who may call what is decided before any handler runs (app.security.policy).
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api import access, addresses, clusters, demo, nodes, operations, operator_actions, users

PROBLEM_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "status", "title", "detail"],
    "properties": {
        "type": {"type": "string"},
        "status": {"type": "integer"},
        "title": {"type": "string"},
        "detail": {"type": "string"},
        "code": {"description": "DLedger's, where there is one"},
        "action": {"type": "string", "description": "what to do about it"},
        "outcome": {"enum": ["not_appended", "unknown"], "description": "of an append"},
    },
}
PROBLEM = {"description": "A problem", "content": {"application/problem+json": {"schema": PROBLEM_SCHEMA}}}

router = APIRouter(responses={422: PROBLEM, "default": PROBLEM})
for one in (clusters, addresses, nodes, operator_actions, operations, access, users, demo):
    router.include_router(one.router)
