"""The console's FastAPI app: what belongs together, wired once.

`create_app` does no I/O; the lifespan brings the schema up to date, starts the watches and ends them.
"""

from __future__ import annotations

import importlib
import importlib.util
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import httpx2
from fastapi import APIRouter, FastAPI, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from app.api import openapi
from app.api import router as api_router
from app.api.cluster_models import About
from app.console import errors, live_routes, login
from app.console.console import Console
from app.console.live import Hub, LiveKey, Renderer
from app.console.login import half_logins
from app.console.oidc_login import begun_logins
from app.console.settings import ConsoleSettings
from app.db import retention
from app.db.engine import between_writes, open_engine, open_sessions, upgrade_async
from app.db.repositories import meta, set_meta
from app.resources import resource
from app.security import trail
from app.security.failures import Failures
from app.security.gate import Gate
from app.security.identity import Identity
from app.security.limits import LoginLimits
from app.security.logout_tokens import LogoutTokens
from app.security.oidc import Provider
from app.security.passwords import Hashing
from app.security.sealed import Seal, key_file_of
from app.security.second_factor import SecondFactors
from node.body_limit import BodyLimit
from node.http_methods import Head, Options
from node.openapi_statuses import says
from node.published import PublishedJson
from node.strict_query import STRICT

# Parts that others bring along; each is a module with a `router`, and `start(app)`/`stop(app)` if it has a life.
PAGE_PARTS = (
    "app.console.pages", "app.console.log_pages", "app.console.docs_pages", "app.console.people_pages",
    "app.console.second_factor_pages", "app.console.oidc_login", "app.console.oidc_logout",
    "app.console.audit_pages", "app.console.schedule_pages",
    "app.console.repair_pages", "app.console.restart_pages", "app.console.members_pages",
    "app.console.message_pages",
    "app.console.address_pages", "app.console.notification_pages", "app.console.metrics",
)  # fmt: skip
API_PARTS = (
    "app.api.audits",
    "app.api.schedules",
    "app.api.repairs",
    "app.api.restarts",
    "app.api.member_operations",
    "app.api.members",
    "app.api.alerts",
    "app.api.own",
)
BODY_BYTES_MAX = 8 << 20
HELD_BYTES_MAX = 64 << 20  # of all bodies that are being read


def part(name: str) -> ModuleType | None:
    return importlib.import_module(name) if importlib.util.find_spec(name) is not None else None


def package_version() -> str:
    try:
        return version("quorumscope")
    except PackageNotFoundError:
        return "0"


def create_app(
    settings: ConsoleSettings, *, transport: httpx2.AsyncBaseTransport | None = None,
    provider_transport: httpx2.AsyncBaseTransport | None = None,
) -> FastAPI:  # fmt: skip
    """The transports replace the network towards the control planes and the OpenID provider in tests."""
    settings.check()
    engine = open_engine(settings.db_url)
    sessions = open_sessions(engine)
    identity = Identity(
        sessions, idle_s=settings.session_idle_s, max_s=settings.session_max_s, second_factor=settings.second_factor,
        provider=settings.oidc,
    )  # fmt: skip
    failures, hashing, seal = Failures(sessions), Hashing(), Seal(key_file_of(settings.db_url))
    parts = [found for name in (*PAGE_PARTS, *API_PARTS) if (found := part(name)) is not None]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await upgrade_async(settings.db_url)
        app.state.instance = await meta(sessions, "instance", secrets.token_hex(4))
        await set_meta(sessions, "address", settings.public_url)
        console = app.state.console = Console(settings, sessions, transport)
        hub = app.state.hub = Hub(renderer(app, console))
        await console.start()
        console.background.keep("summing up failures", failures.flush_forever)
        console.background.keep(
            "removing old rows of the trail", partial(trail.trim_forever, sessions, settings.trail_days)
        )
        console.background.keep(
            "removing old operations", partial(retention.remove_forever, sessions, settings.operations_days)
        )
        started = [one for one in parts if hasattr(one, "start")]
        for one in started:
            await one.start(app)
        try:
            yield
        finally:
            await hub.close()
            for one in reversed(started):
                await one.stop(app)
            async with between_writes(sessions):
                await console.background.stop()
            await console.stop()
            await failures.flush()
            hashing.close()
            await identity.close()
            await engine.dispose()

    app = FastAPI(
        title="Quorumscope console",
        version=package_version(),
        lifespan=lifespan,
        openapi_url=None,  # see include_routes
        docs_url=None,
        redoc_url=None,
        exception_handlers=errors.HANDLERS,
    )
    app.state.settings, app.state.sessions, app.state.identity = settings, sessions, identity
    app.state.failures, app.state.hashing = failures, hashing
    # Apart: no made-up name that fails to log in uses up the tries at a code or at a new password.
    app.state.login_limits, app.state.own_limits = LoginLimits(), LoginLimits()
    app.state.second_factors, app.state.half_logins = SecondFactors(seal), half_logins(seal)
    app.state.begun_logins = begun_logins(seal)
    app.state.provider = Provider(settings.oidc, provider_transport) if settings.oidc.issuer else None
    app.state.logout_tokens = LogoutTokens(app.state.provider) if settings.oidc.issuer else None
    app.state.instance = ""
    app.state.cookie_name = lambda: "__Host-qs" if settings.secure else f"qs_{app.state.instance}"
    app.state.templates = templates()
    app.state.live_pages = live_pages()
    include_routes(app)
    openapi.complete(app)
    # The gate stands outside: its headers are on every answer, and a HEAD has those of the GET.
    app.add_middleware(BodyLimit, body_bytes_max=BODY_BYTES_MAX, held_bytes_max=HELD_BYTES_MAX, refuse=errors.render)
    app.add_middleware(Options, routes=app.router.routes)
    app.add_middleware(
        Gate,
        settings=settings,
        sessions=sessions,
        identity=identity,
        cookie_name=app.state.cookie_name,
        render=errors.render,
        failed=errors.unexpected,
    )
    app.add_middleware(Head)
    return app


