"""The console's REST API, one router per resource; `router` is all of them, to be mounted at /api/v1.

Who may call what is decided before any handler runs (app.security.policy).
"""

from __future__ import annotations

from fastapi import APIRouter

from app.api import access, clusters, demo, nodes, operations, steering, users

router = APIRouter()
for one in (clusters, nodes, steering, operations, access, users, demo):
    router.include_router(one.router)
