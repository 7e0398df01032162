"""The console's REST API, one router per resource; `router` is all of them, to be mounted at /api/v1.

Who may call what is decided before any handler runs (app.security.policy).
"""

from __future__ import annotations

from fastapi import APIRouter

from app.api import access, addresses, clusters, demo, nodes, operations, operator_actions, second_factor, users

router = APIRouter()
for one in (clusters, addresses, nodes, operator_actions, operations, access, users, second_factor, demo):
    router.include_router(one.router)