def include_routes(app: FastAPI) -> None:
    app.add_route("/api/v1/openapi.json", PublishedJson(lambda: app.openapi()).answer, ["GET"])
    app.router.routes.extend(common_routes())


@cache
def common_routes() -> Sequence[BaseRoute]:
    """The routes of every console of this process: FastAPI works out their parameters when they are first tried."""
    router = APIRouter(dependencies=STRICT)
    router.include_router(login.router)
    router.include_router(live_routes.router)
    for name in PAGE_PARTS:  # routes are tried one after the other: first those that people wait for
        if (found := part(name)) is not None:
            router.include_router(found.router, include_in_schema=False)
    router.add_api_route("/api/v1", about, tags=["console"], responses=says(About))
    router.include_router(api_router, prefix="/api/v1")
    for name in API_PARTS:
        if (found := part(name)) is not None:
            router.include_router(found.router, prefix="/api/v1")
    router.add_api_route("/healthz", healthz, include_in_schema=False)
    # Two fifths of the bytes; pages themselves are left as they are, for what they hold next to what visitors send.
    router.mount("/static", GZipMiddleware(StaticFiles(directory=resource("static")), compresslevel=6), name="static")
    return router.routes


async def about(request: Request) -> dict[str, str]:
    """What this is."""
    return {"kind": "console", "version": request.app.version}


async def healthz() -> Response:
    return JSONResponse({"status": "ok"})


@cache
def templates() -> Jinja2Templates:
    """Those of every console of this process: each is compiled once."""
    env = Environment(
        loader=FileSystemLoader(resource("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # no page looks whether its template's file has changed
        trim_blocks=True,
        lstrip_blocks=True,
    )

    def context(request: Request) -> dict[str, Any]:
        app, viewer = request.app, getattr(request.state, "viewer", None)
        return {
            "viewer": viewer,
            "csrf_token": viewer.csrf_token if viewer is not None else "",
            "instance": app.state.instance,
            "version": app.version,
            "demo": app.state.settings.demo,
            "provider_label": app.state.settings.oidc.label if app.state.provider is not None else None,
        }

    for name in PAGE_PARTS:
        install = getattr(part(name), "install", None)
        if install is not None:
            install(env)
    return Jinja2Templates(env=env, context_processors=[context])


def live_pages() -> Mapping[str, Any]:
    """Page name -> renderer, from every part that brings some."""
    pages: dict[str, Any] = {}
    for name in PAGE_PARTS:
        pages |= getattr(part(name), "LIVE", {})
    return pages


def renderer(app: FastAPI, console: Console) -> Renderer:
    def render(key: LiveKey) -> Any:
        return app.state.live_pages[key.page](console, key)

    return render
