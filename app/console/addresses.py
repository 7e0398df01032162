"""Where a group's control planes may be asked, and which token goes there.

Scheme, host and port are pinned: by the configuration, by an admin who named the address when the group was added, or
by an admin's approval of an address that a member named. Members name each other's addresses from HELLOs that nobody
vouches for, so a new one waits, and nothing is sent to it. Invariants: a token goes only to an address that an admin or
the configuration gave (`token_for` is the one place that hands one out); a group whose addresses are https is never
asked at an http one; an address is scheme, host and port, never a path. A group without any token has nothing to give
away: there the first address that is named for a member is used at once, and any other one waits too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel
from sqlalchemy import delete, select, update

from app.console.errors import Conflict, Invalid, NotFound
from app.db.engine import Sessions, put_row
from app.db.models import Cluster, ClusterAddress
from app.security.sealed import Seal, SealError
from app.times import rfc3339, utc_now
from node.protocol.peers import check_host

log = logging.getLogger(__name__)
Origin = tuple[str, str, int]
CONFIGURATION: Final = "the configuration"
PORTS: Final = {"http": 80, "https": 443}
Shown = Literal["own", "console", "none", "unreadable"]
WAITING_MAX: Final = 32  # per group: a member that names ever new addresses fills no memory


def normal_control_url(text: str) -> str:
    """`http://host:port` without a path; Invalid otherwise."""
    url = text.strip().rstrip("/").removesuffix("/api/v1")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
        check_host(parts.hostname or "")
    except ValueError as error:
        raise Invalid(f"{text!r}: {error}") from None
    more = parts.path or parts.query or parts.fragment or "@" in parts.netloc
    if parts.scheme not in PORTS or not parts.hostname or more:
        raise Invalid(f"{text!r} is not the address of a control plane, such as http://127.0.0.1:8431")
    # In ASCII, as it is asked: letters beyond it are many spellings of one name, of digits and of dots as well.
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
    return f"{parts.scheme}://{host}" + (f":{port}" if port else "")


def origin_of(url: str) -> Origin:
    """Scheme, host and port of a URL that `normal_control_url` gave."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or PORTS.get(parts.scheme, 0)


@dataclass(frozen=True, slots=True)
class Approval:
    url: str
    by: str | None  # None: first use
    at: datetime


@dataclass(frozen=True, slots=True)
class Waiting:
    url: str
    node_id: str
    named_by: str
    since: datetime


@dataclass(slots=True)
class Pinned:
    """One group's addresses. `sealed`: it has a token of its own, whether or not it could be opened."""

    approved: dict[Origin, Approval] = field(default_factory=dict)
    waiting: dict[Origin, Waiting] = field(default_factory=dict)
    sealed: bool = False
    token: str | None = None


class AddressView(BaseModel):
    """`approved` is asked with the token; `first_use` without one, as long as the group has none; `waiting` was named
    by a member and is not asked."""

    control_url: str
    state: Literal["approved", "first_use", "waiting"]
    since: str
    node_id: str | None = None  # who is asked there, or for whom it was named
    named_by: str | None = None
    approved_by: str | None = None
    in_use: bool = False


class AddressesView(BaseModel):
    """`token`: whose is shown there: the group's `own`, the one the `console` was started with, `none`; or
    `unreadable`: the group's own, which this console's key does not open."""

    items: list[AddressView]
    next: None = None
    token: Shown


