"""Calls of a member's control plane, and what its answer, or none, means for a command.

Invariant: of a change that left and got no answer nobody says that its node was not reached: it may have been made.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from app.answer_time import AnswerTime
from app.commands.endings import ClassicBroker, Exit, Failure, NotThere, Silence, Unheard
from app.refusals import reason_in
from app.why_unreached import authority_hint
from node.protocol.peers import check_host
from node.views.reading import Unreadable, read
from node.views.state import StateView

HTTP_TIMEOUT_S: Final = 5.0
CHANGE_TIMEOUT_S: Final = 15.0  # an engine that is late has 5 s before it is refused, and a look at a change 5 s more
SILENT_AFTER_S: Final = 2.0  # who has said nothing for so long is called silent; one that is busy takes less
CONTROL_ANSWER_BYTES_MAX: Final = 16 << 20
MAY_BE_DONE: Final = frozenset({500, 502, 504})  # of a change: it failed in the midst of it, or behind a proxy
CONTROL_ANSWER_S: Final = 60.0  # for all of an answer, beside the time for its first bytes


def control_state(
    url: str, group: str | None, token: str | None, tls: ssl.SSLContext | None = None, within_s: float = HTTP_TIMEOUT_S
) -> StateView:
    """The state that a control plane gives. Raises Failure."""
    try:
        asked = f"?{urlencode({'group': group})}" if group else ""
        return read(StateView, control_call("GET", url, f"state{asked}", token, tls=tls, within_s=within_s))
    except NotThere:
        if control_call("GET", url, "", token, tls=tls).get("kind") == "classic":
            raise ClassicBroker(url) from None
        raise
    except Unreadable as error:
        raise Failure(Exit.UNREACHABLE, f"{url}: its state cannot be read: {error}") from error


def control_call(
    method: str, url: str, resource: str, token: str | None, body: dict[str, Any] | None = None,
    *, tls: ssl.SSLContext | None = None, within_s: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """One call of a control plane's API; a body makes it a change; `tls`: None for this machine's authorities.

    Raises Failure.
    """
    status, content = control_answer(method, url, resource, token, body, tls=tls, within_s=within_s)
    if status >= 400:
        # It was reached, and said no: what was asked does not fit how things stand, or another group is asked for (400,
        # DLedger's UNKNOWN_GROUP). 404 without it: it is another kind of node.
        denied = content.get("code") == 400
        code = Exit.FINDING if status in (409, 410, 412, 421, 422) else Exit.UNREACHABLE
        kind = NotThere if status == 404 and not denied else Failure
        raise kind(Exit.DENIED if denied else code, f"{url} answered {status}: {content['detail']}")
    return content


def control_answer(
    method: str, url: str, resource: str, token: str | None, body: dict[str, Any] | None = None,
    *, tls: ssl.SSLContext | None = None, within_s: float | None = None,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """The same, but that a problem is an answer as well, unless the caller is not allowed to, or what was to be changed
    may have been. Raises Failure."""
    import httpx2

    base = (url if "://" in url else f"http://{url}").rstrip("/").removesuffix("/api/v1")
    try:  # resolvers refuse what is no host name with errors of all kinds
        parts = urlsplit(base)
        check_host(parts.hostname or "")
        if parts.scheme not in ("http", "https") or parts.port == 0:
            raise ValueError("that is not the address of a control plane, such as http://127.0.0.1:8431")
    except ValueError as error:
        raise Failure(Exit.USAGE, f"--node {url}: {error}") from error
    changes = method != "GET" and not (body or {}).get("dry_run")
    headers = {"accept": "application/json", "accept-encoding": "identity"}
    headers |= {"authorization": f"Bearer {token}"} if token else {}
    address = f"{base}/api/v1/{resource}".rstrip("/")
    if within_s is None:
        within_s = HTTP_TIMEOUT_S if method == "GET" else CHANGE_TIMEOUT_S
    timeout = httpx2.Timeout(min(HTTP_TIMEOUT_S, within_s), read=within_s)
    try:
        with (
            AnswerTime(CONTROL_ANSWER_S + within_s) as time_left,
            httpx2.Client(timeout=timeout, trust_env=False, verify=tls or True) as client,
            client.stream(method, address, json=body, headers=headers, extensions={"trace": time_left.see}) as answer,
        ):
            status, raw = answer.status_code, bounded(base, answer.iter_raw(), CONTROL_ANSWER_BYTES_MAX)
    except httpx2.InvalidURL as error:
        raise Failure(Exit.USAGE, f"--node {url}: {error}") from error
    except (httpx2.HTTPError, TimeoutError) as error:
        raise unheard(base, error, changes=changes) from error
    content: Any = {} if status == 204 else None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(raw)
    if changes and status in MAY_BE_DONE:
        said = content if isinstance(content, dict) else {}
        why = reason_in(said, "no word of a control plane's")
        raise Failure(Exit.UNKNOWN_OUTCOME, f"outcome unknown: {base} answered {status}: {why}")
    if not isinstance(content, dict):
        raise Failure(Exit.UNREACHABLE, f"{base} answered {status} without JSON: that is no control plane")
    if status in (401, 403):
        hint = " It is shown with --token-file FILE, or in $QUORUMSCOPE_TOKEN." if status == 401 and not token else ""
        raise Failure(Exit.DENIED, f"{base} denies it: {reason_in(content, status)}{hint}")
    if status >= 400:
        content["detail"] = reason_in(content, f"status {status}")
    return status, content


def bounded(base: str, pieces: Iterable[bytes], bytes_max: int) -> bytes:
    """An answer as it came over the wire. Raises Failure where it is too long."""
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > bytes_max:
            raise Failure(Exit.UNREACHABLE, f"{base} answered more than {bytes_max >> 20} MiB")
    return bytes(body)


def unheard(base: str, error: Exception, *, changes: bool) -> Unheard:
    """What to say of a call without an answer; one that changes something may have been done all the same."""
    import httpx2

    why = why_unheard(error)
    if not changes or isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        return Unheard(Exit.UNREACHABLE, f"{base} cannot be reached: {why}", silence_of(error))
    text = f"outcome unknown: {base} gave no answer ({why}): look whether it was done before it is asked again"
    return Unheard(Exit.UNKNOWN_OUTCOME, text, silence_of(error))


def silence_of(error: Exception) -> Silence:
    import httpx2

    if isinstance(error, (httpx2.TimeoutException, TimeoutError)):
        return Silence.NO_WORD
    return Silence.NOTHING_LISTENS if "Connection refused" in str(error) else Silence.BROKEN


def why_unheard(error: Exception) -> str:
    """What an operator can act on, where the library says it in words of its own."""
    why = f"{error or type(error).__name__}"
    if silence_of(error) is Silence.NOTHING_LISTENS:
        return f"{why}: nothing listens there; start that node, or name another address"
    if "WRONG_VERSION_NUMBER" in why or "record layer failure" in why:
        return "it speaks no TLS there: write http://"
    if "disconnected without sending a response" in why:
        return f"{why} (where it speaks TLS: write https://)"
    return why + authority_hint(why)
