"""The access policy: one table of who may call what; the first match wins, what is not listed is closed.

Invariants: a path that no rule names needs the right `view` to be read and `admin` to be changed. A right is asked for
on the group that the path names (`group_of`), and where it names none everywhere. `somewhere`: a call that is about one
group, or shows what its caller sees; the gate asks for the right on any group, the handler on the group itself. A rule
with `trail` is recorded even though it only reads (bodies are customers' data); every change is recorded without being
marked here. `secret_path` keeps a path that carries a secret out of the trail. `own_trail`: ways in, where nobody is
known yet; their handlers write the trail's row, a success in the transaction of its session, failures summed up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.security.roles import Right

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
READ = "GET"
CHANGE = "POST PUT PATCH DELETE"


@dataclass(frozen=True, slots=True)
class Rule:
    methods: frozenset[str]
    path: re.Pattern[str]
    right: Right | None  # None = public
    trail: str | None = None
    secret_path: str | None = None
    own_trail: bool = False
    somewhere: bool = False

    def matches(self, method: str, path: str) -> bool:
        return method in self.methods and self.path.fullmatch(path) is not None


def rule(
    methods: str, path: str, right: Right | None, trail: str | None = None, secret_path: str | None = None,
    own_trail: bool = False, somewhere: bool = False,
) -> Rule:  # fmt: skip
    return Rule(frozenset(methods.split()), re.compile(path), right, trail, secret_path, own_trail, somewhere)


CLUSTER = r"/api/v1/clusters/[^/]+"
PAGE = r"/clusters/[^/]+"

TABLE: tuple[Rule, ...] = (
    # Before anybody is known.
    rule(READ, r"/static/.*", None),
    rule(READ, r"/healthz|/readyz|/api/v1|/favicon\.ico", None),
    rule("GET POST", r"/login", None, own_trail=True),
    rule("GET POST", r"/login/link/[^/]+", None, secret_path="/login/link/…", own_trail=True),
    rule("GET POST", r"/login/second-factor", None, own_trail=True),
    rule("GET", r"/login/oidc(/callback)?", None, secret_path="/login/oidc/…", own_trail=True),
    rule("POST", r"/login/oidc/backchannel-logout", None, own_trail=True),
    # One's own ways in.
    rule("POST", r"/logout", Right.OWN),
    rule("GET POST PUT", r"/api/v1/me(/.*)?", Right.OWN),
    rule("GET POST DELETE", r"/api/v1/(tokens|sessions)(/[^/]+)?", Right.OWN),
    rule("GET POST", r"/account(/.*)?", Right.OWN),
    # Bodies.
    rule(READ, CLUSTER + r"/entries(/[^/]+)?", Right.READ_BODIES, trail="read bodies"),
    rule(READ, CLUSTER + r"/truncations/[^/]+/[^/]+/entries", Right.READ_BODIES, trail="read truncated bodies"),
    rule(READ, CLUSTER + r"/segments/.+", Right.READ_BODIES, trail="read segment"),
    rule(READ, PAGE + r"/(log|entries)(/.*)?", Right.READ_BODIES, trail="read bodies"),
    rule(READ, PAGE + r"/truncations/[^/]+/[^/]+/entries", Right.READ_BODIES, trail="read truncated bodies"),
    rule(READ, PAGE + r"/messages/find", Right.READ_BODIES, trail="read messages"),
    # Operator actions.
    rule("POST", PAGE + r"/messages/(topics|groups)/[^/]+/(send|reset)", Right.OPERATE),
    rule("POST", CLUSTER + r"/leadership-transfer", Right.OPERATE),
    rule("POST", CLUSTER + r"/entries", Right.OPERATE),
    rule("POST PUT DELETE", CLUSTER + r"/members(/.*)?", Right.OPERATE),
    rule("POST", PAGE + r"/members/change", Right.OPERATE),
    rule("POST", CLUSTER + r"/(scrub|repairs|snapshots)", Right.OPERATE),
    rule("POST", CLUSTER + r"/nodes/[^/]+/repair", Right.OPERATE),
    rule("POST", PAGE + r"/nodes/[^/]+/repair", Right.OPERATE),
    rule("POST", CLUSTER + r"/nodes/[^/]+/restart", Right.OPERATE),
    rule("POST", PAGE + r"/nodes/[^/]+/restart", Right.OPERATE),
    rule(CHANGE, r"/api/v1/operations/[^/]+", Right.OPERATE, somewhere=True),
    rule(CHANGE, r"/api/v1/(audits|schedules)(/.*)?", Right.OPERATE, somewhere=True),
    rule("POST", PAGE + r"/leadership(/.*)?", Right.OPERATE),
    rule("POST", PAGE + r"/audits(/.*)?", Right.OPERATE),
    rule("POST", r"/demo(/.*)?|/api/v1/demo(/.*)?", Right.OPERATE),
    # Alerts: where messages go is the admins' affair, what is silent the operators'.
    rule(CHANGE, r"/api/v1/alerts/routes(/.*)?|/notifications/routes(/.*)?", Right.ADMIN),
    rule(CHANGE, r"/api/v1/alerts/.*|/notifications/.*", Right.OPERATE, somewhere=True),
    # People and the trail.
    rule("GET " + CHANGE, r"/api/v1/(users|admin-trail)(/.*)?", Right.ADMIN),
    rule("GET POST", r"/(users|admin-trail|settings)(/.*)?", Right.ADMIN),
    # Lists and streams of what somebody sees; the documentation.
    rule(READ, r"/|/api/v1/(clusters|problems|events)", Right.OWN),
    rule(READ, r"/api/v1/(operations|audits|schedules)(/.*)?|/audits|/operations/[^/]+", Right.OWN),
    rule(READ, r"/api/v1/alerts(/windows|/messages)?|/notifications(/problems/.+)?", Right.OWN),
    rule(READ, r"/live/.+", Right.OWN),
    rule(READ, r"/docs(/.*)?|/api/v1/openapi\.json", Right.OWN),
    # Everything else.
    rule("GET", r".*", Right.VIEW),
)
CLOSED = Rule(frozenset(), re.compile(""), Right.ADMIN)
# What is open to whoever has to set up a second factor first.
ENROLMENT = re.compile(r"/account/second-factor(/.*)?|/api/v1/me(/second-factor(/.*)?)?|/logout")
ENROLMENT_PAGE = "/account/second-factor"

GROUP = re.compile(r"/(?:api/v1/)?clusters/([^/]+)(?:/.*)?")
NO_GROUP = "/clusters/new"


def group_of(path: str) -> str | None:
    """The id of the group that a path is about."""
    named = GROUP.fullmatch(path) if path != NO_GROUP else None
    return named[1] if named is not None else None


def find(method: str, path: str) -> Rule:
    """The rule for a request; HEAD and OPTIONS count as GET."""
    asked = "GET" if method in SAFE_METHODS else method
    return next((one for one in TABLE if one.matches(asked, path)), CLOSED)
