"""Breaking things on purpose: only in a console that a demo started."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from app.api.cluster_models import Broken, DemoFacts
from app.api.common import ConsoleDep, Json
from app.console.demo import Break
from node.openapi_statuses import says
from node.views.request_body import RequestBody

router = APIRouter(prefix="/demo", tags=["demo"])


class Breakage(RequestBody):
    what: Break
    node: Annotated[str | None, Field(max_length=64)] = None


@router.post("/break", responses=says(Broken))
async def break_one(body: Breakage, console: ConsoleDep) -> Json:
    return await console.demo.break_one(body.what, body.node)


@router.get("/state", responses=says(DemoFacts))
async def state(console: ConsoleDep) -> Json:
    return await console.demo.state()
