"""Bodies of REST requests, of control planes and the console: each field of its own JSON type, and no other fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from app.console.app import create_app as create_console
from app.console.settings import ConsoleSettings
from node.config import load
from node.control.app import create_app as create_control_plane
from node.control.entries import NewEntries
from node.control.message_changes import Reset
from node.control.restart import Restart
from node.control.trim import Trim
from tests.unit.test_openapi_documents import MORE


def apps(place: Path) -> list[FastAPI]:
    given = {"node.id": "n0", "node.data": str(place), "peers": "n0-127.0.0.1:1"}
    planes = [create_control_plane(load(given | more, environ={})) for more in ({}, *MORE.values())]
    return [*planes, create_console(ConsoleSettings(db_url=f"sqlite:///{place}/console.db"))]


def routes_of(router: Any) -> Iterator[APIRoute]:
    """Its own, and those of the routers that it includes."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        elif (included := getattr(route, "original_router", None)) is not None:
            yield from routes_of(included)


def models_of(app: FastAPI) -> dict[str, type[BaseModel]]:
    """What requests' JSON bodies are read as, by the path of each."""
    found: dict[str, type[BaseModel]] = {}
    for route in routes_of(app):
        for parameter in route.dependant.body_params:
            for kind in (parameter.field_info.annotation, *get_args(parameter.field_info.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    found[f"{sorted(route.methods)[0]} {route.path} {kind.__name__}"] = kind
    return found


def test_every_body_is_read_strictly(tmp_path: Path) -> None:
    models = {path: model for app in apps(tmp_path) for path, model in models_of(app).items()}
    assert len(models) > 25
    lenient = [path for path, model in models.items() if not model.model_config.get("strict")]
    open_ended = [path for path, model in models.items() if model.model_config.get("extra") != "forbid"]
    assert (lenient, open_ended) == ([], [])


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (NewEntries, {"entries": ["a"], "expected_index": True}),
        (NewEntries, {"entries": ["a"], "expected_index": "4"}),
        (NewEntries, {"entries": ["a"], "expected_index": 4.5}),
        (Trim, {"through_index": 7.5}),
        (NewEntries, {"entries": [1]}),
        (Trim, {"through_index": True}),
        (Trim, {"through_index": 7, "force": "yes"}),
        (Trim, {"through_index": 7, "dry_run": 0}),
        (Restart, {"force": 1}),
        (Restart, {"dry_run": "no"}),
        (Reset, {"topic": "t", "to": "offset", "offset": "12"}),
    ],
)
def test_what_only_resembles_a_value_is_refused(model: type[BaseModel], body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(body)


def test_times_are_text() -> None:
    assert Reset.model_validate({"topic": "t", "to": "time", "time": "2026-11-27T14:03:00Z"}).time is not None


def test_json_has_one_kind_of_number() -> None:
    assert Trim.model_validate({"through_index": 7.0}).through_index == 7
    assert NewEntries.model_validate_json('{"entries": ["a"], "expected_index": 4.0}').expected_index == 4
