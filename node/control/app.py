"""The control plane's FastAPI app: wired once, no I/O before the lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request

from node import operator_trail
from node.body_limit import BodyLimit
from node.config import Settings
from node.control import (
    archive,
    entries,
    ha,
    ha_changes,
    ha_log,
    kv,
    leadership,
    machine,
    members,
    message_changes,
    messages,
    repair,
    restart,
    segments,
    snapshot_files,
    state,
    trim,
)
from node.control.broker_alarms import BrokerAlarms
from node.control.broker_hand_over import BrokerHandOver
from node.control.broker_link import BrokerLink
from node.control.common import Json, Parts
from node.control.data_look import DataLook, why_down
from node.control.direct import DirectRoute
from node.control.engine_link import EngineLink
from node.control.guard import Guard
from node.control.log_files import LogFiles
from node.control.openapi import complete
from node.control.operations import Operations
from node.control.problems import HANDLERS, outcome_of
from node.control.problems import document as problem_document
from node.control.snapshots import Snapshots
from node.control.trail import Recorder, row_now
from node.http_methods import Head, Options
from node.openapi_statuses import says
from node.operator_trail import OperatorTrail
from node.published import PublishedJson
from node.strict_query import STRICT
from node.unwritable import is_unwritable
from node.views.answers import About, Appended

BODY_BYTES_MAX = 16 << 20
HELD_BYTES_MAX = 64 << 20  # of all bodies that are being read


def package_version() -> str:
    try:
        return version("quorumscope")
    except PackageNotFoundError:
        return "0"


def make_parts(settings: Settings) -> Parts:
    link, files = EngineLink(settings), LogFiles(settings)
    snapshots = Snapshots(settings, link, files)
    parts = Parts(
        settings, link, files, LogFiles(settings), snapshots, Operations(), package_version(), asyncio.Event()
    )
    parts.data_look = DataLook(settings.node.data, is_unwritable, False)
    snapshots.data_look = DataLook(settings.node.data, partial(why_down, in_a_pair=settings.ha.is_classic), None)
    if settings.broker.has_broker:
        parts.broker = BrokerLink(settings)
        if settings.ha.is_classic:
            ha.use(parts)
        else:
            parts.broker_alarms = BrokerAlarms(parts.broker, settings.node.id, BrokerHandOver(parts, parts.broker).look)
    if settings.node.token_file is not None:
        parts.rereading.add("the token that is shown to the engine", link.read_token, link.use_token)
    if settings.node.tls:
        parts.rereading.add("the certificate that is shown to the engine", link.read_tls, link.use_tls)
    return parts


def create_app(settings: Settings) -> FastAPI:
    parts = make_parts(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if parts.broker_alarms is not None:
            parts.broker_alarms.start()
        yield
        parts.stopping.set()
        await parts.operations.close()
        parts.link.close()
        if parts.broker_alarms is not None:
            await parts.broker_alarms.close()
        if parts.broker is not None:
            await parts.broker.close()

    app = FastAPI(
        title="Quorumscope control plane",
        version=parts.version,
        lifespan=lifespan,
        openapi_url=None,  # see below
        docs_url=None,
        redoc_url=None,
        exception_handlers=HANDLERS,
        dependencies=STRICT,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.parts = parts
    trail = OperatorTrail(settings.node.data / operator_trail.NAME)
    recorder, parts.link.row = Recorder(trail, parts.snapshots, parts.operations), row_now
    if not settings.ha.is_classic:  # first of all, for it is asked most
        app.router.add_api_route(
            "/api/v1/entries",
            entries.append,
            methods=["POST"],
            tags=["entries"],
            response_model=Json,
            responses=says(Appended),
            openapi_extra=entries.APPEND,
            route_class_override=DirectRoute,
        )
    app.add_route("/api/v1/openapi.json", PublishedJson(lambda: app.openapi()).answer, ["GET"])
    app.add_api_route("/api/v1", about, tags=["state"], responses=says(About))
    if settings.node.state_machine:
        app.include_router(machine.router)
        app.include_router(snapshot_files.router)
        app.include_router(machine.calls)
    if settings.node.state_machine == "kv":
        app.include_router(kv.router)
    if settings.broker.has_broker:
        app.include_router(messages.router)
        app.include_router(message_changes.router)
    for one in (
        (ha.router, ha_log.router, ha_changes.router, state.health)
        if settings.ha.is_classic
        else (
            state.router,
            entries.router,
            archive.router,
            segments.router,
            leadership.router,
            repair.router,
            restart.router,
            members.router,
            trim.router,
            state.health,
        )
    ):
        app.include_router(one)
    app.add_middleware(
        BodyLimit, body_bytes_max=BODY_BYTES_MAX, held_bytes_max=HELD_BYTES_MAX,
        refuse=lambda scope, status, title, detail: problem_document(status, title, detail, outcome=outcome_of(scope)),
    )  # fmt: skip
    app.add_middleware(Options, routes=app.router.routes)
    app.add_middleware(Guard, settings=settings, rereading=parts.rereading, recorder=recorder)
    app.add_middleware(Head)
    complete(app)
    return app


async def about(request: Request) -> dict[str, Any]:
    """What this is."""
    parts: Parts = request.app.state.parts
    node = parts.settings.node
    kind = "classic" if parts.settings.ha.is_classic else "node"
    return {"kind": kind, "version": parts.version, "group": node.group, "self_id": node.id}
