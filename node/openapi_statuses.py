"""Statuses in OpenAPI documents: which problems a call may answer with, by what kind of call it is.

FastAPI documents the success and 422. What the gate before it, the limits around it and the handlers within it answer
follows from the call's shape: whether it has parameters, takes a body, changes something, or asks a node. Every one
is application/problem+json with the same schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Json = dict[str, Any]
# (method, path) -> statuses beyond those of every call
Rule = Callable[[str, str], Iterable[int]]
TITLES: Final[Mapping[int, str]] = {
    400: "The request cannot be read",
    401: "Nobody is signed in, or the token is wrong",
    403: "The caller has not the right, or comes from another site",
    404: "There is no such thing",
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
ALWAYS: Final = (400, 401, 403, 421, 500, 503)
WITH_BODY: Final = (409, 413, 415, 422)
PROBLEM_REF: Final = {"$ref": "#/components/schemas/Problem"}
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


def document_statuses(document: Json, *, more: Rule, schemes: Json, public: Iterable[str] = ()) -> None:
    """Adds problems and security schemes to a document, in place; what a call documents itself stays."""
    components = document.setdefault("components", {})
    components.setdefault("schemas", {})["Problem"] = PROBLEM
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
            for status in sorted(wanted):
                answer = call["responses"].setdefault(str(status), {})
                answer.setdefault("description", TITLES[status])
                if status == 422 or not answer.get("content"):
                    answer["content"] = {
                        "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
                    }
