"""What the console knows of itself, and what is wrong with it; `start` and `stop` are called with the console's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Request

from app.api.cluster_models import ConsoleFacts
from app.api.common import ConsoleDep, Json
from app.console.own_watch import OwnWatch
from node.openapi_statuses import says

router = APIRouter(tags=["console"])


async def start(app: FastAPI) -> None:
    watch = app.state.own_watch = OwnWatch(app.state.console, app.state.sessions)
    await watch.start()


async def stop(app: FastAPI) -> None:
    await app.state.own_watch.stop()


def own_watch_of(request: Request) -> OwnWatch:
    watch: OwnWatch = request.app.state.own_watch
    return watch


OwnWatchDep = Annotated[OwnWatch, Depends(own_watch_of)]


@router.get("/console", responses=says(ConsoleFacts))
async def this_console(console: ConsoleDep, watch: OwnWatchDep) -> Json:
    """The console's database, disk, certificates, tokens that end soon, and each member's clock less its own."""
    problems = [one.to_json() for one in console.own_problems()]
    return {**watch.facts.model_dump(mode="json"), "problems": problems}
