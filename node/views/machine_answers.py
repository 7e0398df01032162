"""What `/api/v1/machine` answers, as models: the OpenAPI document is made of them (`views/answers.py`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class Given(BaseModel):
    """Bytes: text, or base64 where they are none."""

    value: str
    as_: Literal["text", "base64"] = Field(alias="as")


class Commanded(BaseModel):
    """Where the commands are in the log, and what applying each of them answered, in their order."""

    first_index: int
    last_index: int
    term: int
    results: list[Given]


class Answered(BaseModel):
    """The answer to a question, from a state that holds every entry up to `applied_index`; null: nothing happened
    within `wait_ms`."""

    answer: Given | None
    applied_index: int | None
    consistency: Literal["linearizable", "lease", "read-index", "log", "stale"]
