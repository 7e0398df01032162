"""What `/api/v1/kv` answers, as models: the OpenAPI document is made of them (`views/answers.py`)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class ItemFields(BaseModel):
    """A key and what it holds; `index`: the entry that wrote it."""

    key: str
    key_base64: str | None = None
    value: str
    as_: Literal["text", "base64"] = Field(alias="as")
    index: int
    expires_at: str | None


class Item(ItemFields):
    """One key, from a state that holds every entry up to `applied_index`."""

    found: bool
    applied_index: int
    consistency: Literal["linearizable", "lease", "read-index", "log", "stale"]


class Items(BaseModel):
    """Keys in order; `next` is the next `cursor`, null at the end."""

    applied_index: int
    consistency: Literal["linearizable", "lease", "read-index", "log", "stale"]
    items: list[ItemFields]
    next: str | None


class Event(BaseModel):
    """What an entry did to a key; a put says what the key holds since."""

    type: Literal["put", "delete", "expire"]
    key: str
    key_base64: str | None = None
    index: int
    value: str | None = None
    as_: Literal["text", "base64"] | None = Field(default=None, alias="as")


class Events(BaseModel):
    """In order; `next` is the next `from`."""

    items: list[Event]
    next: str


class Written(BaseModel):
    """The entry that wrote it."""

    key: str
    key_base64: str | None = None
    index: int
    term: int


class Deleted(BaseModel):
    """Whether the key was there, and the entry that removed it."""

    key: str
    key_base64: str | None = None
    deleted: bool
    index: int
    term: int
