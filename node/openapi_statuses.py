"""Statuses in OpenAPI documents: which problems a call may answer with, by what kind of call it is.

FastAPI documents the success and 422. What the gate before it, the limits around it and the handlers within it answer
follows from the call's shape: whether it has parameters, takes a body, changes something, or asks a node. Every one
is application/problem+json with the same schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from node.protocol.broker_state import INT64_MAX

Json = dict[str, Any]
# (method, path) -> statuses beyond those of every call
Rule = Callable[[str, str], Iterable[int]]
TITLES: Final[Mapping[int, str]] = {
    400: "The request cannot be read",
    401: "Nobody is signed in, or the token is wrong",
    403: "The caller has not the right, or comes from another site",
    404: "There is no such thing",
    406: "Not in a form that `Accept` allows",
    409: "Not as things are",
    410: "It is not kept any more",
    412: "Things moved since the caller looked: the term, or the log under an ETag",
    413: "The body is too large",
    415: "Neither application/json nor an octet-stream",
    416: "No such range",
    421: "Not a name of this server; or another member leads: `leader_id`, `leader_api_url`",
    422: "A parameter or the body is not as it must be",
    429: "Too many tries: `Retry-After` says how long to wait",
    500: "An error that was not expected: `reference` finds it in the log",
    502: "The node does not answer",
    503: "Not now: `Retry-After` says when",
    504: "No answer in time; `outcome` says whether it may have happened",
}
BOUNDS: Final = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
ALWAYS: Final = (400, 401, 403, 421, 500, 503)
WITH_BODY: Final = (409, 413, 415, 422)
PROBLEM_REF: Final = {"$ref": "#/components/schemas/ProblemDetails"}
PROBLEM: Final[Json] = {
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


def says(model: type[BaseModel], status: int = 200, description: str | None = None) -> dict[int | str, Json]:
    """For a route's `responses`: what is answered, while the handler's own bytes stay as they are."""
    return {status: {"model": model, "description": description or HTTPStatus(status).phrase}}


def gives(media_type: str, schema: Json, *statuses: int, example: str | None = None) -> dict[int | str, Json]:
    """For a route's `responses`: an answer that is no JSON."""
    content = {media_type: {"schema": schema} | ({"example": example} if example is not None else {})}
    return {one: {"description": HTTPStatus(one).phrase, "content": content} for one in statuses or (200,)}


BYTES: Final[Json] = {"type": "string", "format": "binary"}
TEXT: Final[Json] = {"type": "string"}


def alone(schema: Json) -> Json:
    """A reference without what FastAPI derived from a handler's `dict`."""
    return {"$ref": schema["$ref"]} if "$ref" in schema else schema


def document_statuses(document: Json, *, more: Rule, schemes: Json, public: Iterable[str] = ()) -> None:
    """Adds problems and security schemes to a document, in place; what a call documents itself stays."""
    name_whole_bounds(document)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["ProblemDetails"] = PROBLEM
    components["securitySchemes"] = schemes
    document["security"] = [{name: []} for name in schemes]
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            if path in public:
                call["security"] = []
            wanted = {*ALWAYS, *more(method, path)}
            if call.get("parameters"):
                wanted.add(422)
            if "{" in path:
                wanted.add(404)
            if method in ("post", "put", "patch"):
                wanted.update(WITH_BODY)
            for answer in call["responses"].values():
                for content in answer.get("content", {}).values():
                    content["schema"] = alone(content.get("schema", {}))
            for status in sorted(wanted):
                add_problem(call["responses"].setdefault(str(status), {}), status)


def name_whole_bounds(part: Any) -> None:
    """In place: FastAPI writes bounds as floats, and the largest int64 is none: it became 2^63, which is refused."""
    if isinstance(part, dict):
        for name in BOUNDS & part.keys():
            bound = part[name]
            if isinstance(bound, float) and bound.is_integer():
                part[name] = min(int(bound), INT64_MAX)
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        name_whole_bounds(inner)


def add_problem(answer: Json, status: int) -> None:
    """Beside what else a call may answer with this status; FastAPI's own 422 is not what is answered."""
    answer.setdefault("description", TITLES[status])
    others = answer.setdefault("content", {})
    if others.get("application/json", {}).get("schema", {}) == {} or status == 422:
        others.pop("application/json", None)
    others["application/problem+json"] = {"schema": PROBLEM_REF}


def add_examples(document: Json, examples: Json) -> None:
    """`examples`: "method path" -> {"response", and "request" where it has a body}."""
    for name, example in examples.items():
        method, _, path = name.partition(" ")
        put(document["paths"][path][method], example)


def put(operation: dict[str, Any], example: dict[str, Any]) -> None:
    """One call's examples: the success answer's, and the request body's where it has one."""
    if "request" in example:
        body = operation.setdefault("requestBody", {"content": {}})
        body["content"].setdefault("application/json", {})["example"] = example["request"]
    if "response" not in example:
        return
    done = max((code for code in operation["responses"] if code.startswith("2")), default=None)
    if done is not None:  # 202, where there is a dry run's 200 as well
        content = operation["responses"][done].setdefault("content", {}).setdefault("application/json", {})
        content["example"] = example["response"]
