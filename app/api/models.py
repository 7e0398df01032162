"""What the API answers about people and operations, as models: their fields are documented, and no others go out."""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, Literal, TypeVar

from pydantic import BaseModel, Field, JsonValue

T = TypeVar("T")
# A name of people's making: nothing in it that a terminal, a mail's header or a database would take for more.
# No control characters, none that a reader cannot see, and none that turns the reading of others around.
PRINTABLE: Final = r"^[^\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ue000-\uf8ff\ufeff]+$"
GroupId = Annotated[str, Field(min_length=1, max_length=64, pattern=PRINTABLE)]
RoleName = Literal["none", "viewer", "operator", "admin"]
# On single groups; an admin has all of them.
GroupRole = Literal["none", "viewer", "operator"]
# What pydantic leaves out of the document for keys with a pattern: no others, and their length.
OF_GROUPS: Final[dict[str, JsonValue]] = {
    "additionalProperties": False, "propertyNames": {"minLength": 1, "maxLength": 64},
}  # fmt: skip


class Page(BaseModel, Generic[T]):
    """A list: `next` is the `cursor` of the rest, null at its end."""

    items: list[T]
    next: str | None


class Me(BaseModel):
    """Who is asking. `rights` hold on every group that is not in `cluster_roles`.

    On the console as a whole a right holds only where it holds on every group, those in `cluster_roles` included.
    """

    name: str
    source: Literal["local", "oidc"]
    role: RoleName
    cluster_roles: dict[str, GroupRole]
    rights: list[str]
    via: Literal["session", "token"]
    expires_at: str | None


class UserView(BaseModel):
    """`role` holds on every group but those in `cluster_roles`; `none` gives none. `source` oidc: the groups at the
    OpenID provider give both, at each login."""

    name: str
    role: RoleName
    cluster_roles: dict[str, GroupRole]
    source: Literal["local", "oidc"]
    has_password: bool
    second_factor: bool
    second_factor_required: bool
    disabled_at: str | None
    created_at: str


class SecondFactorView(BaseModel):
    """`required`: by the console's rule or an admin's word. `since` null: it was begun, or there is none."""

    since: str | None
    required: bool
    recovery_codes_left: int


class EnrolmentView(BaseModel):
    """For the authenticator app; shown this once. It counts from the code on that confirms it."""

    secret: str
    uri: str


class RecoveryCodesView(BaseModel):
    """Each works once in place of a code; shown this once, and those before are void."""

    recovery_codes: list[str]


class NewUserView(UserView):
    login_link: str


class LoginLinkView(BaseModel):
    name: str
    login_link: str


class SessionView(BaseModel):
    id: int
    user: str
    created_at: str
    seen_at: str
    expires_at: str
    address: str
    agent: str
    current: bool


class TokenView(BaseModel):
    id: int
    user: str
    name: str
    prefix: str
    role: RoleName
    cluster_roles: dict[str, GroupRole]
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class NewTokenView(TokenView):
    """`token` is shown this once."""

    token: str


class TrailView(BaseModel):
    """`credential`: the session or token it came through; `detail`: what was before and after."""

    id: int
    at: str
    user: str
    role: str
    via: str
    credential: str
    address: str
    action: str
    target: str
    method: str
    path: str
    status: int | None
    detail: dict[str, Any] | None


class OperationView(BaseModel):
    id: str
    kind: str
    state: Literal["running", "done", "failed", "cancelled", "unknown"]
    progress: dict[str, Any] | None
    outcome: dict[str, Any] | None
    problem: dict[str, Any] | None
    cluster_id: str
    node_id: str | None
    requested_by: str
    created_at: str
    updated_at: str