class Addresses:
    """See the module's docstring. Approvals and sealed tokens are in the database, all else in memory."""

    def __init__(self, sessions: Sessions, seal: Seal, console_token: str | None, seeds: Iterable[str]) -> None:
        self.sessions = sessions
        self.seal = seal
        self.console_token = console_token
        self.seeds = {origin_of(url) for url in seeds}
        self.groups: dict[str, Pinned] = {}

    def use_token(self, token: str) -> None:
        """In place of the one that the console was started with."""
        self.console_token = token

    async def load(self) -> None:
        async with self.sessions() as db:
            rows = list(await db.scalars(select(ClusterAddress)))
            sealed = list(await db.execute(select(Cluster.id, Cluster.node_token_sealed)))
        for row in rows:
            approval = Approval(row.control_url, row.approved_by, row.approved_at)
            self.of(row.cluster_id).approved[origin_of(row.control_url)] = approval
        for cluster_id, token in sealed:
            if token is not None:
                self.open_token(cluster_id, token)

    def open_token(self, cluster_id: str, sealed: bytes) -> None:
        group = self.of(cluster_id)
        group.sealed = True
        try:
            group.token = self.seal.open(sealed, purpose_of(cluster_id))
        except SealError as error:
            log.error("the token for the control planes of %s cannot be opened: %s", cluster_id, error)

    def of(self, cluster_id: str) -> Pinned:
        return self.groups.setdefault(cluster_id, Pinned())

    # --- what is asked for with every request ---

    def has_token(self, cluster_id: str) -> bool:
        return self.of(cluster_id).sealed or self.console_token is not None

    def usable(self, cluster_id: str, url: str) -> bool:
        """Whether this address may be asked."""
        origin = origin_of(url)
        approval = self.of(cluster_id).approved.get(origin)
        if origin in self.seeds:
            return True
        return approval is not None and (approval.by is not None or not self.has_token(cluster_id))

    def token_for(self, url: str) -> str | None:
        """The token of the group for which somebody approved this address; None for any other address."""
        origin = origin_of(url)
        for group in self.groups.values():
            approval = group.approved.get(origin)
            if approval is not None and approval.by is not None:
                return group.token if group.sealed else self.console_token
        return self.console_token if origin in self.seeds else None

    # --- what members name ---

    def named(self, cluster_id: str, node_id: str, url: str, by: str, *, first: bool) -> bool:
        """A member named an address; True where it may be asked. `first`: none was known of that node."""
        if self.usable(cluster_id, url):
            return True
        group, origin = self.of(cluster_id), origin_of(url)
        if self.steps_down(cluster_id, url):
            return False
        if first and not self.has_token(cluster_id):
            group.approved[origin] = Approval(url, None, utc_now())
            return True
        if origin not in group.waiting and len(group.waiting) < WAITING_MAX:
            group.waiting[origin] = Waiting(url, node_id, by, utc_now())
        return False

    def steps_down(self, cluster_id: str, url: str) -> bool:
        """From https to http: never."""
        known = self.of(cluster_id).approved
        return not url.startswith("https:") and any(scheme == "https" for scheme, _, _ in known)

    def waits_for(self, cluster_id: str, node_id: str) -> str | None:
        found = (one.url for one in self.of(cluster_id).waiting.values() if one.node_id == node_id)
        return next(found, None)

    # --- what admins do ---

    async def approve(self, cluster_id: str, url: str, by: str) -> Waiting | None:
        """Pins an address; answers with what waited. Raises Conflict."""
        if self.steps_down(cluster_id, url):
            raise Conflict(
                f"This group's control planes are asked over https; {url} would show what is sent to them.",
                title="Not from https to http", action="Withdraw the https addresses first, if it is meant.",
            )  # fmt: skip
        group, origin = self.of(cluster_id), origin_of(url)
        if (known := group.approved.get(origin)) is None or known.by is None:
            approval = Approval(url, by, utc_now())
            row = ClusterAddress(cluster_id=cluster_id, control_url=url, approved_by=by, approved_at=approval.at)
            await put_row(self.sessions, row)
            group.approved[origin] = approval
        return group.waiting.pop(origin, None)

    async def withdraw(self, cluster_id: str, url: str) -> None:
        """An address is not asked any more; one that waited is forgotten until it is named again.

        Raises Conflict, NotFound.
        """
        group, origin = self.of(cluster_id), origin_of(url)
        if origin in self.seeds:
            raise Conflict(f"{url} is named in the console's configuration; take it out there.")
        if origin not in group.approved and origin not in group.waiting:
            raise NotFound(f"{url} is no address of this group.", title="Unknown address")
        mine = (ClusterAddress.cluster_id == cluster_id) & (ClusterAddress.control_url == url)
        async with self.sessions() as db, db.begin():
            await db.execute(delete(ClusterAddress).where(mine))
        group.approved.pop(origin, None)
        group.waiting.pop(origin, None)

    async def set_token(self, cluster_id: str, token: str | None) -> None:
        """This group's own token; None: the console's configured one, where there is one."""
        sealed = None if token is None else self.seal.seal(token, purpose_of(cluster_id))
        async with self.sessions() as db, db.begin():
            await db.execute(update(Cluster).where(Cluster.id == cluster_id).values(node_token_sealed=sealed))
        group = self.of(cluster_id)
        group.sealed, group.token = token is not None, token

    def forget(self, cluster_id: str) -> None:
        self.groups.pop(cluster_id, None)

    def listing(self, cluster_id: str) -> AddressesView:
        group = self.of(cluster_id)
        items = [
            AddressView(
                control_url=one.url, state="first_use" if one.by is None else "approved", since=rfc3339(one.at),
                approved_by=one.by,
            )
            for one in group.approved.values()
        ]  # fmt: skip
        items += [
            AddressView(
                control_url=one.url, state="waiting", since=rfc3339(one.since), named_by=one.named_by,
                node_id=one.node_id,
            )
            for one in group.waiting.values()
        ]  # fmt: skip
        token: Shown = "own" if group.sealed else "console" if self.console_token is not None else "none"
        if group.sealed and group.token is None:
            token = "unreadable"
        return AddressesView(items=items, token=token)


def purpose_of(cluster_id: str) -> str:
    return f"token for the control planes of {cluster_id}"
