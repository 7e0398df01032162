"""`python -m tests.oidc_server`: Canaille, a real OpenID provider, on a free loopback port, with everything in memory.

It prints one JSON line: where it is, and the client's id and secret for the redirect address that was given. Who sits
at the browser is what the header `x-user` says (in place of its login form), and the groups they are in what `x-groups`
does; all else is Canaille's own: consent of a trusted client, codes once and bound to PKCE, signed tokens, logout.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
from typing import Any

os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"  # it serves plain http, to this machine alone

from canaille import create_app
from canaille.app import models
from canaille.app.session import UserSession
from canaille.backends import Backend
from canaille.backends.memory.backend import MemoryBackend, listify
from flask import g, request
from joserfc.jwk import RSAKey
from werkzeug.serving import make_server

CLIENT_ID, CLIENT_SECRET = "quorumscope", "a-secret-of-a-test-s-console"


def query(self: MemoryBackend, model: Any, *_: Any, **wanted: Any) -> list[Any]:
    """What has all that is wanted, as its databases find it; kept in memory, it finds what has any of it: with two
    codes of one client it would take either."""
    found = set(self.index(model))
    for attribute, values in wanted.items():
        known = self.attribute_index(model, attribute)
        found &= {one for value in model.serialize(listify(values)) for one in known.get(value, ())}
    instances = [model(**self.index(model)[one]) for one in found]
    for instance in instances:
        instance._cache = {}
    return instances


MemoryBackend.do_query = query


def configuration(port: int) -> dict[str, Any]:
    return {
        "TESTING": True,
        "SECRET_KEY": "of a test",
        "WTF_CSRF_ENABLED": False,
        "PREFERRED_URL_SCHEME": "http",
        "SERVER_NAME": f"127.0.0.1:{port}",
        "CANAILLE": {
            "DATABASE": "memory",
            "JAVASCRIPT": False,
            "ACL": {"DEFAULT": {"PERMISSIONS": ["use_oidc"]}},
            "LOGGING": {"version": 1, "disable_existing_loggers": True},
        },
        "CANAILLE_OIDC": {"ACTIVE_JWKS": [RSAKey.generate_key(2048, auto_kid=True).as_dict(private=True)]},
    }


def person(name: str, groups: list[str]) -> Any:
    user = Backend.instance.get(models.User, user_name=name)
    if user is None:
        user = models.User(user_name=name, formatted_name=name, family_name=name, emails=[f"{name}@localhost"])
        user.display_name = name
        Backend.instance.save(user)
    for known in Backend.instance.query(models.Group):
        known.members = [one for one in known.members if one != user]
        Backend.instance.save(known) if known.members else Backend.instance.delete(known)
    for group in groups:
        found = Backend.instance.get(models.Group, display_name=group)
        found = found or models.Group(display_name=group, members=[])
        found.members = [*found.members, user]
        Backend.instance.save(found)
    Backend.instance.reload(user)
    return user


def main() -> None:
    redirect_uri, logged_out_uri = sys.argv[1:]
    server = make_server("127.0.0.1", 0, lambda *_: [], threaded=False)
    port = server.server_port
    app = create_app(config=configuration(port))
    server.app = app
    with app.app_context():
        client = models.Client(
            client_id=CLIENT_ID, client_secret=CLIENT_SECRET, client_name="the console",
            client_uri=redirect_uri.rpartition("/login/")[0], redirect_uris=[redirect_uri],
            post_logout_redirect_uris=[logged_out_uri], grant_types=["authorization_code"], response_types=["code"],
            scope=["openid", "profile", "groups"], token_endpoint_auth_method="client_secret_basic",
            client_id_issued_at=datetime.datetime.now(datetime.UTC),
        )  # fmt: skip
        Backend.instance.save(client)
        client.audience = [client]
        Backend.instance.save(client)

    @app.before_request
    def sit_down() -> None:
        name = request.headers.get("x-user")
        if name:
            groups = [one for one in request.headers.get("x-groups", "").split(",") if one]
            now = datetime.datetime.now(datetime.UTC)
            g.session = UserSession(user=person(name, groups), last_login_datetime=now)

    print(json.dumps({"issuer": f"http://127.0.0.1:{port}", "id": CLIENT_ID, "secret": CLIENT_SECRET}), flush=True)
    threading.Thread(target=end_with_parent, daemon=True).start()
    server.serve_forever()


def end_with_parent() -> None:
    """Whoever started it holds the other end of stdin."""
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
