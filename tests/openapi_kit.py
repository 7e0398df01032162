"""An OpenAPI document as a judge of answers: what it does not say must not occur.

A status that is not documented, another media type, a field that is missing, of another type or not named: each is a
`Lie`. Schemas are closed for that; the document itself leaves them open, for additions are free.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jsonschema_rs

Json = dict[str, Any]
METHODS = ("get", "put", "post", "delete", "patch")


class Lie(AssertionError):
    """The text says which call, and what the document does not say."""


def closed(schema: Any) -> Any:
    """The same schema, without room for fields that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: closed(value) for key, value in schema.items()}
    if isinstance(copy.get("properties"), dict) and copy.get("type") == "object":
        copy.setdefault("additionalProperties", False)
    return copy


class Document:
    """Paths without parameters are found first, as routers do."""

    def __init__(self, document: Json) -> None:
        self.document = document
        paths = sorted(document["paths"].items(), key=lambda item: item[0].count("{"))
        self.paths = [(re.compile(re.sub(r"\\{[^}]*\\}", "[^/]+", re.escape(path))), path) for path, _ in paths]
        self.validators: dict[str, Any] = {}

    @cached_property
    def components(self) -> Json:
        schemas = self.document["components"]["schemas"]
        return {"schemas": {name: one if name == "ProblemDetails" else closed(one) for name, one in schemas.items()}}

    def operations(self) -> list[tuple[str, str, Json]]:
        return [
            (method, path, call)
            for path, calls in self.document["paths"].items()
            for method, call in calls.items()
            if method in METHODS
        ]

    def operation(self, method: str, path: str) -> tuple[str, Json] | None:
        """("method template", the operation), by a request's own path; None: not described."""
        template = next((one for pattern, one in self.paths if pattern.fullmatch(path)), None)
        if template is None or method.lower() not in self.document["paths"][template]:
            return None
        return f"{method.lower()} {template}", self.document["paths"][template][method.lower()]

    def faults(self, schema: Json, value: Any) -> list[str]:
        """What is wrong with a JSON value."""
        key = json.dumps(schema, sort_keys=True)
        if key not in self.validators:
            whole = {**closed(schema), "components": self.components}
            self.validators[key] = jsonschema_rs.Draft202012Validator(whole)
        errors = self.validators[key].iter_errors(value)
        return [f"{'/'.join(map(str, one.instance_path))}: {one.message[:300]}" for one in errors]

    def check(self, method: str, path: str, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Raises Lie where an answer is not as it is documented; other calls than the documented ones are passed."""
        found = self.operation(method, path)
        if found is None:
            return
        said, call = f"{method} {path}: {status}", found[1]
        answer = call["responses"].get(str(status))
        if answer is None:
            raise Lie(f"{said} is not documented")
        media_type = headers.get("content-type", "").partition(";")[0]
        contents = answer.get("content", {})
        if not contents:
            if content:
                raise Lie(f"{said} is documented without a body")
            return
        if media_type not in contents:
            raise Lie(f"{said} is {media_type!r}, documented as {sorted(contents)}")
        if media_type.endswith("json") and "ndjson" not in media_type:
            faults = self.faults(contents[media_type]["schema"], json.loads(content))
            if faults:
                raise Lie(f"{said}: {'; '.join(faults[:5])} in {content[:600]!r}")
